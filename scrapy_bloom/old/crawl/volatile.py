"""Fingerprints of requests that end with this process, remembered until they are too old: :class:`Volatile`.

Knows no request, and not why one cannot be stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.old.filter.ageing import PERIODS

if TYPE_CHECKING:
    from collections.abc import Callable


class Volatile:
    """A set that forgets what has been in it for 7/8 of *max_age* seconds on *clock*; None: nothing.

    That is the earliest age at which a layer forgets. What remembers links asks again whenever a layer goes, so at the
    latest at *max_age*.
    """

    def __init__(self, max_age: float | None, clock: Callable[[], float]) -> None:
        self._lifetime = float("inf") if max_age is None else max_age * (PERIODS - 1) / PERIODS
        self._clock = clock
        self._since: dict[bytes, float] = {}

    def __len__(self) -> int:
        """Return how many there are, those included that are too old and have not been asked for since."""
        return len(self._since)

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether *fingerprint* was added and is not too old."""
        since = self._since.get(fingerprint)
        if since is None:
            return False
        if 0 <= self._clock() - since < self._lifetime:
            return True
        del self._since[fingerprint]
        return False

    def add(self, fingerprint: bytes) -> None:
        """Remember *fingerprint* from now on."""
        self._since[fingerprint] = self._clock()

    def discard(self, fingerprint: bytes) -> None:
        """Forget *fingerprint*, if it is there."""
        self._since.pop(fingerprint, None)
