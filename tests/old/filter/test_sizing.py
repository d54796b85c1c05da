"""The formulas, against the printed table and against each other."""

from __future__ import annotations

import math

import mmh3
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scrapy_bloom.old.filter import probes as probing
from scrapy_bloom.old.filter import sizing
from tests.old.filter.sampling import (
    SEED,
    empty_layer,
    fill,
    fill_spread,
    poisson_interval,
    printed_table,
    questions,
    url_fingerprints,
)

TABLE = printed_table()
RATES = st.floats(1e-12, 0.5)
PROBES = st.integers(1, probing.MAX_PROBES)
TIGHTENINGS = st.floats(0.05, 0.95)


def test_the_printed_table_is_whole() -> None:
    """The table has m/n from 2 to 32 and k from 1 to 8, but no k beyond the useful ones."""
    assert [(m, k) for m, k, _ in TABLE] == [
        (m, k) for m in range(2, 33) for k in range(1, 9) if k <= m and (m, k) not in {(7, 7), (8, 8)}
    ]


@pytest.mark.parametrize(("bits", "probes", "rate"), TABLE)
def test_the_printed_table_comes_out_to_three_digits(bits: int, probes: int, rate: float) -> None:
    """False-positive rates agree with the textbook table in every digit it prints."""
    digits = 2 if (bits, probes) == (5, 3) else 3
    assert float(f"{sizing.false_positive_rate(bits, probes):.{digits}g}") == rate


@pytest.mark.parametrize(("bits", "probes"), [(4, 1), (4, 2), (6, 3), (8, 4), (10, 5), (8, 6), (9, 7), (12, 8)])
def test_a_real_layer_shows_the_printed_rates(bits: int, probes: int) -> None:
    """A layer of m/n bits per fingerprint and k probes errs as often as the table says, within sampling error."""
    assert_layer_agrees(bits, probes, probed=100_000)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "probes"), [row[:2] for row in TABLE])
def test_a_real_layer_shows_every_printed_rate(bits: int, probes: int) -> None:
    """The whole table comes out of real layers within sampling error."""
    assert_layer_agrees(bits, probes, probed=200_000)


def assert_layer_agrees(bits: int, probes: int, *, probed: int) -> None:
    capacity = 30_000
    layer = empty_layer(bits * capacity, probes)
    fill(layer, url_fingerprints(capacity, seed=1))
    edge = probing.padding_bits(probes) if probes > 1 else 0
    # The first bits are thinner than the rest, which the formula knows nothing of. Only what starts behind them counts.
    inner = [
        fingerprint
        for fingerprint in url_fingerprints(probed, seed=2)
        if mmh3.mmh3_x64_128_utupledigest(fingerprint, SEED)[0] % layer.spec.size_bits
        >= min(edge, layer.spec.size_bits // 2)
    ]
    contains = questions(layer).contains
    found = sum(contains(fingerprint) for fingerprint in inner)
    theory = sizing.false_positive_rate(bits, probes)
    spread = fill_spread(layer.spec.size_bits, probes, sizing.fill_ratio(capacity, layer.spec.size_bits, probes))
    low, high = poisson_interval(len(inner) * theory, spread)
    # What runs add to independent probes, by the scheme's own account: a tenth at m/n = 32, nothing at k = 1.
    with_runs = probing.error_rate(sizing.fill_ratio(1, bits, probes), probes) / theory if probes > 1 else 1
    assert low * (1 - thin_share(layer.spec.size_bits, probes)) <= found <= high * with_runs


def thin_share(size_bits: int, probes: int) -> float:
    """How much the far edge, where runs reach into the padding, may lower the rate: its share of all starts."""
    return min(0.5, probing.padding_bits(probes) / size_bits) if probes > 1 else 0.0


@given(rate=RATES, probes=PROBES)
def test_bits_per_fingerprint_and_rate_invert_each_other(rate: float, probes: int) -> None:
    """The rate of a filter sized for p is p."""
    bits = sizing.bits_per_fingerprint(rate, probes)
    assert sizing.false_positive_rate(bits, probes) == pytest.approx(rate, rel=1e-6)


@given(count=st.integers(1, 10**9), bits=st.floats(2, 100), probes=PROBES)
def test_count_and_fill_invert_each_other(count: int, bits: float, probes: int) -> None:
    """The count that explains the fill of n fingerprints is n."""
    fill_ratio = sizing.fill_ratio(count, count * bits, probes)
    assume(fill_ratio < 1 - 1e-9)  # beyond it a float cannot hold what is left
    assert sizing.count_from_fill(fill_ratio, count * bits, probes) == pytest.approx(count, rel=1e-6)


def test_a_filter_without_an_empty_bit_explains_any_count() -> None:
    """At a fill of 1 the count is infinite, and at 0 it is 0."""
    assert sizing.count_from_fill(1.0, 1000, 7) == math.inf
    assert sizing.count_from_fill(0.0, 1000, 7) == 0


@given(rate=RATES)
def test_the_optimal_number_of_probes_needs_the_fewest_bits(rate: float) -> None:
    """One probe more or less than the optimum saves 3.5 % at most, and that only where k is 1 or 2."""
    best = sizing.optimal_probes(rate)
    fewest = min(sizing.bits_per_fingerprint(rate, other) for other in (max(1, best - 1), best + 1))
    assert sizing.bits_per_fingerprint(rate, best) <= (1.036 if best < 3 else 1.012) * fewest


@given(rate=RATES, smaller=RATES, probes=PROBES)
def test_a_smaller_rate_costs_more_bits(rate: float, smaller: float, probes: int) -> None:
    """m/n falls as p rises."""
    assume(smaller < 0.999 * rate)
    assert sizing.bits_per_fingerprint(smaller, probes) > sizing.bits_per_fingerprint(rate, probes)
    assert sizing.optimal_probes(smaller) >= sizing.optimal_probes(rate)


@given(count=st.integers(0, 10**9), more=st.integers(1, 10**9), size_bits=st.integers(100, 10**11), probes=PROBES)
def test_more_fingerprints_fill_more(count: int, more: int, size_bits: int, probes: int) -> None:
    """The fill rises with n, from 0 towards 1."""
    before = sizing.fill_ratio(count, size_bits, probes)
    after = sizing.fill_ratio(count + more, size_bits, probes)
    assert 0 <= before <= after <= 1
    assert before < after or before > 1 - 1e-9


@given(target=RATES, tightening=TIGHTENINGS, layers=st.integers(0, 400))
def test_the_budgets_of_any_number_of_layers_stay_within_the_target(
    target: float, tightening: float, layers: int
) -> None:
    """Budgets spent and the remaining rate add up to p, so no number of layers spends more."""
    spent = math.fsum(sizing.layer_error_rate(i, target=target, tightening=tightening) for i in range(layers))
    left = sizing.remaining_error_rate(layers, target=target, tightening=tightening)
    assert spent <= target * (1 + 1e-12)
    assert spent + left == pytest.approx(target, rel=1e-9)


@given(target=RATES, tightening=TIGHTENINGS, index=st.integers(0, 100))
def test_each_layer_gets_less_than_the_one_before(target: float, tightening: float, index: int) -> None:
    """Budgets shrink by the factor r."""
    this = sizing.layer_error_rate(index, target=target, tightening=tightening)
    following = sizing.layer_error_rate(index + 1, target=target, tightening=tightening)
    assert following == pytest.approx(this * tightening)
    assert 0 < following < this
