"""One layer: what its sampled fill is worth, and which bits no fingerprints leave; and the formulas behind that."""

import math
import random
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scrapy_bloom.filter import probes as probing
from scrapy_bloom.filter import sizing
from scrapy_bloom.filter.layer import Layer, LayerSpec
from tests.filter.sampling import SEED, designed_layer, fill, hash_fingerprints

PAGE_BITS = 1 << 15
SAMPLE_BITS = 1 << 23


@pytest.fixture(scope="module", params=["sampled", "counted"])
def layer(request: pytest.FixtureRequest) -> Layer:
    """A layer at capacity, half as large again as the sample of its fill; or one at half its capacity, and smaller."""
    made = designed_layer(400_000 if request.param == "sampled" else 60_000, 2e-7, 22)
    fill(made, hash_fingerprints(400_000 if request.param == "sampled" else 30_000, 1))
    return made


def test_the_fill_and_its_parts_are_as_designed(layer: Layer) -> None:
    """The fill, from a sample or counted, is the fill of all bits but the ends, and as designed; the count comes back
    from the bits within 1 %. Pages vary between as much as independent bits and k (1 - f) times as much."""
    k, start, stop = 22, probing.padding_bits(22), layer.spec.size_bits
    f = layer.bits.count(1, start, stop) / (stop - start)
    assert layer.fill_ratio == pytest.approx(f, abs=5 * 0.0006 if stop - start > SAMPLE_BITS else 1e-12)
    assert f == pytest.approx(sizing.fill_ratio(layer.count, stop, k), abs=0.003)
    # p goes with f^k, so that 0.003 of fill is 22 * 0.003 / 0.49 = 14 % of p.
    assert layer.estimated_error_rate == pytest.approx(layer.spec.error_rate_at(layer.count), rel=0.2)
    assert layer.ones(thorough=True) is None
    assert layer.is_saturated is (layer.count == layer.capacity)
    assert 0.99 * layer.count <= layer.estimated_count() <= min(1.01 * layer.count, layer.capacity)
    pages = [layer.bits.count(1, at, at + PAGE_BITS) for at in range(start, stop - PAGE_BITS, PAGE_BITS)]
    times = statistics.variance(pages) / (PAGE_BITS * f * (1 - f))
    # A sample variance of N pages has a relative standard deviation of sqrt(2/N).
    noise = 5 * math.sqrt(2 / len(pages))
    assert 1 - noise < times < k * (1 - f) * (1 + noise)


@pytest.mark.parametrize("capacity", [1, 20, 60_000])
def test_a_layer_is_empty_then_full(capacity: int) -> None:
    """A new layer has no bits, no error and room; at capacity none, and beyond it is full whatever it counts."""
    layer = designed_layer(capacity, 2e-7, 22)
    assert (layer.fill_ratio, layer.estimated_error_rate, layer.estimated_count()) == (0, 0, 0)
    assert layer.ones(thorough=True) is None
    assert not layer.is_saturated
    fill(layer, hash_fingerprints(capacity, 1))
    assert layer.ones(thorough=True) is None
    assert layer.is_saturated
    layer.count = 0
    assert not layer.is_saturated
    fill(layer, hash_fingerprints(capacity // 4 + 80, 2))
    layer.count = 0
    assert layer.is_saturated


def test_ones_that_a_sample_misses_are_found_by_reading_all() -> None:
    """200 bytes of ones are in no sample. Random bits, half of them ones, stand for those of a full layer."""
    spec = LayerSpec.smallest(index=0, capacity=2_000_000, error_rate=1e-6, probes=20, seed=SEED)
    memory = bytearray(random.Random(8).randbytes(spec.nbytes))
    layer = Layer(spec, memoryview(memory))
    for place in ((1 << 20) - 100, 6_000_000, spec.nbytes - 200):
        assert layer.ones(thorough=True) is None
        before = memory[place : place + 200]
        memory[place : place + 200] = b"\xff" * 200
        assert layer.ones() is None or place > 7_000_000  # the thin ends are always looked at
        assert place - 1 <= (layer.ones(thorough=True) or 0) <= place
        memory[place : place + 200] = before


# -- the formulas, against the printed table and against each other ---------------------------------------------------

PRINTED = """
2 0.393 0.400
3 0.283 0.237 0.253
4 0.221 0.155 0.147 0.160
5 0.181 0.109 0.092 0.092 0.101
6 0.154 0.0804 0.0609 0.0561 0.0578 0.0638
8 0.118 0.0489 0.0306 0.024 0.0217 0.0216 0.0229
10 0.0952 0.0329 0.0174 0.0118 0.00943 0.00844 0.00819 0.00846
12 0.08 0.0236 0.0108 0.00646 0.00459 0.00371 0.00329 0.00314
16 0.0606 0.0138 0.005 0.00239 0.00139 0.000935 0.000702 0.000574
20 0.0488 0.00906 0.0027 0.00108 0.00053 0.000303 0.000196 0.00014
24 0.0408 0.00639 0.00162 0.000555 0.000235 0.000117 6.63e-05 4.17e-05
32 0.0308 0.00367 0.000717 0.000191 6.33e-05 2.5e-05 1.13e-05 5.73e-06
"""
# False-positive rates to three digits, as printed in Fan, Cao, Almeida, Broder, "Summary Cache", IEEE/ACM Trans. Netw.
# 8(3), 2000, and many textbooks since: a line for some m/n, the number of bits per key, and a rate for each k from 1.
RATES = st.floats(1e-12, 0.5)
PROBES = st.integers(1, probing.MAX_PROBES)


def false_positive_rate(bits_per_fingerprint: float, probes: int) -> float:
    """Return p of a filter with k independent probes."""
    return sizing.fill_ratio(1, bits_per_fingerprint, probes) ** probes


def test_the_printed_table_comes_out_to_three_digits() -> None:
    """False-positive rates agree with the textbook table in every digit it prints, which for m/n = 5, k = 3 are two."""
    printed, ours = {}, {}
    for bits, *rates in map(str.split, PRINTED.strip().splitlines()):
        for probes, rate in enumerate(rates, 1):
            digits = 2 if (bits, probes) == ("5", 3) else 3
            printed[bits, probes] = float(rate)
            ours[bits, probes] = float(f"{false_positive_rate(int(bits), probes):.{digits}g}")
    assert ours == printed


@given(count=st.integers(1, 10**9), bits=st.floats(2, 100), probes=PROBES)
def test_count_and_fill_invert_each_other(count: int, bits: float, probes: int) -> None:
    """The count that explains the fill of n fingerprints is n; a filter without an empty bit explains any."""
    fill_ratio = sizing.fill_ratio(count, count * bits, probes)
    assume(fill_ratio < 1 - 1e-9)  # beyond it a float cannot hold what is left
    assert sizing.count_from_fill(fill_ratio, count * bits, probes) == pytest.approx(count, rel=1e-6)
    assert sizing.count_from_fill(1.0, bits, probes) == math.inf


@given(target=RATES, tightening=st.floats(0.05, 0.95), layers=st.integers(0, 400))
def test_the_budgets_of_any_number_of_layers_stay_within_the_target(
    target: float, tightening: float, layers: int
) -> None:
    """Budgets spent and the remaining rate add up to p, so no number of layers spends more."""
    spent = math.fsum(sizing.layer_error_rate(i, target, tightening) for i in range(layers))
    assert spent <= target * (1 + 1e-12)
    assert spent + target * tightening**layers == pytest.approx(target, rel=1e-9)
