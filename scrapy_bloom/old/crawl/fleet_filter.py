"""What a worker with a queue on the server knows about URLs by itself: :class:`WorkerFilter`.

It stands in front of the server's filter. What it does not know becomes a link on its way to the server, which has the
last word: "new" here means "not known here". It knows no server.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from scrapy_bloom.old.crawl.base_dupefilter import BaseBloomDupeFilter
from scrapy_bloom.old.crawl.volatile import Volatile
from scrapy_bloom.old.filter.chain import ScalableBloomFilter
from scrapy_bloom.old.fleet.filter.bitmap import LOCAL_AGE_SHARE
from scrapy_bloom.old.fleet.filter.fleet_filter import LOCAL_SHARE, MAX_LOCAL, MAX_LOCAL_CAPACITY, TRUST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapy import Request

    from scrapy_bloom.old.crawl.base_dupefilter import State
    from scrapy_bloom.old.crawl.fingerprints import Fingerprints
    from scrapy_bloom.old.fleet.filter.shared_chain import ChainFigures

logger = logging.getLogger("scrapy_bloom.old.fleet_scheduler")


class WorkerFilter(BaseBloomDupeFilter):
    """The local filter, the URLs that are on their way, and those whose requests only this process can hold."""

    _logger = logger

    trusted_at: Callable[[], float]
    """Returns when the server last confirmed that its filter is the same; infinity while the server is away."""

    described: Callable[[], Mapping[str, float]]
    """Returns the stats of the server's filter by name."""

    figures: Callable[[], ChainFigures]
    """Returns what the server's filter held at the last look."""

    place: str
    """Where the server's filter lives, to be read after "the filter"."""

    def fingerprint_of(self, request: Request) -> bytes:
        """Return the fingerprint that *request* is filtered by."""
        return self._fingerprint(request)

    @property
    def fingerprints(self) -> Fingerprints:
        """The fingerprints of the crawl."""
        return self._fingerprints

    @property
    def local(self) -> ScalableBloomFilter:
        """The fingerprints that the server has called seen or has accepted."""
        return self._local

    def learn(self, fingerprint: bytes) -> None:
        """Note that the server knows *fingerprint*."""
        self._on_the_way.discard(fingerprint)
        self._local.add(fingerprint)
        if len(self._local) >= MAX_LOCAL:
            self.forget_all()

    def keep(self, fingerprint: bytes) -> None:
        """Note that *fingerprint* never gets to the server: its request ends with this process."""
        self._on_the_way.discard(fingerprint)
        self._volatile.add(fingerprint)

    def forget_all(self) -> None:
        """Begin anew, but keep what is on its way."""
        self._epoch += 1
        self._local = self._new_local()
        age = self._settings.max_age
        self._local_until = math.inf if age is None else time.monotonic() + age * LOCAL_AGE_SHARE

    def queue_was_lost(self) -> None:
        """Keep what the loop guard has released: some of it did not get to the server, and ends with this process."""
        if self._guard is not None:
            self._guard.queue_was_lost()

    def queue_is_safe(self) -> None:
        """Let go of what the loop guard has released and came out of the queue: it is leased, or done."""
        if self._guard is not None:
            self._guard.seal()
            self._guard.checkpoint()

    def _new_local(self) -> ScalableBloomFilter:
        settings = self._settings
        capacity = min(settings.capacity, MAX_LOCAL_CAPACITY)
        return ScalableBloomFilter(capacity, settings.error_rate * LOCAL_SHARE, growth=settings.growth)

    def _open_chain(self) -> None:
        self._on_the_way: set[bytes] = set()
        self._volatile = Volatile(self._settings.max_age, time.time)
        self.forget_all()

    def open(self) -> None:
        """Open the filter; what the loop guard releases stays in the job directory until :meth:`queue_is_safe`."""
        super().open()
        if self._guard is not None:
            self._guard.hold_back()

    def _close_chain(self) -> None:
        self._set_stats()

    @property
    def epoch(self) -> int | None:
        """A number that changes whenever something seen may have become new; None while the server has to confirm."""
        return self._epoch if self._is_trusted() else None

    def _is_trusted(self) -> bool:
        """Return whether the local filter may be believed. Begin it anew before it can hold what is too old."""
        now = time.monotonic()
        if now >= self._local_until:
            self.forget_all()
        return now < self.trusted_at() + TRUST_SECONDS

    def _adder(self, state: State) -> Callable[[bytes], bool]:  # noqa: ARG002 - holding back is for the other faces
        return self._note

    def _note(self, fingerprint: bytes) -> bool:
        if fingerprint in self._on_the_way or fingerprint in self._volatile:
            return False
        if self._is_trusted() and fingerprint in self._local:
            return False
        self._on_the_way.add(fingerprint)
        return True

    def _seen(self, fingerprints: Sequence[bytes]) -> Sequence[bool]:
        local = self._local if self._is_trusted() else ()
        return [one in local or one in self._on_the_way or one in self._volatile for one in fingerprints]

    def _where(self) -> str:
        return self.place

    def _room(self) -> int:
        return self.figures().room

    def _expired(self) -> int:
        return self.figures().forgotten

    def _figures(self) -> Mapping[str, float]:
        return {**self.described(), "bloom/redis/local_bytes": self._local.nbytes}

    def _switched_on(self) -> list[str]:
        return super()._switched_on()[1:]  # the scheduler's name stands for both
