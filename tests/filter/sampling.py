"""What the statistical tests share: fingerprints, layers, and how far a count may stray from its mean by chance."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from mmap import mmap

from bitarray import bitarray

from scrapy_bloom.filter import probes as probing
from scrapy_bloom.filter.layer import Layer, LayerSpec

SEED = 0xB1005EED

TAIL = 1e-7
"""Chance that a sound filter leaves one side of an interval; the fixed seeds make it happen always or never."""


def poisson_interval(mean: float, spread: float = 0.0) -> tuple[float, float]:
    """Return the interval that a Poisson count of *mean* leaves with a chance of TAIL on each side.

    Chernoff's bound, P(X beyond x) <= exp(-(x ln(x/mean) - x + mean)), solved for x by bisection. *spread*: relative
    standard deviation of the mean itself, widened by the same five standard deviations that TAIL stands for.
    """

    def solve(mean: float, inside: float, outside: float) -> float:
        for _ in range(80):
            middle = (inside + outside) / 2
            exponent = mean - middle + (middle * math.log(middle / mean) if middle else 0.0)
            inside, outside = (middle, outside) if exponent < -math.log(TAIL) else (inside, middle)
        return outside

    least, most = mean * (1 - 5.2 * spread), mean * (1 + 5.2 * spread)
    low = solve(least, least, 0.0) if least > -math.log(TAIL) else 0.0
    return low, solve(most, most, 10 * most + 100)


def hash_fingerprints(count: int, seed: int) -> Iterator[bytes]:
    """Distinct fingerprints of 20 even bytes, like SHA1 fingerprints."""
    generator = random.Random(seed)
    for _ in range(count):
        yield generator.randbytes(20)


def url_fingerprints(count: int, seed: int) -> Iterator[bytes]:
    """Short URLs that differ in a running number only, the least a hash is given to work with."""
    yield from (b"http://a.example/%d/%d" % (seed, i) for i in range(count))


FINGERPRINTS = {"hashes": hash_fingerprints, "urls": url_fingerprints}


def designed_layer(capacity: int, error_rate: float, probes: int) -> Layer:
    spec = LayerSpec.smallest(index=0, capacity=capacity, error_rate=error_rate, probes=probes, seed=SEED)
    return Layer(spec, mmap(-1, spec.nbytes))


def unlimited(tables: Sequence[tuple[bitarray, int]], probes: int, seed: int) -> probing.Probes:
    """The questions to *tables*, of which the first takes all fingerprints there are."""
    asked = probing.bind(probes, seed, on_quota_spent=lambda: None)
    asked.set_tables(tables, 1 << 62)
    return asked


def questions(layer: Layer) -> probing.Probes:
    return unlimited([(layer.bits, layer.spec.size_bits)], layer.spec.probes, layer.spec.seed)


def fill(layer: Layer, fingerprints: Iterable[bytes]) -> None:
    """Set the bits of every fingerprint and count it, also one that looks seen: the fill shall depend on n alone."""
    add = questions(layer).add
    for fingerprint in fingerprints:
        add(fingerprint)
        layer.count += 1


def fill_spread(size_bits: int, probes: int, fill_ratio: float) -> float:
    """Relative standard deviation of f^k from layer to layer: the fill of a sound layer varies a little too.

    Of m bits hit t = kn/m times on average, e^-t (1 - (1 + t) e^-t) m is the variance of the set ones (occupancy).
    """
    empty = 1 - fill_ratio
    times = -math.log(empty)
    return probes * math.sqrt(empty * (1 - (1 + times) * empty) / size_bits) / fill_ratio


def hits(ask: Callable[[bytes], bool], fingerprints: Iterable[bytes]) -> int:
    return sum(map(ask, fingerprints))
