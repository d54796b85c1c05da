"""One layer: what its sampled fill is worth, and which counts it contradicts."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from mmap import mmap

import pytest
from bitarray import bitarray
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.old.filter import probes as probing
from scrapy_bloom.old.filter import sizing
from scrapy_bloom.old.filter.layer import Layer, LayerSpec
from tests.old.filter.sampling import SEED, designed_layer, fill, hash_fingerprints, hits, poisson_interval, questions

PAGE_BITS = 1 << 15
SAMPLE_BITS = 1 << 23


@pytest.fixture(scope="module")
def large() -> Layer:
    """A layer at capacity, three times as large as the sample of its fill."""
    layer = designed_layer(800_000, 2e-7, 22)
    fill(layer, hash_fingerprints(layer.capacity, 1))
    assert layer.spec.size_bits > 3 * SAMPLE_BITS
    return layer


@pytest.fixture(scope="module")
def middling() -> Layer:
    """A layer at half its capacity, small enough to be counted rather than sampled."""
    layer = designed_layer(60_000, 2e-7, 22)
    fill(layer, hash_fingerprints(layer.capacity // 2, 1))
    assert layer.spec.size_bits < SAMPLE_BITS
    return layer


@pytest.fixture
def tiny() -> Layer:
    layer = designed_layer(20, 2e-7, 22)
    fill(layer, hash_fingerprints(20, 1))
    return layer


def page_fills(layer: Layer) -> list[int]:
    even = layer.spec.sampled_range
    assert even is not None
    return [layer.bits.count(1, at, at + PAGE_BITS) for at in range(even[0], even[1] - PAGE_BITS, PAGE_BITS)]


def test_the_pages_of_a_layer_vary_as_its_tolerance_assumes(large: Layer) -> None:
    """The variance of a page's fill is between that of independent bits and k (1 - f) times it."""
    counts = page_fills(large)
    f = statistics.fmean(counts) / PAGE_BITS
    times = statistics.variance(counts) / (PAGE_BITS * f * (1 - f))
    # A sample variance of N pages has a relative standard deviation of sqrt(2/N).
    noise = 5 * math.sqrt(2 / len(counts))
    assert 1 < times < large.spec.probes * (1 - f) * (1 + noise)


def test_the_sampled_fill_is_the_fill(large: Layer) -> None:
    """A sample of 1 MiB is within five of its stated standard errors of the whole, and does not count the whole."""
    start, stop = large.spec.sampled_range or (0, 0)
    exact = large.bits.count(1, start, stop) / (stop - start)
    f = exact
    stated = math.sqrt(f * (1 - f) / SAMPLE_BITS * large.spec.probes * (1 - f))
    assert stated < 0.0006
    assert 0 < abs(large.fill_ratio - exact) < 5 * stated


def test_the_fill_of_a_smaller_layer_is_counted(middling: Layer) -> None:
    """A layer of less than 1 MiB answers with the exact fill of its even part."""
    start, stop = middling.spec.sampled_range or (0, 0)
    assert middling.fill_ratio == middling.bits.count(1, start, stop) / (stop - start)


def test_the_fill_and_the_rate_are_as_designed_at_capacity(large: Layer) -> None:
    """A full layer is as full, and errs as often, as it was designed to."""
    assert large.fill_ratio == pytest.approx(large.spec.designed_fill, abs=0.003)
    # p goes with f^k, so that 0.003 of fill is 22 * 0.003 / 0.49 = 14 % of p.
    assert large.estimated_error_rate == pytest.approx(large.error_rate, rel=0.14)
    assert large.contradiction() is None
    assert large.is_saturated


@pytest.mark.parametrize("which", ["large", "middling"])
def test_a_lost_count_comes_back_from_the_bits(which: str, request: pytest.FixtureRequest) -> None:
    """The recount is within five standard errors of the count, which is never believed beyond capacity."""
    layer: Layer = request.getfixturevalue(which)
    spec, true = layer.spec, layer.count
    load = spec.probes * true / spec.size_bits
    occupancy = spec.size_bits * (math.exp(load) - load - 1) / spec.probes**2
    # Only the even part is counted. What lies across one of its two ends is in it with a random share of its bits, so
    # the number of these, Poisson distributed, adds to the variance.
    across = 2 * probing.padding_bits(spec.probes) * true / spec.size_bits
    error = math.sqrt(occupancy + across)
    assert error < 0.01 * true
    layer.count = 0
    layer.recount()
    found, layer.count = layer.count, true
    assert true - 5 * error <= found <= min(true + 5 * error + 1, layer.capacity)


@given(count=st.integers(0, 40), capacity=st.integers(1, 30))
def test_a_recount_of_a_tiny_layer_errs_on_the_full_side(count: int, capacity: int) -> None:
    """No tiny layer is taken for emptier than it is, nor for fuller than full."""
    layer = designed_layer(capacity, 2e-7, 22)
    fill(layer, hash_fingerprints(count, capacity))
    layer.count = 0
    layer.recount()
    # A fingerprint or two whose bits fell on those of others may be missed among forty.
    assert min(count, capacity) - 2 <= layer.count <= capacity
    assert (layer.count == 0) is (count == 0)


@pytest.mark.parametrize("count", [90, 300, 1000, 5000, 12_000])
@pytest.mark.parametrize("rate", [1e-2, 1e-6, 1e-9])
def test_a_recount_of_a_tiny_layer_is_nearly_right(count: int, rate: float) -> None:
    """The count of a tiny layer comes back within 8 % above and 2 % below, half full as well as full."""
    layer = designed_layer(count, rate, sizing.optimal_probes(rate))
    assert layer.spec.sampled_range is None
    layer.spec = replace(layer.spec, capacity=2 * count)  # so that the estimate is not cut off
    for half in (1, 2):
        fill(layer, hash_fingerprints(count // 2, half))
        true, layer.count = layer.count, 0
        layer.recount()
        assert 0.98 * true - 1 <= layer.count <= 1.08 * true + 1
        layer.count = true


@pytest.mark.parametrize("which", ["large", "middling"])
def test_a_count_that_is_off_is_noticed(which: str, request: pytest.FixtureRequest) -> None:
    """Twice the tolerance is contradicted either way, a quarter of it is not, and the message has both figures."""
    layer: Layer = request.getfixturevalue(which)
    spec, true = layer.spec, layer.count
    load = spec.probes * true / spec.size_bits
    f = -math.expm1(-load)
    sampled = min(SAMPLE_BITS, spec.size_bits - probing.padding_bits(spec.probes))
    tolerance = 6 * math.sqrt(f * (1 - f) / sampled * spec.probes * (1 - f))
    stray = tolerance * spec.size_bits / (spec.probes * (1 - f))  # dn = df m / (k (1 - f))
    assert stray < 0.05 * true
    try:
        for factor in (-2, 2):
            layer.count = round(true + factor * stray)
            found = layer.contradiction()
            assert found is not None
            assert f"but {layer.count} fingerprints set" in found
            assert found.startswith(f"{layer.fill_ratio:.2%} of the bits are set")
        for factor in (-0.25, 0, 0.25):
            layer.count = round(true + factor * stray)
            assert layer.contradiction() is None
    finally:
        layer.count = true


def test_a_tiny_layer_notices_bits_that_no_fingerprint_can_have_set(tiny: Layer) -> None:
    """More than k bits per counted fingerprint is a contradiction, fewer is not: forgetful is no damage."""
    assert tiny.spec.sampled_range is None
    assert tiny.contradiction() is None
    ones = tiny.bits.count()
    tiny.count = ones // 22 - 1
    assert tiny.contradiction() == f"{ones} bits are set, but {tiny.count} fingerprints set at most {tiny.count * 22}"


def test_a_tiny_layer_answers_with_the_fill_designed_for_its_count(tiny: Layer) -> None:
    """Where no part of a layer is even, the fill is that of the count, and the bits are nowhere fuller on average."""
    assert tiny.fill_ratio == pytest.approx(tiny.spec.designed_fill)
    assert tiny.bits.count() / tiny.spec.array_bits < tiny.fill_ratio
    assert 0 < tiny.estimated_error_rate < tiny.error_rate / 1000, "most of its bits are in the padding"
    tiny.count = 10
    assert tiny.fill_ratio == pytest.approx(1 - math.sqrt(1 - tiny.spec.designed_fill))


def test_an_empty_layer_is_neither_full_nor_in_contradiction() -> None:
    """A new layer has no bits, no error and room."""
    for capacity in (1, 20, 60_000):
        layer = designed_layer(capacity, 2e-7, 22)
        assert (layer.count, layer.fill_ratio, layer.estimated_error_rate) == (0, 0, 0)
        assert layer.contradiction() is None
        assert not layer.is_saturated


def test_a_layer_is_saturated_by_its_count() -> None:
    """One fingerprint before capacity there is room, at capacity there is none."""
    layer = designed_layer(20, 1e-3, 10)
    layer.count = 19
    assert not layer.is_saturated
    layer.count = 20
    assert layer.is_saturated


def test_a_layer_is_saturated_by_its_fill_whatever_its_count_says() -> None:
    """A layer that got more fingerprints than it counts is full by its bits, and is not full at its designed fill."""
    layer = designed_layer(60_000, 1e-3, 10)
    fill(layer, hash_fingerprints(60_000, 1))
    layer.count = 0
    assert not layer.is_saturated
    fill(layer, hash_fingerprints(6_000, 2))
    layer.count = 0
    assert layer.fill_ratio > layer.spec.designed_fill
    assert layer.is_saturated


def test_a_buffer_of_another_size_is_refused() -> None:
    """A layer over too few or too many bytes is an error with both lengths."""
    spec = LayerSpec.smallest(index=0, capacity=10, error_rate=0.01, probes=7, seed=SEED)
    with pytest.raises(ValueError, match=f"holds {spec.array_bits + 64} bits, the layer needs {spec.array_bits}"):
        Layer(spec, mmap(-1, spec.nbytes + 8))


@given(capacity=st.integers(1, 10**9), rate=st.floats(1e-11, 0.5), probes=st.integers(1, 36))
def test_the_array_holds_the_bits_and_their_padding(capacity: int, rate: float, probes: int) -> None:
    """The array is m bits and the padding, rounded up to whole 64-bit words, and no larger."""
    spec = LayerSpec.smallest(index=0, capacity=capacity, error_rate=rate, probes=probes, seed=SEED)
    assert 0 <= spec.array_bits - spec.size_bits - probing.padding_bits(probes) < 64
    assert spec.array_bits == 8 * spec.nbytes
    assert spec.array_bits % 64 == 0
    assert probing.error_rate(spec.designed_fill, probes) <= rate
    assert spec.designed_fill == sizing.fill_ratio(capacity, spec.size_bits, probes)


def test_a_layer_says_what_it_is(tiny: Layer) -> None:
    """The repr has the place in the chain, the count, the capacity and the rate."""
    assert repr(tiny) == "<Layer 0: 20 of 20 fingerprints at 2e-07>"
    assert tiny.nbytes == tiny.spec.nbytes == len(tiny.bits) // 8


def test_zeros_that_a_sample_misses_are_found_by_reading_all() -> None:
    """40,000 bytes of zeros in 8 MB are half a per cent of the sample, too few to tell, and 4 % of the MiB they are in.
    Random bits, half of them ones, stand for those of a layer just as full."""
    spec = LayerSpec.smallest(index=0, capacity=2_000_000, error_rate=1e-6, probes=20, seed=1 << 31)
    memory = bytearray(random.Random(8).randbytes(spec.nbytes))
    count = round(sizing.count_from_fill(0.5, spec.size_bits, spec.probes))
    layer = Layer(spec, memoryview(memory), count)
    assert layer.contradiction() is None
    assert layer.contradiction_anywhere() is None
    memory[5_000_000:5_040_000] = bytes(40_000)
    assert layer.contradiction() is None
    assert "around byte " in (layer.contradiction_anywhere() or "")


def test_a_full_layer_is_sound_in_every_part(large: Layer) -> None:
    """No MiB of a real layer is so much fuller or emptier than the others that it would look damaged."""
    assert large.contradiction_anywhere() is None


@pytest.fixture
def full() -> Layer:
    """A layer at capacity whose errors are frequent enough to be counted."""
    layer = designed_layer(40_000, 1e-2, 7)
    fill(layer, hash_fingerprints(layer.capacity, 1))
    return layer


def flip(layer: Layer, bit: int, share: float) -> None:
    """Turn *share* of all bits, those that are *bit*, into the other value, at random places."""
    places = list(layer.bits.search(bitarray([bit]), 0, layer.spec.size_bits))
    for place in random.Random(5).sample(places, round(share * layer.spec.size_bits)):
        layer.bits[place] = 1 - bit


def test_bits_that_were_set_by_mistake_raise_the_error_rate_as_the_docs_say(full: Layer) -> None:
    """The share x of all bits turns the rate at the fill f into that at f + x."""
    fill_ratio, share, absent = full.bits.count(1, 0, full.spec.size_bits) / full.spec.size_bits, 0.02, 200_000
    flip(full, 0, share)
    low, high = poisson_interval(absent * probing.error_rate(fill_ratio + share, full.spec.probes), spread=0.01)
    assert low <= hits(questions(full).contains, hash_fingerprints(absent, 2)) <= high


def test_bits_that_were_cleared_by_mistake_make_urls_new_as_the_docs_say(full: Layer) -> None:
    """Of the stored fingerprints, (1 - x/f)^k stay seen: one bit makes 1.4 of them new in a full layer."""
    fill_ratio, share = full.bits.count(1, 0, full.spec.size_bits) / full.spec.size_bits, 0.0035
    flip(full, 1, share)
    new = full.capacity - hits(questions(full).contains, hash_fingerprints(full.capacity, 1))
    low, high = poisson_interval(full.capacity * (1 - (1 - share / fill_ratio) ** full.spec.probes), spread=0.02)
    assert low <= new <= high
    assert new / (share * full.spec.size_bits) == pytest.approx(1.4, rel=0.1)
