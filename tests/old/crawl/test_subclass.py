"""Subclasses as people write them of Scrapy's filter: they work, or are refused with a clear message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request, Spider
from scrapy.exceptions import ScrapyDeprecationWarning
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter, UnseenLinks
from scrapy_bloom.old.errors import BloomError, SettingsError
from tests.old.support.schedulers import opened
from tests.old.support.scheduling import finish, open_scheduler, stat

if TYPE_CHECKING:
    from pathlib import Path


class LinkSpider(UnseenLinks, Spider):
    name = "links"


def without_query(request: Request) -> Request:
    return request.replace(url=request.url.partition("?")[0])


class ByPath(BloomDupeFilter):
    """Merges what differs in its query only."""

    def fingerprint(self, request: Request) -> bytes:
        return super().fingerprint(without_query(request))


class LegacyByPath(BloomDupeFilter):
    """The same in the way that Scrapy has deprecated."""

    def request_fingerprint(self, request: Request) -> str:
        return super().request_fingerprint(without_query(request))


class RewritingByPath(BloomDupeFilter):
    """The same by a request_seen() that rewrites the request."""

    def request_seen(self, request: Request) -> bool:
        return super().request_seen(without_query(request))


class Coroutine(BloomDupeFilter):
    async def request_seen(self, request: Request) -> bool:  # type: ignore[override]  # that is the mistake
        return False


def path_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@pytest.mark.parametrize("cls", [ByPath, LegacyByPath, RewritingByPath])
def test_each_way_of_merging_pages_works(cls: type) -> None:
    """Two requests that differ in their query are one, however the subclass says so."""
    scheduler = open_scheduler(path_of(cls))
    assert scheduler.enqueue_request(Request("http://example.com/a?1"))
    assert not scheduler.enqueue_request(Request("http://example.com/a?2"))
    assert scheduler.enqueue_request(Request("http://example.com/b"))
    finish(scheduler)
    assert stat(scheduler, "bloom/urls") == 2


def test_an_overridden_request_fingerprint_is_used_with_a_warning() -> None:
    """As with Scrapy's own filter, which has deprecated it."""
    with pytest.warns(ScrapyDeprecationWarning, match=r"LegacyByPath overrides request_fingerprint\(\)"):
        LegacyByPath.from_crawler(get_crawler(Spider))


def test_other_fingerprints_are_another_key_space(tmp_path: Path) -> None:
    """A job begun with one kind is refused under the other, in which every URL would look new."""
    finish(open_scheduler(JOBDIR=str(tmp_path)))
    with pytest.raises(BloomError, match=r"fingerprinter was 'scrapy', is now '.*\.ByPath'"):
        open_scheduler(path_of(ByPath), JOBDIR=str(tmp_path))


def test_an_async_request_seen_is_refused() -> None:
    """A coroutine is true, so that every request would be dropped."""
    with pytest.raises(SettingsError, match=r"Coroutine, whose request_seen\(\) is async def"):
        open_scheduler(path_of(Coroutine))


def test_links_are_asked_about_by_the_fingerprint_that_is_overridden() -> None:
    """unseen_links() drops what the scheduler would drop."""
    spider, dupefilter = with_spider(ByPath)
    assert not dupefilter.request_seen(Request("http://example.com/a?1"))
    links = ["http://example.com/a?2", "http://example.com/b?1"]
    assert spider.unseen_links(links) == links[1:]
    dupefilter.close("finished")


def test_links_pass_where_only_request_seen_knows(caplog: pytest.LogCaptureFixture) -> None:
    """It could call a link new that the chain knows; one WARNING says so."""
    spider, dupefilter = with_spider(RewritingByPath)
    assert not dupefilter.request_seen(Request("http://example.com/a"))
    for _ in range(2):
        assert spider.unseen_links(["http://example.com/a"]) == ["http://example.com/a"]
    (record,) = caplog.records
    assert record.getMessage().startswith("RewritingByPath overrides request_seen()")
    dupefilter.close("finished")


@pytest.mark.parametrize("cls", [ByPath, RewritingByPath])
def test_what_cannot_be_serialized_is_kept_out_of_the_files(cls: type, tmp_path: Path) -> None:
    """Its fingerprint, too, is the one that request_seen() used: a later run fetches the page again."""
    settings = {"DUPEFILTER_CLASS": path_of(cls)}
    unserializable = Request("http://example.com/a?1", meta={"what": lambda: None})
    with opened(tmp_path, **settings) as calls:
        assert calls.push(unserializable) == [True]
        assert calls.push(Request("http://example.com/a?2")) == [False]
    with opened(tmp_path, **settings) as calls:
        assert calls.push(Request("http://example.com/a?2")) == [True]


class Moody:
    """A fingerprinter that fails at every second call."""

    def __init__(self) -> None:
        self.calls = 0

    def fingerprint(self, request: Request) -> bytes:
        self.calls += 1
        if self.calls % 2 == 0:
            raise RuntimeError("moody")
        return request.url.encode()


def test_a_fingerprinter_that_fails_late_loses_no_request_that_cannot_be_serialized(tmp_path: Path) -> None:
    """never_release() does not raise, and what request_seen() recorded stays out of the files all the same."""
    settings = {"DUPEFILTER_CLASS": path_of(BloomDupeFilter), "REQUEST_FINGERPRINTER_CLASS": Moody}
    request = Request("http://example.com/a", meta={"what": lambda: None})
    with opened(tmp_path, **settings) as calls:
        assert calls.push(request) == [True]
        assert calls.start() is request
    with opened(tmp_path, **settings) as calls:
        assert calls.push(request) == [True]


def test_what_failed_is_taken_back_by_the_fingerprint_that_is_overridden() -> None:
    """BLOOM_FORGET_FAILED finds what request_seen() recorded."""
    _, dupefilter = with_spider(ByPath)
    assert not dupefilter.request_seen(Request("http://example.com/a?1"))
    dupefilter.forget(Request("http://example.com/a?3"))
    assert not dupefilter.request_seen(Request("http://example.com/a?2"))
    dupefilter.close("finished")


def test_taking_back_under_an_overridden_request_seen_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """It may look for another fingerprint than the one recorded: then a page that failed stays seen."""
    RewritingByPath.from_crawler(get_crawler(Spider, {"BLOOM_FORGET_FAILED": True}))
    (message,) = caplog.messages
    assert message.startswith("BLOOM_FORGET_FAILED may not find")


def with_spider(cls: type[BloomDupeFilter]) -> tuple[LinkSpider, Any]:
    crawler = get_crawler(LinkSpider)
    spider = LinkSpider.from_crawler(crawler)
    dupefilter = cls.from_crawler(crawler)
    dupefilter.open()
    return spider, dupefilter
