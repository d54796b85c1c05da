"""What a worker says to the queue, and the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Politeness(NamedTuple):
    """How fast all workers together may ask the slots of the downloader; "*" stands for all that are not named."""

    delays: Mapping[str, float] = {}
    """Seconds between two requests."""
    shares: Mapping[str, int] = {}
    """The most requests in hand; without "*"."""


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


START = -1


class Ticket(NamedTuple):
    """Identifies a request that a worker has leased: *id* is the number under which the life *token* holds it.

    START stands for the run of start().
    """

    shard: int
    id: int
    slot: str
    token: str = ""


class Part(NamedTuple):
    """What a page gave that counts only together with its acknowledgement."""

    fingerprint: bytes | None = None
    """Of a request in memory that the page led to: the part counts if nobody else has had that request. None: the part
    is the page itself."""
    items: bytes = b""
    """Lines for the file of ``scrapy bloom crawl``."""
    links: Sequence[Link] = ()
    feed_items: Sequence[Any] = ()
    """Items for the feeds of this worker, which are not sent."""

    def joined(self, other: Part) -> Part:
        """Return this part with what *other* has."""
        links, feed_items = [*self.links, *other.links], [*self.feed_items, *other.feed_items]
        return self._replace(items=self.items + other.items, links=links, feed_items=feed_items)


class Done(NamedTuple):
    """A page that the crawl is done with. The server takes in all of it, or refuses all of it.

    Without a *ticket*, the server does not know of the page, and refuses nothing.
    """

    ticket: Ticket | None
    parts: Sequence[Part] = (Part(),)
    """The page, and the requests in memory that it led to."""
    why: str = ""
    """Why the request is dead-lettered; "": it is not."""
    is_page: bool = True
    """Whether a response came and no other request replaced this one; otherwise it does not count as a page."""
    failed: str = ""
    """Why it has failed for good; "": it has not."""

    @property
    def shard(self) -> int:
        """The shard of its request."""
        return self.ticket.shard if self.ticket is not None else 0


class Forget(NamedTuple):
    """A fingerprint to take back: the next request that has it counts as new."""

    shard: int
    fingerprint: bytes


class Note(NamedTuple):
    """What this process knows of the crawl, for the commands: it replaces what it noted before."""

    process: str
    estimate: bytes
    shard: int = 0


class SlowDown(NamedTuple):
    """What a host has asked for, or AutoThrottle has found."""

    shard: int
    slot: str
    until: float = 0
    """No request before this time, in seconds since 1970."""
    delay: float = 0
    """Seconds between two requests, whatever was said before; 0: no change."""


Message = Link | Done | Forget | Note | SlowDown


_LEAST_BYTES = 1_600  # that a request counts for: during a call with some 300, a server answers nobody else for 3 ms


def size_of(message: Message) -> int:
    """Return about how many bytes *message* takes, and no less than the time that it takes is worth."""
    if isinstance(message, Done):
        links = sum(size_of(link) for part in message.parts for link in part.links)
        return _LEAST_BYTES + links + sum(len(part.items) for part in message.parts)
    return max(_LEAST_BYTES, sum(len(field) for field in message if isinstance(field, bytes)))


class Taken(NamedTuple):
    """The server's answer to :meth:`Queue.take`."""

    is_busy: bool  # whether requests of the shard are pending or in hand, at any worker; full slots do not count
    seq: int  # requests that were ever enqueued in the shard
    requests: list[tuple[Ticket, bytes]]
    returned: int  # requests that an expired worker held
    buried: int  # of these, dead-lettered
    left: int  # requests of slots that have had their pages, once nothing else is there
    starts: bool = False  # whether this worker runs start() from now on


class Finished(NamedTuple):
    """The server's answer to :meth:`Queue.finish`."""

    new: int
    refused: Sequence[int] = ()  # places of parts, among those of all pages of the call
    paused: Mapping[str, float] = {}  # slots that are paused, and that the worker did not know of: for how many seconds
    last_pause: int = 0  # the number of the last of these pauses
