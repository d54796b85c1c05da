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

    shard: int
    id: bytes
    mark: int = 0
    """Size that the worker's file of items had then."""
    is_unreadable: bool = False
    """It is dead-lettered."""


class Forget(NamedTuple):
    """A fingerprint that may be seen once more."""

    shard: int
    fingerprint: bytes


Message = Link | Done | Forget


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


class Finished(NamedTuple):
    """The server's answer to :meth:`Queue.finish`."""

    outstanding: int
    seq: int
    new: int
    refused: int
    """Pages that the worker did not hold any more: others had or have them."""


class LeaseLostError(Exception):
    """Control flow between this module and the lease client: the worker's lease has run out."""


class Queue(ServerChain):
    """Pending requests beside the filter: *options* are those of :class:`ServerChain`.

    A worker is given up after *lease_seconds* without a word. If *is_exclusive*, a slot's requests go to one worker at
    a time. *start_urls* is a Redis key that others push start URLs to. All methods raise UnusableError if the server
    has lost keys of the queue, and redis.RedisError if a call failed, which may have been carried out all the same.
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
        self.lease_seconds, self.start_urls = lease_seconds, start_urls
        self._lease = int(lease_seconds * 1000)
        self._is_exclusive = int(is_exclusive)

    def join(self, token: str, name: str) -> int:
        """Join as the worker *name* in its life *token*, and end an earlier life; return what is outstanding."""
        total = 0
        for shard in range(self.shards):
            outstanding, *ended = self._step(_JOIN, [self.key(shard)], token, name, self._lease, CRASH_LIMIT)
            total += outstanding
            self._say_what_ended(shard, *ended)
        return total

    def take(self, shard: int, token: str, number: int, most: int) -> Taken:
        """Renew the lease, and take *most* requests. With the *number* of the last call, get its answer again.

        Raises:
            LeaseLostError: The lease has run out.

        """
        keys = [self.key(shard), *([self.start_urls] if self.start_urls and not shard else [])]
        answer = self._step(_TAKE, keys, token, number, most, self._lease, CRASH_LIMIT, self._is_exclusive, PUSHED)
        if not answer:
            raise LeaseLostError
        outstanding, seq, found, *ended = answer
        self._say_what_ended(shard, *ended)
        tickets = [(Ticket(shard, id_), entry) for id_, entry in zip(found[::2], found[1::2], strict=True)]
        return Taken(outstanding, seq, tickets, *ended)

    def finish(self, shard: int, token: str, number: int, messages: Sequence[Message]) -> Finished:
        """Enqueue the links that are new, and acknowledge the pages. All or nothing, once per *number*."""
        links = [each for each in messages if isinstance(each, Link)]
        done = [each for each in messages if isinstance(each, Done)]
        flat: list[Any] = []
        for link in links:
            place, words, masks, digest = -1, b"", b"", b""
            if link.fingerprint is not None:
                place, words, masks = probes_of(link.fingerprint, self._seed)
                digest = link.fingerprint[:DIGEST_BYTES]
            sign = -1 if link.is_lifo else 1
            flat += (place, words, masks, digest, link.slot, link.score, sign, link.entry)
        answer = self._step(
            _FINISH,
            [self.key(shard)],
            token,
            number,
            for_script([each.id for each in done]),
            for_script(flat),
            self._sizes,
            self._max_age,
            for_script([each.fingerprint[:DIGEST_BYTES] for each in messages if isinstance(each, Forget)]),
            for_script({each.id: True for each in done if each.is_unreadable}),
        )
        return Finished(*answer)

    def leave(self, token: str) -> int:
        """End a worker's life; return how many requests it gave back."""
        return sum(self.server.call(_LEAVE, [self.key(shard)], token) for shard in range(self.shards))

    def _step(self, script: Script, keys: Sequence[str], *arguments: Any) -> Any:
        answer = self.server.call(script, keys, *arguments)
        if answer is None:
            raise UnusableError(
                f"The queue {self.where}",
                "is gone, or lacks some of its keys: the server has lost them, or somebody has removed them",
                advice="Set appendonly yes and maxmemory-policy noeviction on the server. To begin anew, remove what "
                "is left, or use another BLOOM_REDIS_KEY.",
            )
        return answer

    def _say_what_ended(self, shard: int, returned: int, buried: int) -> None:
        if returned:
            logger.warning("A worker was lost; %s of it go to others", counted(returned, "request"))
        if buried:
            logger.error(
                "Dead-lettered: %s, in hand when a worker died, %d times. See the hash %s:dead on the server %s",
                counted(buried, "request"),
                CRASH_LIMIT,
                self.key(shard),
                self.server.where,
            )


def score_of(priority: int, *, is_start: bool) -> int:
    """Return the score of a request: higher priorities first, and at equal priority start requests last.

    The order in time is added to it, up to 2**40 requests. Beyond a priority of 4,096, Redis' double-precision scores
    lose the lowest bits of that order.
    """
    return -(priority << _PRIORITY_SHIFT) + (is_start << _START_SHIFT)
