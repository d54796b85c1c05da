"""One bloom filter of fixed size over somebody's buffer.

Knows its size and its bits. Does not know its neighbours in a chain, nor whether its buffer is memory or a file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitarray import bitarray

from scrapy_bloom.old.filter import probes as probing
from scrapy_bloom.old.filter import sizing

if TYPE_CHECKING:
    from mmap import mmap

_SAMPLE_BITS = 1 << 23
_SAMPLE_PIECE_BITS = 1 << 15  # one 4 KiB page


@dataclass(frozen=True)
class LayerSpec:
    """What never changes in the life of a layer."""

    index: int
    """Place in the chain, from 0."""
    capacity: int
    """n, the number of fingerprints the layer is made for."""
    error_rate: float
    """p_i, the false-positive probability at capacity."""
    size_bits: int
    """m, the range of starts. The array holds :attr:`array_bits`."""
    probes: int
    """k, the bits per fingerprint; the same in all layers of a chain."""
    seed: int
    """Seed of the hash, 32 bits; the same in all layers of a chain."""
    scheme: int = probing.RUNS_SCHEME
    """Number of the probe scheme."""

    @classmethod
    def smallest(cls, *, index: int, capacity: int, error_rate: float, probes: int, seed: int) -> LayerSpec:
        """Return the smallest layer that holds *capacity* fingerprints at *error_rate* with k = *probes*."""
        size_bits = probing.size_bits(capacity, error_rate, probes)
        return cls(index, capacity, error_rate, size_bits, probes, seed)

    @property
    def array_bits(self) -> int:
        """Length of the bit array: m and the padding, in bits, a multiple of 64."""
        return -(-(self.size_bits + probing.padding_bits(self.probes)) // 64) * 64

    @property
    def nbytes(self) -> int:
        """Length of the bit array in bytes."""
        return self.array_bits // 8

    @property
    def designed_fill(self) -> float:
        """The fill ratio expected at capacity, a little under one half."""
        return sizing.fill_ratio(self.capacity, self.size_bits, self.probes)

    def error_rate_at(self, count: float) -> float:
        """Return the false-positive probability after *count* fingerprints.

        In a tiny layer most bits fall into the padding, where the array is thinner, and the rate is far below the
        designed one. Counted as if an eighth of the padding were part of m, it comes out 1 to 10 times as high as
        measured wherever it is above 1e-4, and higher still below that (300 to 40,000 fingerprints, k = 2 to 22).
        Layers with k = 1 have no runs to spread.
        """
        spread = 0 if self.sampled_range or self.probes == 1 else probing.padding_bits(self.probes) / 8
        return probing.error_rate(sizing.fill_ratio(count, self.size_bits + spread, self.probes), self.probes)

    @property
    def sampled_range(self) -> tuple[int, int] | None:
        """The range of bits whose fill is even, or None if the layer is too small to have one.

        Runs spread their bits up to a padding's length behind their start, so both ends of the array are thinner than
        the middle. A layer of less than four paddings is mostly ends.
        """
        padding = probing.padding_bits(self.probes)
        return (padding, self.size_bits) if self.size_bits > 4 * padding else None


class Layer:
    """A layer: its spec, its bits and the number of fingerprints in them."""

    __slots__ = ("bits", "count", "created", "spec")

    def __init__(self, spec: LayerSpec, buffer: mmap | memoryview, count: int = 0, *, created: float = 0.0) -> None:
        """Lay the bits over *buffer*: writable, exactly ``spec.nbytes`` bytes, and holding *count* fingerprints."""
        self.spec = spec
        self.bits = bitarray(buffer=buffer, endian="little")
        if len(self.bits) != spec.array_bits:
            raise ValueError(f"the buffer holds {len(self.bits)} bits, the layer needs {spec.array_bits}")
        self.count = count
        self.created = created
        """When it was begun, in seconds since 1970."""

    def __repr__(self) -> str:
        """Show index, count, capacity and error rate."""
        return f"<Layer {self.spec.index}: {self.count} of {self.capacity} fingerprints at {self.error_rate:.2g}>"

    @property
    def capacity(self) -> int:
        """The number of fingerprints this layer is made for."""
        return self.spec.capacity

    @property
    def error_rate(self) -> float:
        """The designed false-positive probability at capacity."""
        return self.spec.error_rate

    @property
    def nbytes(self) -> int:
        """Size of the bit array in bytes."""
        return self.spec.nbytes

    @property
    def table(self) -> tuple[bitarray, int]:
        """The bits and m, as the probes see them."""
        return self.bits, self.spec.size_bits

    @property
    def fill_ratio(self) -> float:
        """The share of set bits, 0 to 1, in the even part: from a sample of at most 1 MiB, in about 1 ms.

        The sample's standard error is under 0.0006 at half fill and k = 22 (:meth:`_sampling_error`). A layer too
        small for an even part (about 15,000 fingerprints at 1e-6) answers with the fill computed from its count, which
        no part of it exceeds.
        """
        even = self.spec.sampled_range
        if even is None:
            return sizing.fill_ratio(self.count, self.spec.size_bits, self.spec.probes)
        start, stop = even
        if stop - start <= _SAMPLE_BITS:
            return self.bits.count(1, start, stop) / (stop - start)
        pieces = _SAMPLE_BITS // _SAMPLE_PIECE_BITS
        step = (stop - start - _SAMPLE_PIECE_BITS) // (pieces - 1)
        count = self.bits.count
        ones = sum(count(1, at, at + _SAMPLE_PIECE_BITS) for at in range(start, start + pieces * step, step))
        return ones / _SAMPLE_BITS

    @property
    def estimated_error_rate(self) -> float:
        """The false-positive probability at the present fill; of a tiny layer, at the present count."""
        if self.spec.sampled_range is None:
            return self.spec.error_rate_at(self.count)
        return probing.error_rate(self.fill_ratio, self.spec.probes)

    @property
    def is_saturated(self) -> bool:
        """True at capacity, and also when the bits are fuller than designed, whatever the count."""
        return self.count >= self.capacity or self._fuller_than(self.spec.designed_fill)

    def contradiction(self) -> str | None:
        """Return how the bits contradict the count, or None if they agree as far as a sample can tell."""
        if self.spec.sampled_range is None:
            # Edges make the fill of a tiny layer hard to predict from below; k bits each bound it from above.
            ones, most = self.bits.count(), self.count * self.spec.probes
            return f"{ones} bits are set, but {self.count} fingerprints set at most {most}" if ones > most else None
        return self._contradiction_by(self.fill_ratio)

    def contradiction_anywhere(self) -> str | None:
        """Return the same for each MiB of the bits by itself, all of which are read (0.4 s per GB)."""
        even = self.spec.sampled_range
        if even is None or even[1] - even[0] <= _SAMPLE_BITS:
            return self.contradiction()
        start, stop = even
        for place in (*range(start, stop - _SAMPLE_BITS, _SAMPLE_BITS), stop - _SAMPLE_BITS):
            fill = self.bits.count(1, place, place + _SAMPLE_BITS) / _SAMPLE_BITS
            if found := self._contradiction_by(fill):
                return f"around byte {place // 8:,} of them, {found}"
        return None

    def _contradiction_by(self, fill: float) -> str | None:
        """Return how *fill*, measured over the size of a sample, contradicts the count."""
        expected = sizing.fill_ratio(self.count, self.spec.size_bits, self.spec.probes)
        # Each counted fingerprint has set a bit, since one that finds all of its bits set is taken for seen. At high
        # error rates that tells: 3 % more fill at p = 0.1, eight times the sampling error in a large layer.
        highest = sizing.fill_ratio(self.count / (1 - self.error_rate), self.spec.size_bits, self.spec.probes)
        tolerance = self._sampling_error(expected)
        if expected - tolerance <= fill <= highest + tolerance:
            return None
        expectation = f"{self.count} fingerprints set {expected:.2%} (give or take {tolerance:.2%})"
        return f"{fill:.2%} of the bits are set, but {expectation}"

    def recount(self) -> None:
        """Estimate the count from the bits, well enough to decide when the layer is full (0.4 s per GB)."""
        self.count = self._count_of_bits()

    def estimated_count(self) -> int:
        """Return about what :meth:`recount` would find, from a sample of the bits: 1 ms, however large the layer."""
        if self.spec.sampled_range is None:
            return self._count_of_bits()
        estimate = sizing.count_from_fill(self.fill_ratio, self.spec.size_bits, self.spec.probes)
        return math.ceil(min(estimate, self.capacity))

    def _count_of_bits(self) -> int:
        ones = even_ones = self.bits.count()
        if self.spec.sampled_range is None:
            # The bits of a tiny layer reach over its padding too, ever more thinly. Counting a quarter of it, estimates
            # came out 1 % too low to 7 % too high (n = 30 to 12,000, p = 0.3 to 1e-10); without it, up to 70 %.
            size = even_size = self.spec.size_bits + probing.padding_bits(self.spec.probes) // 4
        else:
            # The edges hold fewer bits per place, with which the whole array looks up to 4 % fuller.
            size = self.spec.size_bits
            start, stop = self.spec.sampled_range
            even_ones -= self.bits.count(1, 0, start) + self.bits.count(1, stop)
            even_size = stop - start
        estimate = sizing.count_from_fill(even_ones / even_size, size, self.spec.probes)
        return math.ceil(min(max(estimate, ones / self.spec.probes), self.capacity))

    def _fuller_than(self, fill: float) -> bool:
        even = self.spec.sampled_range
        return even is not None and self.fill_ratio > fill + self._sampling_error(fill)

    def _sampling_error(self, fill: float) -> float:
        """Return six standard errors of the sampled fill, which no sound layer exceeds: 0.35 % of 1 MiB at k = 22.

        Fingerprints, not bits, fall into a sampled page at random, and several of one's k bits often share a page.
        That makes the variance up to k (1 - f) times that of independent bits; pages of full layers measured 0.7 to 0.9
        of that.
        """
        even = self.spec.sampled_range
        if even is None:
            return math.inf
        sampled = min(_SAMPLE_BITS, even[1] - even[0])
        variance = max(fill * (1 - fill), 1 / sampled) / sampled
        return 6 * math.sqrt(variance * max(1.0, self.spec.probes * (1 - fill)))
