"""A page and all that comes with it count, or nothing of it; and what one worker does for all."""

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom.components.fleet_settings import ITEMS
from scrapy_bloom.components.spider_crawl import crawl_of
from tests.fleet.engine import Join, Worker, crawl, page
from tests.fleet.servers import LosingProxy, RedisServer, wait_until
from tests.support.engine import ItemList

LIVE = {"live": Fraction(1, 3)}
"""``meta`` that keeps a request in the memory of its worker."""


class ServerItems(ItemList):
    """Feeds that write items to the buffer of the store, as those of ``scrapy bloom crawl`` do."""

    def __init__(self, crawler: Any) -> None:
        super().__init__()
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Any) -> "ServerItems":
        return cls(crawler)

    def write(self, feed: str, item: Any, *, is_acknowledged: bool = False) -> bool:
        crawl: Any = crawl_of(self._crawler)
        crawl.store.items.write(f"{item}\n".encode())
        return True


class FullDisk(ItemList):
    def flush(self) -> None:
        raise OSError(28, "No space left on device")


WITH_ITEMS = {ITEMS: "file", "EXTENSIONS": {ServerItems: 0}}


def of_start(name: str, **meta: Any) -> Request:
    return page(name, dont_filter=True, meta={"is_start_request": True, **meta})


def end(worker: Worker, request: Request, item: str) -> None:
    """Let the page of *request* give *item*, and be done."""
    worker.give(request, item)
    worker.end(request)


def items(server: RedisServer) -> Counter[str]:
    """Return the items that the server has for the file."""
    with server.client() as client:
        entries = client.lrange("{bloom:pages:0}:items:file", 0, -1)
    return Counter(line.decode() for entry in entries for line in entry.splitlines()[1:])


def test_nothing_of_a_refused_page_counts(join: Join, server: RedisServer) -> None:
    """A worker is silent for longer than its lease. Its page is done by another one, which finds everything again."""
    with LosingProxy(server.port) as proxy:
        one = join(proxy.url, BLOOM_FLEET_LEASE=1, **WITH_ITEMS)
        mine = one.fetch(page("page"))
        proxy.gate.clear()
        other = join(BLOOM_FLEET_LEASE=1, **WITH_ITEMS)
        for worker, request in ((one, mine), (other, other.fetch())):
            worker.push_from(request, page("retry", dont_filter=True), page("in memory", dont_filter=True, meta=LIVE))
            live = worker.fetch()
            worker.push_from(live, page("led-to", dont_filter=True))
            end(worker, live, "of what is in memory")
            end(worker, request, "of the page")
        fetched = crawl(other)
        proxy.gate.set()
        fetched += crawl(one, other)
        one.leave()
    assert sorted(fetched) == ["led-to", "retry"]
    assert items(server) == {"of the page": 1, "of what is in memory": 1}


def test_a_page_in_the_memory_of_two_workers_gives_its_items_once(join: Join, server: RedisServer) -> None:
    """Both may fetch it, and one of them may have had it from the server. What it is redirected to belongs to it."""
    with LosingProxy(server.port) as proxy:
        one = join(proxy.url, **WITH_ITEMS)
        pages = [(one, one.fetch(page("first")))]
        proxy.gate.clear()
        other = join(**WITH_ITEMS)
        pages.append((other, other.fetch(page("second"))))
        proxy.gate.set()
        for worker, request in pages:
            assert worker.push_from(request, page("both", meta=LIVE)) == [True]
            live = worker.fetch()
            worker.push_from(live, page("redirected", meta=LIVE, dont_filter=True))
            end(worker, live, "of both")
            end(worker, worker.fetch(), "of the redirected one")
            worker.end(request)
        assert crawl(one, other) == []
        one.leave()
    assert items(server) == {"of both": 1, "of the redirected one": 1}


def test_one_worker_runs_start_and_another_takes_over(join: Join, server: RedisServer) -> None:
    """Nobody ends before start() has ended, and what it gives counts once, also when a later run runs it again."""
    with LosingProxy(server.port) as proxy:
        one = join(proxy.url, has_start=True, BLOOM_FLEET_LEASE=1, **WITH_ITEMS)
        other = join(has_start=True, BLOOM_FLEET_LEASE=1, **WITH_ITEMS)
        assert one.store.start.is_granted
        first = one.begin_start()
        assert not other.store.start.is_granted
        proxy.gate.clear()
        wait_until(lambda: other.store.start.is_granted, "the other worker is to run start()")
        second = other.begin_start()
        for worker, request in ((one, first), (other, second)):
            worker.give(request, "of start")
            worker.push_from(request, of_start("start"), of_start("live", **LIVE))
        one.end(one.fetch())
        assert len(other.store)
        end(other, other.fetch(), "of a start request in memory")
        other.crawl.done(second)
        one.crawl.done(first)
        fetched = crawl(other)
        proxy.gate.set()
        fetched += crawl(one, other)
        one.leave()
        other.leave()
    assert fetched == ["start"]
    later = join(has_start=True, **WITH_ITEMS)
    wait_until(lambda: later.store.start.is_granted, "each run runs start()")
    request = later.begin_start()
    later.give(request, "of start")
    later.push_from(request, of_start("start"), of_start("new"))
    later.crawl.done(request)
    assert crawl(later) == ["new"]
    assert items(server) == {"of start": 1, "of a start request in memory": 1}


def test_start_is_run_again_when_the_server_went_back(join: Join, server: RedisServer) -> None:
    """To before it had ended, by the same worker if there is no other."""
    worker = join(has_start=True)
    request = worker.begin_start()
    with server.client() as client:
        copy = {key: client.dump(key) for key in client.scan_iter()}
        worker.push_from(request, of_start("start"))
        worker.crawl.done(request)
        assert crawl(worker) == ["start"]
        transaction = client.pipeline()
        transaction.flushall()
        for key, value in copy.items():
            transaction.restore(key, 0, value)
        transaction.execute()
    wait_until(lambda: worker.store.start.is_granted, "start() is to be run again")
    worker.crawl.done(worker.begin_start())
    assert set(crawl(worker)) <= {"start"}


def test_a_feed_that_cannot_be_flushed_ends_the_crawl_and_leaves_the_page_to_others(join: Join) -> None:
    """The disk of a worker is full."""
    one = join(EXTENSIONS={FullDisk: 0})
    one.end(one.fetch(page("page")))
    one.crawl.core.tick()
    assert one.crawl.core.has_failed
    one.leave()
    assert crawl(join()) == ["page"]


def test_a_start_that_goes_on_holds_nothing_back(
    join: Join, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests in memory are acknowledged alone; its items after half a minute."""
    monkeypatch.setattr("scrapy_bloom.fleet.store.LONGEST_SECONDS", 0.0)
    worker = join(has_start=True, **WITH_ITEMS)
    request = worker.begin_start()
    worker.push_from(request, of_start("live", **LIVE))
    end(worker, worker.fetch(), "of what is in memory")
    worker.give(request, "of start")
    wait_until(lambda: worker.crawl.core.tick() or len(items(server)) == 2, "both items are on the server")
    worker.push_from(request, of_start("last", **LIVE))
    worker.crawl.done(request)
    assert len(worker.store)
    assert crawl(worker) == ["last"]
    assert items(server) == {"of start": 1, "of what is in memory": 1}
