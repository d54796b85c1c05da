"""How many links lead to a URL: a count-min sketch by fingerprint, as accurate as the order of a crawl needs."""

from __future__ import annotations

COUNTERS = 1 << 20
"""Bytes of memory, one for each counter. A URL has two counters, and the lesser is its count. After half a million URLs
with one link each, the count of one URL in three is too high; after a million, of seven in ten."""
MOST = 255


class LinkCounts:
    """Counts the links to URLs by fingerprint, up to MOST."""

    __slots__ = ("_counters",)

    def __init__(self) -> None:
        self._counters = bytearray(COUNTERS)

    def add(self, fingerprint: bytes) -> None:
        """Count a link to the URL with *fingerprint*, of 8 bytes at least."""
        counters = self._counters
        number = int.from_bytes(fingerprint[:8], "little")
        for at in (number % COUNTERS, (number >> 32) % COUNTERS):
            if counters[at] < MOST:
                counters[at] += 1

    def of(self, fingerprint: bytes) -> int:
        """Return how many links led to the URL with *fingerprint*, sometimes too many; 1 if *fingerprint* is empty."""
        if not fingerprint:
            return 1
        number = int.from_bytes(fingerprint[:8], "little")
        return min(self._counters[number % COUNTERS], self._counters[(number >> 32) % COUNTERS])
