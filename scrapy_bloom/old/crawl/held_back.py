"""Holds fingerprints back from the chain until their requests are durable.

A fingerprint in the job directory survives ``kill -9`` at once. If its request does not, the page is lost. Knows a
chain, but no request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.old.crawl.volatile import Volatile

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy_bloom.old.filter.chain import ScalableBloomFilter


class HeldBack:
    """Remembers fingerprints in memory, and answers for them and the chain behind.

    Those of requests that are never durable are as old as those of the chain get: *max_age* seconds on *clock*.
    """

    def __init__(self, chain: ScalableBloomFilter, max_age: float | None, clock: Callable[[], float]) -> None:
        self._chain = chain
        self._held: dict[bytes, None] = {}  # a set in order of arrival
        self._sealed: dict[bytes, None] = {}
        self._volatile = Volatile(max_age, clock)
        self._forgotten: dict[bytes, bool] = {}  # and whether each was volatile

    def __len__(self) -> int:
        """Return the number of fingerprints that are in memory only."""
        return len(self._held) + len(self._sealed) + len(self._volatile)

    @property
    def forgotten(self) -> int:
        """The number of fingerprints that were forgotten, here or in the chain, and have not come again."""
        return len(self._forgotten) + self._chain.forgotten

    def add(self, fingerprint: bytes) -> bool:
        """Hold *fingerprint* back until it is sealed and released. Return whether it was new."""
        if fingerprint in self:
            return False
        self._held[fingerprint] = None
        if self._forgotten:
            self._forgotten.pop(fingerprint, None)
        return True

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether *fingerprint* was added before, here or to the chain."""
        return (
            fingerprint in self._held
            or fingerprint in self._sealed
            or fingerprint in self._volatile
            or fingerprint in self._chain
        )

    def forget(self, fingerprint: bytes) -> None:
        """Take *fingerprint* back, wherever it is: the next time it is new."""
        if fingerprint in self._held or fingerprint in self._sealed or fingerprint in self._volatile:
            self._forgotten[fingerprint] = fingerprint in self._volatile
            self._held.pop(fingerprint, None)
            self._sealed.pop(fingerprint, None)
            self._volatile.discard(fingerprint)
        self._chain.forget(fingerprint)

    def recall(self, fingerprint: bytes) -> None:
        """Undo :meth:`forget`: put *fingerprint* back where it was."""
        was_volatile = self._forgotten.pop(fingerprint, None)
        if was_volatile:
            self._volatile.add(fingerprint)
        elif was_volatile is not None:
            self._held[fingerprint] = None
        self._chain.recall(fingerprint)

    def seal(self) -> None:
        """Mark what is held back now: the requests of these fingerprints are about to be written."""
        if self._sealed:
            self._sealed.update(self._held)
            self._held.clear()
        else:
            self._sealed, self._held = self._held, self._sealed

    def release(self) -> None:
        """Put what was sealed into the chain, because its requests are durable now."""
        while self._sealed:  # one at a time, so that a count taken meanwhile is right
            fingerprint, _ = self._sealed.popitem()
            self._chain.add(fingerprint)

    @property
    def is_released(self) -> bool:
        """Whether everything that was sealed is in the chain."""
        return not self._sealed

    def drop(self) -> None:
        """Drop what is still held back, because its requests never became durable."""
        self._held.clear()
        self._sealed.clear()

    def never_release(self, fingerprint: bytes | None) -> None:
        """Keep *fingerprint* in memory for good: it is lost with the process.

        If *fingerprint* is None or not held back, keep the newest one instead: the request was recorded under that.
        """
        if fingerprint not in self._held:
            fingerprint = next(reversed(self._held), None)
        if fingerprint is not None:
            del self._held[fingerprint]
            self._volatile.add(fingerprint)
