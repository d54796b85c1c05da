"""The queue and filter of a fleet as they are on a server: each method is one atomic step of one shard.

On one server there is one shard; on a cluster there are several, and a URL and its request belong to the shard that
the URL's fingerprint names. The scripts ``*.lua`` beside this file are the steps; ``head.lua`` lists the keys.
"""

from __future__ import annotations

import logging
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_bloom.errors import SettingsError, UnusableError, counted
from scrapy_bloom.fleet.chain import ServerChain
from scrapy_bloom.fleet.entry import PUSHED, for_script
from scrapy_bloom.fleet.server import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.fleet.server import Server
    from scrapy_bloom.job.pages import PagesPerHost

logger = logging.getLogger(__name__)

CRASH_LIMIT = 3  # a request that was in hand when a worker died, this many times, is dead-lettered

_JOIN, _TAKE, _LEAVE = Script("head", "join"), Script("head", "take"), Script("head", "leave")
_FINISH = Script("head", "filter", "finish")


class Lane(NamedTuple):
    """What waits in one list: requests of one slot and priority. *push* is the command that appends to it."""

    slot: str
    score: str  # a number; the lowest comes first
    push: str  # RPUSH if what comes last is the next, else LPUSH


class Link(NamedTuple):
    """A request that was found and is to be enqueued if it is new. Without a fingerprint it is not filtered."""

    shard: int
    fingerprint: bytes | None
    lane: Lane
    entry: bytes


class Ticket(NamedTuple):
    """What names a request that a worker holds."""

    shard: int
    id: int
    slot: str


class Done(NamedTuple):
    """A page that the crawl is done with, and what the server is to keep of it if the acknowledgement counts."""

    ticket: Ticket
    items: bytes = b""
    dead: str = ""  # why the request is dead-lettered
    is_page: bool = True  # whether no retry or redirect has taken its place

    @property
    def shard(self) -> int:
        """The shard of its request."""
        return self.ticket.shard


class Forget(NamedTuple):
    """A fingerprint that may be seen once more."""

    shard: int
    fingerprint: bytes


Message = Link | Done | Forget


class Taken(NamedTuple):
    """The server's answer to :meth:`Queue.take`."""

    outstanding: int  # requests of the shard that are pending or in hand, at any worker
    seq: int  # requests that were ever enqueued in the shard
    found: list[tuple[Ticket, bytes]]
    returned: int  # requests that an expired worker held
    buried: int  # of these, dead-lettered
    left: int  # requests of slots that have had their pages; they are not outstanding


class Finished(NamedTuple):
    """The server's answer to :meth:`Queue.finish`."""

    outstanding: int
    seq: int
    new: int
    refused: int  # pages that the worker did not hold any more: others had or have them


class LeaseLostError(Exception):
    """Control flow between this module and the lease client: the worker's lease has run out."""


class Queue(ServerChain):
    """Pending requests beside the filter: *options* are those of :class:`ServerChain`.

    A worker is given up after *lease_seconds* without a word. A slot's requests are handed out *delay* seconds apart.
    *pages* limits the pages of slots; on a cluster, each shard has its part. *start_urls* is a Redis key that others
    push start URLs to, and *items* the name of the list that :attr:`Done.items` go to. All methods raise UnusableError
    if the server has lost keys of the queue, and redis.RedisError if a call failed, which may have been carried out all
    the same.
    """

    kind, version = "queue", 2

    def __init__(
        self,
        server: Server,
        prefix: str,
        *,
        lease_seconds: float = 60.0,
        delay: float = 0.0,
        pages: PagesPerHost | None = None,
        start_urls: str | None = None,
        items: str = "",
        **options: Any,
    ) -> None:
        super().__init__(server, prefix, **options)
        if start_urls and server.is_cluster and self.key(0) not in start_urls:
            need = f"on a cluster, its name must have {self.key(0)} in it, to be on the node of the queue"
            raise SettingsError([f"BLOOM_FLEET_START_URLS is {start_urls!r}; {need}"])
        self.lease_seconds, self.start_urls, self.items, self.pages = lease_seconds, start_urls, items, pages
        self._lease, self._delay = int(lease_seconds * 1000), int(delay * 1000)

    def join(self, token: str, name: str) -> int:
        """Join as the worker *name* in its life *token*, and end an earlier life; return what is outstanding."""
        total = 0
        for shard in range(self.shards):
            outstanding, *ended = self._step(_JOIN, [self.key(shard)], token, name, self._lease, CRASH_LIMIT)
            total += outstanding
            self._say_what_ended(shard, *ended)
        return total

    def take(self, shard: int, token: str, newest: int, most: int, later: Sequence[str] = ()) -> Taken:
        """Renew the lease, and take *most* requests, those of the slots *later* last.

        *newest* is the greatest id that this life was handed in the shard: what was handed out beyond that was in an
        answer that got lost, and comes again.

        Raises:
            LeaseLostError: The lease has run out.

        """
        keys = [self.key(shard), *([self.start_urls] if self.start_urls and not shard else [])]
        limits = {} if self.pages is None else self.pages.limits
        parts = {slot: False if most is None else ceil(most / self.shards) for slot, most in limits.items()}
        given = token, newest, most, self._lease, CRASH_LIMIT, self._delay, for_script([*later]), PUSHED
        answer = self._step(_TAKE, keys, *given, for_script(parts))
        if not answer:
            raise LeaseLostError
        outstanding, seq, flat, returned, buried, left, full = answer
        self._say_what_ended(shard, returned, buried)
        if self.pages is not None:
            for slot in full:
                self.pages.log_full(slot.decode(errors="surrogateescape"))
        rows = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        found = [(Ticket(shard, id_, slot.decode(errors="surrogateescape")), entry) for id_, slot, entry in rows]
        return Taken(outstanding, seq, found, returned, buried, left)

    def finish(self, shard: int, token: str, number: int, messages: Sequence[Message]) -> Finished:
        """Enqueue the links that are new, and acknowledge the pages. All or nothing, once per *number*."""
        lanes: dict[Lane, int] = {}
        links: list[Any] = []
        done: list[Any] = []
        forget: list[bytes] = []
        for each in messages:
            if isinstance(each, Link):
                probe = (-1, b"") if each.fingerprint is None else self.probe(each.fingerprint)
                links += (*probe, lanes.setdefault(each.lane, len(lanes) + 1), each.entry)
            elif isinstance(each, Done):
                done += (each.ticket.id, each.items, each.dead, each.is_page)
            else:
                forget.append(self.probe(each.fingerprint).bits)
        flat = [field for lane in lanes for field in lane]
        packed = [for_script(each) for each in (flat, links, done, forget)]
        given = token, number, *packed, self._sizes, self._max_age, self.items
        return Finished(*self._step(_FINISH, [self.key(shard)], *given))

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
            what = counted(buried, "request"), CRASH_LIMIT, self.key(shard)
            logger.error("Dead-lettered: %s, in hand when a worker died, %d times. See the list %s:dead", *what)
