"""The model of "pending requests" against a real server: workers that crash, lose answers, and finish late."""

import hashlib
from collections import Counter
from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from scrapy_bloom.fleet.messages import Done, Link, Message, QueueLane, Ticket
from scrapy_bloom.fleet.queue import LifeEndedError, Queue
from scrapy_bloom.fleet.server import Server
from scrapy_bloom.frontier.order import PagesPerHost
from scrapy_bloom.settings import OTHERS
from tests.fleet.servers import RedisServer

NAMES = st.sampled_from(["one", "other"])
URLS = st.lists(st.integers(0, 30), max_size=6)


def link(number: int) -> Link:
    fingerprint = hashlib.sha1(b"%d" % number).digest()
    return Link(0, fingerprint, QueueLane(f"host-{number % 3}", "0", "RPUSH"), b"%d" % number)


class Life:
    """A worker's life, and the pages that it has in hand."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.held: dict[int, Ticket] = {}
        self.newest = self.finishes = 0

    @property
    def state(self) -> tuple[int, int]:
        """What the server has answered to it."""
        return self.newest, self.finishes


def machine_over(server: RedisServer, limit: int | None) -> type[RuleBasedStateMachine]:
    class Fleet(RuleBasedStateMachine):
        """What the server must agree with: every URL that was found is pending, in one worker's hands, or done."""

        def __init__(self) -> None:
            super().__init__()
            with server.client() as client:
                client.flushall()
            self.connection = Server(server.url)
            pages = None if limit is None else PagesPerHost({OTHERS: limit})
            self.queue = Queue(self.connection, "bloom:model", capacity=10, pages=pages)
            self.queue.begin()
            self.tokens = 0
            self.found: set[int] = set()
            self.done: set[int] = set()
            self.replaced: set[int] = set()
            self.fetched: list[int] = []
            self.zombies: list[Life] = []
            self.copy: Any = None
            self.lives = {name: self._new_life(name) for name in ("one", "other")}

        def _new_life(self, name: str, last: str = "") -> Life:
            self.tokens += 1
            life = Life(f"token {self.tokens}")
            self.queue.join(life.token, name, last=last)
            return life

        def teardown(self) -> None:
            self.connection.close()

        @rule(name=NAMES, most=st.integers(1, 4), is_lost=st.booleans())
        def take(self, name: str, most: int, is_lost: bool) -> None:
            life = self.lives[name]
            for _ in range(1 + is_lost):  # an answer that is lost is asked for again
                answer = self.queue.take(0, life.token, life.newest, most)
            for ticket, entry in answer.requests:
                number = int(entry)
                assert number not in self.done
                assert not any(number in other.held for other in self.lives.values())
                life.held[number] = ticket
                life.newest = max(life.newest, ticket.id)
            if not answer.requests:
                waiting = self.waiting()
                assert answer.is_busy or answer.left == len(waiting)
                assert all(limit is not None and self.counted()[number % 3] == limit for number in waiting)

        def waiting(self) -> list[int]:
            with server.client() as client:
                names = client.scan_iter(match=f"{self.queue.key(0)}:lane:*")
                return [int(entry) for name in names for entry in client.lrange(name, 0, -1)]

        def counted(self) -> Counter[int]:
            """Return how many pages each host has had: done, dead-lettered, in hand, or in hand when a worker died."""
            return Counter(number % 3 for number in self.found - self.replaced - {*self.waiting()})

        @rule(name=NAMES, links=URLS, most=st.integers(0, 3), is_lost=st.booleans(), is_page=st.booleans())
        def finish(self, name: str, links: list[int], most: int, is_lost: bool, is_page: bool) -> None:
            life = self.lives[name]
            pages = [*life.held][:most]
            life.finishes += 1
            messages: list[Message] = [
                *map(link, links),
                *[Done(life.held.pop(page), is_page=is_page) for page in pages],
            ]
            answers = [self.queue.finish(0, life.token, life.finishes, messages) for _ in range(1 + is_lost)]
            assert answers[0].new == len(set(links) - self.found)
            assert not answers[0].refused
            self.found |= set(links)
            self.done |= set(pages)
            self.replaced |= set() if is_page else set(pages)

        @rule(name=NAMES)
        def crash(self, name: str) -> None:
            """The worker is started again under its name; what is left of its last life may still be heard of."""
            self.zombies.append(self.lives[name])
            self.lives[name] = self._new_life(name)

        @rule(links=URLS)
        def hear_of_a_zombie(self, links: list[int]) -> None:
            """A life that was given up acknowledges nothing, and its links count."""
            if self.zombies:
                life = self.zombies[-1]
                life.finishes += 1
                messages: list[Message] = [*map(link, links), *map(Done, life.held.values())]
                try:
                    answer = self.queue.finish(0, life.token, life.finishes, messages)
                except LifeEndedError:  # the server went back, and does not know the life or the call before
                    with server.client() as client:
                        last = client.hget(f"{self.queue.key(0)}:calls", life.token)
                    assert last is None or int(last) < life.finishes - 1
                    return
                assert answer.refused == list(range(len(life.held)))
                assert self.queue.last_call(0, life.token) == (life.finishes, answer.refused)
                assert self.queue.finish(0, life.token, life.finishes, messages).refused == answer.refused
                self.found |= set(links)
                with pytest.raises(LifeEndedError, match="lease"):
                    self.queue.take(0, life.token, life.newest, 1)

        @rule(name=NAMES, links=URLS, most=st.integers(0, 3))
        def be_silent(self, name: str, links: list[int], most: int) -> None:
            """A worker was silent for longer than its lease, and comes back. Its links count, its pages do not."""
            life, other = self.lives[name], self.lives["one" if name == "other" else "other"]
            with server.client() as client:
                client.zadd(f"{self.queue.key(0)}:workers", {life.token: 0})
            for ticket, entry in self.queue.take(0, other.token, other.newest, most).requests:
                other.held[int(entry)] = ticket
                other.newest = max(other.newest, ticket.id)
            with pytest.raises(LifeEndedError, match="lease"):
                self.queue.take(0, life.token, life.newest, 1)
            self.lives[name] = back = self._new_life(name, last=life.token)
            back.finishes = 1
            messages: list[Message] = [*map(link, links), *map(Done, life.held.values())]
            assert len(self.queue.finish(0, back.token, 1, messages).refused) == len(life.held)
            self.found |= set(links)

        @rule()
        def copy_the_data(self) -> None:
            with server.client() as client:
                data = {key: client.dump(key) for key in client.scan_iter()}
            sets = [set(each) for each in (self.found, self.done, self.replaced)]
            self.copy = data, sets, {name: (life, life.state) for name, life in self.lives.items()}

        @rule()
        def go_back(self) -> None:
            """The server has the data of earlier. Whoever had more from it than that begins anew, and nobody else."""
            if self.copy is None:
                return
            data, sets, states = self.copy
            with server.client() as client:
                client.flushall()
                for key, value in data.items():
                    client.restore(key, 0, value)
            self.found, self.done, self.replaced = (set(each) for each in sets)
            for name, life in self.lives.items():
                if (life, life.state) == states[name]:
                    continue
                with pytest.raises(LifeEndedError, match="back"):
                    self.queue.take(0, life.token, life.newest, 1, number=life.finishes)
                if life.finishes != states[name][1][1] or life is not states[name][0]:
                    with pytest.raises(LifeEndedError, match="back"):
                        self.queue.finish(0, life.token, life.finishes + 1, [link(40)])
                self.lives[name] = self._new_life(name, last=life.token)

        @rule(name=NAMES)
        def leave(self, name: str) -> None:
            self.queue.leave(self.lives[name].token)
            self.lives[name] = self._new_life(name)

        @rule()
        def kill_the_server(self) -> None:
            server.kill()
            server.start()

        @invariant()
        def nothing_is_lost(self) -> None:
            with server.client() as client:
                key = self.queue.key(0)
                pending = [e for name in client.scan_iter(match=f"{key}:lane:*") for e in client.lrange(name, 0, -1)]
                pending += [msgpack.unpackb(each)[3] for each in client.hvals(f"{key}:suspects")]
                dead = [msgpack.unpackb(each)[3] for each in client.lrange(f"{key}:dead", 0, -1)]
                outstanding = int(client.hget(key, "outstanding") or 0)
            held = [number for life in self.lives.values() for number in life.held]
            assert sorted([*map(int, pending), *map(int, dead), *held]) == sorted(self.found - self.done)
            assert outstanding == len(pending) + len(held)
            assert limit is None or max(self.counted().values(), default=0) <= limit

    return Fleet


@pytest.mark.parametrize("runs", [3, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("limit", [None, 3])
def test_every_url_that_was_found_is_pending_in_hand_or_done(mortal: RedisServer, limit: int | None, runs: int) -> None:
    """Through crashes of workers and server, lost answers and late calls, each URL is in one place; a host gets as many
    pages as it may.
    """
    own = settings(max_examples=runs, stateful_step_count=25, deadline=None)
    run_state_machine_as_test(machine_over(mortal, limit), settings=own)
