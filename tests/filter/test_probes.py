"""Scheme 1: which bits a fingerprint owns, for ever, and how often one that was never added finds them all set."""

import pytest
from bitarray import bitarray
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.filter import probes as probing
from scrapy_bloom.filter import sizing
from scrapy_bloom.filter.layer import LayerSpec
from tests.filter.sampling import (
    FINGERPRINTS,
    SEED,
    designed_layer,
    fill,
    fill_spread,
    hits,
    poisson_interval,
    questions,
    unlimited,
)

PROBES = st.integers(1, probing.MAX_PROBES)


def table(size_bits: int, probes: int) -> tuple[bitarray, int]:
    return bitarray(size_bits + probing.padding_bits(probes), endian="little"), size_bits


def bits_of(fingerprint: bytes, *, seed: int, size_bits: int, probes: int) -> list[int]:
    """The positions that an empty table has set after the fingerprint was added."""
    blank = table(size_bits, probes)
    assert unlimited([blank], probes, seed).add(fingerprint)
    return list(blank[0].search(1))


GOLDEN = [
    (0x80000001, b"http://a.example/", 1, 1000, [570]),
    (0xB1005EED, b"", 2, 50000, [1329, 9339]),
    (0xFFFFFFFF, bytes(range(20)), 7, 1000003, [*range(855550, 858431, 960), *range(869623, 871544, 960)]),
    (0xB1005EED, b"http://a.example/?q=1", 22, 10**6, [*range(819418, 842359, 2294), *range(873742, 896683, 2294)]),
    (0x9E3779B9, b"\0", 25, 777, [*range(69, 18798, 2341), *range(42667, 59055, 2341), *range(93233, 109621, 2341)]),
]
"""seed, fingerprint, k, m, positions. Written once, from scheme 1 as released; they must never change."""


@pytest.mark.parametrize(("seed", "fingerprint", "probes", "size_bits", "positions"), GOLDEN)
def test_scheme_1_is_frozen(seed: int, fingerprint: bytes, probes: int, size_bits: int, positions: list[int]) -> None:
    """A fingerprint owns the bits it owned when files were first written with scheme 1."""
    assert bits_of(fingerprint, seed=seed, size_bits=size_bits, probes=probes) == positions
    assert probing.RUNS_SCHEME == 1


def test_the_split_into_runs_is_frozen() -> None:
    """Run lengths are part of scheme 1 too: one run for k = 1, two up to 22, three up to 36, longer runs first."""
    expected = {1: (1,), 2: (1, 1), 3: (2, 1), 7: (4, 3), 22: (11, 11), 23: (8, 8, 7), 25: (9, 8, 8), 36: (12, 12, 12)}
    assert {k: probing.run_lengths(k) for k in expected} == expected


@pytest.mark.parametrize("probes", [1, 2, 22, 23, 36])
def test_every_bit_counts(probes: int) -> None:
    """Clearing any single bit of a fingerprint makes the filter deny it: no probe is skipped."""
    blank = table(3000, probes)
    ask = unlimited([blank], probes, SEED)
    ask.add(b"key")
    for position in list(blank[0].search(1)):
        blank[0][position] = 0
        assert not ask.contains(b"key")
        blank[0][position] = 1
    assert ask.contains(b"key")


@given(capacity=st.integers(1, 10**10), rate=st.floats(1e-12, 0.5), probes=PROBES)
def test_layers_are_as_small_as_their_rate_allows(capacity: int, rate: float, probes: int) -> None:
    """m meets the error rate, and two bits less, or a billionth at sizes where floats are coarser, would not. The array
    of a layer is that, or four paddings, and one padding, in whole 64-bit words."""
    size = probing.size_bits(capacity, rate, probes)
    assert probing.error_rate(sizing.fill_ratio(capacity, size, probes), probes) <= rate
    fewer = min(size - 2, size * (1 - 1e-9))
    assert fewer <= 0 or probing.error_rate(sizing.fill_ratio(capacity, fewer, probes), probes) > rate
    assert size >= capacity * sizing.bits_per_fingerprint(rate, probes)
    spec = LayerSpec.smallest(index=0, capacity=capacity, error_rate=rate, probes=probes, seed=SEED)
    padding = probing.padding_bits(probes)
    assert spec.size_bits == max(4 * padding, size)
    assert 0 <= 8 * spec.nbytes - spec.size_bits - padding < 64


SLOW_RATES = [(1e-3, 150_000, 300_000), (1e-4, 150_000, 700_000)]


@pytest.mark.parametrize(
    ("kind", "rate", "capacity", "probed"),
    [
        *((kind, 1e-2, 50_000, 50_000) for kind in FINGERPRINTS),
        *(pytest.param(kind, *rate, marks=pytest.mark.slow) for kind in FINGERPRINTS for rate in SLOW_RATES),
        pytest.param("hashes", 1e-6, 1_000_000, 12_000_000, marks=pytest.mark.slow),
    ],
)
def test_a_full_layer_errs_as_often_as_designed(kind: str, rate: float, capacity: int, probed: int) -> None:
    """At capacity the measured false-positive rate is the designed one, for hashes and for short URLs."""
    layer = designed_layer(capacity, rate, sizing.optimal_probes(rate))
    spec = layer.spec
    fill(layer, FINGERPRINTS[kind](capacity, 1))
    found = hits(questions(layer).contains, FINGERPRINTS[kind](probed, 2))
    theory = probing.error_rate(spec.designed_fill, spec.probes)
    low, high = poisson_interval(probed * theory, fill_spread(spec.size_bits, spec.probes, spec.designed_fill))
    # Both edges of the array are thinner: what starts there errs less, in all by up to the share of the edges.
    edges = 2 * probing.padding_bits(spec.probes) / spec.size_bits
    assert low * (1 - edges) <= found <= high, f"{found / probed:.3g} measured, {theory:.3g} in theory"
