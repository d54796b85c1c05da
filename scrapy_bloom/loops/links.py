"""How many links lead to a URL, by fingerprint: as accurate as the order of a crawl needs."""

from __future__ import annotations

COUNTERS = 1 << 20
"""Bytes of memory, one for each counter, which URLs share. After 100,000 URLs with one link each, the count of one in
ten is too high; after half a million, of two in five."""
MOST = 255


class LinkCounts:
    """Counts the links to URLs by fingerprint, up to MOST."""

    __slots__ = ("_counters",)

    def __init__(self) -> None:
        self._counters = bytearray(COUNTERS)

    def add(self, fingerprint: bytes) -> None:
        """Count a link to the URL with *fingerprint*, of 3 bytes at least."""
        at = int.from_bytes(fingerprint[:3], "little") % COUNTERS
        if self._counters[at] < MOST:
            self._counters[at] += 1

    def of(self, fingerprint: bytes) -> int:
        """Return how many links led to the URL with *fingerprint*, sometimes too many; 1 if *fingerprint* is empty."""
        return self._counters[int.from_bytes(fingerprint[:3], "little") % COUNTERS] if fingerprint else 1
