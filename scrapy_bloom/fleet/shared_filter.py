"""A filter on a server that has no queue beside it: what :class:`~scrapy_bloom.RedisBloomDupeFilter` asks."""

from __future__ import annotations

import logging
import secrets
import time
from math import ceil
from typing import TYPE_CHECKING, Any
from zlib import crc32

from redis.exceptions import RedisError

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.fleet.blocks import SCHEME, layer_sizes, probes_of
from scrapy_bloom.fleet.entry import for_script
from scrapy_bloom.fleet.server import AWAY, Address, Script, Server, is_full, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.settings import BloomSettings
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

LOCAL_SHARE = 0.1
"""Of the error rate, for the filter in this process, which keeps what it knows from being asked of the server again.
The rest is the server's. A quarter would save 4 % of this process' filter, and take 2 % more of the server."""

LEAST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between two tries to reach a server that is away: ten times what the last one took, within these bounds."""

MOST_DOUBTFUL = 200_000
"""Requests passed while the server is away that are remembered, 20 MB. Further ones pass as often as they come."""

_FORMAT = f"filter {SCHEME}"
_ADD = Script("filter", "add")


def sizes_for(capacity: int, error_rate: float) -> bytes:
    """Return blocks and capacity of each layer that a chain may come to have, for the scripts."""
    return for_script([number for pair in layer_sizes(capacity, error_rate) for number in pair])


def add_fingerprints(
    server: Server, key: str, seed: bytes, fingerprints: Sequence[bytes], sizes: bytes, max_age: int, *fields: Any
) -> tuple[dict[bytes, bytes], bool, int, list[bool]]:
    """Add *fingerprints* to the filter of a shard, in one call, and return which were new.

    Before that, the state of the filter if it has another *seed* or nothing was added, whether the filter was begun by
    this call, with *fields* for its state, and how many of its segments the server has lost.
    """
    flat: list[Any] = []
    for fingerprint in fingerprints:
        flat += (*probes_of(fingerprint, seed), fingerprint[:16])
    state, is_new, lost, answers = server.call(_ADD, [key], seed, for_script(flat), sizes, max_age, *fields)
    return dict(zip(state[::2], state[1::2], strict=True)), bool(is_new), lost, [bool(answer) for answer in answers]


class SharedFilter:
    """The store behind a crawl whose filter is on a server, and whose requests another scheduler keeps.

    A filter in this process is asked first. What that does not know, one call asks of the server and adds there. While
    the server is away or full, requests pass, once; when it is back, what passed may pass once more, since whether the
    server had it before is not known. So nothing is called seen that was not.

    Raises:
        UnusableError: On construction; the server cannot be reached, or its filter is of another format or key space.

    """

    def __init__(self, crawler: Crawler, settings: BloomSettings, fingerprints: Fingerprints) -> None:
        name = crawler.spider.name if crawler.spider is not None else "spider"
        self._stats = crawler.stats
        self._server = Server(Address.of(settings.redis_url, crawler.settings))
        self._prefix = key_of(settings.redis_key, name)
        self.where = f"on {self._server.where} under {self._prefix}"
        """Where the filter is, for messages."""
        local = settings.error_rate * LOCAL_SHARE
        self.chain = ScalableBloomFilter(settings.capacity, local, max_age=settings.max_age)
        """What this process knows."""
        self.add: Callable[[bytes], bool] = self._decide
        self._max_age = int((settings.max_age or 0) * 1000)
        self._new = {
            "format": _FORMAT,
            "key_space": str(sorted(fingerprints.space.items())),
            "capacity": settings.capacity,
            "error_rate": settings.error_rate - local,
        }
        self._shards = 1
        self._seeds: list[bytes] = []
        self._sizes = b""
        self._last = b""
        self._passed: set[bytes] = set()
        self._doubtful: set[bytes] = set()
        self._retry_at = 0.0
        self._is_away = False
        try:
            self._open()
        except (RedisError, OSError) as error:
            advice = "See what the server logs, and whether its user may run scripts."
            raise UnusableError(f"The filter {self.where}", f"cannot be used: {error}", advice=advice) from None

    def _key(self, shard: int) -> str:
        return f"{{{self._prefix}:{shard}}}"

    def _open(self) -> None:
        self._shards = int(self._server.client.hget(self._key(0), "shards") or self._server.shards_for_new())
        self._seeds = [b""] * self._shards
        for shard in range(self._shards):
            new = self._fields(secrets.token_bytes(16))
            # No seed is empty, so nothing is added, and the answer is the state.
            state, *_ = add_fingerprints(self._server, self._key(shard), b"", [], for_script([]), 0, *new)
            for name in ("format", "key_space"):
                found = state.get(name.encode(), b"").decode()
                if found != self._new[name]:
                    raise UnusableError(
                        f"The filter {self.where}",
                        f"has the {name.replace('_', ' ')} {found!r}",
                        expected=repr(self._new[name]),
                        advice="All workers need the same version and the same settings of what counts as the same "
                        "page. To begin anew, use another BLOOM_REDIS_KEY.",
                    )
            self._seeds[shard] = state[b"seed"]
            self._sizes = sizes_for(ceil(int(state[b"capacity"]) / self._shards), float(state[b"error_rate"]))

    def _fields(self, seed: bytes) -> list[Any]:
        fields = {**self._new, "seed": seed, "chain": secrets.token_hex(4), "shards": self._shards}
        return [item for pair in fields.items() for item in pair]

    # -- the filter ----------------------------------------------------------------------------------------------------

    def _decide(self, fingerprint: bytes) -> bool:
        """Return whether *fingerprint* is new, and remember it. If nobody can say, it is."""
        if fingerprint in self.chain:
            return False
        is_new = self._ask(fingerprint)
        if is_new is None:
            return self._let_pass(fingerprint)
        if fingerprint in self._doubtful:  # it passed while the server was away; its request may have been lost then
            self._doubtful.discard(fingerprint)
            is_new = True
        self.chain.add(fingerprint)
        self._last = fingerprint
        return is_new

    def _ask(self, fingerprint: bytes) -> bool | None:
        """Have the server add *fingerprint*; return whether it was new there, None if the server cannot say."""
        began = time.monotonic()
        if began < self._retry_at:
            return None
        shard = crc32(fingerprint) % self._shards if self._shards > 1 else 0
        try:
            is_new = self._add(shard, fingerprint)
        except (RedisError, OSError) as error:
            if not (isinstance(error, AWAY) or is_full(error)):
                raise
            took = time.monotonic() - began
            self._retry_at = began + took + min(max(10 * took, LEAST_PAUSE), LONGEST_PAUSE)
            self._lose(error)
            return None
        if self._is_away:
            self._is_away = False
            self._doubtful |= self._passed
            self._passed = set()
            logger.info("The server %s answers again", self._server.where)
        return is_new

    def _add(self, shard: int, fingerprint: bytes) -> bool:
        seed, key = self._seeds[shard], self._key(shard)
        new = self._fields(seed)
        state, is_new_filter, _, answers = add_fingerprints(
            self._server, key, seed, [fingerprint], self._sizes, self._max_age, *new
        )
        if is_new_filter or not answers:
            logger.warning("The server %s has lost the filter, and begins it anew", self._server.where)
        if not answers:  # another worker has begun it, with another seed
            self._seeds[shard] = state[b"seed"]
            return self._add(shard, fingerprint)
        return answers[0]

    def _lose(self, error: Exception) -> None:
        if self._is_away:
            return
        self._is_away = True
        self._count("away")
        # Its request may not have reached the queue, if that is on the same server.
        if self._last:
            self.chain.forget(self._last)
            self._doubtful.add(self._last)
        logger.warning(
            "The server %s %s: %s. Requests that this process does not know pass meanwhile, and pages may be fetched "
            "twice; the stat bloom/redis/passed counts them.",
            self._server.where,
            "is full" if is_full(error) else "does not answer",
            error,
        )

    def _let_pass(self, fingerprint: bytes) -> bool:
        if fingerprint in self._passed:
            return False
        if len(self._passed) < MOST_DOUBTFUL:
            self._passed.add(fingerprint)
        self._count("passed")
        return True

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether this process knows it. Remembers nothing, and asks nobody."""
        return [each in self.chain for each in fingerprints]

    def forget(self, fingerprint: bytes) -> bool:
        """Have *fingerprint* pass once more in this process; True if it was known here."""
        self._doubtful.add(fingerprint)
        return self.chain.forget(fingerprint)

    def clear(self) -> None:
        """Remove the filter from the server, and from this process what it knows."""
        for shard in range(self._shards):
            pattern = self._key(shard).replace("[", "\\[").replace("*", "\\*").replace("?", "\\?") + "*"
            for key in self._server.client.scan_iter(match=pattern, count=1000):
                self._server.client.unlink(key)

    def _count(self, name: str) -> None:
        if self._stats is not None:
            self._stats.inc_value(f"bloom/redis/{name}")

    # -- what a store with requests does -------------------------------------------------------------------------------

    def push(self, request: Request, fingerprint: bytes | None) -> bool:
        """Refuse: requests are another scheduler's."""
        raise NotImplementedError

    def pop(self) -> tuple[Request, bool] | None:
        """Return None: requests are another scheduler's."""
        return None

    def done(self, request: Request) -> None:
        """Do nothing."""

    def is_handling(self, request: Request) -> bool:  # noqa: ARG002 - as in every store
        """Return False: requests are another scheduler's."""
        return False

    def commit(self) -> None:
        """Do nothing: each call to the server is complete."""

    def close(self) -> None:
        """Close the connection."""
        self._server.close()
        self.chain.close()

    def __len__(self) -> int:
        return 0
