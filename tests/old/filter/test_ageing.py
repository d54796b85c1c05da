from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scrapy_bloom.old.filter import ageing
from scrapy_bloom.old.filter.chain import ScalableBloomFilter

AGE = 800.0


class Clock:
    """A clock that the test moves."""

    def __init__(self, now: float = 1e9):
        self.now = now

    def __call__(self) -> float:
        return self.now


def fingerprint(number: int) -> bytes:
    return b"%016d" % number


@given(
    steps=st.lists(st.tuples(st.floats(0, AGE / 3), st.integers(1, 9)), min_size=1, max_size=25),
    capacity=st.integers(1, 100),
)
@settings(max_examples=25)
def test_a_fingerprint_is_forgotten_between_seven_eighths_of_the_age_and_the_age(
    steps: list[tuple[float, int]], capacity: int
) -> None:
    """However a crawl goes, nothing younger than 7/8 of the age is new, and nothing older than the age is seen."""
    clock = Clock()
    chain = ScalableBloomFilter(capacity, 1e-9, max_age=AGE, clock=clock)
    added: dict[bytes, float] = {}
    for pause, count in steps:
        clock.now += pause
        for one, when in added.items():
            age = clock.now - when
            if age < AGE * 7 / 8:
                assert one in chain
            if age >= AGE:
                assert one not in chain
        for number in range(len(added), len(added) + count):
            assert chain.add(fingerprint(number))
            added[fingerprint(number)] = clock.now
        chain._check()
        assert len(chain) == sum(one in chain for one in added)


@given(steps=st.lists(st.tuples(st.floats(0, AGE / 4), st.integers(0, 200)), min_size=1, max_size=30))
@settings(max_examples=15)
def test_the_layers_alive_keep_to_the_error_rate(steps: list[tuple[float, int]]) -> None:
    """The designed rates of all layers alive never sum up to more than the rate that was asked for."""
    clock = Clock()
    chain = ScalableBloomFilter(64, 1e-3, max_age=AGE, clock=clock)
    added = 0
    for pause, count in steps:
        clock.now += pause
        for number in range(added, added + count):
            chain.add(fingerprint(number))
        added += count
        assert sum(layer.error_rate for layer in chain.layers) <= 1e-3
        assert chain.error_rate == 1e-3
        assert len({layer.created for layer in chain.layers}) <= len(chain.layers)


def test_a_steady_crawl_has_one_layer_in_each_period() -> None:
    """From the second age on, a crawl that brings as much in each period has at most nine layers, sized for it."""
    clock = Clock()
    chain = ScalableBloomFilter(100, 1e-6, max_age=AGE, clock=clock)
    for number in range(6_000):
        clock.now += 1.0
        chain.add(fingerprint(number))
    assert len(chain.layers) <= ageing.MAX_ALIVE_PERIODS + 1
    assert chain.layers[0].spec.index > 20
    assert all(90 <= layer.capacity <= 250 for layer in chain.layers)


@pytest.mark.slow
def test_the_rate_is_kept_while_layers_come_and_go() -> None:
    """Of 40,000 fingerprints never added, as many are taken for seen as the estimate says, and no more than allowed."""
    clock = Clock()
    chain = ScalableBloomFilter(80_000, 1e-2, max_age=AGE, clock=clock)
    for number in range(150_000):
        clock.now += AGE / 80_000
        chain.add(fingerprint(number))
    assert chain.layers[0].spec.index > 0
    asked = 40_000
    seen = sum(fingerprint(10**9 + number) in chain for number in range(asked))
    allowed, estimate = asked * chain.error_rate, asked * chain.estimated_error_rate()
    deviation = 5 * allowed**0.5  # of a count whose expectation is at most what is allowed
    assert seen <= allowed + deviation
    assert abs(seen - estimate) < deviation
    assert estimate > deviation / 5


def test_without_an_age_the_clock_is_not_asked() -> None:
    """A filter that keeps everything stays as fast as it was: looking something up reads no clock."""
    asked = []
    chain = ScalableBloomFilter(10, clock=lambda: asked.append(1) or 0.0)  # type: ignore[func-returns-value]
    begun = len(asked)
    chain.add(b"1")
    assert b"1" in chain
    assert len(asked) == begun


def test_a_layer_from_the_future_is_dropped() -> None:
    """After a clock that ran ahead was put right, what was noted under it is fetched again rather than never."""
    assert ageing.is_expired(2_000.0, now=1_000.0, max_age=AGE)
    assert not ageing.is_expired(1_000.0 + AGE / 8, now=1_000.0, max_age=AGE)  # such as a correction by a second


def test_what_was_forgotten_is_not_counted_twice_when_its_layer_goes() -> None:
    """A fingerprint that was taken back leaves the list of those when the layer that held it is dropped."""
    clock = Clock()
    chain = ScalableBloomFilter(10, max_age=AGE, clock=clock)
    chain.add(b"old")
    chain.forget(b"old")
    clock.now += AGE
    assert chain.add(b"new")
    assert (len(chain), chain.forgotten) == (1, 0)


def test_an_age_must_be_positive() -> None:
    """Zero, negative and nonsense ages are refused, by name."""
    for nonsense in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="max_age"):
            ScalableBloomFilter(max_age=nonsense, clock=Clock())
    with pytest.raises(ValueError, match="clock"):
        ScalableBloomFilter(max_age=AGE)


def test_a_clock_that_was_ahead_keeps_nothing_for_longer() -> None:
    """What was added under a clock that is put back while the crawl runs is new again at once, since its age is not
    known; it is not seen until the clock has come that far once more."""
    clock = Clock()
    chain = ScalableBloomFilter(100, 1e-6, max_age=AGE, clock=clock)
    clock.now += 100 * AGE
    assert chain.add(fingerprint(0))
    assert chain.add(fingerprint(1))
    clock.now -= 100 * AGE
    assert fingerprint(0) not in chain
    assert chain.add(fingerprint(1))
    assert not chain.add(fingerprint(1))
    chain._check()
