from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.old.support.crawling import PATIENCE, crawl, start_crawl
from tests.old.support.localsite import LocalSite
from tests.old.support.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = Path(__file__).parents[1] / "support" / "fleet_worker.py"
PAGES = 120


@pytest.fixture
def site() -> Iterator[LocalSite]:
    with LocalSite(pages=PAGES, links_per_page=10, delay=0.01) as site:
        yield site


def settings_for(server: RedisServer, **settings: Any) -> dict[str, Any]:
    return {"DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter", "BLOOM_REDIS_URL": server.url, **settings}


def start_worker(settings: dict[str, Any]) -> subprocess.Popen[str]:
    """Start one worker of a scrapy-redis fleet."""
    root = str(WORKER.parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(WORKER), json.dumps(settings)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def page_hits(site: LocalSite) -> list[int]:
    """Return how often each page was fetched."""
    return [site.hits(f"/page/{i}") for i in range(site.pages)]


def test_a_crawl_under_scrapys_own_scheduler(plain_server: RedisServer, site: LocalSite, prefix: str) -> None:
    """Every page is fetched once; a second crawl with the same filter fetches only its start page."""
    settings = settings_for(plain_server, BLOOM_REDIS_KEY=prefix)
    outcome = crawl(site.url(), settings)
    assert page_hits(site) == [2] + [1] * (PAGES - 1)  # start_urls are not filtered, and links lead back
    stats = outcome.stats
    assert stats["finish_reason"] == "finished"
    assert stats["bloom/urls"] == PAGES
    assert stats["bloom/redis/round_trips"] < PAGES + 30
    assert stats["dupefilter/filtered"] > 5 * PAGES
    site.forget_hits()
    crawl(site.url(), settings)
    assert page_hits(site) == [1] + [0] * (PAGES - 1)


DOORS = ("a", "b", "c")


def test_three_scrapy_redis_workers_fetch_each_page_once(tmp_path: Path, site: LocalSite) -> None:
    """A scrapy-redis fleet that changes one line, DUPEFILTER_CLASS, fetches every page once between all workers."""
    pytest.importorskip("scrapy_redis", reason="scrapy-redis is not installed")
    with RedisServer(tmp_path) as server, server.client() as client:
        settings = {
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": server.port,
            "REDIS_PARAMS": {"socket_timeout": 30},
            "SCHEDULER_PERSIST": True,
            "CONCURRENT_REQUESTS": 4,
            "REDIS_START_URLS_BATCH_SIZE": 1,
        }
        workers = [start_worker(settings) for _ in range(3)]
        try:
            deadline = time.monotonic() + PATIENCE
            # Whoever takes one gets no answer before all are taken: so that the crawl is not over before all are there.
            client.lpush("site:start_urls", *(json.dumps({"url": site.url(f"/held/{door}")}) for door in DOORS))
            for door in DOORS:
                site.wait_for_hits(1, f"/held/{door}")
            for door in DOORS:
                site.release(door)
            while site.missing_pages() or client.exists("site:requests"):
                assert time.monotonic() < deadline, f"still missing: {site.missing_pages()}"
                time.sleep(0.05)
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            ended = [worker.communicate(timeout=PATIENCE) for worker in workers]
        stats = [json.loads(out.strip().splitlines()[-1]) for out, _ in ended]
        assert page_hits(site) == [1] * PAGES
        assert all(one["bloom/redis/round_trips"] for one in stats)
        # How many pages each of them gets is scrapy-redis' queue's business.
        assert sum(one.get("response_received_count", 0) for one in stats) == site.hits()
        assert max(one["bloom/urls"] for one in stats) == PAGES  # the start requests are not filtered
        assert all("Traceback" not in log for _, log in ended), ended


def test_scrapy_redis_removes_the_filter_unless_told_to_keep_it(tmp_path: Path, site: LocalSite) -> None:
    """Without SCHEDULER_PERSIST the scheduler calls clear() at the end; the final stats are set all the same."""
    pytest.importorskip("scrapy_redis", reason="scrapy-redis is not installed")
    with RedisServer(tmp_path) as server, server.client() as client:
        client.lpush("site:start_urls", json.dumps({"url": site.url()}))
        worker = start_worker({"REDIS_URL": server.url, "MAX_IDLE_TIME_BEFORE_CLOSE": 1})
        out, log = worker.communicate(timeout=PATIENCE)
        stats = json.loads(out.strip().splitlines()[-1])
        assert not site.missing_pages()
        assert stats["bloom/urls"] == PAGES
        assert client.keys("*bloom*") == []
        assert "Traceback" not in log


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["retry", "allow"])
@pytest.mark.parametrize("keeps_data", [True, False])
def test_a_server_killed_in_the_middle_of_a_crawl(
    tmp_path: Path, site: LocalSite, on_error: str, keeps_data: bool
) -> None:
    """The crawl goes on, nothing is dropped, and with a server that keeps its data nothing is fetched twice."""
    with RedisServer(tmp_path, keeps_data=keeps_data) as server:
        site.delay = 0.1
        running = start_crawl(site.url(), settings_for(server, BLOOM_REDIS_ON_ERROR=on_error, CONCURRENT_REQUESTS=2))
        site.wait_for_hits(20)
        server.kill()
        site.wait_for_hits(50)
        server.start()
        outcome = running.finish()
    assert outcome.returncode == 0
    assert outcome.stats["finish_reason"] == "finished"
    assert outcome.stats["bloom/redis/away"] == 1
    assert "bloom/unchecked" not in outcome.stats
    hits = page_hits(site)
    assert min(hits) == 1
    assert max(hits) <= (2 if keeps_data else 3)
    if keeps_data:
        assert sum(hits) == PAGES + 1
        assert outcome.stats["bloom/urls"] == PAGES
        assert outcome.stats["bloom/redis/unwritten"] == 0


def test_a_crawl_ends_when_the_server_dies_and_is_resumed(tmp_path: Path, site: LocalSite) -> None:
    """Under close the crawl ends cleanly, and the next one in the same job directory fetches what is missing."""
    with RedisServer(tmp_path / "redis", keeps_data=True) as server:
        settings = settings_for(server, BLOOM_REDIS_ON_ERROR="close", JOBDIR=str(tmp_path / "job"))
        running = start_crawl(site.url(), settings)
        site.wait_for_hits(20)
        server.kill()
        outcome = running.finish()
        assert outcome.returncode == 0
        assert outcome.stats["finish_reason"] == "bloom_redis_away"
        assert site.missing_pages()
        server.start()
        outcome = crawl(site.url(), settings)
    assert outcome.stats["finish_reason"] == "finished"
    assert site.missing_pages() == []
    assert max(page_hits(site)[1:]) <= 2


@pytest.mark.slow
def test_a_crawl_outlives_its_server(tmp_path: Path, site: LocalSite) -> None:
    """If the server never comes back, the crawl waits a few seconds once, and fetches every page."""
    with RedisServer(tmp_path) as server:
        running = start_crawl(site.url(), settings_for(server))
        site.wait_for_hits(20)
        server.kill()
        outcome = running.finish()
    assert outcome.stats["finish_reason"] == "finished"
    assert page_hits(site) == [2] + [1] * (PAGES - 1)
    assert outcome.stats["bloom/redis/unwritten"] > 0
    assert "are not in the filter" in outcome.log


@pytest.mark.slow
def test_links_that_an_outage_under_scrapy_redis_has_lost_are_new_again(tmp_path: Path) -> None:
    """A URL whose request could not be queued in an outage is fetched when the next page links to it."""
    pytest.importorskip("scrapy_redis", reason="scrapy-redis is not installed")
    with (
        RedisServer(tmp_path, keeps_data=True) as server,
        server.client() as client,
        # Few links, as redis-py tries for some seconds to push each of them.
        LocalSite(pages=30, links_per_page=2) as site,
    ):
        settings = {
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": server.port,
            "SCHEDULER_PERSIST": True,
            "BLOOM_REDIS_ON_ERROR": "allow",
            "MAX_IDLE_TIME_BEFORE_CLOSE": 1,
        }
        client.lpush("site:start_urls", *(json.dumps({"url": site.url(f"/held/{door}")}) for door in "ab"))
        worker = start_worker(settings)
        try:
            for door in "ab":
                site.wait_for_hits(1, f"/held/{door}")
            server.kill()
            site.release("a")  # whose links cannot be pushed
            read_until(worker, "Its queue may be away, too")
            read_until(worker, "Connection refused")
            server.start()
            site.release("b")  # which has the same links
            out, _ = worker.communicate(timeout=PATIENCE)
        finally:
            worker.kill()
        stats = json.loads(out.strip().splitlines()[-1])
        assert stats["finish_reason"] == "finished"
        assert stats["bloom/redis/accepted_alone"] > 0
        assert site.missing_pages() == []


def read_until(worker: subprocess.Popen[str], text: str) -> None:
    """Read the log of *worker* up to the first line with *text* in it."""
    assert worker.stderr is not None
    assert any(text in line for line in worker.stderr)


@pytest.mark.slow
def test_idle_workers_end_when_the_server_dies(tmp_path: Path, site: LocalSite) -> None:
    """Under close, workers of a scrapy-redis fleet that have nothing to ask the filter notice too, and end."""
    pytest.importorskip("scrapy_redis", reason="scrapy-redis is not installed")
    with RedisServer(tmp_path, keeps_data=True) as server, server.client() as client:
        settings = {"REDIS_URL": server.url, "SCHEDULER_PERSIST": True, "BLOOM_REDIS_ON_ERROR": "close"}
        workers = [start_worker(settings) for _ in range(3)]
        try:
            client.lpush("site:start_urls", json.dumps({"url": site.url()}))
            site.wait_for_hits(PAGES)
            while client.exists("site:requests"):
                time.sleep(0.05)
            while client.info("clients")["connected_clients"] < 7:  # two of each worker, and this one
                time.sleep(0.05)
            server.kill()
            ended = [worker.communicate(timeout=PATIENCE) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
    for out, _ in ended:
        assert json.loads(out.strip().splitlines()[-1])["finish_reason"] == "bloom_redis_away"
