"""Fingerprints in front of a chain that must not be in it yet, because their requests are not durable.

A fingerprint in the job directory survives ``kill -9`` at once. If its request does not, the page is lost. Knows a
chain, and no request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_bloom.filter.chain import ScalableBloomFilter


class HeldBack:
    """Remembers fingerprints in memory, and answers for them and the chain behind."""

    def __init__(self, chain: ScalableBloomFilter) -> None:
        self._chain = chain
        self._held: set[bytes] = set()
        self._volatile: set[bytes] = set()

    def __len__(self) -> int:
        """Return the number of fingerprints that are in memory only."""
        return len(self._held) + len(self._volatile)

    def add(self, fingerprint: bytes) -> bool:
        """Hold *fingerprint* back until :meth:`release`. Return whether it was new."""
        if fingerprint in self:
            return False
        self._held.add(fingerprint)
        return True

    def __contains__(self, fingerprint: bytes) -> bool:
        """Whether *fingerprint* was added before: here, or in the chain."""
        return fingerprint in self._held or fingerprint in self._volatile or fingerprint in self._chain

    def discard(self, fingerprint: bytes) -> None:
        """Forget *fingerprint* if it is held back."""
        self._held.discard(fingerprint)
        self._volatile.discard(fingerprint)

    def release(self) -> None:
        """Put all fingerprints into the chain but those that are never released: their requests are durable now."""
        for fingerprint in self._held:
            self._chain.add(fingerprint)
        self._held.clear()

    def drop(self) -> None:
        """Forget what is still held back: its requests never became durable."""
        self._held.clear()

    def never_release(self, fingerprint: bytes) -> None:
        """Keep *fingerprint*, if it is held back, in memory for good: it is lost with the process."""
        if fingerprint in self._held:
            self._held.discard(fingerprint)
            self._volatile.add(fingerprint)
