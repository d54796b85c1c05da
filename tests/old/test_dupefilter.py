"""BloomDupeFilter through the real Scheduler, against Scrapy's own filter."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.dupefilters import BaseDupeFilter
from scrapy.http import FormRequest, JsonRequest
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler

from scrapy_bloom.old.crawl.fingerprints import fingerprints_of
from scrapy_bloom.old.dupefilter import BloomDupeFilter
from scrapy_bloom.old.errors import BloomError, SettingsError
from tests.old.support.scheduling import OURS, SCRAPYS, ByPath, finish, open_scheduler, stat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy.core.scheduler import Scheduler
    from scrapy.crawler import Crawler


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = open_scheduler()
    yield scheduler
    finish(scheduler)


URLS = [
    "http://example.com/",
    "http://example.com",
    "http://example.com/?b=2&a=1",
    "http://example.com/?a=1&b=2",
    "http://example.com/?a=1&b=2#fragment",
    "http://example.com/%7euser",
    "http://example.com/~user",
    "http://EXAMPLE.com/",
    "http://example.com:80/",
    "https://example.com/",
    "http://example.com/a;b?c;d",
    "http://example.com/\u00fc?\u00fc=\u00e4",
    "data:,text",
]


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "url": draw(st.sampled_from(URLS)),
        "method": draw(st.sampled_from(["GET", "POST", "get", "HEAD"])),
        "body": draw(st.sampled_from([b"", b"x", "\u00fc"])),
        "dont_filter": draw(st.sampled_from([False, False, False, True])),
        "meta": draw(st.sampled_from([{}, {"verbatim_url": True}, {"depth": 3}])),
    }


@given(st.lists(requests(), max_size=40))
@hypothesis_settings(max_examples=60)
def test_the_same_requests_are_filtered_as_by_scrapys_own_filter(made: list[dict[str, Any]]) -> None:
    """Methods, bodies, verbatim_url, dont_filter: request by request, the scheduler takes what it took before."""
    ours, theirs = open_scheduler(), open_scheduler(SCRAPYS)
    assert [ours.enqueue_request(Request(**arguments)) for arguments in made] == [
        theirs.enqueue_request(Request(**arguments)) for arguments in made
    ]
    assert stat(ours, "dupefilter/filtered") == stat(theirs, "dupefilter/filtered")
    assert stat(ours, "scheduler/enqueued") == stat(theirs, "scheduler/enqueued")
    finish(ours)
    finish(theirs)


def test_requests_of_other_classes_are_told_apart_as_by_scrapy(scheduler: Scheduler) -> None:
    """A form and a JSON document at one URL are two requests, and each is filtered the second time."""
    for _ in range(2):
        scheduler.enqueue_request(FormRequest("http://example.com/", formdata={"a": "1"}))
        scheduler.enqueue_request(FormRequest("http://example.com/", formdata={"a": "2"}))
        scheduler.enqueue_request(JsonRequest("http://example.com/", data={"a": 1}))
    assert len(scheduler) == 3
    assert stat(scheduler, "dupefilter/filtered") == 3


def test_a_request_with_dont_filter_is_neither_checked_nor_recorded(scheduler: Scheduler) -> None:
    """As start requests and retries, it passes, and the same request without the flag still counts as new."""
    url = "http://example.com/"
    assert scheduler.enqueue_request(Request(url, dont_filter=True))
    assert scheduler.enqueue_request(Request(url))
    assert scheduler.enqueue_request(Request(url, dont_filter=True))
    assert not scheduler.enqueue_request(Request(url))


def test_a_custom_fingerprinter_is_used_as_it_is() -> None:
    """REQUEST_FINGERPRINTER_CLASS means what it means in Scrapy."""
    scheduler = open_scheduler(REQUEST_FINGERPRINTER_CLASS=ByPath)
    assert scheduler.enqueue_request(Request("http://example.com/?a=1"))
    assert not scheduler.enqueue_request(Request("http://example.com/?a=2"))
    finish(scheduler)


LOGGERS = {SCRAPYS: "scrapy.dupefilters", OURS: "scrapy_bloom.old.dupefilter"}


@pytest.mark.parametrize("debug", [False, True])
def test_the_log_lines_are_scrapys(debug: bool, caplog: pytest.LogCaptureFixture) -> None:
    """DUPEFILTER_DEBUG shows all duplicates with their referer; otherwise the first is shown, with a hint."""
    lines = []
    for dupefilter in (SCRAPYS, OURS):
        scheduler = open_scheduler(dupefilter, DUPEFILTER_DEBUG=debug)
        caplog.clear()
        with caplog.at_level(logging.DEBUG):
            for _ in range(3):
                scheduler.enqueue_request(Request("http://example.com/", headers={"Referer": "http://example.com/r"}))
        lines.append([(record.levelname, record.getMessage()) for record in caplog.records])
        assert all(record.__dict__["spider"] is scheduler.spider for record in caplog.records)
        assert {record.name for record in caplog.records} == {LOGGERS[dupefilter]}
        finish(scheduler)
    theirs, ours = lines
    assert ours == theirs
    assert len(ours) == (2 if debug else 1)


def test_stats_say_what_the_filter_holds_and_costs() -> None:
    """Each documented stat is there from the start, and right at the end."""
    scheduler = open_scheduler(BLOOM_CAPACITY=100, BLOOM_ERROR_RATE=1e-3)
    assert stat(scheduler, "bloom/urls") == 0
    for number in range(250):
        scheduler.enqueue_request(Request(f"http://example.com/{number}"))
    assert stat(scheduler, "bloom/urls") >= 200, "set while crawling"
    finish(scheduler)
    assert stat(scheduler, "bloom/urls") == 250
    assert stat(scheduler, "bloom/layers") == 2
    assert stat(scheduler, "bloom/bytes") > 250
    assert 0 < stat(scheduler, "bloom/fill_ratio") < 0.6
    assert 0 < stat(scheduler, "bloom/estimated_error_rate") <= 1e-3
    assert 0 < stat(scheduler, "bloom/expected_lost") < 250 * 1e-3
    assert stat(scheduler, "bloom/unchecked") is None


class Unspeakable(Request):
    """A request whose URL makes canonicalization raise."""

    url = property(lambda _: "http://[::1")  # type: ignore[assignment]  # what a careless subclass does


def test_a_request_that_cannot_be_checked_is_let_through_and_counted(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception in request_seen would lose the page silently, so there is none; the first is logged."""
    request = Unspeakable("http://example.com/")
    with pytest.raises(ValueError, match="IPv6"):
        fingerprints_of(scheduler.crawler).of_request(request)
    with caplog.at_level(logging.WARNING):
        assert [scheduler.df.request_seen(request) for _ in range(3)] == [False] * 3
    assert stat(scheduler, "bloom/unchecked") == 3
    (record,) = caplog.records
    assert record.getMessage() == (
        "<GET http://[::1> could not be checked for being a duplicate and is let through. Further ones are not shown; "
        "the stat bloom/unchecked counts them"
    )


class Failing:
    """A fingerprinter that always fails, each time in another way."""

    def fingerprint(self, request: Request) -> bytes:
        raise {"a": RuntimeError, "b": MemoryError, "c": UnicodeError}[request.url[-1]]("failing")


def test_no_exception_of_a_fingerprinter_loses_a_request() -> None:
    """Whatever a custom fingerprinter raises, the scheduler gets its answer and takes the request."""
    scheduler = open_scheduler(REQUEST_FINGERPRINTER_CLASS=Failing)
    assert all(scheduler.enqueue_request(Request(f"http://example.com/{letter}")) for letter in "abc")
    assert stat(scheduler, "bloom/unchecked") == 3
    finish(scheduler)


def test_the_answers_are_booleans_and_open_is_synchronous(scheduler: Scheduler) -> None:
    """A coroutine or a truthy object in place of False would drop every request."""
    request = Request("http://example.com/")
    assert scheduler.df.request_seen(request) is False
    assert scheduler.df.request_seen(request) is True
    assert isinstance(scheduler.df, BaseDupeFilter)
    assert build_from_crawler(BloomDupeFilter, get_crawler(Spider)).open() is None


def test_a_scheduler_that_never_opens_its_filter_gets_one_all_the_same() -> None:
    """Scrapy's own filter works without open(), and third-party schedulers rely on that."""
    dupefilter = build_from_crawler(BloomDupeFilter, get_crawler(Spider))
    request = Request("http://example.com/")
    assert [dupefilter.request_seen(request) for _ in range(2)] == [False, True]
    dupefilter.close("finished")


def test_after_closing_everything_is_let_through() -> None:
    """A request that comes late is fetched, not lost."""
    dupefilter = build_from_crawler(BloomDupeFilter, get_crawler(Spider))
    dupefilter.open()
    dupefilter.close("finished")
    dupefilter.close("finished")
    assert [dupefilter.request_seen(Request("http://example.com/")) for _ in range(2)] == [False, False]


def test_wrong_settings_stop_the_construction(caplog: pytest.LogCaptureFixture) -> None:
    """One critical line, before Scrapy's tracebacks, and no filter."""
    crawler: Crawler = get_crawler(Spider, {"BLOOM_CAPACITY": "lots"})
    with pytest.raises(SettingsError):
        build_from_crawler(BloomDupeFilter, crawler)
    (record,) = caplog.records
    assert record.levelname == "CRITICAL"
    assert "BLOOM_CAPACITY must be a whole number of URLs from 1 to 1e12, not 'lots'" in record.getMessage()


def test_with_a_job_directory_a_later_crawl_remembers(tmp_path: Path) -> None:
    """Every request recorded is a duplicate in the next run, and the URLs are counted over both."""
    urls = [f"http://example.com/{number}" for number in range(50)]
    scheduler = open_scheduler(JOBDIR=str(tmp_path))
    assert all(scheduler.enqueue_request(Request(url)) for url in urls)
    finish(scheduler)
    scheduler = open_scheduler(JOBDIR=str(tmp_path))
    assert not any(scheduler.enqueue_request(Request(url)) for url in urls)
    assert scheduler.enqueue_request(Request("http://example.com/new"))
    finish(scheduler)
    assert stat(scheduler, "bloom/urls") == 51


def test_a_job_begun_with_scrapys_filter_goes_on_with_ours(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Switching filters in the middle of a crawl loses nothing: requests.seen is imported, once."""
    urls = [f"http://example.com/{number}" for number in range(50)]
    scheduler = open_scheduler(SCRAPYS, JOBDIR=str(tmp_path))
    assert all(scheduler.enqueue_request(Request(url)) for url in urls)
    finish(scheduler)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            scheduler = open_scheduler(JOBDIR=str(tmp_path))
            assert not any(scheduler.enqueue_request(Request(url)) for url in urls)
            finish(scheduler)
    imported = [record.getMessage() for record in caplog.records if "Imported" in record.getMessage()]
    assert imported == [f"Imported 50 fingerprints of Scrapy's own filter from {tmp_path / 'requests.seen'}"]


def test_another_fingerprinter_on_the_same_job_directory_is_refused(tmp_path: Path) -> None:
    """Every URL would look new, so the crawl does not start and the message says what differs."""
    finish(open_scheduler(JOBDIR=str(tmp_path)))
    with pytest.raises(BloomError, match=r"fingerprinter was 'scrapy', is now '.*ByPath'"):
        open_scheduler(JOBDIR=str(tmp_path), REQUEST_FINGERPRINTER_CLASS=ByPath)


def test_held_back_fingerprints_are_known_but_not_yet_in_the_files(tmp_path: Path) -> None:
    """Until a scheduler says that its requests are durable, nothing of them would survive kill -9."""
    crawler = get_crawler(Spider, {"JOBDIR": str(tmp_path)})
    dupefilter = build_from_crawler(BloomDupeFilter, crawler)
    dupefilter.open()
    dupefilter.hold_back()
    first, second = Request("http://example.com/1"), Request("http://example.com/2")
    chain = dupefilter._chain
    assert chain is not None
    assert [dupefilter.request_seen(first) for _ in range(2)] == [False, True]
    assert len(chain) == 0
    dupefilter.seal()
    dupefilter.release()
    assert len(chain) == 1
    assert dupefilter.request_seen(first)
    assert not dupefilter.request_seen(second)
    assert len(chain) == 1
    dupefilter.close("finished")
    assert crawler.stats is not None
    assert crawler.stats.get_value("bloom/urls") == 1  # what was never released would be a page lost


def test_with_an_age_pages_come_up_again_and_remembered_links_are_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With BLOOM_MAX_AGE a URL is new again after that time; the epoch changes, which links remembered as seen heed."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    for jobdir in (None, str(tmp_path)):
        scheduler = open_scheduler(OURS, JOBDIR=jobdir, BLOOM_MAX_AGE="8h")
        dupefilter = scheduler.df
        assert isinstance(dupefilter, BloomDupeFilter)
        request = Request("http://example.com/")
        assert not dupefilter.request_seen(request)
        epoch = dupefilter.epoch
        now += 7 * 3600
        assert dupefilter.request_seen(request)
        assert dupefilter.epoch == epoch
        now += 3600
        assert dupefilter.epoch != epoch
        assert not dupefilter.request_seen(request)
        finish(scheduler)
