"""The queue and filter of a fleet as they are on a server: each method is one atomic step of one shard.

On one server there is one shard; on a cluster there are several, and a URL and its request belong to the shard that
the URL's fingerprint names. The scripts ``*.lua`` beside this file are the steps; ``head.lua`` lists the keys.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_bloom.errors import UnusableError, counted
from scrapy_bloom.fleet.blocks import probes_of
from scrapy_bloom.fleet.chain import DIGEST_BYTES, ServerChain
from scrapy_bloom.fleet.entry import PUSHED, for_script
from scrapy_bloom.fleet.server import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.fleet.server import Server

logger = logging.getLogger(__name__)

CRASH_LIMIT = 3
"""A request that was in hand when a worker died, this many times, is dead-lettered."""

_JOIN, _TAKE, _LEAVE = Script("head", "join"), Script("head", "take"), Script("head", "leave")
_FINISH = Script("head", "filter", "finish")
_START_SHIFT, _PRIORITY_SHIFT = 40, 41


class Link(NamedTuple):
    """A request that was found and is to be enqueued if it is new."""

    shard: int
    fingerprint: bytes | None
    """None: it is not filtered."""
    slot: str
    score: int
    """The lowest comes first; the order in time is added to it."""
    is_lifo: bool
    entry: bytes


class Ticket(NamedTuple):
    """What names a request that a worker holds."""

    shard: int
    id: bytes


class Done(NamedTuple):
    """A page that the crawl is done with."""

    ticket: Ticket
    mark: int
    """Size that the worker's file of items had then."""


class Forget(NamedTuple):
    """A fingerprint that may be seen once more."""

    fingerprint: bytes


class Bury(NamedTuple):
    """A request that is dead-lettered, for *reason*, a word."""

    ticket: Ticket
    reason: str


Message = Link | Done | Forget | Bury


class Taken(NamedTuple):
    """The server's answer to :meth:`Queue.take`."""

    outstanding: int
    """Requests of the shard that are pending or in hand, at any worker."""
    seq: int
    """Requests that were ever enqueued in the shard."""
    found: list[tuple[Ticket, bytes]]
    returned: int
    """Requests that an expired worker held."""
    buried: int
    """Of these, dead-lettered."""
    missing: int
    """Requests of which the server has lost what they were."""
    mended: int
    """Requests that the server had lost from their slots, and that are pending again."""
    lost: int
    """Segments of the filter that the server has lost so far."""
    expired: str


class Finished(NamedTuple):
    """The server's answer to :meth:`Queue.finish`."""

    outstanding: int
    seq: int
    new: int
    refused: int
    """Pages that the worker did not hold any more: others had or have them."""
    lost: int


class LeaseLostError(Exception):
    """Control flow between this module and the lease client: the worker's lease has run out."""


class Queue(ServerChain):
    """Pending requests beside the filter: *options* are those of :class:`ServerChain`.

    A worker is given up after *lease_seconds* without a word. If *is_exclusive*, a slot's requests go to one worker at
    a time. *start_urls* is a Redis key that others push start URLs to.
    """

    kind = "queue"

    def __init__(
        self,
        server: Server,
        prefix: str,
        *,
        lease_seconds: float = 60.0,
        is_exclusive: bool = False,
        start_urls: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(server, prefix, **options)
        self.start_urls = start_urls
        self.lease_seconds = lease_seconds
        self._lease = int(lease_seconds * 1000)
        self._is_exclusive = int(is_exclusive)

    def open(self, token: str, name: str) -> int:
        """Join the queue as the worker *name* in its life *token*, beginning it if need be; return what is outstanding.

        An earlier life of the same name ends.

        Raises:
            UnusableError: The queue is of another format, or of URLs that count as the same by other rules.

        """
        self.begin()
        return self.join(token, name)

    def join(self, token: str, name: str) -> int:
        """Join again, after the lease has run out. Raises UnusableError if the queue is gone."""
        outstanding = 0
        for shard in range(self.shards):
            answer = self.server.call(_JOIN, [self.key(shard)], token, name, self._lease, CRASH_LIMIT)
            if not answer:
                raise self.gone()
            outstanding += answer[0]
            self._say_what_was_returned(name, *answer[1:])
        return outstanding

    def take(self, shard: int, token: str, number: int, most: int) -> Taken:
        """Renew the lease, and take *most* requests. With the *number* of the last call, get its answer again.

        Raises:
            LeaseLostError: The lease has run out.
            UnusableError: The queue is gone.
            redis.RedisError: The call failed.

        """
        keys = [self.key(shard), *([self.start_urls] if self.start_urls and not shard else [])]
        status, *answer = self.server.call(
            _TAKE, keys, token, number, most, self._lease, CRASH_LIMIT, self._is_exclusive, PUSHED
        )
        if status == -1:
            raise LeaseLostError
        if status == -2:
            raise self.gone()
        outstanding, seq, found, returned, buried, missing, mended, lost, expired = answer
        name = expired.decode(errors="replace")
        self._say_what_was_returned(name, returned, buried)
        tickets = [(Ticket(shard, id_), entry) for id_, entry in zip(found[::2], found[1::2], strict=True)]
        return Taken(outstanding, seq, tickets, returned, buried, missing, mended, lost, name)

    def finish(
        self,
        shard: int,
        token: str,
        number: int,
        links: Sequence[Link],
        done: Sequence[bytes],
        forget: Sequence[bytes] = (),
    ) -> Finished:
        """Enqueue those of *links* that are new, and acknowledge the ids *done*. All or nothing, once per *number*.

        Raises:
            UnusableError: The queue is gone.
            redis.RedisError: The call failed; it may have been carried out. Call again with the same number.

        """
        slots = {slot: index for index, slot in enumerate(dict.fromkeys(link.slot for link in links))}
        flat: list[Any] = []
        for link in links:
            place, words, masks, digest = -1, b"", b"", b""
            if link.fingerprint is not None:
                place, words, masks = probes_of(link.fingerprint, self._seeds[shard])
                digest = link.fingerprint[:DIGEST_BYTES]
            sign = -1 if link.is_lifo else 1
            flat += (place, words, masks, digest, slots[link.slot], link.score, sign, link.entry)
        status, *answer = self.server.call(
            _FINISH,
            [self.key(shard)],
            token,
            number,
            for_script(list(done)),
            for_script(flat),
            for_script(list(slots)),
            self._sizes,
            self._max_age,
            for_script([fingerprint[:DIGEST_BYTES] for fingerprint in forget]),
        )
        if status == -2:
            raise self.gone()
        return Finished(*answer)

    def bury(self, ticket: Ticket, token: str, reason: str) -> None:
        """Dead-letter a request that the worker holds; *reason* is a word."""
        self.server.call(_LEAVE, [self.key(ticket.shard)], token, ticket.id, reason)

    def leave(self, token: str) -> int:
        """End a worker's life; return how many requests it gave back."""
        return sum(self.server.call(_LEAVE, [self.key(shard)], token) for shard in range(self.shards))

    def gone(self) -> UnusableError:
        """Return the error that says that the server has lost the queue."""
        return UnusableError(
            f"The queue {self.where}",
            "is gone: the server has lost it, or somebody has removed it",
            advice="Set appendonly yes and maxmemory-policy noeviction on the server. The next start begins anew.",
        )

    def _say_what_was_returned(self, name: str, returned: int, buried: int) -> None:
        if returned:
            logger.warning("Worker %s was lost; %s of it go to others", name, counted(returned, "request"))
        if buried:
            logger.error(
                "%s dead-lettered: in hand when a worker died, %d times. See them with: scrapy bloom requeue --list",
                "1 request is" if buried == 1 else f"{buried:,} requests are",
                CRASH_LIMIT,
            )


def score_of(priority: int, *, is_start: bool) -> int:
    """Return the score of a request: higher priorities first, and at equal priority start requests last.

    The order in time is added to it, up to 2**40 requests. Beyond a priority of 4,096, Redis' double-precision scores
    lose the lowest bits of that order.
    """
    return -(priority << _PRIORITY_SHIFT) + (is_start << _START_SHIFT)
