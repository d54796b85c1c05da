"""The figures behind the pictures of a filter: rate and memory against URLs. Draws nothing.

Beside the chain stands a fixed filter as large as its first layer, to show what happens to a filter that cannot grow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy_bloom.old.commands.plan import SCRAPY_BYTES_PER_URL
from scrapy_bloom.old.filter import sizing
from scrapy_bloom.old.filter.chain import DEFAULT_GROWTH, MIN_GROWTH, next_spec, planned_layers
from scrapy_bloom.old.filter.layer import LayerSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy_bloom.old.files.inspect import FilterDescription

_POINTS = 400
_BEYOND = 4
"""How far the curves go beyond the URLs there are, to show what comes next."""


@dataclass(frozen=True)
class LayerFill:
    """How full one layer is."""

    index: int
    """Its place in its chain, from 0; the oldest may be gone, and of merged filters each has its own."""
    urls: int
    capacity: int
    fill_ratio: float
    """Share of set bits, expected from the count."""


@dataclass(frozen=True)
class Curves:
    """What there is to draw."""

    now: int
    """URLs of the crawl that is asked about."""
    is_planned: bool
    """Whether that crawl is only planned."""
    error_rate: float
    """Bound for the whole chain."""
    fixed_capacity: int
    """URLs that the fixed filter is made for."""
    urls: Sequence[float]
    """Where the curves have their points, from few to many."""
    chain_rate: Sequence[float]
    """Chance that the next new URL is taken for seen."""
    chain_bytes: Sequence[float]
    fixed_rate: Sequence[float]
    fixed_bytes: float
    scrapy_bytes: Sequence[float]
    """Of the set of Scrapy's own filter, which makes no errors."""
    layers: Sequence[LayerFill]
    """Of the crawl that is asked about, oldest first."""


def curves_of_plan(urls: int, error_rate: float, capacity: int) -> Curves:
    """Return the curves of a crawl that is planned."""
    return _curves(planned_layers(urls, capacity=capacity, error_rate=error_rate, growth=DEFAULT_GROWTH), error_rate)


def curves_of_job(found: FilterDescription) -> Curves:
    """Return the curves of a filter that has at least one sound layer."""
    layers = [(layer.spec, min(layer.about, layer.capacity)) for layer in found.layers]
    return _curves(layers, found.error_rate or sum(spec.error_rate for spec, _ in layers), is_planned=False)


def _curves(layers: Sequence[tuple[LayerSpec, int]], error_rate: float, *, is_planned: bool = True) -> Curves:
    now = sum(count for _, count in layers)
    specs = [spec for spec, _ in layers]
    first = specs[0]
    last = max(now, first.capacity) * _BEYOND
    # Layers that age need not grow; a picture of a thousand steps would show nothing.
    growth = max(specs[1].capacity / first.capacity, MIN_GROWTH) if len(specs) > 1 else DEFAULT_GROWTH
    while sum(spec.capacity for spec in specs) < last:
        specs.append(
            next_spec(specs[-1], capacity=first.capacity, error_rate=error_rate, growth=growth, position=len(specs))
        )
    fixed = LayerSpec.smallest(
        index=0,
        capacity=first.capacity,
        error_rate=error_rate,
        probes=sizing.optimal_probes(error_rate),
        seed=first.seed,
    )
    urls = _points(specs, last)
    chain = [_chain_at(specs, count) for count in urls]
    return Curves(
        now=now,
        is_planned=is_planned,
        error_rate=error_rate,
        fixed_capacity=first.capacity,
        urls=urls,
        chain_rate=[rate for rate, _ in chain],
        chain_bytes=[nbytes for _, nbytes in chain],
        fixed_rate=[fixed.error_rate_at(count) for count in urls],
        fixed_bytes=fixed.nbytes,
        scrapy_bytes=[SCRAPY_BYTES_PER_URL * count for count in urls],
        layers=[
            LayerFill(spec.index, count, spec.capacity, sizing.fill_ratio(count, spec.size_bits, spec.probes))
            for spec, count in layers
        ],
    )


def _points(specs: Sequence[LayerSpec], last: int) -> list[float]:
    """Return numbers of URLs up to *last*, evenly spread over their logarithm, with both sides of every new layer."""
    least = max(1.0, specs[0].capacity / 1000)
    step = math.log(last / least) / _POINTS
    points = {least * math.exp(step * number) for number in range(_POINTS)} | {float(last)}
    full = 0.0
    for spec in specs:
        full += spec.capacity
        points |= {full, full + 1}
    return sorted(count for count in points if least <= count <= last)


def _chain_at(specs: Sequence[LayerSpec], count: float) -> tuple[float, float]:
    """Return error rate and bytes of the chain at *count* URLs."""
    missed, nbytes = 1.0, 0.0
    for spec in specs:
        missed *= 1 - spec.error_rate_at(min(count, spec.capacity))
        nbytes += spec.nbytes
        count -= spec.capacity
        if count <= 0:
            break
    return 1 - missed, nbytes
