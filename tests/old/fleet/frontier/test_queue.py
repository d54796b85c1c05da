"""The queue on a real server against a model: nothing lost, nothing twice without a lost worker, the order, the end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.fleet.client import FullError, connect
from scrapy_bloom.old.fleet.filter.shared import SharedFilter
from scrapy_bloom.old.fleet.frontier import aside
from scrapy_bloom.old.fleet.frontier import queue as queues
from scrapy_bloom.old.fleet.frontier.queue import Lease, Leased, Link, NameTakenError, Queue, StaleError, score_base
from tests.old.support.redis_servers import RedisServer

if TYPE_CHECKING:
    from pathlib import Path

_prefixes = itertools.count()


def open_queue(url: str, prefix: str, worker: str, *, engine: str = "bitmap", **options: Any) -> Queue:
    server = connect(url, {})
    shared = SharedFilter(server, prefix, engine=engine, capacity=100, error_rate=1e-9, growth=2.0, key_space={})
    shared.open()
    found = Queue(server, shared, prefix, **{"spider": "site", "worker": worker, "lease_seconds": 60.0, **options})
    found.join(0)
    return found


def link(key: str | None, slot: str = "a", priority: int = 0, *, is_lifo: bool = True, is_start: bool = False) -> Link:
    fingerprint = None if key is None else key.encode().ljust(20)
    entry = f"{key} of {slot}".encode()
    return Link(fingerprint, 0, slot, score_base(priority, is_start=is_start), is_lifo, entry, key)


def finish(one: Queue, links: list[Link] = [], done: list[Leased] = [], number: int | None = None) -> Any:  # noqa: B006 - not changed
    """Send the call again until the filter has grown enough, as the courier does."""
    seen: list[bool] = []
    while True:
        ids = [leased.id for leased in done]
        reply = one.server.call(one.finish(0, number or one.next_number(), links[len(seen) :], ids))
        finished = one.finished(0, reply)
        if finished is None:
            continue
        seen += finished.seen
        if len(seen) == len(links):
            return seen, finished


def lease(one: Queue, wanted: int) -> Lease:
    return one.leased(0, one.server.call(one.lease(0, wanted)))


@dataclass
class Pending:
    """A request as the model knows it."""

    id: int
    slot: str
    score: float
    entry: bytes
    crashes: int = 0


class Model(RuleBasedStateMachine):
    """Any sequence of what workers do, and of what befalls them."""

    url: ClassVar[str]
    engine: ClassVar[str]

    workers = ("one", "two", "three")

    @initialize()
    def begin(self) -> None:
        self.prefix = f"model{next(_prefixes)}"
        self.queues = {name: open_queue(self.url, self.prefix, name, engine=self.engine) for name in self.workers}
        self.pending: dict[int, Pending] = {}
        self.held: dict[str, dict[int, tuple[Pending, Leased]]] = {name: {} for name in self.workers}
        self.lost: dict[str, list[Leased]] = {name: [] for name in self.workers}
        self.aside: dict[int, Pending] = {}
        self.seen: set[str] = set()
        self.seq = 0
        self.enqueued = self.finished = 0

    name = st.sampled_from(workers)
    links = st.lists(
        st.tuples(
            st.none() | st.integers(0, 400).map(str),
            st.sampled_from("abc"),
            st.integers(-2, 2),
            st.booleans(),
            st.booleans(),
        ),
        max_size=8,
    )

    @rule(name=name, links=links, share=st.floats(0, 1), is_answer_lost=st.booleans())
    def finish(self, name: str, links: list[tuple[Any, ...]], share: float, is_answer_lost: bool) -> None:
        one = self.queues[name]
        made = [link(key, slot, prio, is_lifo=lifo, is_start=start) for key, slot, prio, lifo, start in links]
        held = list(self.held[name].values())
        done = held[: round(share * len(held))]
        ids = [leased.id for _, leased in done]
        number = one.next_number()
        reply = one.server.call(one.finish(0, number, made, ids))
        answer = one.finished(0, reply)
        if answer is None or len(answer.seen) < len(made):  # the filter grows: see finish()
            _, answer = finish(one, made[len(answer.seen) if answer else 0 :], [leased for _, leased in done])
            is_answer_lost = False
        if is_answer_lost:
            again = one.finished(0, one.server.call(one.finish(0, number, made, ids)))
            assert again is not None
            assert len(again.seen) == len(made)
        self._take_in(links, answer.seq)
        for pending, _ in done:
            del self.held[name][pending.id]
            self.finished += 1

    def _take_in(self, links: list[tuple[Any, ...]], seq: int) -> None:
        """Let the model enqueue what is new; ids are those that the server has given out."""
        new = [one for i, one in enumerate(links) if one[0] is None or self._is_new(one[0], links[:i])]
        with self.queues["one"].server._client as client:  # the redis-py client underneath
            ids = sorted(int(one) for one in client.hkeys(self._key("requests")))
        fresh = [one for one in ids if one > self.seq]
        assert len(fresh) == len(new)
        for id_, (key, slot, priority, is_lifo, is_start) in zip(fresh, new, strict=True):
            score = -priority * 2.0**33 + is_start * 2.0**32 + (2.0**32 - id_ if is_lifo else id_)
            self.pending[id_] = Pending(id_, slot, score, f"{key} of {slot}".encode())
            self.enqueued += 1
            if key is not None:
                self.seen.add(key)
        self.seq = max(self.seq, seq)

    def _is_new(self, key: str, earlier: list[tuple[Any, ...]]) -> bool:
        return key not in self.seen and all(one[0] != key for one in earlier)

    @rule(name=name, wanted=st.integers(0, 5))
    def lease(self, name: str, wanted: int) -> None:
        expected = self._expected(name, wanted)
        found = lease(self.queues[name], wanted)
        assert [int(one.id) for one in found.leased] == [one.id for one in expected]
        for pending, leased in zip(expected, found.leased, strict=True):
            assert leased.entry == pending.entry
            self.held[name][pending.id] = (pending, leased)

    def _expected(self, name: str, wanted: int) -> list[Pending]:
        """Take what a worker should get: of the slot with fewest leased, the lowest score; one suspect at a time."""
        found: list[Pending] = []
        holds_suspect = any(pending.crashes for pending, _ in self.held[name].values())
        barren: set[str] = set()
        while len(found) < wanted:
            slots = {one.slot for one in self.pending.values()} - barren
            if not slots:
                break
            active = dict.fromkeys(slots, 0)
            for pending in [p for held in self.held.values() for p, _ in held.values()] + found:
                if pending.slot in active:
                    active[pending.slot] += 1
            slot = min(slots, key=lambda one: (active[one], one))
            lane = sorted((one for one in self.pending.values() if one.slot == slot), key=lambda one: one.score)
            first = next((one for one in lane if not (one.crashes and holds_suspect)), None)
            if first is None:
                barren.add(slot)
                continue
            holds_suspect = holds_suspect or first.crashes > 0
            found.append(self.pending.pop(first.id))
        return found

    @precondition(lambda self: any(self.held.values()))
    @rule(name=name, other=name)
    def lose(self, name: str, other: str) -> None:
        """A worker is not heard of, and another looks for requests."""
        if name == other or not self.held[name]:
            return
        one = self.queues[name]
        one.server._client.zadd(self._key("workers"), {one.token(0): 1})
        found = lease(self.queues[other], 0)
        assert (found.expired, found.returned) == (name, len(self.held[name]))
        _, answer = finish(one, [], [leased for _, leased in self.held[name].values()])
        assert (answer.acknowledged, answer.is_alive) == (0, False)
        with pytest.raises(StaleError):
            lease(one, 1)
        self._give_back(name, found.crashed)
        one.join(0, polite=True)

    @rule(name=name)
    def restart(self, name: str) -> None:
        """A worker is killed, and another started under its name."""
        joined = self.queues[name].join(0)
        assert joined.returned == len(self.held[name])
        self._give_back(name, joined.aside)

    def _give_back(self, name: str, aside: Any) -> None:
        for pending, leased in self.held[name].values():
            self.lost[name].append(leased)
            pending.crashes += 1
            (self.aside if pending.crashes >= queues.CRASH_LIMIT else self.pending)[pending.id] = pending
        self.held[name] = {}
        assert all(int(id_) in self.aside for id_ in aside)

    @rule(name=name)
    def leave(self, name: str) -> None:
        """A worker stops cleanly and comes back: nothing is suspected."""
        one = self.queues[name]
        assert one.leave() == len(self.held[name])
        for pending, leased in self.held[name].values():
            self.pending[pending.id] = pending
            self.lost[name].append(leased)
        self.held[name] = {}
        one.join(0)

    @precondition(lambda self: any(self.lost.values()))
    @rule(name=name)
    def finish_what_was_lost(self, name: str) -> None:
        """A worker that wakes up acknowledges nothing under its old token."""
        one = self.queues[name]
        current = {leased.id for _, leased in self.held[name].values()}
        for leased in self.lost[name]:
            if leased.token != one.token(0) and leased.id not in current:
                _, answer = finish(one, [], [leased])
                assert answer.acknowledged == 0
        self.lost[name] = []

    @rule(name=name, wanted=st.integers(1, 5))
    def lease_whose_answer_is_lost(self, name: str, wanted: int) -> None:
        """The worker says what it knows of, and the rest is pending as before."""
        leased = len(lease(self.queues[name], wanted).leased)
        known = [leased.id for _, leased in self.held[name].values()]
        assert self.queues[name].keep(0, known) == leased

    @rule()
    def put_back(self) -> None:
        """A person puts back what was set aside, and it is suspected of nothing."""
        one = self.queues["one"]
        listed = aside.listed(one.server, self.prefix, 1)
        assert [each.id for each in listed] == [f"0:{id_}" for id_ in sorted(self.aside)]
        assert aside.put_back(one.server, self.prefix, 1) == len(self.aside)
        for pending in self.aside.values():
            pending.crashes = 0
            self.pending[pending.id] = pending
        self.aside = {}

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "queues"):
            return
        held = sum(map(len, self.held.values()))
        assert self.enqueued == self.finished + len(self.pending) + held + len(self.aside)

    def teardown(self) -> None:
        """What is left can be fetched to the end, in which nothing is outstanding."""
        if not hasattr(self, "queues"):
            return
        self.put_back()
        for name, one in self.queues.items():
            finish(one, [], [leased for _, leased in self.held[name].values()])
            self.held[name] = {}
        last = self.queues["two"]
        fetched = 0
        while (found := lease(last, 3)).leased:
            fetched += len(found.leased)
            finish(last, [], list(found.leased))
        assert fetched == len(self.pending)
        assert found.outstanding == 0
        client = last.server._client
        for one in self.queues.values():
            one.leave()
        left = {key.decode().rpartition("}:")[2].split(":")[0] for key in client.scan_iter(f"{{{self.prefix}:*")}
        assert left - {"meta", "queue", last.shared.parameters.id} == set()
        for one in self.queues.values():
            one.server.close()

    def _key(self, name: str) -> str:
        return f"{{{self.prefix}:0}}:{name}"


def test_any_history_loses_nothing(server: RedisServer, engine: str) -> None:
    """Whatever workers do and suffer, the queue behaves as the model to the last request, and no Redis key is left
    over."""
    Model.url, Model.engine = server.url, engine
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=12 if engine == "bitmap" else 5,
            stateful_step_count=30,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_another_spiders_queue_is_refused(plain_server: RedisServer, prefix: str) -> None:
    """The queue of another spider is refused with a message that says whose it is and what to do."""
    open_queue(plain_server.url, prefix, "one")
    with pytest.raises(UnusableError, match=r"belongs to the spider 'site', and this is 'other'.*BLOOM_REDIS_KEY"):
        open_queue(plain_server.url, prefix, "one", spider="other")


def test_a_key_that_is_taken_is_refused(plain_server: RedisServer, prefix: str) -> None:
    """Somebody else's key in the place of ours is left alone, and named in the error."""
    with plain_server.client() as client:
        client.set(f"{{{prefix}:0}}:queue", "mine")
        with pytest.raises(UnusableError, match="taken by something else"):
            open_queue(plain_server.url, prefix, "one")
        assert client.get(f"{{{prefix}:0}}:queue") == b"mine"


def test_a_queue_that_is_gone_takes_nothing_in(plain_server: RedisServer, prefix: str) -> None:
    """A call that finds no queue raises, and leaves no key behind."""
    one = open_queue(plain_server.url, prefix, "one")
    with plain_server.client() as client:
        client.delete(one.key(0, "queue"), one.key(0, "workers"))
        with pytest.raises(StaleError):
            finish(one, [link("1")])
        assert not client.exists(one.key(0, "queue"), one.key(0, "requests"))
    assert one.is_gone(0)


def test_a_polite_worker_leaves_the_name_to_the_living(plain_server: RedisServer, prefix: str) -> None:
    """A worker that lost its lease does not take the name back from the one that was started in its place."""
    first = open_queue(plain_server.url, prefix, "one")
    finish(first, [link("1")])
    lease(first, 1)
    second = open_queue(plain_server.url, prefix, "one")
    assert len(lease(second, 1).leased) == 1
    with pytest.raises(NameTakenError):
        first.join(0, polite=True)
    assert lease(second, 0).outstanding == 1


def test_when_the_server_was_away_nobody_is_to_blame(plain_server: RedisServer, prefix: str) -> None:
    """If no worker was heard of for half a lease, all get a new lease before any is given up."""
    one, other = (open_queue(plain_server.url, prefix, name) for name in ("one", "other"))
    finish(one, [link("1")])
    held = lease(one, 1).leased
    with plain_server.client() as client:
        client.zadd(one.key(0, "workers"), {one.token(0): 1, other.token(0): 1})
        client.hset(one.key(0, "queue"), "called", 1)
    assert lease(other, 1).returned == 0
    _, answer = finish(one, [], list(held))
    assert (answer.acknowledged, answer.outstanding) == (1, 0)


def test_a_host_belongs_to_one_worker_while_it_is_busy(plain_server: RedisServer, prefix: str) -> None:
    """With BLOOM_FLEET_HOST_WORKERS = 1, another worker gets requests of a host only when the first holds none of
    it."""
    one, other = (open_queue(plain_server.url, prefix, name, host_workers=1) for name in ("one", "other"))
    finish(one, [link(str(i), "a") for i in range(4)] + [link("9", "b")])
    held = lease(one, 1).leased
    assert [leased.entry for leased in lease(other, 5).leased] == [b"9 of b"]
    assert len(lease(one, 5).leased) == 3
    assert not lease(other, 5).leased
    finish(one, [], list(held))
    assert not lease(other, 5).leased


def test_a_full_server_refuses_links_before_it_writes(tmp_path: Path) -> None:
    """A full server carries out nothing of a call with new links. Pages without new links are acknowledged, and leases
    renewed."""
    with RedisServer(tmp_path) as server, server.client() as client:
        one = open_queue(server.url, "full", "one")
        finish(one, [link(str(i)) for i in range(5)])
        held = lease(one, 3).leased
        client.config_set("maxmemory", 1)
        before = {key: client.dump(key) for key in client.scan_iter()}
        with pytest.raises(FullError):
            finish(one, [link("new"), link("1")], [held[0]])
        assert {key: client.dump(key) for key in client.scan_iter()} == before
        seen, answer = finish(one, [link("1"), link("2")], [held[0]])
        assert (seen, answer.acknowledged) == ([True, True], 1)
        assert len(lease(one, 5).leased) == 2
        client.config_set("maxmemory", 0)
        assert finish(one, [link("new"), link("1")])[0] == [False, True]


def test_entries_that_are_too_large_are_set_aside(plain_server: RedisServer, prefix: str) -> None:
    """Entries that are too large are listed as set aside, and sent to no worker."""
    one = open_queue(plain_server.url, prefix, "one", max_entry_bytes=5)
    finish(one, [link("1")])
    found = lease(one, 1)
    assert (list(found.leased), len(found.large), found.outstanding) == ([], 1, 0)
    assert [each.reason for each in aside.listed(one.server, prefix, 1)] == ["size"]


def test_priorities_beyond_what_a_double_holds_keep_their_place(plain_server: RedisServer, prefix: str) -> None:
    """Priorities beyond what a double holds count as the highest and lowest that fit."""
    one = open_queue(plain_server.url, prefix, "one")
    priorities = {"low": -(10**12), "below": -1, "high": 10**12, "top": queues.MAX_PRIORITY}
    finish(one, [link(key, priority=priority) for key, priority in priorities.items()])
    assert [leased.entry.split()[0] for leased in lease(one, 4).leased] == [b"top", b"high", b"below", b"low"]
