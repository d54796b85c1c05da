"""What a worker knows and has in hand in one life: from joining until its lease ends."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scrapy_bloom.fleet.messages import Taken, Ticket
    from scrapy_bloom.frontier.paused import Paused


@dataclass
class Shard:
    """What a life knows of one shard."""

    calls: int = 0
    """How many calls were made that deliver something."""
    answered: int = 0
    """The number of the last one that was answered."""
    last_pause: int = 0
    """The number of the last pause that the server has reported."""
    newest: int = 0
    """The greatest id of a request that was handed to this life."""
    left: int = 0
    """Pending requests of slots that have had their pages, once nothing else is there."""
    state: tuple[bool, int] = True, 0
    """Whether it is busy, and how many requests it ever had. It counts as busy until a look says otherwise."""


class Life:
    """The life of a worker under *token*, in so many *shards*. Two threads may use what it has in hand behind a lock.

    Without shards it is no life: the worker has not joined. *paused* are the slots that are paused, as far as this
    worker knows.
    """

    def __init__(self, token: str, shards: int, paused: Paused) -> None:
        self.token, self.paused = token, paused
        self.shards = [Shard() for _ in range(shards)]
        self.is_over = False
        """Whether nothing is pending or in hand anywhere, nor waits to be delivered here."""
        self.next_look = self.next_beat = 0.0
        """When to ask for requests, and when to renew the lease, in seconds of time.monotonic()."""
        self.last_event = time.monotonic()
        """When a message was last delivered, a request was last taken, or the last warning of silence was logged."""
        self._looks = 0
        self._states_before: list[tuple[bool, int]] = []
        self._ready: deque[tuple[Ticket, bytes]] = deque()
        self._tickets: set[Ticket] = set()

    # -- what is in hand -----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Drop what is in hand: the life has ended on the server."""
        self._tickets.clear()
        self._ready.clear()

    def next(self) -> tuple[Ticket, bytes] | None:
        """Return the next request that is ready and whose slot is not paused; None if there is none."""
        for _ in range(len(self._ready)):
            ready = self._ready.popleft()
            if ready[0].slot not in self.paused:
                return ready
            self._ready.append(ready)
        return None

    def pause(self, seconds: Mapping[str, float]) -> None:
        """Pause slots of requests in hand, each for so many *seconds*. The server hands out no others."""
        held = {ticket.slot for ticket in self._tickets}
        self.paused.update({slot: time.time() + left for slot, left in seconds.items() if slot in held})

    def end_page(self, ticket: Ticket) -> bool:
        """Note that the worker is done with *ticket*; return whether it had it."""
        was_there = ticket in self._tickets
        self._tickets.discard(ticket)
        return was_there

    @property
    def ready(self) -> int:
        """How many requests are ready."""
        return len(self._ready)

    @property
    def unpaused(self) -> int:
        """How many of these are of slots that are not paused."""
        return sum(ticket.slot not in self.paused for ticket, _ in self._ready)

    def slots_with(self, least: int) -> list[str]:
        """Return the slots that have at least *least* requests in hand."""
        return [slot for slot, count in Counter(ticket.slot for ticket in self._tickets).items() if count >= least]

    # -- what is known of the shards -----------------------------------------------------------------------------------

    def in_turn(self) -> Iterator[int]:
        """Yield all shards, beginning with another one at each call."""
        self._looks += 1
        for i in range(len(self.shards)):
            yield (self._looks + i) % len(self.shards)

    def take(self, shard: int, answer: Taken, *, has_asked: bool) -> None:
        """Take the *answer* to a look. If that asked for no requests, it does not say whether the shard is busy."""
        known = self.shards[shard]
        known.newest = max([known.newest, *(ticket.id for ticket, _ in answer.requests)])
        known.left = answer.left
        if has_asked:
            known.state = answer.is_busy, answer.seq
        self._ready.extend(answer.requests)
        self._tickets.update(ticket for ticket, _ in answer.requests)

    def is_nothing_left(self) -> bool:
        """Return whether no request is pending or in hand anywhere.

        Shards are asked one after the other. All of them were empty at one moment if all were empty twice, and none has
        taken in anything between.
        """
        states = [shard.state for shard in self.shards]
        before, self._states_before = self._states_before, states
        return not any(is_busy for is_busy, _ in states) and (len(states) == 1 or before == states)
