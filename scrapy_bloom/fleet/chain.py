"""The filter of a fleet as it is on a server: where its shards are, what it was begun with, and how keys are added."""

from __future__ import annotations

import secrets
from math import ceil
from typing import TYPE_CHECKING, Any
from zlib import crc32

from redis.exceptions import RedisError

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.blocks import SCHEME, layer_sizes, probe_of
from scrapy_bloom.fleet.entry import for_script
from scrapy_bloom.fleet.server import Script, key_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.fleet.blocks import Probe
    from scrapy_bloom.fleet.server import Server
    from scrapy_bloom.settings import BloomSettings
    from scrapy_bloom.url.fingerprint import Fingerprints

# Of the error rate, for the filter in each process, which keeps what it knows from being asked of the server again.
# The rest is the server's. A quarter would save 4 % of a process' filter, and take 2 % more of the server.
LOCAL_SHARE = 0.1

_ADD = Script("filter", "add")


def chain_options(settings: BloomSettings, fingerprints: Fingerprints, spider: str) -> dict[str, Any]:
    """Return the options of the :class:`ServerChain` of a crawl of *spider*."""
    return {
        "prefix": key_of(settings.redis_key, spider),
        "capacity": settings.capacity,
        "error_rate": settings.error_rate * (1 - LOCAL_SHARE),
        "key_space": sorted(fingerprints.space.items()),
        "max_age": settings.max_age,
    }


class ServerChain:
    """The filter under the Redis key *prefix* on *server*: one shard, or several on a cluster.

    *new* are ``capacity``, ``error_rate`` and ``key_space``, which tells how requests become fingerprints, of a filter
    that begins here; *max_age* is in seconds.
    """

    kind, version = "filter", 1
    """What it is, for messages, and so that a filter and a queue do not share a key; version of its format."""

    def __init__(self, server: Server, prefix: str, *, max_age: float | None = None, **new: Any) -> None:
        self.server, self.prefix = server, prefix
        self.where = f"on {server.where} under {prefix}"
        """Where it is, for messages."""
        self.shards = 1
        self._new = {"capacity": 1_000_000, "error_rate": 1e-6, **new}
        self._new["format"] = f"{self.kind} {self.version}, filter {SCHEME}"
        self._new["key_space"] = str(new.get("key_space", ""))
        self._seed = secrets.token_bytes(16)
        self._sizes = for_script([])
        self._max_age = int((max_age or 0) * 1000)

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
        try:
            self.shards = int(self.server.client.hget(self.key(0), "shards") or self.server.shards_for_new())
            for shard in range(self.shards):
                self._call(shard, [])
                state = self.server.client.hgetall(self.key(shard))
                self._check(state)
                self._seed = state[b"seed"]  # which the other shards begin with, too
                sizes = layer_sizes(ceil(int(state[b"capacity"]) / self.shards), float(state[b"error_rate"]))
                self._sizes = for_script([number for pair in sizes for number in pair])
        except (RedisError, OSError) as error:
            advice = "See what the server logs, and whether its user may run scripts."
            raise UnusableError(f"The {self.kind} {self.where}", f"cannot be used: {error}", advice=advice) from None

    def _check(self, state: dict[bytes, bytes]) -> None:
        for name in ("format", "key_space"):
            found = state[name.encode()].decode()
            if found != self._new[name]:
                raise UnusableError(
                    f"The {self.kind} {self.where}",
                    f"has the {name.replace('_', ' ')} {found}",
                    expected=str(self._new[name]),
                    advice="All workers need the same version and the same settings of what counts as the same page. "
                    "To begin anew, use another BLOOM_REDIS_KEY.",
                )

    def probe(self, fingerprint: bytes) -> Probe:
        """Return where the bits of *fingerprint* are."""
        return probe_of(fingerprint, self._seed)

    def add(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Add *fingerprints*, with one call for each shard, and return which were new."""
        answers: dict[bytes, bool] = {}
        for shard in {self.shard_of(each) for each in fingerprints}:
            some = [each for each in fingerprints if self.shard_of(each) == shard]
            answers.update(zip(some, self._call(shard, some), strict=True))
        return [answers[each] for each in fingerprints]

    def _call(self, shard: int, fingerprints: Sequence[bytes]) -> list[bool]:
        """Begin a shard that is not there, and add *fingerprints*; return which were new."""
        flat = [item for each in fingerprints for item in self.probe(each)]
        own = {"seed": self._seed, "chain": secrets.token_hex(4), "shards": self.shards}
        fields = [item for pair in {**self._new, **own}.items() for item in pair]
        answers = self.server.call(_ADD, [self.key(shard)], for_script(flat), self._sizes, self._max_age, *fields)
        return [bool(each) for each in answers]
