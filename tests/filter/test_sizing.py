"""The formulas, against the printed table and against each other."""

import csv
import math
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scrapy_bloom.filter import probes as probing
from scrapy_bloom.filter import sizing

LINES = Path(__file__).with_name("bloom-rates.csv").read_text(encoding="utf-8").splitlines()
TABLE = [
    (int(row["m_over_n"]), int(row["k"]), float(row["rate"]))
    for row in csv.DictReader(line for line in LINES if not line.startswith("#"))
]
RATES = st.floats(1e-12, 0.5)
PROBES = st.integers(1, probing.MAX_PROBES)


def false_positive_rate(bits_per_fingerprint: float, probes: int) -> float:
    """Return p of a filter with k independent probes."""
    return sizing.fill_ratio(1, bits_per_fingerprint, probes) ** probes


def test_the_printed_table_comes_out_to_three_digits() -> None:
    """False-positive rates agree with the textbook table in every digit it prints."""
    digits = {(bits, probes): 2 if (bits, probes) == (5, 3) else 3 for bits, probes, _ in TABLE}
    rates = {of: float(f"{false_positive_rate(*of):.{digits[of]}g}") for of in digits}
    assert rates == {(bits, probes): rate for bits, probes, rate in TABLE}


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
