"""The requests that a worker has a lease on."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from scrapy_bloom.frontier.paused import Paused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy_bloom.fleet.messages import Ticket


class InHand:
    """The requests that a worker has in hand. Two threads may use it only behind a lock."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Ticket, bytes]] = deque()
        self._tickets: set[Ticket] = set()
        self.paused = Paused()
        """The slots that are paused, as far as this worker knows."""

    def clear(self) -> None:
        """Drop all requests: the life of the worker has ended."""
        self._tickets.clear()
        self._ready.clear()

    def take(self, requests: Sequence[tuple[Ticket, bytes]]) -> None:
        """Add *requests*, which are ready."""
        self._ready.extend(requests)
        self._tickets.update(ticket for ticket, _ in requests)

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

    def end(self, ticket: Ticket) -> bool:
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
