"""Simulate the error budget of a filter that is spread over shards, and whether the promise holds for the whole.

    python benchmarks/shards.py --plan 1e9 1e10 1e11
    python benchmarks/shards.py [--shards 16] [--urls 2000000] [--error-rate 1e-3] [--capacity 100000]

Needs no server. The first form prints what a filter for so many URLs needs. The second fills one: keys fall into
shards by chance, so that some shards grow before others; the chains are sized as the engine ``bitmap`` sizes them,
their bits are set at random as its probes would, and keys that were never added are looked up. Printed beside each
other: the rate that is promised, the one that follows from the counts, and the one that was counted. A high
--error-rate gives counts worth comparing; the budget is the same formula at every rate.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from dataclasses import dataclass, field

from bitarray import bitarray

from scrapy_bloom.fleet.filter.bitmap import BitmapLayer, layer


@dataclass
class Shard:
    """One chain, with bits."""

    capacity: int
    error_rate: float
    layers: list[BitmapLayer] = field(default_factory=list)
    bits: list[bitarray] = field(default_factory=list)
    count: int = 0
    """Keys in the newest layer."""

    def add(self, rng: random.Random) -> None:
        """Add a key that nobody has."""
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
        """Look up a key that was never added."""
        return any(
            all(bits[rng.randrange(one.size_bits)] for _ in range(one.probes))
            for one, bits in zip(self.layers, self.bits, strict=True)
        )

    def rate(self) -> float:
        """Return the rate that follows from the counts."""
        counts = [one.capacity for one in self.layers[:-1]] + [self.count]
        missed = (1 - one.fill_ratio(n) ** one.probes for one, n in zip(self.layers, counts, strict=True))
        return 1 - math.prod(missed)


def plan(urls: int, error_rate: float) -> None:
    """Print what *urls* need, for a capacity that was guessed right and for one that was eight times too small.

    Shards so many that a layer at full capacity stays below the length of a Redis string. The guess is 1 % above the
    mean: shards get keys by chance, and one that overflows a little grows a layer of twice the size.
    """
    shards = 2 ** max(0, math.ceil(math.log2(urls / 110e6)))
    for guess in (1.01, 1 / 8):
        first = round(guess * urls / shards)
        layers = [layer(0, capacity=first, target=error_rate)]
        while sum(one.capacity for one in layers) < urls / shards:
            layers.append(layer(len(layers), capacity=2 * layers[-1].capacity, target=error_rate))
        nbytes = sum(one.size_bits for one in layers) / 8
        print(
            f"{urls:15,} URLs, BLOOM_CAPACITY {round(guess * urls):15,}, {shards:5} shards: {len(layers)} layers, "
            f"{nbytes / 1e6:6,.0f} MB per shard, {nbytes * shards / 1e9:7,.1f} GB in all, "
            f"{nbytes * shards / urls:.2f} bytes per URL"
        )


def main() -> None:
    """Fill the shards and count, or plan."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--shards", type=int, default=16)
    arguments.add_argument("--urls", type=int, default=2_000_000)
    arguments.add_argument("--lookups", type=int, default=2_000_000)
    arguments.add_argument("--error-rate", type=float, default=1e-3)
    arguments.add_argument("--capacity", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--plan", type=float, nargs="+", metavar="URLS")
    given = arguments.parse_args()
    if given.plan:
        for error_rate in (1e-6, 1e-8):
            print(f"BLOOM_ERROR_RATE {error_rate}")
            for urls in given.plan:
                plan(int(urls), 0.75 * error_rate)
        return
    rng = random.Random(given.seed)
    shards = [Shard(-(-given.capacity // given.shards), given.error_rate) for _ in range(given.shards)]
    loads = [0] * given.shards
    for _ in range(given.urls):
        at = rng.randrange(given.shards)
        loads[at] += 1
        shards[at].add(rng)
    hits = sum(rng.choice(shards).contains(rng) for _ in range(given.lookups))
    counted, error = hits / given.lookups, math.sqrt(hits) / given.lookups
    nbytes = sum(one.size_bits for shard in shards for one in shard.layers) / 8
    print(f"{given.urls:,} URLs over {given.shards} shards, {nbytes / given.urls:.2f} bytes per URL")
    print(f"URLs per shard  {min(loads):,} to {max(loads):,} (standard deviation {statistics.pstdev(loads):,.0f})")
    print(f"layers          {min(len(s.layers) for s in shards)} to {max(len(s.layers) for s in shards)}")
    print(f"promised        {given.error_rate:.3e}")
    print(f"from the counts {statistics.fmean(shard.rate() for shard in shards):.3e}")
    print(f"counted         {counted:.3e} (standard error {error:.0e})")


if __name__ == "__main__":
    main()
