"""A page and all that comes with it count, or nothing of it; and what one worker does for all."""

from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
from scrapy import Request, Spider

from scrapy_bloom.components.fleet_settings import ITEMS
from scrapy_bloom.fleet.store import FleetStore
from scrapy_bloom.frontier.page import Page
from scrapy_bloom.frontier.store import PageEffects
from tests.fleet.servers import LosingProxy, RedisServer, crawl, end, open_store, wait_until
from tests.fleet.test_store import page, pop, push

LIVE = {"live": Fraction(1, 3)}
"""``meta`` that keeps a request in the memory of its worker."""


class PageSpider(Spider):
    name = "pages"


class Effects(PageEffects):
    """Writes items to the buffer of the store, as the feed of a worker does."""

    store: FleetStore

    def take(self, page: Page, batch: Any = None) -> None:
        for _, item in page.gave:
            self.store.items.write(item)
        page.gave = []


class FullDisk(PageEffects):
    def flush(self) -> None:
        raise OSError(28, "No space left on device")


@pytest.fixture
def make(server: RedisServer) -> Iterator[Callable[..., FleetStore]]:
    made: list[FleetStore] = []

    def make(has_start: bool = False, effects: PageEffects | None = None, **own: Any) -> FleetStore:
        settings = {"BLOOM_REDIS_URL": server.url, "BLOOM_CAPACITY": 1000, ITEMS: "file", **own}
        effects = effects or Effects()
        store = open_store(PageSpider, settings, effects, has_start=has_start)
        if isinstance(effects, Effects):
            effects.store = store
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def give(store: FleetStore, request: Request, item: str) -> None:
    """Have the page of *request* give *item*."""
    store.in_flight[id(request)].gave.append(("file", f"{item}\n".encode()))


def items(server: RedisServer) -> Counter[str]:
    """Return the items that the server has for the file."""
    with server.client() as client:
        entries = client.lrange("{bloom:pages:0}:items:file", 0, -1)
    return Counter(line.decode() for entry in entries for line in entry.splitlines()[1:])


def test_nothing_of_a_refused_page_counts(make: Callable[..., FleetStore], server: RedisServer) -> None:
    """A worker is silent for longer than its lease. Its page is done by another one, which finds everything again."""
    with LosingProxy(server.port) as proxy:
        one = make(BLOOM_REDIS_URL=proxy.url, BLOOM_FLEET_LEASE=1)
        push(one, "page")
        _, mine = pop(one)
        proxy.gate.clear()
        other = make(BLOOM_FLEET_LEASE=1)
        for store, request in ((one, mine), (other, pop(other)[1])):
            current = store.in_flight[id(request)]
            give(store, request, "of the page")
            store.push(page("retry", dont_filter=True), None, current)
            store.push(page("in memory", dont_filter=True, meta=LIVE), None, current)
            _, live = pop(store)
            give(store, live, "of what is in memory")
            store.push(page("led-to", dont_filter=True), None, store.in_flight[id(live)])
            end(store, live)
            end(store, request)
        fetched = crawl(other)
        proxy.gate.set()
        fetched += crawl(one, other)
        one.close()
    assert sorted(fetched) == ["led-to", "retry"]
    assert items(server) == {"of the page": 1, "of what is in memory": 1}


def test_a_page_in_the_memory_of_two_workers_gives_its_items_once(
    make: Callable[..., FleetStore], server: RedisServer
) -> None:
    """Both may fetch it, and one of them may have had it from the server. What it is redirected to belongs to it."""
    with LosingProxy(server.port) as proxy:
        one = make(BLOOM_REDIS_URL=proxy.url)
        push(one, "first")
        pages = [pop(one)]
        proxy.gate.clear()
        other = make()
        push(other, "second")
        pages.append(pop(other))
        proxy.gate.set()
        for store, request in pages:
            fingerprint = b"of the page that both have"
            assert store.add(fingerprint)
            store.push(page("both", meta=LIVE), fingerprint, store.in_flight[id(request)])
            _, live = pop(store)
            give(store, live, "of both")
            store.push(page("redirected", meta=LIVE, dont_filter=True), None, store.in_flight[id(live)])
            end(store, live)
            _, redirected = pop(store)
            give(store, redirected, "of the redirected one")
            end(store, redirected)
            end(store, request)
        assert crawl(one, other) == []
        one.close()
    assert items(server) == {"of both": 1, "of the redirected one": 1}


def test_one_worker_runs_start_and_another_takes_over(make: Callable[..., FleetStore], server: RedisServer) -> None:
    """Nobody ends before start() has ended, and what it gives counts once, also when a later run runs it again."""
    with LosingProxy(server.port) as proxy:
        one, other = make(True, BLOOM_REDIS_URL=proxy.url, BLOOM_FLEET_LEASE=1), make(True, BLOOM_FLEET_LEASE=1)
        assert one.start.is_granted
        first = one.begin_start()
        assert not other.start.is_granted
        proxy.gate.clear()
        wait_until(lambda: other.start.is_granted, "the other worker is to run start()")
        second = other.begin_start()
        for store, current in ((one, first), (other, second)):
            give(store, current.request, "of start")
            store.push(page("start", dont_filter=True, meta={"is_start_request": True}), None, current)
            store.push(page("live", dont_filter=True, meta={"is_start_request": True, **LIVE}), None, current)
        store, live = pop(one)
        end(store, live)
        assert len(other)
        store, live = pop(other)
        give(store, live, "of a start request in memory")
        end(store, live)
        other.done(second)
        one.done(first)
        fetched = crawl(other)
        proxy.gate.set()
        fetched += crawl(one, other)
        one.close()
        other.close()
    assert fetched == ["start"]
    later = make(True)
    wait_until(lambda: later.start.is_granted, "each run runs start()")
    page_of_start = later.begin_start()
    give(later, page_of_start.request, "of start")
    later.push(page("start", dont_filter=True, meta={"is_start_request": True}), None, page_of_start)
    later.push(page("new", dont_filter=True, meta={"is_start_request": True}), None, page_of_start)
    later.done(page_of_start)
    assert crawl(later) == ["new"]
    assert items(server) == {"of start": 1, "of a start request in memory": 1}


def test_start_is_run_again_when_the_server_went_back(make: Callable[..., FleetStore], server: RedisServer) -> None:
    """To before it had ended, by the same worker if there is no other."""
    store = make(True)
    page_of_start = store.begin_start()
    with server.client() as client:
        copy = {key: client.dump(key) for key in client.scan_iter()}
        store.push(page("start", dont_filter=True, meta={"is_start_request": True}), None, page_of_start)
        store.done(page_of_start)
        assert crawl(store) == ["start"]
        transaction = client.pipeline()
        transaction.flushall()
        for key, value in copy.items():
            transaction.restore(key, 0, value)
        transaction.execute()
    wait_until(lambda: store.start.is_granted, "start() is to be run again")
    store.done(store.begin_start())
    assert set(crawl(store)) <= {"start"}


def test_a_feed_that_cannot_be_flushed_ends_the_crawl_and_leaves_the_page_to_others(
    make: Callable[..., FleetStore],
) -> None:
    """The disk of a worker is full."""
    one = make(effects=FullDisk())
    push(one, "page")
    _, request = pop(one)
    end(one, request)
    with pytest.raises(OSError, match="No space"):
        one.commit()
    one.close()
    other = make()
    assert crawl(other) == ["page"]


def test_a_start_that_goes_on_holds_nothing_back(
    make: Callable[..., FleetStore], server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests in memory are acknowledged alone; its items after half a minute."""
    monkeypatch.setattr("scrapy_bloom.fleet.store.LONGEST_SECONDS", 0.0)
    store = make(True)
    current = store.begin_start()
    store.push(page("live", dont_filter=True, meta={"is_start_request": True, **LIVE}), None, current)
    _, live = pop(store)
    give(store, live, "of what is in memory")
    end(store, live)
    give(store, current.request, "of start")
    wait_until(lambda: store.commit() or len(items(server)) == 2, "both items are on the server")
    store.push(page("last", dont_filter=True, meta={"is_start_request": True, **LIVE}), None, current)
    store.done(current)
    assert len(store)
    assert crawl(store) == ["last"]
    assert items(server) == {"of start": 1, "of what is in memory": 1}
