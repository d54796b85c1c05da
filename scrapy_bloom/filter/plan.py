"""Decides which layers a chain has: the design of the next one, when one is too old, and what a crawl will lose."""

from __future__ import annotations

import math
import secrets
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from scrapy_bloom.filter import probes as probing
from scrapy_bloom.filter import sizing
from scrapy_bloom.filter.layer import LayerSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.filter.layer import Layer

DEFAULT_CAPACITY = 1_000_000
DEFAULT_ERROR_RATE = 1e-6
MIN_ERROR_RATE = 1e-10  # below it, k would pass the 36 probes of the scheme
MAX_ERROR_RATE = 0.5

GROWTH = 2
"""s, how many times as much as its predecessor a layer holds."""

TIGHTENING = 0.8
"""r. At p = 1e-6 a fingerprint costs 4.1 bytes in a full chain of 1 M, 4.7 in one of 1 B; 6.2 at r = 0.5."""

PERIODS = 8
"""Periods in one maximum age. A layer takes fingerprints for one period, unless it is full before.

So a fingerprint is forgotten between 7/8 and 8/8 of the age after it was added, and at most nine periods have layers
at a time, each of which may use up an equal share of the error rate.
"""


class Design(Protocol):
    """What is known of a layer before it has bits."""

    def error_rate_at(self, count: float) -> float:
        """Return the false-positive probability after *count* fingerprints."""


def check_parameters(capacity: int, error_rate: float, max_age: float | None = None) -> None:
    """Raise ValueError, which names every parameter out of its range."""
    problems = []
    if not isinstance(capacity, int) or capacity < 1:
        problems.append(f"capacity must be an int of at least 1, not {capacity!r}")
    if not MIN_ERROR_RATE <= error_rate <= MAX_ERROR_RATE:
        problems.append(f"error_rate must be from {MIN_ERROR_RATE} to {MAX_ERROR_RATE}, not {error_rate!r}")
    if max_age is not None and not max_age > 0:
        problems.append(f"max_age must be None or a positive number of seconds, not {max_age!r}")
    if problems:
        raise ValueError("; ".join(problems))


def next_spec(
    last: LayerSpec | None, *, capacity: int, error_rate: float, position: int | None = None, growth: int = GROWTH
) -> LayerSpec:
    """Return the layer that follows *last* in a chain with these parameters, or the first one.

    *position* is its place among the layers that share *error_rate*: all of the chain, unless layers are dropped.
    """
    index = 0 if last is None else last.index + 1
    budget = sizing.layer_error_rate(index if position is None else position, target=error_rate, tightening=TIGHTENING)
    if last is None:
        probes = min(sizing.optimal_probes(budget), probing.MAX_PROBES)
        # The upper half of the range: MurmurHash3 mixes few bytes badly under seeds near 0, see probes.py.
        seed = secrets.randbits(probing.SEED_BITS) | 1 << (probing.SEED_BITS - 1)
        return LayerSpec.smallest(index=0, capacity=capacity, error_rate=budget, probes=probes, seed=seed)
    # With one k for all layers, the runs of a fingerprint are computed once. Tighter layers get more bits instead. That
    # costs 3 % more than the best k per layer when a chain has grown a thousandfold (p = 1e-6).
    capacity = max(last.capacity * growth, capacity)
    return LayerSpec.smallest(index=index, capacity=capacity, error_rate=budget, probes=last.probes, seed=last.seed)


def next_spec_of_ageing(
    layers: Sequence[Layer], *, capacity: int, error_rate: float, now: float, max_age: float
) -> LayerSpec:
    """Return the layer that follows *layers* in a chain whose layers are dropped at *max_age* seconds.

    *capacity* counts the fingerprints of one age. A layer that follows a full one of its own period shares that
    period's part of *error_rate* with it.
    """
    share, error_rate = -(-capacity // PERIODS), error_rate / (PERIODS + 1)
    if not layers:
        return next_spec(None, capacity=share, error_rate=error_rate)
    last = layers[-1].spec
    position = 0
    for earlier, later in reversed(list(pairwise(layer.created for layer in layers))):
        if is_closed(earlier, now=later, max_age=max_age):
            break
        position += 1
    if not is_closed(layers[-1].created, now=now, max_age=max_age):
        return next_spec(last, capacity=share, error_rate=error_rate, position=position + 1)
    # Room for as many as came in the last period, so that a steady crawl has one layer in each.
    share = max(share, sum(layer.count for layer in layers[-1 - position :]))
    return next_spec(last, capacity=share, error_rate=error_rate, position=0, growth=0)


def is_expired(created: float, *, now: float, max_age: float) -> bool:
    """Return whether a layer begun at *created* is to be dropped at *now*; both in seconds since 1970.

    If *created* is more than a period in the future, a clock was wrong and the age is unknown. The layer is then
    dropped as well: its pages are fetched again, rather than never.
    """
    return not now - max_age < created <= now + max_age / PERIODS


def is_closed(created: float, *, now: float, max_age: float) -> bool:
    """Return whether a layer begun at *created* takes no more fingerprints at *now*."""
    return now - created >= max_age / PERIODS


def planned_layers(count: int, capacity: int, error_rate: float) -> list[tuple[LayerSpec, int]]:
    """Return the layers of a chain that holds *count* fingerprints, each with its own count."""
    layers: list[tuple[LayerSpec, int]] = []
    while count or not layers:
        spec = next_spec(layers[-1][0] if layers else None, capacity=capacity, error_rate=error_rate)
        layers.append((spec, min(count, spec.capacity)))
        count -= layers[-1][1]
    return layers


def planned_ageing_layers(count: int, capacity: int, error_rate: float) -> list[tuple[LayerSpec, int]]:
    """Return the most layers of a chain that forgets by age and gets *count* fingerprints in each age."""
    spec = next_spec(None, capacity=-(-max(count, capacity) // PERIODS), error_rate=error_rate / (PERIODS + 1))
    return [(spec, -(-count // PERIODS))] * PERIODS + [(spec, 0)]


def first_layer_bytes(capacity: int, error_rate: float) -> int:
    """Return the bytes that a chain begins with: the bit array of a layer of *capacity*."""
    return next_spec(None, capacity=capacity, error_rate=error_rate).nbytes


def expected_false_positives(layers: Sequence[tuple[Design, int]], *, others_come_and_go: bool = False) -> float:
    """Return how many new fingerprints a chain of *layers*, each with its count, is expected to have taken for seen.

    With *others_come_and_go*, for a chain that drops old layers as new ones come: each fingerprint was checked against
    as many other layers as there are now.

    Each new fingerprint was checked at the error rate that the chain had at that moment. Those moments follow from the
    counts, so the sum over the fingerprints is an integral over the fill of each layer (Simpson's rule, 64 intervals).
    """
    lost = 0.0
    of_full_layers = 0.0
    of_all_layers = math.fsum(spec.error_rate_at(count) for spec, count in layers) if others_come_and_go else 0.0
    for spec, count in layers:
        of_this_one = spec.error_rate_at(count)
        of_others = of_all_layers - of_this_one if others_come_and_go else of_full_layers
        lost += count * of_others + _false_positives_while_filling(spec, count)
        of_full_layers += of_this_one
    return lost


def _false_positives_while_filling(spec: Design, count: int, intervals: int = 64) -> float:
    """Integrate the error rate of a layer over its count from 0 to *count*."""
    step = count / intervals
    weighted = (
        (1 if i in {0, intervals} else 4 if i % 2 else 2) * spec.error_rate_at(i * step) for i in range(intervals + 1)
    )
    return step / 3 * math.fsum(weighted)
