"""The limits where they are asked: by the scheduler, by unseen_links, before the chain."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy import Request, Spider
from scrapy.link import Link
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter, UnseenLinks
from tests.old.support.scheduling import finish, open_scheduler, stat

if TYPE_CHECKING:
    import pytest

DEEP = "http://a.example/" + "/".join(f"s{i}" for i in range(21))
LOOP = "http://a.example/news/news/news/news"
LIMITS = ("depth", "length", "tandem", "params")


def test_a_trapped_request_is_filtered_and_takes_no_room(caplog: pytest.LogCaptureFixture) -> None:
    """A request beyond a limit is dropped, counted under that limit and logged with its URL and the reason. It is no
    duplicate, and not in the filter."""
    scheduler = open_scheduler(BLOOM_LOOP_GUARD=True)
    with caplog.at_level(logging.INFO):
        assert not scheduler.enqueue_request(Request(DEEP))
        assert not scheduler.enqueue_request(Request(LOOP))
        assert not scheduler.enqueue_request(Request(LOOP + "/?a=1"))
        assert scheduler.enqueue_request(Request("http://a.example/news"))
    lines = [record.getMessage() for record in caplog.records if "Loop guard" in record.getMessage()]
    assert len(lines) == 2, "the first of each kind"
    assert lines[0].startswith(f"Loop guard, depth: {DEEP} (21 path segments, more than 20). ")
    assert lines[1].startswith(f"Loop guard, tandem: {LOOP} ('news' 4 times in a row in its path). ")
    assert [stat(scheduler, f"bloom/loop/{name}") for name in LIMITS] == [1, None, 2, None]
    assert stat(scheduler, "dupefilter/filtered") is None
    finish(scheduler)
    assert stat(scheduler, "bloom/urls") == 1


def test_without_the_guard_nothing_is_held_back() -> None:
    """Without BLOOM_LOOP_GUARD the limits are off, and requests are filtered as by Scrapy."""
    scheduler = open_scheduler()
    assert scheduler.enqueue_request(Request(DEEP))
    assert scheduler.enqueue_request(Request(LOOP))
    finish(scheduler)


def test_dont_filter_is_not_held_back() -> None:
    """Requests with dont_filter, such as retries, pass the limits."""
    scheduler = open_scheduler(BLOOM_LOOP_GUARD=True)
    assert scheduler.enqueue_request(Request(LOOP, dont_filter=True))
    finish(scheduler)


def test_links_are_held_back_before_they_become_requests() -> None:
    """unseen_links drops what a limit objects to, and counts it as the scheduler would."""

    class SiteSpider(UnseenLinks, Spider):
        name = "site"

    crawler = get_crawler(SiteSpider, {"BLOOM_LOOP_GUARD": {"depth": 30}})
    dupefilter = build_from_crawler(BloomDupeFilter, crawler)
    dupefilter.open()
    spider = SiteSpider()
    spider.crawler = crawler
    links = [Link(url) for url in (DEEP, LOOP, "http://a.example/news")]
    assert spider.unseen_links(links) == [links[0], links[2]]
    assert crawler.stats is not None
    assert crawler.stats.get_value("bloom/loop/tandem") == 1
    assert crawler.stats.get_value("dupefilter/filtered") is None
    dupefilter.close("finished")


def test_a_megabyte_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The log line about a URL of a megabyte shows its beginning only."""
    scheduler = open_scheduler(BLOOM_LOOP_GUARD=True)
    with caplog.at_level(logging.INFO):
        scheduler.enqueue_request(Request("http://a.example/" + "x" * 1_000_000))
    assert "1,000,017 characters, more than 2,083" in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records if "Loop guard" in record.getMessage()) < 1000
    finish(scheduler)
