"""The store behind RedisBloomDupeFilter: the filter is on a server, and requests stay in the process."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.fleet.queue import LOCAL_SHARE
from scrapy_bloom.fleet.server import FAILURES, excuse_in
from scrapy_bloom.frontier.order import IN_ANY_ORDER
from scrapy_bloom.frontier.store import MemoryStore

if TYPE_CHECKING:
    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.settings import BloomSettings

logger = logging.getLogger(__name__)

# Seconds between two tries to reach a server that is away: ten times what the last one took, within these bounds.
LEAST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class SharedFilter(MemoryStore):
    """Asks the filter in this process first. If that does not know a fingerprint, one call adds it to the server.

    While the server is away or full, each request passes once. When the server is back, such a request may pass once
    more, because nobody knows whether the server had it before. So an outage never makes a new request count as seen.

    *shared* is the filter on the server, and *stats* are Scrapy's. Raises UnusableError on construction if the server
    fails, or the filter there is of another format or key space.
    """

    def __init__(self, shared: Queue, settings: BloomSettings, stats: Any) -> None:
        local = settings.error_rate * LOCAL_SHARE
        chain = ScalableBloomFilter(settings.capacity, local, max_age=settings.max_age)
        super().__init__(chain, IN_ANY_ORDER)
        self._shared, self._server, self.where = shared, shared.server, shared.where
        shared.begin()
        self.add = self._decide
        self._stats = stats
        self._last = b""
        self._passed: set[bytes] = set()
        self._doubtful: set[bytes] = set()
        self._retry_at = 0.0
        self._is_away = False

    def _decide(self, fingerprint: bytes) -> bool:
        """Return whether *fingerprint* is new, and remember it. If nobody can say, it is."""
        if fingerprint in self.chain:
            return False
        is_new = self._ask(fingerprint)
        if is_new is None:
            if fingerprint in self._passed:
                return False
            self._passed.add(fingerprint)
            self._stats.inc_value("bloom/redis/passed")
            return True
        self.chain.add(fingerprint)
        self._last = fingerprint
        if fingerprint in self._doubtful:  # it passed while the server was away; its request may have been lost then
            self._doubtful.discard(fingerprint)
            return True
        return is_new

    def _ask(self, fingerprint: bytes) -> bool | None:
        """Have the server add *fingerprint*; return whether it was new there, None if the server cannot say."""
        began = time.monotonic()
        if began < self._retry_at:
            return None
        try:
            (is_new,) = self._shared.add(self._shared.shard_of(fingerprint), [fingerprint])
        except FAILURES as error:
            excuse, now = excuse_in(error), time.monotonic()
            self._retry_at = now + min(max(10 * (now - began), LEAST_PAUSE), LONGEST_PAUSE)
            if not self._is_away:
                self._is_away = True
                self._stats.inc_value("bloom/redis/away")
                self.forget(self._last)  # its request may not have reached the queue, if that is on the same server
                logger.warning(
                    "The server %s %s (%s). Requests that this process does not know pass meanwhile, and pages may be "
                    "fetched twice; the stat bloom/redis/passed counts them.",
                    self._server.where,
                    excuse,
                    error,
                )
            return None
        if self._is_away:
            self._is_away = False
            self._doubtful |= self._passed
            self._passed = set()
            logger.info("The server %s answers again", self._server.where)
        return is_new

    def forget(self, fingerprint: bytes) -> bool:
        """Have *fingerprint* pass once more in this process; True if it was known here."""
        self._doubtful.add(fingerprint)
        return self.chain.forget(fingerprint)

    def clear(self) -> None:
        """Remove the filter from the server."""
        for shard in range(self._shared.shards):
            for key in self._server.client.scan_iter(match=f"{self._shared.key(shard)}*", count=1000):
                self._server.client.unlink(key)

    def close(self, reason: str = "") -> None:
        """Close the connection."""
        self._server.close()
        super().close(reason)
