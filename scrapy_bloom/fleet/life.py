"""How a worker stands to the server, what it knows and has in hand until its lease ends, and what waits to be sent."""

from __future__ import annotations

import enum
import time
from collections import Counter, deque
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.fleet.messages import Done, Message, size_of
from scrapy_bloom.frontier.store import Paused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from scrapy_bloom.fleet.messages import Finished, Taken, Ticket
    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.frontier.store import Journal

MOST_BYTES = 500_000  # of a call: a server may be told to take no more than a megabyte
MOST_ROOTS = 100_000  # messages that no page would send again, some 400 bytes each


class SessionState(enum.Enum):
    """How a worker stands to the server."""

    OUTSIDE = "outside"
    """It has no lease, and joins under a new token as soon as it can."""
    ACTIVE = "active"
    """It has a lease, takes requests and delivers."""
    AWAY = "away"
    """The server is away or full. The worker tries again and again, and takes no requests."""
    ENDED = "ended"
    """It has left, or the crawl must end."""


class SessionEvent(enum.Enum):
    """What happens to the session of a worker."""

    JOINED = "joined"
    ANSWERED = "answered"
    SILENT = "no answer"
    """Or the server is full."""
    LIFE_ENDED = "life ended"
    """The lease is over, or the server went back in time."""
    LEFT = "left"
    """The crawl ends, and all is delivered or given back, or that took too long."""
    LOST = "lost"
    """The queue is gone, or there is a bug."""


_S, _E = SessionState, SessionEvent
TRANSITIONS = {
    (_S.OUTSIDE, _E.JOINED): _S.ACTIVE,
    (_S.OUTSIDE, _E.SILENT): _S.OUTSIDE,
    (_S.ACTIVE, _E.ANSWERED): _S.ACTIVE,
    (_S.ACTIVE, _E.SILENT): _S.AWAY,
    (_S.AWAY, _E.ANSWERED): _S.ACTIVE,
    (_S.AWAY, _E.SILENT): _S.AWAY,
    (_S.ACTIVE, _E.LIFE_ENDED): _S.OUTSIDE,
    (_S.AWAY, _E.LIFE_ENDED): _S.OUTSIDE,
    **{(state, event): _S.ENDED for state in (_S.OUTSIDE, _S.ACTIVE, _S.AWAY) for event in (_E.LEFT, _E.LOST)},
}
"""The next state. A pair that is not here is a fault of ours."""


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
    """The current life of a worker. Two threads may use what it has in hand behind a lock."""

    def __init__(self) -> None:
        self.state = SessionState.OUTSIDE
        self.paused = Paused()
        """The slots that are paused, as far as this worker knows; also in its next life."""
        self.begin("", 0)

    def begin(self, token: str, shards: int) -> None:
        """Begin the life under *token*, in so many *shards*. Without shards, the worker has not joined."""
        self.token = token
        self.shards, self._turns = [Shard() for _ in range(shards)], deque(range(shards))
        self.is_over = False
        """Whether nothing is pending or in hand anywhere, nor waits to be delivered here."""
        self.next_look = self.next_beat = 0.0
        """When to ask for requests, and when to renew the lease, in seconds of time.monotonic()."""
        self.last_event = time.monotonic()
        """When a message was last delivered, a request was last taken, or the last warning of silence was logged."""
        self._states_before: list[tuple[bool, int]] = []
        self._ready: deque[tuple[Ticket, bytes]] = deque()
        self._tickets: set[Ticket] = set()

    @property
    def is_outside(self) -> bool:
        """Whether the worker has no lease."""
        return self.state is SessionState.OUTSIDE

    def move(self, event: SessionEvent) -> SessionState:
        """Go to the next state, and return the one before. KeyError if *event* cannot happen in that one."""
        before, self.state = self.state, TRANSITIONS[self.state, event]
        return before

    def end(self) -> None:
        """Drop what is in hand: the life has ended on the server."""
        self.move(SessionEvent.LIFE_ENDED)
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

    def in_turn(self) -> Iterable[int]:
        """Return all shards, beginning with another one at each call."""
        self._turns.rotate()
        return self._turns

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
    would send it again after the server went back. The *life* is the worker's current one, which makes the calls.
    """

    def __init__(self, queue: Queue, journal: Journal, life: Life) -> None:
        self._queue, self.journal, self._life = queue, journal, life
        self._messages: deque[Message] = deque()
        self._roots: deque[Message] = deque(maxlen=MOST_ROOTS)
        self._calls: deque[Call] = deque()

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
        batches: dict[tuple[bool, int], list[Message]] = {}
        size = 0
        while self._messages and not self._calls:
            message = self._messages[0]
            size += size_of(message)
            if batches and size > MOST_BYTES:
                break
            comes_later = self._queue.shards > 1 and isinstance(message, Done)
            batches.setdefault((comes_later, message.shard), []).append(self._messages.popleft())
        for (_, shard), messages in sorted(batches.items(), key=itemgetter(0)):
            of_life = self._life.shards[shard]
            of_life.calls += 1
            self._calls.append(Call(shard, self._life.token, of_life.calls, messages))
        return bool(self._calls)

    def deliver(self) -> tuple[Call, Finished]:
        """Carry out the first call, and return it with its answer; it waits until :meth:`delivered` is called."""
        call = self._calls[0]
        parts = [part for message in call.messages if isinstance(message, Done) for part in message.parts]
        self.journal.begin(call.name, {index: part.feed_items for index, part in enumerate(parts) if part.feed_items})
        shard = self._life.shards[call.shard]
        answer = self._queue.finish(*call, last_pause=shard.last_pause)
        self.journal.end(call.name, answer.refused)
        shard.last_pause = answer.last_pause
        if call.token == self._life.token:
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
