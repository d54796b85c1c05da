"""What the server has said of each shard of the queue to one life of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_bloom.fleet.messages import Taken


class Shards:
    """The last answers of *count* shards."""

    def __init__(self, count: int) -> None:
        self.newest = [0] * count
        """By shard: the greatest id of a request that was handed to this life."""
        self.is_over = False
        """Whether nothing is pending or in hand anywhere, nor waits to be delivered here."""
        self._looks = 0
        self._left = [0] * count
        self._said = [(True, 0)] * count  # whether it is busy, and how many requests it ever had
        self._said_before: list[tuple[bool, int]] = []

    @property
    def left(self) -> int:
        """How many requests are pending of slots that have had their pages, once nothing else is there."""
        return sum(self._left)

    def in_turn(self) -> Iterator[int]:
        """Yield all shards, beginning with another one at each call."""
        self._looks += 1
        for i in range(len(self.newest)):
            yield (self._looks + i) % len(self.newest)

    def change(self, shard: int) -> None:
        """Note that this worker changes a shard: until the next look, it may be busy."""
        self._said[shard] = True, -1

    def note(self, shard: int, answer: Taken, *, has_asked: bool) -> None:
        """Note the *answer* to a look at a shard. If that asked for no requests, it does not say whether it is busy."""
        self.newest[shard] = max([self.newest[shard], *(ticket.id for ticket, _ in answer.requests)])
        self._left[shard] = answer.left
        if has_asked:
            self._said[shard] = answer.is_busy, answer.seq

    def is_nothing_left(self) -> bool:
        """Return whether no request is pending or in hand anywhere.

        Shards are asked one after the other. All of them were empty at one moment if all were empty twice, and none has
        taken in anything between.
        """
        before, self._said_before = self._said_before, list(self._said)
        return not any(is_busy for is_busy, _ in self._said) and (len(self._said) == 1 or before == self._said)
