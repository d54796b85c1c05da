"""What a worker knows of the server in one life: from joining until its lease ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_bloom.fleet.messages import Taken


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
    """The life of a worker under *token*, in so many *shards*."""

    def __init__(self, token: str, shards: int) -> None:
        self.token = token
        self.shards = [Shard() for _ in range(shards)]
        self.is_over = False
        """Whether nothing is pending or in hand anywhere, nor waits to be delivered here."""
        self._looks = 0
        self._states_before: list[tuple[bool, int]] = []

    def in_turn(self) -> Iterator[int]:
        """Yield all shards, beginning with another one at each call."""
        self._looks += 1
        for i in range(len(self.shards)):
            yield (self._looks + i) % len(self.shards)

    def note_change(self, shard: int) -> None:
        """Note that this worker changes *shard*: until the next look, it may be busy."""
        self.shards[shard].state = True, -1

    def note(self, shard: int, answer: Taken, *, has_asked: bool) -> None:
        """Note the *answer* to a look. If that asked for no requests, it does not say whether the shard is busy."""
        known = self.shards[shard]
        known.newest = max([known.newest, *(ticket.id for ticket, _ in answer.requests)])
        known.left = answer.left
        if has_asked:
            known.state = answer.is_busy, answer.seq

    def is_nothing_left(self) -> bool:
        """Return whether no request is pending or in hand anywhere.

        Shards are asked one after the other. All of them were empty at one moment if all were empty twice, and none has
        taken in anything between.
        """
        states = [shard.state for shard in self.shards]
        before, self._states_before = self._states_before, states
        return not any(is_busy for is_busy, _ in states) and (len(states) == 1 or before == states)
