"""When the layers of a chain are too old: rules for crawls that come back to a site again and again.

A layer takes fingerprints for an eighth of the age at most and is dropped as a whole when it has that age. So a
fingerprint is forgotten between 7/8 and 8/8 of the age after it was added. Knows no layers, only when they were begun.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PERIODS = 8
"""Parts of the age for which one layer takes fingerprints, unless it is full before."""

MAX_ALIVE_PERIODS = PERIODS + 1
"""Periods that can have layers at a time. Each may use up that share of the error rate."""


def is_expired(created: float, *, now: float, max_age: float) -> bool:
    """Return whether a layer begun at *created* is to be dropped at *now*; both in seconds since 1970.

    A layer that will be begun in the future is one begun by a clock that was wrong. Its age is not known, so it is
    dropped as well: its pages are fetched again, rather than never.
    """
    return not now - max_age < created <= now + max_age / PERIODS


def is_closed(created: float, *, now: float, max_age: float) -> bool:
    """Return whether a layer begun at *created* takes no more fingerprints at *now*."""
    return now - created >= max_age / PERIODS


def position(created: Sequence[float], *, max_age: float) -> int:
    """Return how many layers of the newest period, which has at least one, are before the newest layer.

    A layer that followed because its predecessor was full belongs to the same period. *created* is oldest first.
    """
    count = 0
    for earlier, later in reversed(list(pairwise(created))):
        if is_closed(earlier, now=later, max_age=max_age):
            break
        count += 1
    return count


def period_error_rate(error_rate: float) -> float:
    """Return the share of *error_rate* that the layers of one period may use up together."""
    return error_rate / MAX_ALIVE_PERIODS
