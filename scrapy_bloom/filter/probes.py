"""Decides which bits a fingerprint owns, by numbered probe schemes that are frozen once released.

Scheme 1, *runs*: the textbook loop over k positions costs 2 to 3 microseconds in Python. Here the k probes of a
fingerprint form two *runs* (one for k = 1, three above k = 22): arithmetic progressions of bits that bitarray reads or
writes with one extended slice, in about 100 ns each. With the 128-bit MurmurHash3 of the fingerprint as one number H
(its first byte is the lowest):

    stride        bits 98..109 of H, or 4096 if these are 0; the same for all runs of a fingerprint
    first run     starts at H mod m
    second run    starts bits 113..127 of H behind the end of the first, that is start + length * stride;
                  bits 112..127 of H if there is a third
    third run     starts bits 82..97 of H behind the end of the second

CPython ints use 30-bit digits. H >> 98 fits in one, so stride and gap cost 10 ns each. The array is m bits plus a tail
of padding for runs that start near its end: starts are uniform over [0, m) and the bits are set evenly.

*Why the rate is what it is.* A run of K bits at fill f is all ones by accident with probability f^K. A stored run with
the same stride on the same progression, shifted by j places, covers K - |j| of its bits at once and leaves |j| to
chance. For R runs per fingerprint and S = 4096 strides, and summed over j, that adds c. Two runs of a fingerprint share
a stride, so they may hit the same stored fingerprint together, if their gaps (one of G = 32,768, with three runs
65,536) are equal or shifted too. That adds t:

    c = 5/4 * R n / (m S) * (1 + f) / (1 - f)                       P(run) = f^K + c
    t = 5/4 * n / (m S) * ((1 + f) / (1 - f))^2 / G                 p = (f^K + c)^2 + t             for two runs

The 5/4 stands for the other progressions that share more than one bit with a run, at strides in ratio 1:2, 1:3, 2:3.
It measures 1.28, 1.21, 1.18 and 1.13 at K = 7, 10, 11 and 12, so that p is met within 2 % up to k = 22. Layers are
sized with c and t, which costs 1.8 % more bits at p = 2e-7 than k independent probes. One run of 22 bits would err 5.7
times as often. ``docs/math.md`` derives and measures this.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from mmh3 import mmh3_x64_128_uintdigest

from scrapy_bloom.filter import sizing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from bitarray import bitarray

    Table = tuple[bitarray, int]

RUNS_SCHEME = 1  # the number of the scheme above, as written into file headers; a better one gets the next number
MAX_PROBES = 36
_STRIDES = 1 << 12
_GAPS = {1: 0, 2: 1 << 15, 3: 1 << 16}  # by the number of runs
_RELATED_STRIDES = 5 / 4  # measured, see above


class Probes(NamedTuple):
    """The operations on a chain, bound to its current tables.

    A call in Python costs 60 ns of the 700 that an addition takes, so a chain does not wrap :attr:`add`. It gives a
    quota, is called back when so many fingerprints have been added, and answers with new tables and a new quota.
    A table is the pair of a layer's array, which has m bits and the padding of :func:`padding_bits`, and m.
    """

    contains: Callable[[bytes], bool]
    """True if every bit of the fingerprint is set in one of the tables."""
    add: Callable[[bytes], bool]
    """Return False if a table has all bits of the fingerprint. Otherwise set them in the newest, and return True."""
    set_tables: Callable[..., int]
    """Work on these tables, newest first, for a quota of additions, and return what was left of the last one.

    Without tables, every operation is a ValueError that begins with the third argument, the reason.
    """
    left: Callable[[], int]
    """Return what is left of the quota."""


@cache
def run_lengths(probes: int) -> tuple[int, ...]:
    """Return the number of bits in each run of a fingerprint with k = *probes*, from 1 to 36.

    Runs stay at 12 bits or fewer, 11 with two runs: c is 12 % of f^K at K = 11 but 21 % at K = 12 with two runs.
    """
    if not 1 <= probes <= MAX_PROBES:
        raise ValueError(f"k must be from 1 to {MAX_PROBES}, not {probes}")
    runs = 1 if probes == 1 else 2 if probes <= 22 else 3
    short, longer = divmod(probes, runs)
    return tuple(short + (i < longer) for i in range(runs))


def padding_bits(probes: int) -> int:
    """Return how many bits the array needs beyond m, so that a run that starts at m - 1 still ends inside it."""
    runs = len(run_lengths(probes))
    return probes * _STRIDES + (runs - 1) * (_GAPS[runs] - 1)


def error_rate(fill: float, probes: int) -> float:
    """Return p of a layer whose fill ratio is *fill* (0 to 1), the correlation of runs included."""
    if fill >= 1:
        return 1.0
    lengths = run_lengths(probes)
    shifts = (1 + fill) / (1 - fill)
    fingerprints_per_bit = -math.log1p(-fill) / probes
    same_fingerprint = _RELATED_STRIDES * fingerprints_per_bit / _STRIDES * shifts
    rates = [fill**length + len(lengths) * same_fingerprint for length in lengths]
    if len(rates) == 1:
        return min(1.0, rates[0])
    together = same_fingerprint * shifts / _GAPS[len(rates)]
    if len(rates) == 2:
        return min(1.0, math.prod(rates) + together)
    first, second, third = rates
    # Neighbours can lie on a stored fingerprint's first two runs or on its last two.
    pairs = together * (2 * first + second + 2 * third)
    return min(1.0, math.prod(rates) + pairs + together * shifts / _GAPS[3])


def size_bits(capacity: int, error_rate_: float, probes: int) -> int:
    """Return the smallest m for which *capacity* fingerprints with k = *probes* stay at *error_rate_*."""
    low = capacity * sizing.bits_per_fingerprint(error_rate_, probes)
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


_digest: Callable[[bytes, int], int] = mmh3_x64_128_uintdigest


def _no_bytes(fingerprint: object) -> TypeError:
    hint = ": encode it first, as in text.encode()" if isinstance(fingerprint, str) else ""
    return TypeError(f"a fingerprint is bytes, not {type(fingerprint).__name__}{hint}")


def bind(
    probes: int,
    seed: int,
    *,
    on_quota_spent: Callable[[], None],
    forgotten: Collection[bytes] = (),
    recall: Callable[[bytes], bool] = bool,
) -> Probes:
    """Return the operations of a chain with k = *probes* and the hash *seed*, which has no tables yet.

    *on_quota_spent* is called after the last addition of the quota; it may then call :attr:`Probes.set_tables`. It is
    also called before an addition for which no quota is left; it must then call it. Unless *forgotten* is empty,
    :attr:`Probes.add` returns what *recall* returns for a fingerprint that it finds: whether it counts as new.

    Threads may call both operations under the GIL. A thread that is interrupted while a layer is added sets its bits in
    the layer that it has looked at, which the chain keeps. The quota may then be a little too large or too small.
    """
    length1, length2, length3 = (*run_lengths(probes), 0, 0)[:3]
    gap_bits = 14 if length3 else 15  # of H >> 98, from here on
    refusal = ""

    def refuse(fingerprint: bytes, _seed: int) -> int:
        raise ValueError(f"{refusal}; {fingerprint!r} was neither looked up nor recorded")

    digest: Callable[[bytes, int], int] = refuse
    newest: Any = ()  # the first of the tables; without one, unpacking it is a ValueError
    tables: Sequence[Table] = ()
    has_older = False
    left = 0

    def contains(fingerprint: bytes) -> bool:
        try:
            h = digest(fingerprint, seed)
        except TypeError:
            raise _no_bytes(fingerprint) from None
        top = h >> 98
        stride = top & 0xFFF or 4096
        for bits, m in tables:
            start = h % m
            # Testing one bit first settles half of the absent fingerprints, in 30 ns instead of 170.
            if bits[start]:
                end = start + length1 * stride
                if bits[start:end:stride].all():
                    start = end + (top >> gap_bits)
                    end = start + length2 * stride
                    if bits[start:end:stride].all():
                        start = end + (h >> 82 & 0xFFFF)
                        if not length3 or bits[start : start + length3 * stride : stride].all():
                            return fingerprint not in forgotten
        return False

    # Inlined for the newest table, which holds most duplicates and takes every new fingerprint.
    def add(fingerprint: bytes) -> bool:
        nonlocal left
        try:
            h = digest(fingerprint, seed)
        except TypeError:
            raise _no_bytes(fingerprint) from None
        top = h >> 98
        stride = top & 0xFFF or 4096
        while True:
            bits, m = newest  # in one step, or another thread could add a layer in between
            start1 = h % m
            end1 = start1 + length1 * stride
            start2 = end1 + (top >> gap_bits)
            end2 = start2 + length2 * stride
            if (
                bits[start1:end1:stride].all()
                and bits[start2:end2:stride].all()
                and (
                    not length3
                    or bits[(start3 := end2 + (h >> 82 & 0xFFFF)) : start3 + length3 * stride : stride].all()
                )
            ):
                return recall(fingerprint) if forgotten else False
            # Looking at the newest table again takes a tenth of the time.
            if has_older and (fingerprint in forgotten or contains(fingerprint)):
                return recall(fingerprint) if forgotten else False
            if left > 0:
                break
            on_quota_spent()
        bits[start1:end1:stride] = 1
        bits[start2:end2:stride] = 1
        if length3:
            start3 = end2 + (h >> 82 & 0xFFFF)
            bits[start3 : start3 + length3 * stride : stride] = 1
        left -= 1
        if left <= 0:
            on_quota_spent()
        return True

    def set_tables(tables_: Sequence[Table], quota: int, reason: str = "the filter is closed") -> int:
        nonlocal digest, newest, tables, has_older, left, refusal
        refusal = reason
        digest = _digest if tables_ else refuse
        tables, has_older = tables_, len(tables_) > 1
        newest = tables_[0] if tables_ else ()
        before, left = left, quota
        return before

    return Probes(contains, add, set_tables, lambda: left)
