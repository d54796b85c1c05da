"""The calls by which a worker tells the server of links, and of pages that are done: each is carried out once."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.fleet.messages import Claim, Done, Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.fleet.messages import Answer, Finished
    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.frontier.journal import Journal


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


class Calls:
    """The calls that a worker has made of its messages, and that are not known to be carried out.

    A call whose answer got lost is made again under the same number, and the server carries it out once. The *journal*
    knows the items of a call before the server does.
    """

    def __init__(self, queue: Queue, journal: Journal) -> None:
        self._queue, self._journal = queue, journal
        self._waiting: deque[Call] = deque()
        self.token = ""
        """The token of the worker's current life, which makes the calls."""
        self.answers: list[tuple[bytes, Answer]] = []
        """Answers to claims, each with the fingerprint of its claim, that the crawl has not read yet."""
        self._made: list[int] = []
        self.answered: list[int] = []
        """By shard: the number of the last call of this life that was answered."""

    def __len__(self) -> int:
        return len(self._waiting)

    def begin_life(self, token: str) -> None:
        """Begin to count: the worker has joined under *token*."""
        self.token = token
        self._made, self.answered = [0] * self._queue.shards, [0] * self._queue.shards

    def settle(self) -> None:
        """Ask the server which calls of a killed run it has carried out, and settle these calls in the journal.

        Call this after the worker has joined: from then on, no call of an earlier life can end a page.
        """
        for name in self._journal.in_doubt:
            shard, token, number = name.split()
            last, refused = self._queue.last_call(int(shard), token) if int(shard) < self._queue.shards else (0, [])
            if int(number) > last:
                self._journal.drop(name)
            else:
                self._journal.end(name, refused if int(number) == last else ())

    def make(self, messages: Sequence[Message]) -> None:
        """Make calls of *messages*. On a cluster the links go first, in all shards."""
        places = [(self._queue.shards > 1 and _turn(message), message.shard) for message in messages]
        for place in sorted(set(places)):
            shard = place[1]
            self._made[shard] += 1
            these = [message for message, its in zip(messages, places, strict=True) if its == place]
            self._waiting.append(Call(shard, self.token, self._made[shard], these))

    def deliver(self) -> tuple[Call, Finished]:
        """Carry out the first call, and return it with its answer; it waits until :meth:`delivered` is called."""
        call = self._waiting[0]
        pages = [message for message in call.messages if isinstance(message, Done)]
        self._journal.begin(call.name, {place: page.feed_items for place, page in enumerate(pages) if page.feed_items})
        answer = self._queue.finish(*call)
        self._journal.end(call.name, answer.refused)
        if call.token == self.token:
            self.answered[call.shard] = call.number
        return call, answer

    def write(self) -> None:
        """Let the journal write what is due."""
        self._journal.write()

    def delivered(self, answer: Finished) -> None:
        """Drop the first call, and keep what its *answer* says of claims."""
        self._waiting.popleft()
        self.answers += answer.claims

    def waiting(self) -> list[Message]:
        """Return the messages of all calls."""
        return [message for call in self._waiting for message in call.messages]

    def clear(self) -> None:
        """Drop all calls: the server does not know of them."""
        for call in self._waiting:
            self._journal.drop(call.name)
        self._waiting.clear()


def _turn(message: Message) -> int:
    """Return the turn of *message* on a cluster: 0 for links and others, 1 for acknowledgements, 2 for done claims."""
    return 2 if isinstance(message, Claim) and message.is_done else int(isinstance(message, Done))
