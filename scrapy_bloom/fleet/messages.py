"""What a worker tells the queue, and what that answers."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class QueueLane(NamedTuple):
    """What waits in one list: requests of one slot and priority. *push* is the command that appends to it."""

    slot: str
    score: str  # a number; the lowest comes first
    push: str  # RPUSH if what comes last is the next, else LPUSH


class Link(NamedTuple):
    """A request that a page led to. The server enqueues it if it is new. Without a fingerprint it is not filtered."""

    shard: int
    fingerprint: bytes | None
    lane: QueueLane
    entry: bytes


class Ticket(NamedTuple):
    """Identifies a request that a worker has leased: *id* is the number under which the life *token* holds it."""

    shard: int
    id: int
    slot: str
    token: str = ""
    entry: bytes = b""


class Done(NamedTuple):
    """A page that the crawl is done with, and what the server is to keep of it if the acknowledgement counts.

    Without a *ticket*, these are items of pages that the server does not know of.
    """

    ticket: Ticket | None
    items: bytes = b""
    why: str = ""
    """Why the request is dead-lettered; "": it is not."""
    is_page: bool = True
    """Whether a response came and no other request replaced this one; otherwise it does not count as a page."""
    failed: str = ""
    """Why it has failed for good; "": it has not."""
    feed_items: Sequence[Any] = ()
    """Items for the feeds of this worker, which are not sent."""

    @property
    def shard(self) -> int:
        """The shard of its request."""
        return self.ticket.shard if self.ticket is not None else 0


class Forget(NamedTuple):
    """A fingerprint to take back: the next request that has it counts as new."""

    shard: int
    fingerprint: bytes


class Claim(NamedTuple):
    """A request that is in the memory of this worker only: it asks whether to fetch it, or says that it *is_done*."""

    shard: int
    fingerprint: bytes
    is_done: bool = False


class Note(NamedTuple):
    """What this process knows of the crawl, for the commands: it replaces what it noted before."""

    process: str
    estimate: bytes
    shard: int = 0


class Answer(enum.IntEnum):
    """Who fetches a request that a worker has claimed."""

    TAKEN = 0
    """Another worker, which is alive."""
    GRANTED = 1
    """The worker that asked."""
    DONE = 2
    """Nobody: it was fetched before."""


class SlowDown(NamedTuple):
    """What a host has asked for."""

    shard: int
    slot: str
    until: float = 0
    """No request before this time, in seconds since 1970."""
    delay: float = 0
    """Seconds between two requests."""


Message = Link | Done | Forget | Claim | Note | SlowDown


class Taken(NamedTuple):
    """The server's answer to :meth:`Queue.take`."""

    is_busy: bool  # whether requests of the shard are pending or in hand, at any worker; full slots do not count
    seq: int  # requests that were ever enqueued in the shard
    requests: list[tuple[Ticket, bytes]]
    returned: int  # requests that an expired worker held
    buried: int  # of these, dead-lettered
    left: int  # requests of slots that have had their pages, once nothing else is there


class Finished(NamedTuple):
    """The server's answer to :meth:`Queue.finish`."""

    new: int
    refused: Sequence[int] = ()  # places of pages, among those of the call, that others had or have
    claims: Sequence[tuple[bytes, Answer]] = ()  # by fingerprint
    paused: Mapping[str, float] = {}  # slots of what it holds that are paused: for how many seconds
    taken: Sequence[bytes] = ()  # fingerprints of links that were dropped: a worker may have claimed their page
