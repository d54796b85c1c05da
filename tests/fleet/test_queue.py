import hashlib
import time
from collections.abc import Collection, Iterator
from typing import Any

import pytest
import redis

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.life import Life, Outbox
from scrapy_bloom.fleet.messages import Done, Forget, Link, Message, Politeness, QueueLane, Ticket
from scrapy_bloom.fleet.queue import Queue
from scrapy_bloom.fleet.server import Server
from scrapy_bloom.frontier.order import PagesPerHost
from scrapy_bloom.frontier.store import Journal
from scrapy_bloom.settings import OTHERS
from tests.fleet.servers import RedisServer, wait_until


def print_of(name: str) -> bytes:
    return hashlib.sha1(name.encode()).digest()


def link(name: str, *, slot: str = "h", priority: int = 0, is_lifo: bool = True, is_filtered: bool = True) -> Link:
    lane = QueueLane(slot, str(-priority), "RPUSH" if is_lifo else "LPUSH")
    return Link(0, print_of(name) if is_filtered else None, lane, name.encode())


class Worker:
    """Numbers the calls of one worker's life, as the lease client does."""

    def __init__(self, queue: Queue, name: str) -> None:
        self.queue, self.token = queue, f"token-of-{name}"
        self.number = self.newest = 0
        queue.begin()
        queue.join(self.token, name)

    def take(self, most: int = 100, later: Any = ()) -> dict[str, Ticket]:
        found = self.queue.take(0, self.token, self.newest, most, later, number=self.number).requests
        self.newest = max([self.newest, *[ticket.id for ticket, _ in found]])
        return {entry.decode(): ticket for ticket, entry in found}

    def is_busy(self) -> bool:
        return self.queue.take(0, self.token, self.newest, 1).is_busy

    def finish(self, *links: Link, done: Any = (), forget: Any = ()) -> Any:
        self.number += 1
        messages: list[Message] = [*links, *map(Done, done), *[Forget(0, each) for each in forget]]
        return self.queue.finish(0, self.token, self.number, messages)


@pytest.fixture
def make(server: RedisServer) -> Iterator[Any]:
    opened = []

    def make(**options: Any) -> Queue:
        connection = Server(server.url)
        opened.append(connection)
        return Queue(connection, "bloom:test", **{"capacity": 100, **options})

    yield make
    for connection in opened:
        connection.close()


def test_a_call_that_is_made_twice_counts_once(make: Any) -> None:
    """A worker whose answer got lost repeats the call, and nothing is enqueued, handed out or acknowledged twice."""
    queue = make()
    queue.begin()
    queue.join("token", "one")
    links = [link("a", is_filtered=False)]
    assert [queue.finish(0, "token", 1, links).new for _ in range(2)] == [1, 0]
    first = queue.take(0, "token", 0, 5)
    assert queue.take(0, "token", 0, 5).requests == first.requests != []
    assert queue.take(0, "token", first.requests[0][0].id, 5).requests == []


def test_what_a_worker_gives_back_keeps_its_order(make: Any) -> None:
    """The next worker gets requests in the order in which the first one had them."""
    queue = make()
    one = Worker(queue, "one")
    one.finish(*map(link, "abcd"))
    had = [*one.take()]
    queue.leave(one.token, [one.number])
    assert [*Worker(queue, "two").take()] == had


def test_a_silence_of_all_workers_is_no_workers_fault(make: Any) -> None:
    """The server was away, say: each worker keeps what it has in hand, for a new lease."""
    queue = make(lease_seconds=0.3)
    one, two = Worker(queue, "one"), Worker(queue, "two")
    one.finish(link("a"))
    assert one.take()
    until = time.monotonic() + 0.4
    wait_until(lambda: time.monotonic() > until, "the lease has run out")
    assert not two.take()


class Settled(Journal):
    """The journal of a killed run that had made three calls: the last two may not have been answered."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.settled: list[tuple[int, list[int] | None]] = []

    @property
    def in_doubt(self) -> list[str]:
        return [f"0 {self.token} {number}" for number in (1, 2, 3)]

    def end(self, call: str, refused: Collection[int]) -> None:
        self.settled.append((int(call.split()[2]), list(refused)))

    def drop(self, call: str) -> None:
        self.settled.append((int(call.split()[2]), None))


def test_the_server_says_which_calls_of_a_killed_worker_it_took(make: Any) -> None:
    """Of the last one that it took, it says what it refused; the worker itself has noted that of those before."""
    slow, other = Worker(make(lease_seconds=0.05), "slow"), Worker(make(lease_seconds=60), "other")
    slow.finish(link("first"), link("second"))
    held = slow.take()
    wait_until(other.take, "the lease has run out")
    slow.finish(done=held.values())
    journal = Settled(slow.token)
    Outbox(other.queue, journal, Life()).settle()
    assert journal.settled == [(1, []), (2, [0, 1]), (3, None)]


def test_a_request_that_kills_its_worker_is_dead_lettered(make: Any) -> None:
    """A request in hand at each of several crashes is taken out, and what was in hand beside it is not."""
    queue = make()
    Worker(queue, "first").finish(link("harmful"), *[link(f"harmless {i}") for i in range(5)])
    done: set[str] = set()
    for life in range(20):
        worker = Worker(queue, "first")
        worker.token = f"life {life}"
        queue.join(worker.token, "first")
        found = worker.take()
        if not found:
            break
        if "harmful" not in found:
            worker.finish(done=found.values())
            done |= set(found)
    assert done == {f"harmless {i}" for i in range(5)}
    assert life > 3
    assert not worker.is_busy()


@pytest.mark.parametrize(("is_lifo", "order"), [(True, "cba"), (False, "abc")])
def test_the_order_is_that_of_scrapys_queues(make: Any, is_lifo: bool, order: str) -> None:
    """Higher priorities come first, and within one what came last or first."""
    worker = Worker(make(), "one")
    worker.finish(
        *[link(name, is_lifo=is_lifo) for name in "abc"], link("urgent", priority=1), link("later", priority=-1)
    )
    assert list(worker.take()) == ["urgent", *order, "later"]


def test_slots_take_turns(make: Any) -> None:
    """A worker gets requests of all hosts, those with fewest in hand first."""
    worker = Worker(make(), "one")
    worker.finish(*[link(f"a{i}", slot="a") for i in range(20)], link("b0", slot="b"), link("b1", slot="b"))
    assert sorted(name[0] for name in worker.take(4)) == ["a", "a", "b", "b"]


def test_a_host_of_which_a_worker_has_enough_comes_last(make: Any) -> None:
    """What a worker has enough of, it gets only when nothing else is pending."""
    worker = Worker(make(), "one")
    worker.finish(*[link(f"{slot}{i}", slot=slot) for slot in "ab" for i in range(3)])
    assert {name[0] for name in worker.take(3, later=["a"])} == {"b"}
    assert {name[0] for name in worker.take(3, later=["a"])} == {"a"}


def test_slots_have_delays_and_shares_of_their_own(make: Any) -> None:
    """What DOWNLOAD_SLOTS says of a slot holds for all workers together: its delay, and how many are in hand."""
    politeness = Politeness({"*": 0, "slow": 1_000}, {"narrow": 2})
    one, other = (Worker(make(politeness=politeness), name) for name in ("one", "other"))
    slots = ("slow", "narrow", "free")
    one.finish(*[link(f"{slot}{i}", slot=slot) for slot in slots for i in range(5)])
    in_hand = [one.take(1, later=["slow", "free"]), one.take(), other.take()]
    taken = [name.rstrip("01234") for found in in_hand for name in found]
    assert {slot: taken.count(slot) for slot in slots} == {"slow": 1, "narrow": 2, "free": 5}
    one.finish(done=[ticket for name, ticket in in_hand[0].items() if name.startswith("narrow")])
    found: dict[str, Ticket] = {}
    wait_until(lambda: found.update(other.take()) or found, "the server hands out another one")
    assert [name.rstrip("01234") for name in found] == ["narrow"]


def test_a_host_that_ran_empty_before_its_limit_goes_on(make: Any) -> None:
    """Asking for more than a host has does not count as having had its pages."""
    worker = Worker(make(pages=PagesPerHost({OTHERS: 3})), "one")
    worker.finish(*map(link, "ab"))
    held = worker.take(5)
    worker.finish(*map(link, "cd"))
    held |= worker.take(5)
    worker.finish(done=held.values())
    last = worker.queue.take(0, worker.token, worker.newest, 5, number=worker.number)
    assert (len(held), last.is_busy, last.left) == (3, False, 1)


def test_a_full_server_refuses_all_of_a_call_and_renews_leases(make: Any, server: RedisServer) -> None:
    """A server without room takes no link of a call and acknowledges none of its pages; leases go on. Pages without new
    links are acknowledged: that makes room.
    """
    worker = Worker(make(), "one")
    worker.finish(link("page"), link("other page"))
    held, other = ([ticket] for ticket in worker.take().values())
    with server.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.ResponseError):
            worker.finish(*[link(f"link {i}") for i in range(50)], done=held)
        worker.number -= 1
        assert worker.queue.take(0, worker.token, worker.newest, 0).is_busy
        assert not worker.finish(done=other).refused
        client.config_set("maxmemory", 0)
    answer = worker.finish(*[link(f"link {i}") for i in range(50)], done=held)
    assert (answer.new, answer.refused) == (50, [])


@pytest.mark.parametrize("key", ["lane:0:h", "lanes:h", "slots", "held:token-of-one", "names"])
def test_a_lost_key_ends_in_no_hang(make: Any, server: RedisServer, key: str) -> None:
    """Whichever key of the queue is lost, all is handed out, or an error says that a key is lost."""
    worker = Worker(make(), "one")
    worker.finish(*[link(name) for name in "abcd"])
    held = worker.take(2)
    with server.client() as client:
        assert client.delete(f"{worker.queue.key(0)}:{key}") == 1
    done, is_said = set(held), False
    worker.finish(done=held.values())
    for _ in range(4):
        try:
            found = worker.take(10)
        except UnusableError:
            is_said = True
            break
        done |= set(found)
        worker.finish(done=found.values())
    assert is_said or (done == set("abcd") and not worker.is_busy())


def test_a_queue_that_is_gone_is_said(make: Any, server: RedisServer) -> None:
    """Once the state of the queue is lost, taking and finishing raise, and a worker does not begin it anew."""
    worker = Worker(make(), "one")
    with server.client() as client:
        client.flushall()
    with pytest.raises(UnusableError):
        worker.take()
    with pytest.raises(UnusableError):
        worker.finish(link("a"))
    with pytest.raises(UnusableError):
        worker.queue.join("new token", "one")


def test_what_a_lost_part_of_the_filter_knew_is_new(make: Any, server: RedisServer) -> None:
    """When bits of the filter are lost, URLs are enqueued again."""
    worker = Worker(make(), "one")
    worker.finish(link("a"))
    with server.client() as client:
        for key in client.scan_iter(match="*:bits:*"):
            client.delete(key)
    assert worker.finish(link("a")).new == 1


def test_workers_with_other_rules_are_refused(make: Any) -> None:
    """A queue keeps the key space it began with, and refuses workers with another."""
    make(key_space="these rules").begin()
    with pytest.raises(UnusableError, match="those rules"):
        make(key_space="those rules").begin()


def test_urls_are_forgotten_with_their_layer(make: Any, server: RedisServer) -> None:
    """With a maximum age a URL is new again once its layer is older than that, and not before."""
    worker = Worker(make(max_age=0.4), "one")
    added = time.monotonic()
    worker.finish(link("a"))
    wait_until(lambda: worker.finish(link("a")).new, "the layer is too old")
    assert time.monotonic() >= added + 0.34  # 7/8 of the age
    with server.client() as client:
        assert len(list(client.scan_iter(match="*:bits:*"))) == 1


@pytest.mark.parametrize("kind", ["list", "set", "zset"])
def test_pushed_start_urls_are_taken_when_nothing_is_pending(make: Any, server: RedisServer, kind: str) -> None:
    """What is pushed to a list, a set or a sorted set becomes requests, once."""
    worker = Worker(make(start_urls="pushed"), "one")
    with server.client() as client:
        for name in ("a", "b"):
            if kind == "zset":
                client.zadd("pushed", {name: 1})
            else:
                (client.rpush if kind == "list" else client.sadd)("pushed", name)
    worker.take()
    assert sorted(worker.take()) == ["Ua", "Ub"]
    assert not worker.take()
