"""A page whose links take several calls: whatever is killed between them, or in one, no link is lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError
from scrapy import Request

from scrapy_bloom.old.fleet.frontier import courier as couriers
from scrapy_bloom.old.fleet.frontier.queue import MAX_LINKS
from tests.old.support.fleets import wait_until
from tests.old.support.redis_servers import RedisServer
from tests.old.support.schedulers import EngineCalls

if TYPE_CHECKING:
    from collections.abc import Callable

LINKS = [f"https://example.com/{i}" for i in range(2 * MAX_LINKS + MAX_LINKS // 2)]
PAGE = "https://example.com/page"


def start(url: str, name: str) -> EngineCalls:
    settings = {
        "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
        "BLOOM_REDIS_URL": url,
        "BLOOM_FLEET_WORKER": name,
        "BLOOM_CAPACITY": 10_000,
        "CONCURRENT_REQUESTS": 1,
    }
    return EngineCalls(None, "scrapy_bloom.FleetScheduler", **settings)


def before_part(worker: EngineCalls, number: int, strike: Callable[[], Any]) -> None:
    """Call *strike* before the call with part *number* is sent, in the courier's thread."""
    queue = worker.scheduler._courier.queue
    finish, parts = queue.finish, 0

    def counting(shard: int, call: int, links: Any, ids: Any) -> Any:
        nonlocal parts
        parts += bool(links)
        if parts == number and links:
            strike()
        return finish(shard, call, links, ids)

    queue.finish = counting


def crawl_page(worker: EngineCalls) -> Request:
    """Take the page and yield its links, in one go and more than fit into two calls, before it is done."""
    page = worker.start()
    assert page is not None
    assert page.url == PAGE
    courier = worker.scheduler._courier
    with courier._changed:  # or the first links would be on their way before the last are there
        for link in LINKS:
            worker.push(Request(link))
        worker.end(page)
    return page


def with_page(url: str) -> None:
    first = start(url, "first")
    first.push(Request(PAGE))
    first.stop()


@pytest.mark.slow
@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_server_killed_between_parts_loses_no_link(tmp_path: Path, part: int) -> None:
    """If the server is killed between two parts of a page, the parts it had are not enqueued twice, the others arrive
    when it is back, and the page is acknowledged."""
    with RedisServer(tmp_path, keeps_data=True) as server:
        with_page(server.url)
        worker = start(server.url, "w")
        before_part(worker, part, server.kill)
        crawl_page(worker)
        wait_until(lambda: worker.scheduler._courier.is_away, "the worker to notice")
        server.start()
        assert sorted(worker.drain()) == sorted(LINKS)
        worker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_worker_killed_between_parts_loses_no_link(tmp_path: Path, part: int) -> None:
    """If the worker is killed between two parts, the page is fetched again, and links of earlier parts are not enqueued
    twice."""
    with RedisServer(tmp_path) as server:
        with_page(server.url)
        command = [sys.executable, "-m", "tests.old.fleet.frontier.test_parts", server.url, str(part)]
        died = subprocess.run(command, cwd=Path(__file__).parents[4], check=False, timeout=60)
        assert died.returncode == -signal.SIGKILL
        worker = start(server.url, "w")
        with server.client() as client:
            assert client.zcard("{bloom:site:0}:slot:example.com") == 1 + (part - 1) * MAX_LINKS
        fetched = []
        while (request := worker.start()) is not None:
            fetched.append(request.url)
            if request.url == PAGE:
                worker.push(*map(Request, LINKS))
            worker.end(request)
        assert sorted(fetched) == sorted([PAGE, *LINKS])
        worker.stop()


@pytest.mark.slow
def test_scripts_that_are_killed_are_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script ended by SCRIPT KILL, which works only before it has written, is called again; nothing is lost or done
    twice."""
    monkeypatch.setattr(couriers, "MAX_LINKS", 4000)  # one call, long enough for the server to listen meanwhile
    known = [f"https://example.com/known/{i}" for i in range(3000)]
    with RedisServer(tmp_path) as server, server.client() as client, server.client() as killer:
        before = start(server.url, "before")
        before.push(*map(Request, known))
        before.stop()
        # What is known counts as crawled.
        client.delete(*(f"{{bloom:site:0}}:{name}" for name in ("slot:example.com", "slots", "requests")))
        worker = start(server.url, "w")
        worker.push(Request("https://example.com/other"))
        other = worker.start()
        assert other is not None
        client.config_set("lua-time-limit", 1)
        kills = 0
        is_over = threading.Event()

        def kill_scripts() -> None:
            nonlocal kills
            while kills < 3 and not is_over.is_set():
                with suppress(ResponseError):  # none runs, or it has written already
                    killer.script_kill()
                    kills += 1

        thread = threading.Thread(target=kill_scripts)
        thread.start()
        try:
            courier = worker.scheduler._courier
            with courier._changed:
                worker.push(*map(Request, known), Request("https://example.com/new"))
                worker.end(other)
            wait_until(lambda: kills == 3, "three scripts to be killed")
        finally:
            is_over.set()
            thread.join()
        assert worker.drain() == ["https://example.com/new"]
        assert courier.times_away >= 1
        assert worker.stats.get_value("dupefilter/filtered") == len(known)
        worker.stop()


def _die_before_part(url: str, part: int) -> None:
    worker = start(url, "w")
    before_part(worker, part, lambda: os.kill(os.getpid(), signal.SIGKILL))
    crawl_page(worker)
    wait_until(lambda: False, "the end")


if __name__ == "__main__":
    _die_before_part(sys.argv[1], int(sys.argv[2]))
