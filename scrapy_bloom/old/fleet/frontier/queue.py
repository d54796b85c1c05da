"""The queue of a fleet on a server: calls its scripts, and reads their answers.

Knows no request of Scrapy's and no thread, and does not decide what happens when the server is away. Each shard lies
beside a chain of the filter, under the same hash tag, so that one script can look links up, add them and enqueue them:

    {bloom:books:0}:queue           the state, a hash: format, spider, seq (requests ever enqueued), called, and
                                    scrapy_redis if the filter holds what scrapy-redis had seen
    {bloom:books:0}:requests        id -> entry, of all requests that are pending, leased or set aside
    {bloom:books:0}:slot:<slot>     the pending ids of one slot, a sorted set; the lowest score is next
    {bloom:books:0}:slots           slots with pending requests, by how many requests of theirs are leased
    {bloom:books:0}:active          slot -> requests leased
    {bloom:books:0}:holders:<slot>  token -> requests leased, of the workers that hold some of the slot
    {bloom:books:0}:workers         tokens, by the time at which their leases end (milliseconds since 1970)
    {bloom:books:0}:names           worker's name -> its token
    {bloom:books:0}:held:<token>    id -> score and slot, to be put back to; name of the worker; length of its lease in
                                    milliseconds; number of its last call
    {bloom:books:0}:crashes         id -> times that it was in hand when a worker was lost
    {bloom:books:0}:aside           id -> score, reason and slot of requests set aside
    {bloom:books:0}:moving          while requests of scrapy-redis are taken over: see scrapy_redis.py
    {bloom:books:0}:mover           token of the worker that does it
    {bloom:books:0}:taken:<number>  marks of the requests that were taken over so far

Ids number the requests in the order in which they were enqueued. Scores are doubles, exact up to 2^53:

    score = -priority 2^33 + (start requests: 2^32) +- id     - for last-in-first-out

so that priorities up to 2^20 and 4 billion requests per shard fit.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

from mmh3 import mmh3_x64_128_digest

from scrapy_bloom.old.errors import UnknownFormatError, UnusableError
from scrapy_bloom.old.fleet.client import Command, ReplyError, Script
from scrapy_bloom.old.fleet.filter import bf, bitmap
from scrapy_bloom.old.fleet.filter.shared_chain import as_mapping
from scrapy_bloom.old.fleet.frontier.entry import PUSHED
from scrapy_bloom.old.fleet.frontier.scripts import ASIDE, command, key, script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.old.fleet.client import Server
    from scrapy_bloom.old.fleet.filter.shared import SharedFilter

FORMAT = 1

MAX_PRIORITY = (1 << 20) - 1
"""Higher priorities count as this, those below its negative as the negative."""

MAX_LINKS = 200
"""Most links per call. With bitmaps they take 6 ms, in which the server answers nobody else."""

CRASH_LIMIT = 3
"""A request that was in hand at this many crashes is set aside."""

MAX_LEASE_BYTES = 8 << 20
"""Most bytes of entries in one answer; the last entry may exceed it."""

_PUSHED_SLOT = "start urls"  # no host has a space in its name
_PRIORITY_SHIFT, _START_SHIFT = 33, 32
_NO_QUEUE = -2


class StaleError(Exception):
    """A shard does not know the worker: its leases have ended, or the server has lost them."""


class NameTakenError(Exception):
    """Another worker is alive under the name."""


@dataclass(frozen=True)
class Link:
    """A request on its way to the server."""

    fingerprint: bytes | None
    """Its fingerprint; None: it is not filtered."""
    shard: int
    slot: str
    base: int
    """See :func:`score_base`."""
    is_lifo: bool
    entry: bytes
    ref: Any
    """The caller's own reference to the link."""
    scrapy_redis: bytes | None = None
    """Its fingerprint under scrapy-redis; None: not needed."""


@dataclass(frozen=True)
class Leased:
    """A request that this worker holds."""

    shard: int
    id: bytes
    token: str
    entry: bytes


@dataclass(frozen=True)
class Joined:
    """What a worker finds when it joins a shard."""

    created: bool
    outstanding: int
    returned: int
    """Requests that an earlier worker of the same name held; they are pending again."""
    aside: Sequence[bytes]


@dataclass(frozen=True)
class Finished:
    """The answer of the finishing script."""

    seen: Sequence[bool]
    """Whether each link was seen. Fewer than links: the filter grows; send the rest again."""
    acknowledged: int
    is_alive: bool
    """Whether the worker is known to the shard."""
    outstanding: int
    seq: int


@dataclass(frozen=True)
class Lease:
    """The answer of the leasing script."""

    outstanding: int
    seq: int
    leased: Sequence[Leased]
    expired: str
    """Name of a worker whose leases have ended; "" for none."""
    returned: int
    crashed: Sequence[bytes]
    """Ids set aside because they were in hand at too many crashes."""
    large: Sequence[bytes]
    missing: int


def score_base(priority: int, *, is_start: bool) -> int:
    """Return the part of a score that does not depend on the id."""
    clamped = max(-MAX_PRIORITY, min(MAX_PRIORITY, priority))
    return -(clamped << _PRIORITY_SHIFT) + (is_start << _START_SHIFT)


def shard_of(host: str, shards: int) -> int:
    """Return the shard that has the requests of *host*, and what the filter knows of its URLs."""
    return crc32(host.encode("utf-8", "replace")) % shards


class Queue:
    """The queue beside *shared*, as one worker sees it.

    Args:
        server: As of *shared*.
        shared: The filter; open.
        prefix: Of the keys; as of *shared*.
        spider: Name of the spider, whose callbacks the requests name.
        worker: Name of this worker; a later one of the same name takes back what it held.
        lease_seconds: Seconds of silence after which others get what a worker holds.
        host_workers: Most workers that hold requests of a slot at once; 0 for any number.
        max_entry_bytes: Largest entry that is read.
        start_urls: Redis key of the list that others push start URLs to; None: there is none.

    """

    def __init__(
        self,
        server: Server,
        shared: SharedFilter,
        prefix: str,
        *,
        spider: str,
        worker: str,
        lease_seconds: float,
        host_workers: int = 0,
        max_entry_bytes: int = 16 << 20,
        start_urls: str | None = None,
    ) -> None:
        self.server = server
        self.shared = shared
        self.worker = worker
        self.where = f"The queue on {server.where}, key {prefix},"
        """Subject of messages."""
        self.lease_seconds = lease_seconds
        self.start_urls = start_urls
        self.knows_scrapy_redis = False
        """Whether the filter holds what scrapy-redis had seen, under its own fingerprints."""
        self._prefix = prefix
        self._spider = spider
        self._host_workers = host_workers
        self._max_entry_bytes = max_entry_bytes
        self._tokens = [self._new_token() for _ in shared.chains]
        self._calls = 0

    @property
    def shards(self) -> int:
        """Number of shards, the filter's."""
        return len(self._tokens)

    def token(self, shard: int) -> str:
        """Return what *shard* knows this worker by, until it is lost there and joins anew."""
        return self._tokens[shard]

    def key(self, shard: int, name: str) -> str:
        """Return a key of the queue."""
        return key(self._prefix, shard, name)

    def join(self, shard: int, *, polite: bool = False) -> Joined:
        """Begin the queue of *shard*, if there is none, and become a worker of it under a new token.

        Raises:
            NameTakenError: *polite* was asked for, and another worker of this name is alive.
            UnusableError: The queue belongs to another spider, or the key is taken by something else.
            UnknownFormatError: It was written by a later version.
            ServerError: The server does not answer, or refuses.

        """
        token = self._new_token()
        state = ("format", FORMAT, "spider", self._spider, "seq", 0)
        mode = "polite" if polite else ""
        arguments = (self.worker, token, self._lease_milliseconds, CRASH_LIMIT, mode, *state)
        advice = "Use another BLOOM_REDIS_KEY, or remove that key from the server."
        try:
            status, *rest = self.server.call(self._command(_JOIN, shard, arguments))
        except ReplyError as error:
            if "WRONGTYPE" not in str(error):
                raise
            raise UnusableError(self.where, f"is taken by something else ({error})", advice=advice) from None
        if status < 0:
            raise NameTakenError
        if status == 0:
            found = as_mapping(rest[0])
            if found.get("format", "").isdigit() and int(found["format"]) > FORMAT:
                raise UnknownFormatError(
                    self.where, "format version", int(found["format"]), FORMAT, advice="Upgrade scrapy-bloom."
                )
            if found.get("format") != str(FORMAT):
                raise UnusableError(self.where, "is taken by something else", advice=advice)
            raise UnusableError(
                self.where,
                f"belongs to the spider {found.get('spider')!r}, and this is {self._spider!r}",
                advice="Use a BLOOM_REDIS_KEY for each spider.",
            )
        self._tokens[shard] = token
        created, outstanding, returned, aside, fields = rest
        self.knows_scrapy_redis = self.knows_scrapy_redis or "scrapy_redis" in as_mapping(fields)
        return Joined(bool(created), outstanding, returned, aside)

    def is_gone(self, shard: int) -> bool:
        """Return whether there is no queue in *shard*, any more or yet.

        Raises:
            ServerError: The server does not answer, or refuses.

        """
        state = self.key(shard, "queue")
        return not self.server.call(Command(("EXISTS", state), state))

    def begin_filter_anew(self, shard: int) -> None:
        """Empty the filter of *shard*: what was pending there is lost, and must not count as seen.

        Raises:
            BloomError: The filter cannot be begun anew.
            ServerError: The server does not answer, or refuses.

        """
        keys = self.shared.chains[shard].all_keys()
        self.server.call(Command(("UNLINK", *keys), keys[0]))
        self.shared.open()

    def next_number(self) -> int:
        """Return the number of the next call of the finishing script. Use it again if the answer got lost."""
        self._calls += 1
        return self._calls

    def finish(self, shard: int, number: int, links: Sequence[Link], ids: Sequence[bytes]) -> Command:
        """Return the call that takes in *links* and, if it gets through them, acknowledges the requests *ids*.

        Sent again under the same *number* it does nothing twice.
        """
        chain = self.shared.chains[shard]
        chain_keys, chain_arguments = chain.probe_arguments(len(links))
        arguments: list[Any] = [self._tokens[shard], number, len(ids), *ids, len(links)]
        for link in links:
            known_by = [one for one in (link.fingerprint, link.scrapy_redis) if one is not None]
            digest = b"".join(mmh3_x64_128_digest(one, chain.parameters.seed) for one in known_by)
            arguments += (digest, link.base + (1 << _START_SHIFT) * link.is_lifo, "-" if link.is_lifo else "+")
            arguments += (link.slot, link.entry)
        return self._command(_FINISH[chain.parameters.engine], shard, [*arguments, *chain_arguments], chain_keys)

    def finished(self, shard: int, reply: Any) -> Finished | None:
        """Read the answer of :meth:`finish`. None: nothing was done, since the filter has grown; ask again.

        Raises:
            StaleError: The queue is not on the server any more; nothing was done.
            GoneError: The filter is not on the server any more; nothing was done.
            ReplyError: The server refused.

        """
        if isinstance(reply, ReplyError):
            raise reply
        if reply[0] == _NO_QUEUE:
            raise StaleError
        rest = self.shared.chains[shard].learn(reply)
        if not rest:
            return None
        answers, acknowledged, is_alive, outstanding, seq = rest
        return Finished([answer == ord("1") for answer in answers], acknowledged, bool(is_alive), outstanding, int(seq))

    def move(self, shard: int, number: str, links: Sequence[Link], marks: Sequence[bytes]) -> int:
        """Enqueue *links* that were pending elsewhere; return how many were got through, the rest is to be sent again.

        A link is enqueued once for each of *marks* that is new to the take-over *number*.

        Raises:
            GoneError: The filter is not on the server any more; nothing was done.
            ServerError: The server does not answer, or refuses.

        """
        chain = self.shared.chains[shard]
        chain_keys, chain_arguments = chain.probe_arguments(len(links))
        arguments: list[Any] = [number, len(links)]
        for link, mark in zip(links, marks, strict=True):
            digest = b"" if link.fingerprint is None else mmh3_x64_128_digest(link.fingerprint, chain.parameters.seed)
            arguments += (mark, digest, link.base + (1 << _START_SHIFT) * link.is_lifo, "-" if link.is_lifo else "+")
            arguments += (link.slot, link.entry)
        script = _MOVE[chain.parameters.engine]
        rest = chain.learn(self.server.call(self._command(script, shard, [*arguments, *chain_arguments], chain_keys)))
        return int(rest[0]) if rest else 0

    def lease(self, shard: int, wanted: int) -> Command:
        """Return the call that renews this worker's leases in *shard* and leases up to *wanted* requests."""
        limits = (self._host_workers, CRASH_LIMIT, self._max_entry_bytes, MAX_LEASE_BYTES)
        return self._command(_LEASE, shard, (self._tokens[shard], self._lease_milliseconds, wanted, *limits))

    def leased(self, shard: int, reply: Any) -> Lease:
        """Read the answer of :meth:`lease`.

        Raises:
            StaleError: The worker is not known to the shard.
            ReplyError: The server refused.

        """
        if isinstance(reply, ReplyError):
            raise reply
        if reply[0] < 0:
            raise StaleError
        _, outstanding, seq, flat, expired, returned, crashed, large, missing = reply
        token = self._tokens[shard]
        leased = [Leased(shard, id_, token, entry) for id_, entry in zip(flat[::2], flat[1::2], strict=True)]
        return Lease(outstanding, int(seq), leased, expired.decode(errors="replace"), returned, crashed, large, missing)

    def take_start_urls(self, most: int) -> Command:
        """Return the call that makes up to *most* start URLs of the list pending, if nothing else is, in shard 0."""
        return self._command(_TAKE, 0, (most, PUSHED, _PUSHED_SLOT), [self.start_urls or ""])

    def taken(self, reply: Any) -> int:
        """Read the answer of :meth:`take_start_urls`: how many were taken; -1: the key holds no list.

        Raises:
            ReplyError: The server refused.

        """
        if isinstance(reply, ReplyError):
            raise reply
        return int(reply)

    def keep(self, shard: int, ids: Sequence[bytes]) -> int:
        """Give back all that this worker holds in *shard* but *ids*, and return how much that is.

        Raises:
            ServerError: The server does not answer, or refuses.

        """
        returned: int = self.server.call(self._command(_KEEP, shard, [self._tokens[shard], *ids]))
        return returned

    def leave(self) -> int:
        """Give back all that this worker holds, and return how much that is.

        Raises:
            ServerError: The server does not answer, or refuses.

        """
        returned = 0
        commands = [self._command(_LEAVE, shard, [self._tokens[shard]]) for shard in range(self.shards)]
        for reply in self.server.calls(commands):
            if isinstance(reply, ReplyError):
                raise reply
            returned += reply
        return returned

    def set_aside(self, leased: Leased, reason: str) -> None:
        """Set a leased request aside for *reason*, one word.

        Raises:
            ServerError: The server does not answer, or refuses.

        """
        self.server.call(self._command(ASIDE, leased.shard, ["set", leased.token, leased.id, reason]))

    @property
    def _lease_milliseconds(self) -> int:
        return max(1, round(self.lease_seconds * 1000))

    def _command(self, script: Script, shard: int, arguments: Sequence[Any], keys: Sequence[str] = ()) -> Command:
        return command(script, self._prefix, shard, arguments, keys)

    def _new_token(self) -> str:
        return secrets.token_hex(8)


_JOIN, _LEASE, _KEEP, _LEAVE, _TAKE = (script(name) for name in ("join", "lease", "keep", "leave", "take"))
_FINISH, _MOVE = (
    {"bitmap": script(name, bitmap.PROBES_LUA), "bf": script(name, bf.PROBES_LUA)} for name in ("finish", "move")
)
