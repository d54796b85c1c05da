"""The messages that wait for the server, and the calls that deliver them. The server carries out each call once."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.fleet.life import Life
from scrapy_bloom.fleet.messages import Done, Message, size_of
from scrapy_bloom.frontier.paused import Paused

if TYPE_CHECKING:
    from scrapy_bloom.fleet.messages import Finished
    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.frontier.journal import Journal

# In one call: a server answers nobody else for some 3 ms, and may be told to take no more than a megabyte.
MOST_MESSAGES, MOST_BYTES = 300, 500_000
MOST_ROOTS = 100_000  # messages that no page would send again, some 400 bytes each


class Call(NamedTuple):
    """Arguments of :meth:`Queue.finish`. The *number* counts the calls of the life *token* in the shard."""

    shard: int
    token: str
    number: int
    messages: list[Message]

    @property
    def name(self) -> str:
        """The name by which a journal knows the call."""
        return f"{self.shard} {self.token} {self.number}"


class Outbox:
    """Messages in their order, so the links of a page come before its acknowledgement, and the calls made of them.

    A call whose answer got lost is made again under the same number, and the server carries it out once. The *journal*
    knows the items of a call before the server does. A *root* belongs to no page in hand. It is kept, because no page
    would send it again after the server went back.
    """

    def __init__(self, queue: Queue, journal: Journal) -> None:
        self._queue, self.journal = queue, journal
        self._messages: deque[Message] = deque()
        self._roots: deque[Message] = deque(maxlen=MOST_ROOTS)
        self._calls: deque[Call] = deque()
        self.life = Life("", 0, Paused())
        """The worker's current life, which makes the calls."""

    def __len__(self) -> int:
        """Return how many messages the server has not taken."""
        return len(self._messages) + sum(len(call.messages) for call in self._calls)

    def settle(self) -> None:
        """Ask the server which calls of a killed run it has carried out, and settle these calls in the journal.

        Call this after the worker has joined: from then on, no call of an earlier life can end a page.
        """
        for name in self.journal.in_doubt:
            shard, token, number = name.split()
            last, refused = self._queue.last_call(int(shard), token) if int(shard) < self._queue.shards else (0, [])
            if int(number) > last:
                self.journal.drop(name)
            else:
                self.journal.end(name, refused if int(number) == last else ())

    def put(self, message: Message, *, is_root: bool) -> None:
        """Add *message*."""
        if is_root:
            self._roots.append(message)
        self._messages.append(message)

    def make_calls(self) -> bool:
        """Make calls of the first messages unless there are calls; return whether there are any.

        On a cluster the links go first, in all shards.
        """
        if self._calls or not self._messages:
            return bool(self._calls)
        batch, size, requests = list[Message](), 0, 0
        while self._messages:
            more_bytes, more_requests = size_of(self._messages[0])
            size, requests = size + more_bytes, requests + more_requests
            if batch and (size > MOST_BYTES or requests > MOST_MESSAGES):
                break
            batch.append(self._messages.popleft())
        turns_and_shards = [(self._queue.shards > 1 and isinstance(message, Done), message.shard) for message in batch]
        for turn, shard in sorted(set(turns_and_shards)):
            of_life = self.life.shards[shard]
            of_life.calls += 1
            messages = zip(batch, turns_and_shards, strict=True)
            these = [message for message, turn_and_shard in messages if turn_and_shard == (turn, shard)]
            self._calls.append(Call(shard, self.life.token, of_life.calls, these))
        return True

    def deliver(self) -> tuple[Call, Finished]:
        """Carry out the first call, and return it with its answer; it waits until :meth:`delivered` is called."""
        call = self._calls[0]
        parts = [part for message in call.messages if isinstance(message, Done) for part in message.parts]
        self.journal.begin(call.name, {index: part.feed_items for index, part in enumerate(parts) if part.feed_items})
        shard = self.life.shards[call.shard]
        answer = self._queue.finish(*call, last_pause=shard.last_pause)
        self.journal.end(call.name, answer.refused)
        shard.last_pause = answer.last_pause
        if call.token == self.life.token:
            shard.answered = call.number
        return call, answer

    def delivered(self) -> None:
        """Drop the first call."""
        self._calls.popleft()

    def begin_anew(self) -> None:
        """Send the roots again, then what the server has not taken, without the acknowledgement of any page."""
        roots = set(map(id, self._roots))
        waiting = [*(message for call in self._calls for message in call.messages), *self._messages]
        kept = [message for message in waiting if not isinstance(message, Done) or message.ticket is None]
        self._messages = deque([*self._roots, *[message for message in kept if id(message) not in roots]])
        for call in self._calls:
            self.journal.drop(call.name)
        self._calls.clear()
