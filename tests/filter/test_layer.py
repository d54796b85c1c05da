"""One layer: what its sampled fill is worth, and which bits no fingerprints leave."""

import math
import random
import statistics

import pytest

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
