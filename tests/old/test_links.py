"""UnseenLinks: the same answers as the scheduler, only earlier."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.link import Link
from scrapy.selector import Selector
from scrapy.utils.request import fingerprint

from tests.old.support.crawling import crawl
from tests.old.support.localsite import LocalSite
from tests.old.support.scheduling import SCRAPYS, AskingSpider, ByPath, finish, open_scheduler, stat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.core.scheduler import Scheduler


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = open_scheduler(spider=AskingSpider)
    yield scheduler
    finish(scheduler)


def ask(scheduler: Scheduler, links: list[Any]) -> list[Any]:
    spider = scheduler.spider
    assert isinstance(spider, AskingSpider)
    return spider.unseen_links(links)


def test_links_already_requested_are_dropped_and_counted(scheduler: Scheduler) -> None:
    """Links and strings alike, in any spelling of the URL; the rest keeps its order."""
    scheduler.enqueue_request(Request("http://example.com/?a=1&b=2"))
    links = [
        Link("http://example.com/2"),
        Link("http://example.com/?b=2&a=1", fragment="x"),
        Link("http://example.com/1"),
    ]
    assert ask(scheduler, links) == [links[0], links[2]]
    assert ask(scheduler, ["http://example.com?b=2&a=1#top", "http://example.com/"]) == ["http://example.com/"]
    assert stat(scheduler, "dupefilter/filtered") == stat(scheduler, "bloom/links_dropped") == 2


def test_asking_records_nothing(scheduler: Scheduler) -> None:
    """A link that was asked about is still new when its request comes."""
    url = "http://example.com/"
    assert ask(scheduler, [url, url]) == [url, url]
    assert scheduler.enqueue_request(Request(url))
    assert ask(scheduler, [url]) == []


URLS = st.one_of(
    st.sampled_from(["http://example.com/", "http://example.com", "http://example.com/a%7E?b=2&a=1#f", "mailto:a@b.c"]),
    st.from_regex(r"https?://[a-zA-Z.:@\[\]]{1,8}(/[ -~\u00e4]{0,10})?(#![a-z=&]{0,5})?", fullmatch=True),
    st.text(max_size=12),
)


@given(recorded=st.lists(URLS, max_size=8), asked=st.lists(URLS, max_size=8))
@hypothesis_settings(max_examples=100)
def test_what_is_asked_about_a_link_is_what_would_be_asked_about_its_request(
    recorded: list[str], asked: list[str]
) -> None:
    """Request(url) rewrites some URLs before they are fingerprinted; the answers agree all the same."""
    scheduler = open_scheduler(spider=AskingSpider)

    def request(url: str) -> Request | None:
        try:
            return Request(url)
        except (ValueError, AttributeError):
            return None  # and then the link must pass, so that its request fails where the spider sees it

    for url in recorded:
        if (made := request(url)) is not None:
            scheduler.df.request_seen(made)
    unseen = ask(scheduler, asked)
    for url in set(asked):
        made = request(url)
        expected = made is None or fingerprint(made) not in {
            fingerprint(known) for known in map(request, recorded) if known is not None
        }
        assert (url in unseen) is expected, url
    finish(scheduler)


@pytest.mark.parametrize("settings", [{"dupefilter": SCRAPYS}, {"REQUEST_FINGERPRINTER_CLASS": ByPath}])
def test_where_the_filter_cannot_tell_all_links_pass(settings: dict[str, Any]) -> None:
    """With Scrapy's filter or a custom fingerprinter, the scheduler decides, as ever."""
    scheduler = open_scheduler(spider=AskingSpider, **settings)
    url = "http://example.com/"
    scheduler.enqueue_request(Request(url))
    assert ask(scheduler, [url]) == [url]
    assert stat(scheduler, "bloom/links_dropped") is None
    finish(scheduler)


def test_what_has_no_url_passes_with_a_warning(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    """Relative URLs and selectors, which response.follow_all() takes, cannot be told; the spider's author is, once."""
    scheduler.enqueue_request(Request("http://example.com/a"))
    links = ["a", Selector(text='<a href="/a">a</a>').css("a")[0], "http://example.com/a"]
    assert ask(scheduler, links) == links[:2]
    assert ask(scheduler, links) == links[:2]
    (message,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert message == (
        "unseen_links() was given 'a', whose URL it cannot know, and lets such links pass. Give it the response, too: "
        "self.unseen_links(links, response)."
    )


def test_fingerprints_held_back_for_a_scheduler_count_as_seen(scheduler: Scheduler) -> None:
    """A request that is not durable yet is a duplicate for links as well."""
    scheduler.df.hold_back()  # type: ignore[attr-defined]  # BloomDupeFilter has it
    scheduler.enqueue_request(Request("http://example.com/"))
    assert ask(scheduler, ["http://example.com/"]) == []


def test_with_dupefilter_debug_every_dropped_link_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """DUPEFILTER_DEBUG shows all duplicates, those that never became requests as well."""
    scheduler = open_scheduler(spider=AskingSpider, DUPEFILTER_DEBUG=True)
    scheduler.enqueue_request(Request("http://example.com/"))
    with caplog.at_level(logging.DEBUG, logger="scrapy_bloom"):
        ask(scheduler, ["http://example.com/#a", "http://example.com/new"])
    assert [record.getMessage() for record in caplog.records] == ["Filtered duplicate link: http://example.com/#a"]
    finish(scheduler)


@pytest.mark.parametrize(
    ("usual", "asking"),
    [
        pytest.param("SiteSpider", "AskingSpider", marks=pytest.mark.slow),
        pytest.param("RuleSpider", "AskingRuleSpider", marks=pytest.mark.slow),
        ("RuleSpider", "ExtractorRuleSpider"),
        pytest.param("SiteSpider", "HrefSpider", marks=pytest.mark.slow),
    ],
)
def test_a_crawl_that_asks_first_fetches_the_same_pages(usual: str, asking: str) -> None:
    """In callbacks and in the rules of a CrawlSpider: the same requests reach the site, and as many are filtered."""
    with LocalSite(pages=100, redirects=3) as site:
        without = crawl(site.url(), spider=usual)
        hits = site.all_hits()
        site.forget_hits()
        outcome = crawl(site.url(), spider=asking)
        assert site.all_hits() == hits
        assert site.missing_pages() == []
    assert outcome.stats["dupefilter/filtered"] == without.stats["dupefilter/filtered"]
    assert outcome.stats["bloom/links_dropped"] > 0.8 * outcome.stats["dupefilter/filtered"]
    assert "bloom/links_dropped" not in without.stats
    assert outcome.stats["bloom/urls"] == without.stats["bloom/urls"]
