"""Plans the layers of a chain: the design of the next layer, when a layer is too old, and how many pages are lost."""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING

from scrapy_bloom.filter import probes as probing
from scrapy_bloom.filter import sizing
from scrapy_bloom.filter.layer import LayerSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.filter.layer import Layer

DEFAULT_CAPACITY = 1_000_000
DEFAULT_ERROR_RATE = 1e-6
MIN_ERROR_RATE, MAX_ERROR_RATE = 1e-10, 0.5  # below the first, k would pass the 36 probes of the scheme

GROWTH = 2  # s, how many times as much as its predecessor a layer holds
TIGHTENING = 0.8  # r; at p = 1e-6, 4.1 bytes a fingerprint in a full chain of 1 M, 4.7 of 1 B (6.2 at r = 0.5)

PERIODS = 8
"""Periods in one maximum age. A layer takes fingerprints for one period, unless it is full before.

So a fingerprint is forgotten between 7/8 and 8/8 of the age after it was added, and the layers of at most nine periods
exist at a time. Each period has an equal share of p. If a layer fills up early, the next layer uses the same share.
"""


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


def next_spec(last: LayerSpec | None, capacity: int, error_rate: float, position: int) -> LayerSpec:
    """Return layer number *position* of a chain with these parameters, which follows *last*, or is the first."""
    capacity = capacity if last is None else max(capacity, GROWTH * last.capacity)
    return _spec(last, capacity, sizing.layer_error_rate(position, error_rate, TIGHTENING))


def next_spec_of_ageing(
    layers: Sequence[Layer], capacity: int, error_rate: float, *, now: float, max_age: float
) -> LayerSpec:
    """Return the layer that follows *layers* in a chain whose layers are dropped at *max_age* seconds.

    *capacity* counts the fingerprints of one age. A layer that follows a full one, before that was closed, shares an
    equal part of *error_rate* with it.
    """
    share, budget = -(-capacity // PERIODS), sizing.layer_error_rate(0, error_rate / (PERIODS + 1), TIGHTENING)
    if not layers:
        return _spec(None, share, budget)
    last = layers[-1]
    if not is_closed(last.created, now=now, max_age=max_age):
        return _spec(last.spec, max(share, GROWTH * last.capacity), TIGHTENING * min(budget, last.error_rate))
    # Room for as many as came in the last period, so that a steady crawl has one layer in each.
    recent = sum(layer.count for layer in layers if not is_closed(layer.created, now=last.created, max_age=max_age))
    return _spec(last.spec, max(share, recent), budget)


def _spec(last: LayerSpec | None, capacity: int, budget: float) -> LayerSpec:
    if last is None:
        probes = min(sizing.optimal_probes(budget), probing.MAX_PROBES)
        # Random, so that nobody can prepare URLs that fill chosen places, and from the upper half of the 32-bit range:
        # under seeds near 0 MurmurHash3 mixes up to 8 bytes badly (with seed 7, 1.2 times theory at p = 1e-2).
        seed = 1 << 31 | secrets.randbits(31)
        return LayerSpec.smallest(index=0, capacity=capacity, error_rate=budget, probes=probes, seed=seed)
    # With one k for all layers, the runs of a fingerprint are computed once. Tighter layers get more bits instead. That
    # costs 3 % more than the best k per layer when a chain has grown a thousandfold (p = 1e-6).
    k, seed = last.probes, last.seed
    return LayerSpec.smallest(index=last.index + 1, capacity=capacity, error_rate=budget, probes=k, seed=seed)


def is_expired(created: float, *, now: float, max_age: float) -> bool:
    """Return whether a layer begun at *created* has expired at *now*; both in seconds since 1970.

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
        spec = next_spec(layers[-1][0] if layers else None, capacity, error_rate, len(layers))
        layers.append((spec, min(count, spec.capacity)))
        count -= layers[-1][1]
    return layers


def first_layer_bytes(capacity: int, error_rate: float) -> int:
    """Return the bytes that a chain begins with: the bit array of a layer of *capacity*."""
    return next_spec(None, capacity, error_rate, 0).nbytes


def expected_false_positives(layers: Sequence[tuple[LayerSpec, int]], *, others_come_and_go: bool = False) -> float:
    """Return how many new fingerprints a chain of *layers*, each with its count, is expected to have taken for seen.

    Each new fingerprint was checked at the error rate that the chain had at that moment: the sum over the fingerprints
    is an integral over the fill of each layer. With *others_come_and_go*, for a chain that drops old layers as new ones
    come: each was checked against as many other layers as there are now.
    """
    rates = [spec.error_rate_at(count) for spec, count in layers]
    return math.fsum(
        _lost_while_filling(spec, count)
        + count * (math.fsum(rates) - rates[at] if others_come_and_go else math.fsum(rates[:at]))
        for at, (spec, count) in enumerate(layers)
    )


def _lost_while_filling(spec: LayerSpec, count: int, intervals: int = 32) -> float:
    """Integrate the error rate of a layer over its count from 0 to *count*, by Simpson's rule."""
    step = count / intervals
    weights = [1, *[4, 2] * (intervals // 2 - 1), 4, 1]
    return step / 3 * math.fsum(weight * spec.error_rate_at(i * step) for i, weight in enumerate(weights))
