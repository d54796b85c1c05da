"""Hosts get the pauses that they ask for: Retry-After and Crawl-delay, while other hosts go on."""

import signal
import time
from email.utils import formatdate
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom.components.politeness import seconds_of
from scrapy_bloom.frontier.paused import LONGEST_PAUSE, Paused
from scrapy_bloom.job.inspect import JobInfo
from tests.support.crawls import ADDON, Busy, Pages, Site, crawl, start
from tests.support.engine import BY_HOST, wait_for_job

PAUSE = 1
QUEUES = ("DISK", "Pickle", "DiskQueue"), ("MEMORY", "", "MemoryQueue")
BUSY, OTHER = "127.0.0.1", "localhost"
"""Two names of the one site. The first is the one that asks for a pause."""
ONE_BY_ONE = {
    **ADDON,
    # First in, first out: the host asks for its pause halfway, however early Scrapy asks for the first request.
    **{f"SCHEDULER_{where}_QUEUE": f"scrapy.squeues.{kind}Fifo{what}" for where, kind, what in QUEUES},
    "SCHEDULER_PRIORITY_QUEUE": BY_HOST,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
    "DOWNLOAD_DELAY": 0.01,  # without a delay, Scrapy 2.19 sends what comes at the same moment beyond that number
}


def two_hosts(site: Site, retry_after: str, **busy: Any) -> Pages:
    """Return pages on both hosts, with a busy one in the middle."""
    own = [f"/own/{n}" for n in range(10)]
    others = [f"{site.url.replace(BUSY, OTHER)}/other/{n}" for n in range(10)]
    answers: Pages = {path: [] for path in (*own, *(f"/other/{n}" for n in range(10)))}
    return {"/": [*own[:5], "/busy", *own[5:], *others], "/busy": Busy(retry_after, **busy), **answers}


def moments(site: Site, host: str) -> list[float]:
    return [moment for moment, asked, path in site.moments if asked == host and path != "/robots.txt"]


@pytest.mark.slow
def test_a_pause_ends_without_the_part_that_wakes_the_engine(tmp_path: Path) -> None:
    """The engine asks for a request every 5 s by itself."""
    settings = {
        **ONE_BY_ONE,
        "ADDONS": {"tests.support.hidden.HideParts": 1, **ADDON["ADDONS"]},
        "HIDDEN": "scrapy.core.engine._Slot.nextcall",
    }
    with Site({}) as site:
        site.pages = two_hosts(site, "1")
        outcome = crawl(site, tmp_path, settings)
        assert site.hits == {**dict.fromkeys(site.pages, 1), "/busy": 2}
    assert not outcome.lines("ERROR") + outcome.lines("CRITICAL")
    assert "Traceback" not in outcome.log


@pytest.mark.parametrize("order", ["Lifo", pytest.param("Fifo", marks=pytest.mark.slow)])
@pytest.mark.parametrize("in_job", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_host_gets_no_request_before_its_time(tmp_path: Path, in_job: bool, order: str) -> None:
    """After 429 with ``Retry-After``. What the downloader had not sent is given back. Other hosts go on; each page
    comes once, that page again."""
    queues = {f"SCHEDULER_{where}_QUEUE": f"scrapy.squeues.{kind}{order}{what}" for where, kind, what in QUEUES}
    settings = {**ONE_BY_ONE, **queues, "JOBDIR": str(tmp_path / "job") if in_job else None}
    with Site({}) as site:
        site.pages = two_hosts(site, str(PAUSE))
        outcome = crawl(site, tmp_path, settings)
        assert site.hits == {**dict.fromkeys(site.pages, 1), "/busy": 2}
        busy = moments(site, BUSY)
        asked = next(moment for moment, _, path in site.moments if path == "/busy")
        assert not [moment for moment in busy if asked < moment < asked + PAUSE]
    assert outcome.stats["finish_reason"] == "finished"
    assert outcome.stats["bloom/pauses"] == 1
    assert outcome.stats["item_scraped_count"] == len(site.pages)
    assert not outcome.lines("ERROR") + outcome.lines("WARNING")


@pytest.mark.parametrize("guard", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_waits_for_a_pause_is_filtered_as_before(tmp_path: Path, guard: bool) -> None:
    """Requests that are given back are no other ones: where they redirect to what is known, nobody follows."""
    moved = [f"/moved/{number}" for number in range(5)]
    with Site({"/": ["/known", "/busy", *moved], "/known": [], "/busy": Busy("1")}) as site:
        site.pages = {**site.pages, **dict.fromkeys(moved, "/known")}
        outcome = crawl(site, tmp_path, {**ONE_BY_ONE, "BLOOM_LOOP_GUARD": guard})
        assert site.hits == {**dict.fromkeys(site.pages, 1), "/busy": 2}
    assert outcome.stats["item_scraped_count"] == 3


def test_a_kill_does_not_end_a_pause(tmp_path: Path) -> None:
    """The next run keeps it, while it fetches a page of the other host; a run after the pause fetches what is left."""
    settings = {**ONE_BY_ONE, "JOBDIR": str(tmp_path / "job")}
    with Site({}) as site:
        site.pages = {**two_hosts(site, "86400"), "/late": []}
        running = start(site, tmp_path, settings)
        site.wait_for("/busy")
        wait_for_job(tmp_path / "job", partial(waits_for_the_busy_host, site))
        running.signal(signal.SIGKILL)
        running.finish()
        asked = len(moments(site, BUSY))
        running = start(site, tmp_path, {**settings, "URLS": [f"{site.url.replace(BUSY, OTHER)}/late"]})
        site.wait_for("/late")
        running.signal(signal.SIGINT)
        running.finish()
        assert len(moments(site, BUSY)) == asked
        crawl(site, tmp_path, {**settings, "DAYS_LATER": 2})
        assert {path for path, hits in site.hits.items() if hits > 1} <= {"/", "/busy", "/late"}
        assert site.hits.keys() == site.pages.keys()


def waits_for_the_busy_host(site: Site, info: JobInfo) -> bool:
    """Return whether nothing but paused requests is pending, and a commit knows that."""
    others = sum(path.startswith("/other") for path in site.hits)
    left = len(site.pages.keys() - {"/late"}) - len(set(site.hits) - {"/busy"})
    return others == 10 and not info.state.in_flight and info.state.pending == left


@pytest.mark.parametrize(
    "later", [{}, pytest.param({"RETRY_ENABLED": False}, marks=pytest.mark.slow)], ids=["as before", "without pauses"]
)
def test_a_crawl_that_waits_can_be_stopped(tmp_path: Path, later: dict[str, Any]) -> None:
    """Ctrl-C ends it at once, though the host wants no request for a day; the next run after that fetches the rest.

    Also a run that itself makes no pauses.
    """
    settings = {**ONE_BY_ONE, "JOBDIR": str(tmp_path / "job")}
    with Site({}) as site:
        site.pages = two_hosts(site, "86400", status=503)
        running = start(site, tmp_path, settings)
        site.wait_for("/busy")
        wait_for_job(tmp_path / "job", partial(waits_for_the_busy_host, site))
        running.signal(signal.SIGINT)
        outcome = running.finish()
        assert (outcome.code, outcome.stats["finish_reason"]) == (0, "shutdown")
        before = dict(site.hits)
        crawl(site, tmp_path, {**settings, **later, "DAYS_LATER": 2})
        assert site.hits == {**dict.fromkeys(site.pages, 1), "/busy": 2}
    assert len(before) < len(site.pages)


@pytest.mark.parametrize("settings", [{"RETRY_HTTP_CODES": [500]}, {"RETRY_ENABLED": False}])
def test_statuses_that_are_not_retried_pause_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    """As ``RETRY_HTTP_CODES`` and ``RETRY_ENABLED`` say."""
    with Site({}) as site:
        site.pages = two_hosts(site, "86400")
        outcome = crawl(site, tmp_path, {**ONE_BY_ONE, **settings})
        assert site.hits == dict.fromkeys(site.pages, 1)
    assert "bloom/pauses" not in outcome.stats


def test_where_no_host_has_a_queue_of_its_own_nothing_is_paused(tmp_path: Path) -> None:
    """With Scrapy's plain priority queue a pause would hold all hosts; the page is retried as by Scrapy."""
    plain = {**ADDON, "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}
    with Site({}) as site:
        site.pages = two_hosts(site, "86400")
        crawl(site, tmp_path, plain)
        assert site.hits == {**dict.fromkeys(site.pages, 1), "/busy": 2}


@pytest.mark.parametrize("throttled", [pytest.param(False, marks=pytest.mark.slow), True], ids=["", "AutoThrottle"])
def test_crawl_delay_is_the_least_delay(tmp_path: Path, throttled: bool) -> None:
    """With ``ROBOTSTXT_OBEY``, between any two requests of the host that robots.txt is of."""
    robots = b"User-agent: *\nCrawl-delay: 0.2\n"
    settings = {**ADDON, "ROBOTSTXT_OBEY": True, "AUTOTHROTTLE_ENABLED": throttled, "AUTOTHROTTLE_START_DELAY": 0.05}
    settings |= {"SPIDER": "tests.support.crawls.NotingSpider"}
    with Site({"/robots.txt": robots, "/": [f"/{n}" for n in range(5)], **{f"/{n}": [] for n in range(5)}}) as site:
        outcome = crawl(site, tmp_path, settings)
        assert site.hits == dict.fromkeys(site.pages, 1)
    sent = outcome.stats["sent"]
    assert len(sent) == len(site.pages)
    assert min(after - before for before, after in pairwise(sent)) >= 0.199  # rounded


def test_retry_after_is_a_number_or_a_date() -> None:
    """As RFC 9110 says; anything else asks for nothing, and nothing for more than a day."""
    assert seconds_of(b"120") == 120
    assert 3600 < seconds_of(formatdate(time.time() + 7200, usegmt=True).encode()) <= 7200
    assert seconds_of(b"9" * 400) == LONGEST_PAUSE
    nothing = [b"", b"-5", b"soon", b"1e9", "²".encode("latin-1"), b"Wed, 21 Oct 2015 07:28:00 GMT", b"Mon, 99 Foo 1"]
    assert [seconds_of(value) for value in nothing] == [0] * len(nothing)


def test_a_clock_that_was_put_back_prolongs_no_pause() -> None:
    """A pause that would last longer than any can is over."""
    paused, now = Paused(), time.time()
    paused.update({"over": now - 1, "short": now + 3600, "long": now + LONGEST_PAUSE + 3600})
    assert sorted(paused.end()) == ["long", "over"]
    assert [*paused] == ["short"]
