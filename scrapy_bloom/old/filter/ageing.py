"""Decides when a layer of a chain is too old, for crawls that come back to a site again and again.

A layer takes fingerprints for at most an eighth of the maximum age, and is dropped whole when it reaches that age. So a
fingerprint is forgotten between 7/8 and 8/8 of the age after it was added. Does not know the layers, only when each was
begun.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PERIODS = 8
"""Periods in one maximum age. A layer takes fingerprints for one period, unless it is full before."""

MAX_ALIVE_PERIODS = PERIODS + 1
"""Most periods with layers at a time. Each may use up an equal share of the error rate."""


def is_expired(created: float, *, now: float, max_age: float) -> bool:
    """Return whether a layer begun at *created* is to be dropped at *now*; both in seconds since 1970.

    If *created* is more than a period in the future, a clock was wrong and the age is unknown. The layer is then
    dropped as well: its pages are fetched again, rather than never.
    """
    return not now - max_age < created <= now + max_age / PERIODS


def is_closed(created: float, *, now: float, max_age: float) -> bool:
    """Return whether a layer begun at *created* takes no more fingerprints at *now*."""
    return now - created >= max_age / PERIODS


def position(created: Sequence[float], *, max_age: float) -> int:
    """Return how many layers of the newest period come before the newest layer.

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
