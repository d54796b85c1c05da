"""The way of a request through a face: limits, chain, guard, and the reason that log() tells."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import scrapy
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter, UnseenLinks
from scrapy_bloom.old.crawl.base_dupefilter import State
from scrapy_bloom.old.errors import BloomError, DamagedError
from scrapy_bloom.old.loops.verdict import PASSED, Verdict
from scrapy_bloom.old.settings import BloomSettings
from tests.old.support.scheduling import open_scheduler, stat

if TYPE_CHECKING:
    from pathlib import Path

DEEP = "http://example.com/" + "/".join(f"s{number}" for number in range(30))


class LinkSpider(UnseenLinks, Spider):
    name = "links"


class RecordingGuard:
    """Parks what has "parked" in its URL, demotes what has "demoted", and notes what happens to it."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.dropped: list[str] = []
        self.is_failing = False

    def open(self, jobdir: Path | None, *, begins_anew: bool = False) -> None:
        self.calls.append(("open", jobdir))

    def queued(self, request: Request) -> Verdict:
        if self.is_failing:
            raise RuntimeError("a guard with a bug")
        self.calls.append(("queued", request.url))
        if "demoted" in request.url:
            request.priority -= 10
            return Verdict("demoted", "many siblings")
        return Verdict("parked", "nothing new for 25 pages", is_parked=True) if "parked" in request.url else PASSED

    def saw_nothing(self, request: Request) -> None:
        self.dropped.append(request.url)

    def hold_back(self) -> None:
        pass

    def seal(self) -> None:
        pass

    def checkpoint(self) -> None:
        if self.is_failing:
            raise RuntimeError("a guard with a bug")
        self.calls.append("checkpoint")

    def close(self) -> None:
        self.calls.append("close")


def guarded(guard: RecordingGuard, **settings: Any) -> BloomDupeFilter:
    crawler = get_crawler(LinkSpider, settings)
    crawler.spider = crawler._create_spider()
    return BloomDupeFilter(crawler, BloomSettings(), guard=guard)


def count(dupefilter: BloomDupeFilter, name: str) -> Any:
    return dupefilter._stats.get_value(name)


def filtered(dupefilter: BloomDupeFilter, request: Request) -> bool:
    """What the scheduler does with *request*."""
    spider = dupefilter._crawler.spider
    assert spider is not None
    if dupefilter.request_seen(request):
        dupefilter.log(request, spider)
        return True
    return False


def test_a_url_that_a_limit_objects_to_never_enters_the_chain(caplog: pytest.LogCaptureFixture) -> None:
    """It is dropped, counted under its limit and not as a duplicate, and the first one is logged with the reason."""
    scheduler = open_scheduler(BLOOM_LOOP_GUARD=True)
    with caplog.at_level(logging.INFO):
        assert not any(scheduler.enqueue_request(Request(DEEP + f"/{number}")) for number in range(3))
    assert stat(scheduler, "bloom/loop/depth") == 3
    assert stat(scheduler, "dupefilter/filtered") is None
    (message,) = [message for message in caplog.messages if "oop guard" in message]
    assert message == (
        f"Loop guard, depth: {DEEP}/0 (31 path segments, more than 20). No more are shown (see "
        "DUPEFILTER_DEBUG); bloom/loop/depth counts them"
    )
    scheduler.close("finished")
    assert stat(scheduler, "bloom/urls") == 0


def test_a_duplicate_after_a_limit_is_logged_as_a_duplicate() -> None:
    """A reason that nobody asked for does not stick to the next request."""
    scheduler = open_scheduler(BLOOM_LOOP_GUARD=True)
    request = Request("http://example.com/")
    assert scheduler.enqueue_request(request)
    assert scheduler.df.request_seen(Request(DEEP))  # and no log(), as a scheduler without it would
    assert not scheduler.enqueue_request(request)
    assert stat(scheduler, "dupefilter/filtered") == 1
    assert stat(scheduler, "bloom/loop/depth") is None
    scheduler.close("finished")


def test_links_are_dropped_by_limits_and_counted_as_such() -> None:
    """A link that a limit objects to is no duplicate, and is not asked about."""
    crawler = get_crawler(LinkSpider, {"BLOOM_LOOP_GUARD": True})
    dupefilter = BloomDupeFilter.from_crawler(crawler)
    dupefilter.open()
    spider = LinkSpider.from_crawler(crawler)
    dupefilter.request_seen(Request("http://example.com/seen"))
    links = [DEEP, "http://example.com/seen", "http://example.com/new"]
    assert spider.unseen_links(links) == ["http://example.com/new"]
    assert count(dupefilter, "bloom/loop/depth") == 1
    assert count(dupefilter, "dupefilter/filtered") == count(dupefilter, "bloom/links_dropped") == 1
    dupefilter.close("finished")


def test_a_guard_demotes_and_parks_what_is_new(tmp_path: Path) -> None:
    """It sees each new request once; what it parks is kept from the queue, and neither is a duplicate."""
    guard = RecordingGuard()
    dupefilter = guarded(guard, JOBDIR=str(tmp_path))
    dupefilter.open()
    plain, demoted, parked = (Request(f"http://example.com/{kind}") for kind in ("plain", "demoted", "parked"))
    assert [filtered(dupefilter, request) for request in (plain, demoted, parked)] == [False, False, True]
    assert (plain.priority, demoted.priority) == (0, -10)
    assert count(dupefilter, "bloom/loop/demoted") == count(dupefilter, "bloom/loop/parked") == 1
    assert count(dupefilter, "dupefilter/filtered") is None
    assert filtered(dupefilter, parked)
    assert count(dupefilter, "dupefilter/filtered") == count(dupefilter, "bloom/loop/parked") == 1
    dupefilter.close("finished")
    asked = [("queued", request.url) for request in (plain, demoted, parked)]
    assert guard.calls == [("open", tmp_path), *asked, "close"]
    assert guard.dropped == [parked.url] * 2


def test_a_guard_that_fails_loses_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """The chain knows the fingerprint by then, so the request goes to the queue; the first failure is logged."""
    guard = RecordingGuard()
    dupefilter = guarded(guard)
    dupefilter.open()
    guard.is_failing = True
    assert not any(filtered(dupefilter, Request(f"http://example.com/parked/{number}")) for number in range(3))
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "The loop guard failed to judge <GET http://example.com/parked/0>, which goes to the queue"
    ]
    assert count(dupefilter, "bloom/unchecked") is None
    dupefilter.close("finished")


def test_what_is_parked_is_durable_before_its_fingerprint_is(tmp_path: Path) -> None:
    """release() asks the guard first, and holds on to everything while the guard cannot write."""
    guard = RecordingGuard()
    dupefilter = guarded(guard, JOBDIR=str(tmp_path))
    dupefilter.hold_back()
    dupefilter.request_seen(Request("http://example.com/parked"))
    chain = dupefilter._chain
    assert chain is not None
    guard.is_failing = True
    dupefilter.seal()
    dupefilter.release()
    assert len(chain) == 0
    guard.is_failing = False
    dupefilter.seal()
    dupefilter.release()
    assert len(chain) == 1
    assert guard.calls[-1] == "checkpoint"
    dupefilter.close("finished")


def test_a_request_that_is_pending_already_is_remembered_without_being_judged(tmp_path: Path) -> None:
    """What a scheduler recovers was judged when it came."""
    guard = RecordingGuard()
    dupefilter = guarded(guard, JOBDIR=str(tmp_path))
    dupefilter.open()
    dupefilter.remember(Request("http://example.com/parked"))
    assert guard.calls == [("open", tmp_path)]
    assert dupefilter.request_seen(Request("http://example.com/parked"))
    dupefilter.close("finished")


def test_a_guard_that_cannot_begin_keeps_the_filter_closed(tmp_path: Path) -> None:
    """The crawl does not start, and the filter's lock is free again."""

    class Refusing(RecordingGuard):
        def open(self, jobdir: Path | None, *, begins_anew: bool = False) -> None:
            raise DamagedError(jobdir, "torn", advice="Delete it.")

    dupefilter = guarded(Refusing(), JOBDIR=str(tmp_path))
    with pytest.raises(BloomError):
        dupefilter.open()
    again = guarded(RecordingGuard(), JOBDIR=str(tmp_path))
    again.open()
    again.close("finished")


def test_the_states_of_a_filter(tmp_path: Path) -> None:
    """Not open, open, holding back, closed; and a late request is let through, not remembered."""
    dupefilter = guarded(RecordingGuard(), JOBDIR=str(tmp_path))
    request = Request("http://example.com/")
    assert dupefilter._state is State.NOT_OPEN
    assert not dupefilter.request_seen(request)
    assert dupefilter._state is State.OPEN
    dupefilter.hold_back()
    assert dupefilter._state is State.HOLDING_BACK
    assert dupefilter.request_seen(request)
    dupefilter.close("finished")
    assert dupefilter._state is State.CLOSED
    assert not dupefilter.request_seen(request)
    assert dupefilter.seen_fingerprints([dupefilter.fingerprint_url(request.url)]) == [False]


@pytest.mark.skipif(scrapy.version_info < (2, 14), reason="up to 2.13 a crawler itself needs an installed reactor")
def test_a_filter_can_be_used_without_a_reactor() -> None:
    """In a script that crawls nothing, opening, asking and closing work."""
    program = """
from scrapy import Request
from scrapy.utils.test import get_crawler
from scrapy_bloom import BloomDupeFilter
dupefilter = BloomDupeFilter.from_crawler(get_crawler(settings_dict={"TWISTED_REACTOR": None}))
dupefilter.open()
print([dupefilter.request_seen(Request("http://a.example/")) for _ in range(2)])
dupefilter.close("finished")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert ran.stdout == "[False, True]\n", ran.stderr
