"""How many links lead to a URL: a count-min sketch by fingerprint, as accurate as the order of a crawl needs."""

from __future__ import annotations

COUNTERS = 1 << 20
"""Bytes of memory. Each URL has two counters and counts as the lesser, so a million URLs in, one in three counts more
than it has."""
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
        """Return how many links led to the URL with *fingerprint*: so many at most, and 1 if it has none."""
        if not fingerprint:
            return 1
        number = int.from_bytes(fingerprint[:8], "little")
        return min(self._counters[number % COUNTERS], self._counters[(number >> 32) % COUNTERS])
