"""Whole crawls of a fleet: what is fetched when workers are killed or frozen, and when the server is away or full."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.old.support.fleets import IN_HAND, Fleet, wait_until
from tests.old.support.localsite import LocalSite
from tests.old.support.proxy import LosingProxy
from tests.old.support.redis_servers import RedisServer

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = ("a", "b", "c")


def test_two_workers_fetch_each_page_once(plain_server: RedisServer, prefix: str) -> None:
    """Between them they fetch every page once, and end by themselves; one that comes later ends at once."""
    with (
        LocalSite(pages=100, links_per_page=10, delay=0.02) as site,
        Fleet(site, plain_server, BLOOM_REDIS_KEY=prefix) as fleet,
    ):
        for name in WORKERS[:2]:
            fleet.start(name)
        ended = fleet.finish()
        # The start page is not filtered, as with Scrapy: a link leads back to it, once.
        assert fleet.page_hits() == [2] + [1] * 99
        crawled = [outcome.stats.get("response_received_count", 0) for outcome in ended.values()]
        assert sum(crawled) == 101
        fleet.start("late")
        late = fleet.finish()["late"]
        assert "response_received_count" not in late.stats
        assert fleet.page_hits() == [2] + [1] * 99
        with plain_server.client() as client:
            left = {key.decode().rpartition(":")[2] for key in client.scan_iter(f"{{{prefix}:*")}
        assert left == {"meta", "queue", "0"}


def test_answers_that_get_lost_change_nothing(plain_server: RedisServer, prefix: str) -> None:
    """Calls that were carried out and not answered are neither done twice nor lost: every page is fetched once."""
    with (
        LocalSite(pages=80, links_per_page=5, delay=0.02) as site,
        LosingProxy(plain_server.port) as proxy,
        Fleet(site, proxy, BLOOM_REDIS_KEY=prefix) as fleet,  # type: ignore[arg-type] - it has a URL, too
    ):
        fleet.start("a")
        for hits in range(5, 65, 10):
            site.wait_for_hits(hits)
            proxy.lose_next_answer()
        outcome = fleet.finish()["a"]
        assert outcome.stats["bloom/redis/away"] >= 5
        assert fleet.page_hits()[1:] == [1] * 79


@pytest.mark.slow
def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    """Three workers killed at random twenty times fetch every page, and twice at most what they had in hand."""
    rng = random.Random(1)
    with (
        LocalSite(pages=1200, links_per_page=5, delay=0.05) as site,
        RedisServer(tmp_path, keeps_data=True) as server,
        Fleet(site, server) as fleet,
    ):
        for name in WORKERS:
            fleet.start(name)
        site.wait_for_hits(30)
        kills = 0
        while kills < 20:
            site.wait_for_hits(site.hits() + rng.randrange(5, 45))
            name = rng.choice(WORKERS)
            assert fleet.is_running(name), "the site is too small for so many kills"
            fleet.kill(name)
            kills += 1
            fleet.start(name)
        fleet.finish()
        hits = fleet.page_hits()
        assert site.missing_pages() == []
        assert sum(hits) - 1 - site.pages <= kills * IN_HAND


@pytest.mark.slow
def test_a_frozen_worker_finishes_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    """Frozen past its lease, it wakes up to find its pages fetched by another, says so, and goes on."""
    with (
        LocalSite(pages=300, links_per_page=5, delay=0.05) as site,
        RedisServer(tmp_path) as server,
        Fleet(site, server, lease=1.0) as fleet,
    ):
        fleet.start("frozen")
        site.wait_for_hits(40)
        fleet.freeze("frozen")
        frozen_at = site.hits()
        fleet.start("other")
        site.wait_for_hits(frozen_at + 60)
        with server.client() as client:
            wait_until(lambda: client.zcard("{bloom:site:0}:workers") == 1, "the lease to end")
        fleet.thaw("frozen")
        ended = fleet.finish()
        hits = fleet.page_hits()
    assert site.missing_pages() == []
    assert sum(hits) - 1 - site.pages <= IN_HAND
    assert "leases of this worker had ended" in ended["frozen"].log
    assert ended["other"].stats["bloom/fleet/taken_back"] > 0
    assert ended["frozen"].stats["bloom/fleet/stale"] <= IN_HAND


@pytest.mark.slow
@pytest.mark.parametrize("with_workers", [False, True], ids=["server", "server and workers"])
def test_a_server_killed_and_back_loses_nothing(tmp_path: Path, with_workers: bool) -> None:
    """With appendonly nothing is fetched twice but what killed workers had in hand; the crawl waits meanwhile."""
    kills = 0
    with (
        LocalSite(pages=250, links_per_page=5, delay=0.05) as site,
        RedisServer(tmp_path, keeps_data=True) as server,
        Fleet(site, server) as fleet,
    ):
        _start_all(fleet, server)
        for round_ in range(2):
            site.wait_for_hits(40 + 80 * round_)
            server.kill()
            if with_workers:
                fleet.kill(WORKERS[round_])
                kills += 1
            wait_until(lambda: _is_quiet(site), "the workers to run out of pages")
            server.start()
            if with_workers:
                _start_and_wait(fleet, server, WORKERS[round_])
        ended = fleet.finish()
        hits = fleet.page_hits()
    assert site.missing_pages() == []
    assert sum(hits) - 1 - site.pages <= kills * IN_HAND
    assert max(outcome.stats["bloom/redis/away"] for outcome in ended.values()) >= 1


def _start_all(fleet: Fleet, server: RedisServer) -> None:
    """Start all workers. Until the last has joined, a page takes a second, or the first might be done by then."""
    delay, fleet.site.delay = fleet.site.delay, 1.0
    for name in WORKERS:
        _start_and_wait(fleet, server, name)
    fleet.site.delay = delay


def _start_and_wait(fleet: Fleet, server: RedisServer, name: str) -> None:
    """Start the worker *name* again and return once it has joined: without a server, it would not start at all."""
    with server.client() as client:
        before = client.hget("{bloom:site:0}:names", name)
        fleet.start(name)
        wait_until(lambda: client.hget("{bloom:site:0}:names", name) not in (None, before), f"{name} to join")
        client.ping()  # a server sends all answers that it has, the worker's too, before it reads the next command


def _is_quiet(site: LocalSite) -> bool:
    """Nothing was asked for in the last half second."""
    return site.hits_since(time.monotonic() - 0.5) == 0


@pytest.mark.slow
def test_a_full_server_loses_nothing(tmp_path: Path) -> None:
    """While it takes no links no further pages are begun, and with room again the crawl goes on to its end."""
    with (
        LocalSite(pages=200, links_per_page=5, delay=0.05) as site,
        RedisServer(tmp_path) as server,
        Fleet(site, server) as fleet,
        server.client() as client,
    ):
        _start_all(fleet, server)
        site.wait_for_hits(60)
        client.config_set("maxmemory", 1)
        wait_until(lambda: _is_quiet(site), "the workers to wait for room")
        assert site.missing_pages()
        fleet.kill("a")
        client.config_set("maxmemory", 0)
        fleet.start("a")
        ended = fleet.finish()
        hits = fleet.page_hits()
    assert site.missing_pages() == []
    assert sum(hits) - 1 - site.pages <= IN_HAND
    assert all("is full" in outcome.log for name, outcome in ended.items() if name != "a")


@pytest.mark.slow
def test_a_full_server_that_is_killed_with_a_worker_loses_nothing(tmp_path: Path) -> None:
    """It comes back full, a worker joins it as it is, and with room again the crawl goes on to its end."""
    with (
        LocalSite(pages=400, links_per_page=2, delay=0.05) as site,
        RedisServer(tmp_path, keeps_data=True) as server,
        Fleet(site, server, lease=6.0) as fleet,  # no worker but the killed one is to lose its leases on a busy machine
    ):
        _start_all(fleet, server)
        site.wait_for_hits(60)
        with server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 1)
        wait_until(lambda: _is_quiet(site), "the workers to wait for room")
        server.kill()
        fleet.kill("a")
        server.start("--maxmemory", "1", "--maxmemory-policy", "noeviction")
        _start_and_wait(fleet, server, "a")
        wait_until(lambda: _is_quiet(site), "the workers to wait again")
        assert site.missing_pages()
        with server.client() as client:
            client.config_set("maxmemory", 0)
        ended = fleet.finish()
        hits = fleet.page_hits()
    assert site.missing_pages() == []
    assert sum(hits) - 1 - site.pages <= IN_HAND
    assert all("is full" in ended[name].log for name in WORKERS[1:])
