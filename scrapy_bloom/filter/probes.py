"""Which bits a key owns: numbered probe schemes, frozen once released.

A scheme turns a key into bit positions and says what false-positive rate that gives. It does not know why a layer has
the size it has, when a chain grows, or where the bits live. Files name the scheme by its number, so a released
scheme never changes; a better one gets the next number.

Scheme 1, *runs*
----------------

The textbook loop over k positions costs 2 to 3 microseconds in Python. Here the k probes of a key are split into two
*runs* (one for k = 1, three above k = 22): arithmetic progressions of bits that bitarray reads or writes with one
extended slice, in about 100 ns each. From the 128-bit MurmurHash3 of the key, as two 64-bit numbers *high* and *low*:

    first run     starts at high mod m                                with stride 1 + bits 0..11 of low
    second run    starts 0..32767 bits later (bits 24..38 of low)     with stride 1 + bits 12..23 of low
    third run     32768..40959 bits later (bits 51..63 of low)        with stride 1 + bits 39..50 of low

The array is m bits plus a tail of padding for runs that start near its end. Starts are therefore uniform over [0, m)
and the bits are set evenly; cutting the starts short instead bunches the bits at the end.

*Why the rate is what it is.* A run of K bits at fill f is all ones by accident with probability f^K. On top of that
comes one correlation: if a stored run has the same stride and lies on the same progression, shifted by j places, it
covers K - |j| of the bits at once and only |j| are left to chance. Each shift happens with probability R n / (m S) for
R runs per key and S = 4096 strides, and summed over j this gives

    c = 5/4 * R n / (m S) * (1 + f) / (1 - f)      P(run) = f^K + c            p = product over the runs

The 5/4 stands for the other progressions that share more than one bit with a run: strides in ratio 1:2, 1:3, 2:3.
Without it, c measures 1.25, 1.20 and 1.21 times the sum at K = 10, 11 and 12 (+-0.02, over 2e9 absent keys), less below
K = 7. Left out, it would make a layer's true rate 4 % higher than said at k = 22 and 11 % at k = 36; with it, p is met.
The runs of one key have strides and distances of their own, so that they are independent: for both to hit the same
stored key, it must agree in some 50 bits. Layers are sized with c in the formula, which costs 1.7 % more bits at
p = 2e-7 than k independent probes would. Fewer, longer runs would be faster still, but c does not shrink with K: one
run of 22 bits has 5.7 times the rate of 22 independent probes. ``docs/math.md`` derives and measures all this.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from mmh3 import mmh3_x64_128_utupledigest

from scrapy_bloom.filter import sizing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bitarray import bitarray

RUNS_SCHEME = 1
"""The number of the scheme above, as written into file headers."""

SEED_BITS = 32
"""Width of the hash seed, which is drawn at random per chain so that nobody can prepare URLs that fill chosen places.

Random also because MurmurHash3 mixes keys of up to 8 bytes badly under a seed near 0: with seed 7 the starts of such
keys fell unevenly modulo 1024 and the rate was 1.2 times theory at p = 1e-2; under large seeds it is as computed.
"""

MAX_PROBES = 36
_STRIDES = 1 << 12
_RELATED_STRIDES = 5 / 4
"""How much more often a run is shared than same strides alone account for; measured, see above."""
_WINDOW = 1 << 15
_THIRD_WINDOW = 1 << 13


class Probes(NamedTuple):
    """What can be asked of a sequence of tables."""

    contains: Callable[[bytes], bool]
    """True if every bit of the key is set in one of the tables."""
    add: Callable[[bytes], bool]
    """Set the key's bits in the first table and return True, or return False if any table has them all already."""


def run_lengths(probes: int) -> tuple[int, ...]:
    """Return the number of bits in each run of a key with k = *probes*, from 1 to 36.

    Runs stay at 12 bits or fewer, 11 with two runs: c is 12 % of f^K at K = 11 but 21 % at K = 12 with two runs.
    """
    if not 1 <= probes <= MAX_PROBES:
        raise ValueError(f"k must be from 1 to {MAX_PROBES}, not {probes}")
    runs = 1 if probes == 1 else 2 if probes <= 22 else 3
    short, longer = divmod(probes, runs)
    return tuple(short + (i < longer) for i in range(runs))


def padding_bits(probes: int) -> int:
    """Return how many bits the array needs beyond m, so that a run that starts at m - 1 still ends inside it."""
    lengths = run_lengths(probes)
    reach = (0, _WINDOW - 1, _WINDOW + _THIRD_WINDOW - 1)
    return max(start + length * _STRIDES for start, length in zip(reach, lengths, strict=False))


def error_rate(fill: float, probes: int) -> float:
    """Return p of a layer whose fill ratio is *fill* (0 to 1), the correlation of runs included."""
    if fill >= 1:
        return 1.0
    lengths = run_lengths(probes)
    keys_per_bit = -math.log1p(-fill) / probes
    shared = _RELATED_STRIDES * len(lengths) * keys_per_bit / _STRIDES * (1 + fill) / (1 - fill)
    return min(1.0, math.prod(fill**length + shared for length in lengths))


def size_bits(capacity: int, error_rate_: float, probes: int) -> int:
    """Return the smallest m for which *capacity* keys with k = *probes* stay at *error_rate_*."""
    low = capacity * sizing.bits_per_key(error_rate_, probes)
    high = 2 * low
    while error_rate(sizing.fill_ratio(capacity, high, probes), probes) > error_rate_:
        low, high = high, 2 * high
    while high - low > max(0.5, 1e-15 * high):  # from 2**53 bits on, floats are more than a bit apart
        middle = (low + high) / 2
        if error_rate(sizing.fill_ratio(capacity, middle, probes), probes) > error_rate_:
            low = middle
        else:
            high = middle
    return math.ceil(high)


def bind(tables: Sequence[tuple[bitarray, int]], probes: int, seed: int) -> Probes:
    """Return the two questions for *tables*, which is looked at anew on every call: newest layer first, it may grow.

    Each is a layer's array, m bits and the padding of :func:`padding_bits`, and m; a plain pair, since Python takes a
    named tuple apart 50 ns more slowly.

    The loop over the tables is written out per number of runs: calls and inner loops are what costs time in Python.
    """
    lengths = run_lengths(probes)
    if len(lengths) == 1:
        return _bind_one(tables, seed)
    if len(lengths) == 2:
        return _bind_two(tables, lengths, seed)
    return _bind_three(tables, lengths, seed)


def _bind_one(tables: Sequence[tuple[bitarray, int]], seed: int) -> Probes:
    digest = mmh3_x64_128_utupledigest

    def contains(key: bytes) -> bool:
        high, _ = digest(key, seed)
        return any(bits[high % size] for bits, size in tables)

    def add(key: bytes) -> bool:
        if contains(key):
            return False
        high, _ = digest(key, seed)
        bits, size = tables[0]
        bits[high % size] = 1
        return True

    return Probes(contains, add)


def _bind_two(tables: Sequence[tuple[bitarray, int]], lengths: tuple[int, ...], seed: int) -> Probes:
    digest = mmh3_x64_128_utupledigest
    length1, length2 = lengths

    def in_any(high: int, low: int, some: Sequence[tuple[bitarray, int]]) -> bool:
        stride1 = (low & 0xFFF) + 1
        for bits, size in some:
            start = high % size
            # One bit before the first run settles half of the absent keys, in 30 ns instead of 170.
            if bits[start] and bits[start : start + length1 * stride1 : stride1].all():
                stride2 = (low >> 12 & 0xFFF) + 1
                start += low >> 24 & 0x7FFF
                if bits[start : start + length2 * stride2 : stride2].all():
                    return True
        return False

    def contains(key: bytes) -> bool:
        high, low = digest(key, seed)
        return in_any(high, low, tables)

    # The newest table is written out: that is where most duplicates are, and where a new key goes.
    def add(key: bytes) -> bool:
        high, low = digest(key, seed)
        stride1 = (low & 0xFFF) + 1
        stride2 = (low >> 12 & 0xFFF) + 1
        bits, size = tables[0]
        start1 = high % size
        start2 = start1 + (low >> 24 & 0x7FFF)
        end1 = start1 + length1 * stride1
        end2 = start2 + length2 * stride2
        if bits[start1:end1:stride1].all() and bits[start2:end2:stride2].all():
            return False
        if len(tables) > 1 and in_any(high, low, tables[1:]):
            return False
        bits[start1:end1:stride1] = 1
        bits[start2:end2:stride2] = 1
        return True

    return Probes(contains, add)


def _bind_three(tables: Sequence[tuple[bitarray, int]], lengths: tuple[int, ...], seed: int) -> Probes:
    digest = mmh3_x64_128_utupledigest
    length1, length2, length3 = lengths

    def runs(low: int) -> tuple[int, int, int, int, int, int, int, int]:
        stride1 = (low & 0xFFF) + 1
        stride2 = (low >> 12 & 0xFFF) + 1
        stride3 = (low >> 39 & 0xFFF) + 1
        start2 = low >> 24 & 0x7FFF
        start3 = _WINDOW + (low >> 51)
        return (
            length1 * stride1,
            stride1,
            start2,
            start2 + length2 * stride2,
            stride2,
            start3,
            start3 + length3 * stride3,
            stride3,
        )

    def contains(key: bytes) -> bool:
        high, low = digest(key, seed)
        end1, stride1, start2, end2, stride2, start3, end3, stride3 = runs(low)
        for bits, size in tables:
            start = high % size
            if (
                bits[start : start + end1 : stride1].all()
                and bits[start + start2 : start + end2 : stride2].all()
                and bits[start + start3 : start + end3 : stride3].all()
            ):
                return True
        return False

    def add(key: bytes) -> bool:
        if contains(key):
            return False
        high, low = digest(key, seed)
        end1, stride1, start2, end2, stride2, start3, end3, stride3 = runs(low)
        bits, size = tables[0]
        start = high % size
        bits[start : start + end1 : stride1] = 1
        bits[start + start2 : start + end2 : stride2] = 1
        bits[start + start3 : start + end3 : stride3] = 1
        return True

    return Probes(contains, add)
