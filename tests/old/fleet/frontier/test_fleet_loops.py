"""The loop guard in the workers of a fleet: what it sends back goes over the server, what it parks stays with it."""

from __future__ import annotations

import re
import shutil
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom.old.loops.parked import TAKEN_BACK, ParkedFile, guard_file
from scrapy_bloom.old.loops.verdicts import parked_requests
from tests.old.support.crawling import start_crawl
from tests.old.support.fleets import IN_HAND
from tests.old.support.loopsite import LoopSite
from tests.old.support.redis_servers import RedisServer
from tests.old.support.schedulers import EngineCalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.old.support.crawling import Crawl, Outcome

WORKERS = ("a", "b")
MONTHS = 30
ALLOWED = r"/calendar/[12]?\d(/\d+)?$"
"""The first MONTHS months and their days."""
FLEET = "scrapy_bloom.FleetScheduler"
GUARDED = {"BLOOM_LOOP_GUARD": True, "BLOOM_CAPACITY": 1000, "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter"}


def start(site: LoopSite, server: RedisServer, jobs: Path, name: str, **settings: Any) -> Crawl:
    ours = {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "BLOOM_REDIS_URL": server.url,
        "BLOOM_FLEET_LEASE": 2.0,
        "BLOOM_FLEET_WORKER": name,
        "BLOOM_CAPACITY": 1000,
        "BLOOM_LOOP_GUARD": True,
        "CONCURRENT_REQUESTS": 4,
        "DOWNLOAD_DELAY": 0.03,  # time for both to take part
        "ROBOTSTXT_OBEY": False,
        "LOG_LEVEL": "INFO",
        "JOBDIR": str(jobs / name),
    }
    return start_crawl(site.url(), {**ours, **settings})


def finished(*crawls: Crawl) -> list[Outcome]:
    outcomes = [crawl.finish() for crawl in crawls]
    for outcome in outcomes:
        assert outcome.stats.get("finish_reason") == "finished", outcome.log
    return outcomes


def parked_urls(jobs: Path, name: str) -> set[str]:
    """The paths that wait in the job directory of the worker *name*."""
    connection = sqlite3.connect(guard_file(jobs / name))
    found = {re.sub(r"^http://[^/]+", "", url) for (url,) in connection.execute("SELECT url FROM parked")}
    connection.close()
    return found


@pytest.mark.slow
def test_guarded_workers_lose_no_page(tmp_path: Path) -> None:
    """Two workers fetch every honest page and little of an endless calendar, though one of them is killed on the way.
    What each has parked is in its own job directory. Allowed later, it goes back over the server, and is fetched."""
    with LoopSite() as site, RedisServer(tmp_path / "server") as server:
        crawls = {name: start(site, server, tmp_path, name) for name in WORKERS}
        site.wait_for_hits(60)
        crawls["a"].process.kill()
        crawls["a"].process.communicate()
        crawls["a"] = start(site, server, tmp_path, "a")
        outcomes = finished(*crawls.values())
        asked = site.asked()
        assert site.hits("/good/") == LoopSite.GOOD
        assert site.hits("/record/") == 2 * LoopSite.LISTS
        assert site.hits("/calendar/") < 300
        assert sum(asked.values()) - len(asked) <= 1 + IN_HAND
        assert sum(outcome.stats.get("bloom/loop/postponed", 0) for outcome in outcomes) > 0
        parked = {name: parked_urls(tmp_path, name) for name in WORKERS}
        for name, outcome in zip(WORKERS, outcomes, strict=True):
            assert outcome.stats["bloom/loop/waiting"] == len(parked[name])
            assert not parked[name] & asked.keys()
        allowed = {path for name in WORKERS for path in parked[name] if re.fullmatch(ALLOWED, path)}
        assert allowed  # a month at least: each leads to the next, and the crawl has ended
        outcomes = finished(
            *(start(site, server, tmp_path, name, BLOOM_LOOP_GUARD={"allow": [ALLOWED]}) for name in WORKERS)
        )
        assert sum(outcome.stats.get("bloom/loop/released", 0) for outcome in outcomes) >= len(allowed)
        asked = site.asked()
        assert {asked[path] for path in allowed} == {1}
        assert sum(bool(re.fullmatch(ALLOWED, path)) for path in asked) == MONTHS * (1 + LoopSite.DAYS)
        for name in WORKERS:
            assert not parked_urls(tmp_path, name) & allowed


@pytest.mark.parametrize("case", ["server away", "only in memory", "killed in hand"])
def test_what_was_released_stays_until_it_is_on_the_server_or_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """A released request is still in the job directory of the worker if that ends while the server is away, or if only
    this process can hold the request and is stopped before its turn, or killed before its end."""
    monkeypatch.setattr("scrapy_bloom.old.fleet_scheduler.CLOSING_SECONDS", 0.2)
    meta = {} if case == "server away" else {"no": "plain type".__len__}
    lot = ParkedFile.open(tmp_path, None)
    assert lot.park(TAKEN_BACK, Request("http://example.com/parked", meta=meta))
    lot.close(queue_is_kept=True)
    with RedisServer(tmp_path / "server") as server:
        worker = EngineCalls(tmp_path, FLEET, BLOOM_REDIS_URL=server.url, **GUARDED)
        guard = worker.scheduler.df._guard
        if case == "server away":
            server.kill()
        guard.sends_back_by(worker.scheduler.enqueue_request)
        if case == "killed in hand":
            request = worker.start()
            assert request is not None
            assert not guard.out_of_queue(request)
            shutil.copytree(tmp_path / "requests.loops", tmp_path / "copy" / "requests.loops")
            worker.end(request)
        worker.stop()
    assert parked_requests(tmp_path / "copy" if case == "killed in hand" else tmp_path) == 1
    if case == "killed in hand":
        assert parked_requests(tmp_path) == 0


def test_without_a_job_directory_a_worker_parks_nothing(open_worker: Callable[..., EngineCalls]) -> None:
    """Without a job directory a worker of a fleet parks nothing, whatever DUPEFILTER_CLASS is: the fleet's filter
    outlives the worker's memory."""
    worker = open_worker(BLOOM_LOOP_GUARD=True)
    assert worker.scheduler.df._guard._lot is None
