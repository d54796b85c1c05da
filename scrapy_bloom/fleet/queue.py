"""The queue and filter of a fleet as they are on a server: each method is one atomic step of one shard.

On one server there is one shard; on a cluster there are several, and a URL and its request belong to the shard that
the URL's fingerprint names. The scripts ``*.lua`` beside this file are the steps; ``head.lua`` lists the keys.
"""

from __future__ import annotations

import logging
import secrets
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from redis.exceptions import RedisError

from scrapy_bloom.errors import SettingsError, UnusableError, counted
from scrapy_bloom.fleet.blocks import SCHEME, Probe, layer_sizes, probe_of
from scrapy_bloom.fleet.entry import for_script
from scrapy_bloom.fleet.server import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from scrapy_bloom.fleet.server import Server
    from scrapy_bloom.job.pages import PagesPerHost
    from scrapy_bloom.settings import BloomSettings
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

# Of the error rate, for the filter in each process, which keeps what it knows from being asked of the server again.
# The rest is the server's. A quarter would save 4 % of a process' filter, and take 2 % more of the server.
LOCAL_SHARE = 0.1
SHARDS_PER_NODE = 8  # for each master of a cluster, so that the masters get about equal shares


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


class Queue:
    """Pending requests and filter under the Redis key *prefix* on *server*: one shard, or several on a cluster.

    A filter that begins here has *capacity*, *error_rate* and *key_space*, which tells how requests become
    fingerprints. *max_age* is in seconds. *kind* keeps a filter whose requests are elsewhere from the key of a queue.

    A worker is given up after *lease_seconds* without a word. A slot's requests are handed out *delay* seconds apart.
    *pages* limits the pages of slots; on a cluster, each shard has its part. *start_urls* is a Redis key that others
    push start URLs to, and *items* the name of the list that :attr:`Done.items` go to. All methods raise UnusableError
    if the server has lost keys of the queue, and redis.RedisError if a call failed, which may have been carried out all
    the same.
    """

    def __init__(
        self,
        server: Server,
        prefix: str,
        *,
        capacity: int = 1_000_000,
        error_rate: float = 1e-6,
        key_space: object = "",
        max_age: float | None = None,
        kind: str = "queue 2",
        lease_seconds: float = 60.0,
        delay: float = 0.0,
        pages: PagesPerHost | None = None,
        start_urls: str | None = None,
        items: str = "",
    ) -> None:
        self.server, self.prefix = server, prefix
        self.where = f"on {server.where} under {prefix}"
        """Where it is, for messages."""
        self.shards = 1
        if start_urls and server.is_cluster and self.key(0) not in start_urls:
            need = f"on a cluster, its name must have {self.key(0)} in it, to be on the node of the queue"
            raise SettingsError([f"BLOOM_FLEET_START_URLS is {start_urls!r}; {need}"])
        self.lease_seconds, self.start_urls, self.items, self.pages = lease_seconds, start_urls, items, pages
        self._lease, self._delay, self._max_age = (
            int(lease_seconds * 1000),
            int(delay * 1000),
            int((max_age or 0) * 1000),
        )
        self._new: dict[str, Any] = {
            "format": f"{kind}, filter {SCHEME}",
            "key_space": str(key_space),
            "capacity": capacity,
            "error_rate": error_rate,
            "seed": secrets.token_bytes(16),
        }
        self._sizes = for_script([])
        self._add, self._finish = server.script("filter", "add"), server.script("head", "filter", "finish")
        self._join, self._take, self._leave = (server.script("head", name) for name in ("join", "take", "leave"))

    @classmethod
    def of(
        cls, server: Server, settings: BloomSettings, fingerprints: Fingerprints, spider: str, **options: Any
    ) -> Self:
        """Return the queue of the crawl of *spider* under *settings*."""
        return cls(
            server,
            key_of(settings.redis_key, spider),
            capacity=settings.capacity,
            error_rate=settings.error_rate * (1 - LOCAL_SHARE),
            key_space=sorted(fingerprints.space.items()),
            max_age=settings.max_age,
            **options,
        )

    def key(self, shard: int) -> str:
        """Return the key of a shard's state; the names of its other keys begin with it."""
        return f"{{{self.prefix}:{shard}}}"

    def shard_of(self, fingerprint: bytes) -> int:
        """Return the shard that *fingerprint* belongs to."""
        return crc32(fingerprint) % self.shards if self.shards > 1 else 0

    def begin(self) -> None:
        """Begin what is not there yet.

        Raises:
            UnusableError: The server fails, or what is there is of another format, or of requests that count as the
                same by other rules.

        """
        client = self.server.client
        try:
            nodes = len(client.get_primaries()) if self.server.is_cluster else 0
            self.shards = int(client.hget(self.key(0), "shards") or SHARDS_PER_NODE * nodes or 1)
            for shard in range(self.shards):
                self.add(shard, [])
                state = client.hgetall(self.key(shard))
                self._check(state)
                self._new["seed"] = state[b"seed"]  # which the other shards begin with, too
                sizes = layer_sizes(ceil(int(state[b"capacity"]) / self.shards), float(state[b"error_rate"]))
                self._sizes = for_script([*chain.from_iterable(sizes)])
        except (RedisError, OSError) as error:
            advice = "See what the server logs, and whether its user may run scripts."
            raise UnusableError(f"The filter {self.where}", f"cannot be used: {error}", advice=advice) from None

    def _check(self, state: dict[bytes, bytes]) -> None:
        for name in ("format", "key_space"):
            found, expected = state[name.encode()].decode(), str(self._new[name])
            if found != expected:
                raise UnusableError(
                    f"The filter {self.where}",
                    f"has the {name.replace('_', ' ')} {found}",
                    expected=expected,
                    advice="All workers need the same version and the same settings of what counts as the same page. "
                    "To begin anew, use another BLOOM_REDIS_KEY.",
                )

    def add(self, shard: int, fingerprints: Sequence[bytes]) -> list[bool]:
        """Begin the filter of a shard if it is not there, and add *fingerprints* of it; return which were new."""
        probes = for_script([*chain.from_iterable(map(self._probe, fingerprints))])
        new = {**self._new, "chain": secrets.token_hex(4), "shards": self.shards}
        fields = chain.from_iterable(new.items())
        answers = self._add(keys=[self.key(shard)], args=[probes, self._sizes, self._max_age, *fields])
        return [bool(each) for each in answers]

    def _probe(self, fingerprint: bytes | None) -> Probe:
        return Probe(-1, b"") if fingerprint is None else probe_of(fingerprint, self._new["seed"])

    def join(self, token: str, name: str) -> int:
        """Join as the worker *name* in its life *token*, and end an earlier life; return what is outstanding."""
        total = 0
        for shard in range(self.shards):
            outstanding, *ended = self._step(self._join, [self.key(shard)], token, name, self._lease)
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
        given = token, newest, most, self._lease, self._delay, for_script([*later]), for_script(parts)
        answer = self._step(self._take, keys, *given)
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
        links = [
            (*self._probe(each.fingerprint), lanes.setdefault(each.lane, len(lanes) + 1), each.entry)
            for each in messages
            if isinstance(each, Link)
        ]
        done = [(each.ticket.id, each.items, each.dead, each.is_page) for each in messages if isinstance(each, Done)]
        forget = [self._probe(each.fingerprint)[1:] for each in messages if isinstance(each, Forget)]
        flat = [for_script([*chain.from_iterable(rows)]) for rows in (lanes, links, done, forget)]
        given = token, number, *flat, self._sizes, self._max_age, self.items
        return Finished(*self._step(self._finish, [self.key(shard)], *given))

    def leave(self, token: str) -> None:
        """End a worker's life, and give back the requests that it held."""
        for shard in range(self.shards):
            self._leave(keys=[self.key(shard)], args=[token])

    def _step(self, script: Callable[..., Any], keys: Sequence[str], *arguments: Any) -> Any:
        answer = script(keys=keys, args=arguments)
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
            what = counted(buried, "request"), self.key(shard)
            logger.error("Dead-lettered: %s, in hand each time that a worker died. See the list %s:dead", *what)
