"""The queue and filter of a fleet as they are on a server: each method is one atomic step of one shard.

On one server there is one shard; on a cluster there are several, and a URL and its request belong to the shard that
the URL's fingerprint names. The scripts ``*.lua`` beside this file are the steps; ``head.lua`` lists the keys.
"""

from __future__ import annotations

import logging
import secrets
import time
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Any
from zlib import crc32

from scrapy_bloom.errors import SettingsError, UnusableError, counted
from scrapy_bloom.fleet.blocks import SCHEME, Probe, layer_sizes, probe_of
from scrapy_bloom.fleet.entry import for_script
from scrapy_bloom.fleet.messages import (
    Done,
    Finished,
    Forget,
    Link,
    Message,
    Note,
    Part,
    Politeness,
    QueueLane,
    SlowDown,
    Taken,
    Ticket,
)
from scrapy_bloom.fleet.server import key_of, usable
from scrapy_bloom.settings import OTHERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from scrapy_bloom.fleet.server import Server
    from scrapy_bloom.frontier.order import PagesPerHost
    from scrapy_bloom.settings import BloomSettings
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

# Share of the error rate for the filter in each process; the filter on the server gets the rest. The local filter saves
# calls about known fingerprints. A share of 0.25 would make it 4 % smaller, and the server's filter 2 % larger.
LOCAL_SHARE = 0.1
SHARDS_PER_NODE = 8  # for each master of a cluster, so that the masters get about equal shares
_GONE = {
    b"gone": "is gone: the server has lost it, or somebody has removed it",
    b"other": "was begun anew: the server has lost the one that this worker joined, or somebody has removed it",
    b"lost": "lacks requests that were there: the server has lost keys, or somebody has removed them",
}


class LifeEndedError(Exception):
    """Control flow between this module and the lease client: the life of the worker has ended on the server."""

    def __init__(self, where: str, *, went_back: bool) -> None:
        back = "went back in time: to an older copy of its data, or a replica that had not got all"
        super().__init__(f"The server {where} {back if went_back else 'has not heard of this worker for its lease'}")
        self.went_back = went_back
        """Whether the server does not know what it has answered to this worker; if not, the lease has run out."""


class Queue:
    """Pending requests and filter under the Redis key *prefix* on *server*: one shard, or several on a cluster.

    A filter that begins here has *capacity*, *error_rate* and *key_space*, which tells how requests become
    fingerprints. *max_age* is in seconds. *kind* is part of the format: a filter without requests has another one, so
    it cannot use the key of a queue.

    A worker is given up after *lease_seconds* without a call. *politeness* holds for all workers together. *pages*
    limits the pages of slots; on a cluster, each shard has its part. *start_urls* is a Redis key to which others push
    start URLs, and *items* names the list to which :attr:`Part.items` go. *has_start*: one worker of those that join is
    to run start(). All methods raise
    UnusableError if the server has lost keys of the queue, or the queue was begun anew. They raise redis.RedisError if
    a call failed; the server may have carried it out all the same.
    """

    def __init__(
        self,
        server: Server,
        prefix: str,
        *,
        capacity: int = 1_000_000,
        error_rate: float = 1e-6,
        key_space: Sequence[tuple[str, str]] = (),
        max_age: float | None = None,
        kind: str = "queue 4",
        lease_seconds: float = 60.0,
        politeness: Politeness | None = None,
        pages: PagesPerHost | None = None,
        start_urls: str | None = None,
        items: str = "",
        has_start: bool = False,
    ) -> None:
        self.server, self.prefix = server, prefix
        self.where = f"on {server.where} under {prefix}"
        self.shards = 1
        if start_urls and server.is_cluster and self.key(0) not in start_urls:
            need = f"on a cluster, its name must have {self.key(0)} in it, to be on the node of the queue"
            raise SettingsError([f"BLOOM_FLEET_START_URLS is {start_urls!r}; {need}"])
        self.lease_seconds, self.start_urls, self.items, self.pages = lease_seconds, start_urls, items, pages
        self.politeness, self.has_start = politeness or Politeness(), has_start
        self._max_age = int((max_age or 0) * 1000)
        self._chains: dict[int, bytes] = {}  # by shard: the id of its filter; a queue that was begun anew has another
        self._new: dict[str, Any] = {
            "format": f"{kind}, filter {SCHEME}",
            "key_space": str(key_space),
            "capacity": capacity,
            "error_rate": error_rate,
            "seed": secrets.token_bytes(16),
        }
        self._sizes = for_script([])
        self._scripts = {name: server.script("head", name) for name in ("join", "take", "leave")}
        self._scripts["add"] = server.script("filter", "add")
        self._scripts["finish"] = server.script("head", "filter", "finish")

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

    @property
    def id(self) -> str:
        """An id of the queue; one that is begun anew has another. Known from :meth:`begin` on."""
        return self._chains[0].hex()

    def key(self, shard: int) -> str:
        """Return the key of a shard's state; the names of its other keys begin with it."""
        return f"{{{self.prefix}:{shard}}}"

    def shard_of(self, fingerprint: bytes) -> int:
        """Return the shard that *fingerprint* belongs to."""
        return crc32(fingerprint) % self.shards if self.shards > 1 else 0

    def begin(self) -> None:
        """Begin what is not there yet.

        Raises UnusableError if the server fails, or what is there is of another format, or of requests that count as
        the same by other rules.
        """
        client = self.server.client
        keys = f"~{self.key(0)[:-2]}*" + (f" ~{self.start_urls}" if self.start_urls else "")
        advice = f"See what the server logs. Its user needs the commands +@all -@dangerous and the keys {keys}."
        with usable(f"The filter {self.where}", advice):
            nodes = len(client.get_primaries()) if self.server.is_cluster else 0
            self.shards = int(client.hget(self.key(0), "shards") or SHARDS_PER_NODE * nodes or 1)
            for shard in range(self.shards):
                self.add(shard, [])
                state = client.hgetall(self.key(shard))
                self._check(state)
                self._new["seed"] = state[b"seed"]  # which the other shards begin with, too
                self._chains[shard] = state[b"chain"]
                sizes = layer_sizes(ceil(int(state[b"capacity"]) / self.shards), float(state[b"error_rate"]))
                self._sizes = for_script([*chain.from_iterable(sizes)])
            if self.start_urls:
                client.type(self.start_urls)

    def _check(self, state: dict[bytes, bytes]) -> None:
        for name in ("format", "key_space"):
            present, expected = state[name.encode()].decode(), str(self._new[name])
            if present != expected:
                raise UnusableError(
                    f"The filter {self.where}",
                    f"has the {name.replace('_', ' ')} {present}",
                    expected=expected,
                    advice="All workers need the same version and the same settings of what counts as the same page. "
                    "To begin anew, use another BLOOM_REDIS_KEY.",
                )

    def add(self, shard: int, fingerprints: Sequence[bytes]) -> list[bool]:
        """Begin the filter of a shard if it is not there, and add *fingerprints* of it; return which were new."""
        probes = for_script([*chain.from_iterable(map(self._probe, fingerprints))])
        new = {**self._new, "chain": secrets.token_hex(4), "shards": self.shards}
        fields = chain.from_iterable(new.items())
        answers = self._scripts["add"](keys=[self.key(shard)], args=[probes, self._sizes, self._max_age, *fields])
        return [bool(answer) for answer in answers]

    def _probe(self, fingerprint: bytes | None) -> Probe:
        return Probe(-1, b"") if fingerprint is None else probe_of(fingerprint, self._new["seed"])

    def join(self, token: str, name: str, *, last: str = "") -> None:
        """Join as the worker *name* in its life *token*, and end its earlier life.

        *last* is the life before in the same process, which therefore has not crashed.
        """
        for shard in range(self.shards):
            starts = int(self.has_start and not shard)
            answer = self._step("join", shard, token, name, int(1000 * self.lease_seconds), last, starts)
            self._say_what_ended(shard, *answer)
            self._write_rules(shard)

    def _write_rules(self, shard: int) -> None:
        """Write to a shard what the settings say of slots that they name."""
        limits = {} if self.pages is None else self.pages.limits
        rules: dict[str, dict[str, int]] = {
            "delays": {slot: int(1000 * seconds) for slot, seconds in self.politeness.delays.items()},
            "shares": dict(self.politeness.shares),
            "limits": {slot: self._part(limit) for slot, limit in limits.items()},
        }
        for name, values in rules.items():
            rows = [(slot, value) for slot, value in values.items() if slot != OTHERS]
            for at in range(0, len(rows), 1_000):
                self.server.client.hset(f"{self.key(shard)}:{name}", mapping=dict(rows[at : at + 1_000]))

    def _part(self, limit: int | None) -> int:
        """Return the part of a shard in a limit of pages; -1: there is none."""
        return -1 if limit is None else ceil(limit / self.shards)

    def take(
        self,
        shard: int,
        token: str,
        newest: int,
        most: int,
        later: Sequence[str] = (),
        *,
        number: int = 0,
        can_start: bool = False,
    ) -> Taken:
        """Renew the lease, and take at most *most* requests. Requests of the slots *later* come last.

        *newest* is the greatest id that this life has received from the shard. Requests with greater ids were in an
        answer that got lost, and come again. *number* is the number of the last answered call of :meth:`finish`.
        *can_start*: the worker runs start() if nobody else does. Raises LifeEndedError if the lease has run out, or the
        server does not know of *newest* or *number*.
        """
        limit = self._part(None if self.pages is None else self.pages.limits.get(OTHERS))
        lease, delay = (int(1000 * each) for each in (self.lease_seconds, self.politeness.delays.get(OTHERS, 0)))
        asked = number, newest, most, lease, for_script([*later])
        answer = self._step("take", shard, token, *asked, delay, limit, int(can_start and not shard))
        is_busy, seq, flat, returned, buried, left, full, starts = answer
        self._say_what_ended(shard, returned, buried)
        if self.pages is not None:
            for slot in full:
                self.pages.log_full(_text(slot))
        rows = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        requests = [(Ticket(shard, id_, _text(slot), token), entry) for id_, slot, entry in rows]
        return Taken(bool(is_busy), seq, requests, returned, buried, left, bool(starts))

    def finish(
        self, shard: int, token: str, number: int, messages: Sequence[Message], *, last_pause: int = 0
    ) -> Finished:
        """Enqueue the links that are new, and acknowledge the pages. All or nothing, once per *number*.

        The answer has the pauses after the one with the number *last_pause*. Raises LifeEndedError if the server does
        not know of the call before *number*. Nothing was changed then.
        """
        lanes: dict[QueueLane, int] = {}
        rows: dict[type[Message], list[Any]] = {kind: [] for kind in (Link, Done, Forget, Note, SlowDown)}
        for message in messages:
            rows[type(message)] += self._row(message, lanes)
        packed = for_script([[*chain.from_iterable(lanes)], *rows.values()])
        answer = self._step("finish", shard, token, number, packed, self._sizes, self._max_age, self.items, last_pause)
        new, refused, paused, last_pause = answer
        seconds = {_text(slot): left / 1000 for slot, left in zip(paused[::2], paused[1::2], strict=True)}
        return Finished(new, list(map(int, refused.split())), seconds, last_pause)

    def _row(self, message: Message, lanes: dict[QueueLane, int]) -> Sequence[Any]:
        """Return the arguments of the script for *message*; *lanes* numbers the lanes of links."""
        match message:
            case Link():
                return (*self._probe(message.fingerprint), *_in_lane(message, lanes))
            case Done():
                parts = [value for part in message.parts for value in self._part_row(part, lanes)]
                id_ = 0 if message.ticket is None else message.ticket.id
                return id_, message.why, message.is_page, message.failed, parts
            case Forget():
                return self._probe(message.fingerprint)[1:]
            case Note():
                return message.process, message.estimate
            case SlowDown():
                pause = max(0, int(1000 * (message.until - time.time())))
                return message.slot, pause, int(1000 * message.delay)

    def _part_row(self, part: Part, lanes: dict[QueueLane, int]) -> Sequence[Any]:
        # On a cluster, the fingerprint may be of another shard.
        links = [value for link in part.links for value in _in_lane(link, lanes)]
        return (*self._probe(part.fingerprint if self.shards == 1 else None), part.items, links)

    def last_call(self, shard: int, token: str) -> tuple[int, list[int]]:
        """Return the number of the last call of :meth:`finish` that the life *token* made, and what it refused."""
        client, key = self.server.client, self.key(shard)
        number = int(client.hget(f"{key}:calls", token) or 0)
        of, *refused = map(int, (client.hget(f"{key}:refused", token) or b"0").split())
        return number, refused if of == number else []

    def enqueue(self, links: Sequence[Link]) -> int:
        """Enqueue the *links* that are new, each with a fingerprint, for a command; return how many they were."""
        of_shard: dict[int, list[Link]] = {}
        for link in links:
            of_shard.setdefault(link.shard, []).append(link)
        return sum(self.finish(shard, "", 0, some).new for shard, some in of_shard.items())

    def leave(self, token: str, numbers: Sequence[int] = ()) -> None:
        """End a worker's life, and give back the requests that it held. *numbers*, by shard: as for :meth:`take`."""
        for shard in range(self.shards):
            self._step("leave", shard, token, numbers[shard] if numbers else 0)

    def _step(self, name: str, shard: int, token: str, *arguments: Any) -> Any:
        keys = [self.key(shard)]
        if name == "take" and self.start_urls and not shard:
            keys.append(self.start_urls)
        answer = self._scripts[name](keys=keys, args=[self._chains[shard], token, *arguments])
        if answer in (b"back", b"lease"):
            raise LifeEndedError(self.server.where, went_back=answer == b"back")
        if isinstance(answer, bytes) and answer in _GONE:
            raise UnusableError(
                f"The queue {self.where}",
                _GONE[answer],
                advice="Set appendonly yes and maxmemory-policy noeviction on the server. To begin anew, remove what "
                "is left, or use another BLOOM_REDIS_KEY.",
            )
        return answer

    def _say_what_ended(self, shard: int, returned: int, buried: int) -> None:
        if returned:
            logger.warning("A worker was lost. Other workers get its %s", counted(returned, "request"))
        if buried:
            logger.error(
                "Dead-lettered: %s, in hand each time that a worker died or was silent for its lease. See %s:dead",
                counted(buried, "request"),
                self.key(shard),
            )


def _text(slot: bytes) -> str:
    return slot.decode(errors="replace")


def _in_lane(link: Link, lanes: dict[QueueLane, int]) -> tuple[int, bytes]:
    return lanes.setdefault(link.lane, len(lanes) + 1), link.entry
