"""The error rate of a filter that is spread over shards, simulated: promised, expected by the counts, and counted.

Needs no server. URLs fall into shards by chance, so some shards grow before others. The chains are sized as the engine
``bitmap`` sizes them, their bits are set at random as its probes would, and URLs that were never added are looked up.
A high error rate gives counts worth comparing; the budget is the same formula at every rate. What a filter for so many
URLs needs is said by ``scrapy bloom plan --redis``.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bitarray import bitarray

from benchmarks import measure
from scrapy_bloom.old.fleet.filter.bitmap import BitmapLayer, layer

if TYPE_CHECKING:
    import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--shards", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--urls", type=int, default=400_000, help="default: %(default)s")
    parser.add_argument("--lookups", type=int, default=400_000, help="default: %(default)s")
    parser.add_argument("--error-rate", type=float, default=1e-3, help="default: %(default)s")
    parser.add_argument("--capacity", type=int, default=20_000, help="of all shards together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--large", action="store_true", help="the same as --urls 2000000 --lookups 2000000")


def run(options: argparse.Namespace) -> measure.Picture:
    """Fill the shards and count."""
    measure.print_environment("bitarray")
    urls, lookups = (2_000_000, 2_000_000) if options.large else (options.urls, options.lookups)
    rng = random.Random(options.seed)
    shards = [_Shard(-(-options.capacity // options.shards), options.error_rate) for _ in range(options.shards)]
    loads = [0] * options.shards
    for _ in range(urls):
        at = rng.randrange(options.shards)
        loads[at] += 1
        shards[at].add(rng)
    hits = sum(rng.choice(shards).contains(rng) for _ in range(lookups))
    expected = statistics.fmean(shard.rate() for shard in shards)
    nbytes = sum(one.size_bits for shard in shards for one in shard.layers) / 8
    layers = [len(shard.layers) for shard in shards]
    print(f"{urls:,} URLs over {options.shards} shards, {lookups:,} lookups of URLs that were never added")
    header = ["", "least", "mean", "most"]
    rows = [
        ["URLs per shard", f"{min(loads):,}", f"{statistics.fmean(loads):,.0f}", f"{max(loads):,}"],
        ["layers", str(min(layers)), f"{statistics.fmean(layers):.1f}", str(max(layers))],
        ["bytes per URL", "-", f"{nbytes / urls:.2f}", "-"],
    ]
    measure.print_table(header, rows)
    error = math.sqrt(max(hits, 1)) / lookups
    rates = [
        ["promised", f"{options.error_rate:.2e}", "-"],
        ["expected by the counts", f"{expected:.2e}", "-"],
        ["counted", f"{hits / lookups:.2e}", f"{error:.0e}"],
    ]
    measure.print_table(["rate of wrong answers", "", "standard error"], rates)
    measure.print_target("shards, rate counted", hits / lookups, at_most=options.error_rate + 4 * error)
    bars = {"promised": options.error_rate, "expected": expected, "counted": hits / lookups}
    spreads = {name: measure.Spread(value, value, value) for name, value in bars.items()}
    return measure.Picture("A filter spread over shards", "rate of wrong answers", spreads)


@dataclass
class _Shard:
    """One chain, with bits."""

    capacity: int
    error_rate: float
    layers: list[BitmapLayer] = field(default_factory=list)
    bits: list[bitarray] = field(default_factory=list)
    count: int = 0
    """URLs in the newest layer."""

    def add(self, rng: random.Random) -> None:
        """Add a URL that nobody has."""
        if not self.layers or self.count == self.layers[-1].capacity:
            wanted = 2 * self.layers[-1].capacity if self.layers else self.capacity
            self.layers.append(layer(len(self.layers), capacity=wanted, target=self.error_rate))
            self.bits.append(bitarray(self.layers[-1].size_bits))
            self.bits[-1].setall(0)
            self.count = 0
        newest = self.layers[-1]
        self.bits[-1][[rng.randrange(newest.size_bits) for _ in range(newest.probes)]] = 1
        self.count += 1

    def contains(self, rng: random.Random) -> bool:
        """Look up a URL that was never added."""
        return any(
            all(bits[rng.randrange(one.size_bits)] for _ in range(one.probes))
            for one, bits in zip(self.layers, self.bits, strict=True)
        )

    def rate(self) -> float:
        """Return the rate that follows from the counts."""
        counts = [one.capacity for one in self.layers[:-1]] + [self.count]
        missed = (1 - one.fill_ratio(n) ** one.probes for one, n in zip(self.layers, counts, strict=True))
        return 1 - math.prod(missed)
