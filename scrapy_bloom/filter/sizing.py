"""Computes how large a bloom filter has to be.

Letters as in the literature, here and in every module of this package:

    n   fingerprints                    m   bits
    k   probes (bits) per fingerprint   p   false-positive rate, a probability
    f   fill ratio, set bits / m        i   index of a layer, from 0
    r   tightening of the budgets       s   growth of the capacities

Sources: Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors", CACM 13(7), 1970; Almeida, Baquero,
Preguica, Hutchison, "Scalable Bloom Filters", Inf. Process. Lett. 101(6), 2007. ``docs/math.md`` derives them.
"""

from __future__ import annotations

import math


def optimal_probes(error_rate: float) -> int:
    """Return k, the number of probes that needs the fewest bits for *error_rate*: round(log2(1/p)), at least 1."""
    return max(1, round(math.log2(1 / error_rate)))


def bits_per_fingerprint(error_rate: float, probes: int) -> float:
    """Return m/n, the bits that each fingerprint costs at *error_rate* with *probes* probes: -k / ln(1 - p^(1/k))."""
    return -probes / math.log1p(-(error_rate ** (1 / probes)))


def fill_ratio(count: float, size_bits: float, probes: int) -> float:
    """Return f, the share of the m bits that is expected to be set after *count* fingerprints: 1 - e^(-kn/m)."""
    return -math.expm1(-probes * count / size_bits)


def count_from_fill(fill: float, size_bits: float, probes: int) -> float:
    """Return the number of fingerprints that explains a fill ratio: n = -(m/k) ln(1 - f), infinite for f >= 1.

    Source: Whang, Vander-Zanden, Taylor, "A linear-time probabilistic counting algorithm", ACM TODS 15(2), 1990.
    """
    return math.inf if fill >= 1 else -size_bits / probes * math.log1p(-fill)


def layer_error_rate(index: int, target: float, tightening: float) -> float:
    """Return the error rate that layer *index* may use up, as a probability.

    A chain answers "seen" as soon as one layer does, so its own rate is at most the sum over its layers. Giving
    each layer a geometrically smaller share keeps that sum below *target* however long the crawl gets:

        p_i = p (1 - r) r^i        p_0 + p_1 + ... = p        after j layers, p r^j is left for the rest

    with p = *target* and r = *tightening*, both in (0, 1), and i = *index* counted from 0. Source: Almeida et al. 2007.
    """
    return target * (1 - tightening) * tightening**index
