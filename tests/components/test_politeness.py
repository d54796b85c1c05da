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
from scrapy_bloom.frontier.store import LONGEST_PAUSE, Paused
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
    """Return pages on both hosts, with a busy one in the middle, and redirects to a known one around it."""
    own, moved, others = ([f"/{name}/{n}" for n in range(10)] for name in ("own", "moved", "other"))
    links = [*own[:5], *moved[:5], "/busy", *moved[5:], *own[5:]]
    return {
        "/": [*links, *(site.url.replace(BUSY, OTHER) + path for path in others)],
        "/busy": Busy(retry_after, **busy),
        **{path: [] for path in (*own, *others)},
        **dict.fromkeys(moved, "/own/0"),
    }


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
    """After 429 with ``Retry-After``. What the downloader had not sent is given back, and is no other request then:
    where it redirects to what is known, nobody follows. Other hosts go on; each page comes once, that page again. A
    status that is not in ``RETRY_HTTP_CODES`` pauses nothing."""
    queues = {f"SCHEDULER_{where}_QUEUE": f"scrapy.squeues.{kind}{order}{what}" for where, kind, what in QUEUES}
    settings = {**ONE_BY_ONE, **queues, "JOBDIR": str(tmp_path / "job") if in_job else None}
    settings |= {"RETRY_HTTP_CODES": [429], "BLOOM_LOOP_GUARD": not in_job}
    with Site({}) as site:
        site.pages = {**two_hosts(site, str(PAUSE)), "/own/3": Busy("86400", status=503)}
        outcome = crawl(site, tmp_path, settings)
        assert site.hits == {**dict.fromkeys(site.pages, 1), "/busy": 2}
        busy = moments(site, BUSY)
        asked = next(moment for moment, _, path in site.moments if path == "/busy")
        assert not [moment for moment in busy if asked < moment < asked + PAUSE]
        # Scrapy asks for some requests before all are there: on a slow machine, all redirects may come first in LIFO.
        given_back = ("/moved",) if order == "Fifo" else ("/moved", "/own")
        assert any(path.startswith(given_back) for moment, _, path in site.moments if moment > asked + PAUSE)
    assert outcome.stats["finish_reason"] == "finished"
    assert outcome.stats["bloom/pauses"] == 1
    assert outcome.stats["item_scraped_count"] == len(site.pages) - 10 - 1
    assert not outcome.lines("ERROR") + outcome.lines("WARNING")


@pytest.mark.parametrize(
    "later", [{}, pytest.param({"RETRY_ENABLED": False}, marks=pytest.mark.slow)], ids=["as before", "without pauses"]
)
def test_a_kill_does_not_end_a_pause_and_ctrl_c_ends_the_crawl(tmp_path: Path, later: dict[str, Any]) -> None:
    """The next run keeps it, while it fetches a page of the other host, and can be stopped though the host wants no
    request for a day; a run after the pause fetches what is left, also one that itself makes no pauses."""
    settings = {**ONE_BY_ONE, "JOBDIR": str(tmp_path / "job")}
    with Site({}) as site:
        site.pages = {**two_hosts(site, "86400", status=503), "/late": []}
        running = start(site, tmp_path, settings)
        site.wait_for("/busy")
        wait_for_job(tmp_path / "job", partial(waits_for_the_busy_host, site))
        running.signal(signal.SIGKILL)
        running.finish()
        asked = len(moments(site, BUSY))
        running = start(site, tmp_path, {**settings, "URLS": [f"{site.url.replace(BUSY, OTHER)}/late"]})
        site.wait_for("/late")
        running.signal(signal.SIGINT)
        stopped = running.finish()
        assert (stopped.code, stopped.stats["finish_reason"]) == (0, "shutdown")
        assert len(moments(site, BUSY)) == asked
        crawl(site, tmp_path, {**settings, **later, "DAYS_LATER": 2})
        assert {path for path, hits in site.hits.items() if hits > 1} <= {"/", "/busy", "/late"}
        assert site.hits.keys() == site.pages.keys()


def waits_for_the_busy_host(site: Site, info: JobInfo) -> bool:
    """Return whether nothing but paused requests is pending, and a commit knows that."""
    others = sum(path.startswith("/other") for path in site.hits)
    left = len(site.pages.keys() - {"/late"}) - len(set(site.hits) - {"/busy"})
    return others == 10 and not info.state.in_flight and info.state.pending == left


def test_without_retries_nothing_is_paused(tmp_path: Path) -> None:
    """As ``RETRY_ENABLED`` says."""
    with Site({}) as site:
        site.pages = two_hosts(site, "86400")
        outcome = crawl(site, tmp_path, {**ONE_BY_ONE, "RETRY_ENABLED": False})
        assert site.hits == dict.fromkeys(site.pages, 1)
    assert "bloom/pauses" not in outcome.stats


@pytest.mark.slow
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
