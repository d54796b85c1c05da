"""One bloom filter of fixed size over a buffer, in memory or in a file: :class:`Layer`, and its design."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitarray import bitarray

from scrapy_bloom.filter import probes as probing
from scrapy_bloom.filter import sizing

if TYPE_CHECKING:
    from mmap import mmap

_SAMPLE_BITS = 1 << 23  # 1 MiB, counted in under a millisecond
_PIECE_BITS = 1 << 15  # one 4 KiB page
_ONES = b"\xff" * 64


@dataclass(frozen=True)
class LayerSpec:
    """The design of a layer, which never changes."""

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

    @classmethod
    def smallest(cls, *, index: int, capacity: int, error_rate: float, probes: int, seed: int) -> LayerSpec:
        """Return the smallest layer that holds *capacity* fingerprints at *error_rate* with k = *probes*."""
        return cls(index, capacity, error_rate, probing.size_bits(capacity, error_rate, probes), probes, seed)

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

    @property
    def even_bits(self) -> tuple[int, int] | None:
        """The range of bits whose fill is even, or None if the layer is too small to have one.

        Runs spread their bits up to a padding's length behind their start, so both ends of the array are thinner than
        the middle. A *tiny* layer, of less than four paddings (15,000 fingerprints at 1e-6), is mostly ends.
        """
        padding = probing.padding_bits(self.probes)
        return (padding, self.size_bits) if self.size_bits > 4 * padding else None

    def error_rate_at(self, count: float) -> float:
        """Return the false-positive probability after *count* fingerprints.

        In a tiny layer most bits fall into the padding, where the array is thinner, and the rate is far below the
        designed one. Counted as if an eighth of the padding were part of m, it comes out 1 to 10 times as high as
        measured wherever it is above 1e-4 (300 to 40,000 fingerprints, k = 2 to 22). With k = 1 no runs spread.
        """
        spread = 0 if self.even_bits or self.probes == 1 else probing.padding_bits(self.probes) / 8
        return probing.error_rate(sizing.fill_ratio(count, self.size_bits + spread, self.probes), self.probes)


class Layer:
    """A layer: its spec, its bits and the number of fingerprints in them."""

    __slots__ = ("bits", "count", "created", "spec")

    def __init__(self, spec: LayerSpec, buffer: mmap | memoryview, count: int = 0, *, created: float = 0.0) -> None:
        """Lay the bits over *buffer*: exactly ``spec.nbytes`` bytes, which hold *count* fingerprints."""
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
    def fill_ratio(self) -> float:
        """The share of set bits, 0 to 1, in the even part: from a sample of at most 1 MiB, in about 1 ms.

        The sample's standard error is under 0.0006 at half fill and k = 22. A tiny layer answers with the fill computed
        from its count, which no part of it exceeds.
        """
        if self.spec.even_bits is None:
            return sizing.fill_ratio(self.count, self.spec.size_bits, self.spec.probes)
        pieces = self._sample()
        return sum(self.bits.count(1, start, stop) for start, stop in pieces) / sum(b - a for a, b in pieces)

    @property
    def estimated_error_rate(self) -> float:
        """The false-positive probability at the present fill; of a tiny layer, at the present count."""
        if self.spec.even_bits is None:
            return self.spec.error_rate_at(self.count)
        return probing.error_rate(self.fill_ratio, self.spec.probes)

    @property
    def is_saturated(self) -> bool:
        """True at capacity, and also when the bits are fuller than designed, whatever the count."""
        if self.count >= self.capacity:
            return True
        designed = self.spec.designed_fill
        return self.spec.even_bits is not None and self.fill_ratio > designed + self._sampling_error(designed)

    def estimated_count(self) -> int:
        """Return about how many fingerprints are in the bits, at most the capacity: within 1 %, a tiny layer 8 %."""
        size, probes = self.spec.size_bits, self.spec.probes
        if self.spec.even_bits is not None:
            return math.ceil(min(sizing.count_from_fill(self.fill_ratio, size, probes), self.capacity))
        # The bits of a tiny layer reach over its padding, ever more thinly. Counting a quarter of it, estimates were
        # 1 % too low to 7 % too high (n = 30 to 12,000, p = 0.3 to 1e-10); without it, up to 70 %.
        ones, size = self.bits.count(), size + probing.padding_bits(probes) // 4
        return math.ceil(min(max(sizing.count_from_fill(ones / size, size, probes), ones / probes), self.capacity))

    def contradiction(self, *, thorough: bool = False) -> str | None:
        """Return how the bits contradict the count, or themselves, or None if they do not.

        Looks at a sample of 1 MiB; if *thorough*, at each MiB by itself (0.4 s per GB if they are in memory).
        """
        if (at := self._block_of_ones(thorough=thorough)) is not None:
            return f"byte {at:,} of its bits begins {len(_ONES)} of nothing but ones, which no fingerprints leave"
        if self.spec.even_bits is None:
            # Edges make the fill of a tiny layer hard to predict from below; k bits each bound it from above.
            ones, most = self.bits.count(), self.count * self.spec.probes
            return f"{ones} bits are set, but {self.count} fingerprints set at most {most}" if ones > most else None
        start, stop = self.spec.even_bits
        if not thorough or stop - start <= _SAMPLE_BITS:
            return self._contradiction_by(self.fill_ratio, "")
        for at in (*range(start, stop - _SAMPLE_BITS, _SAMPLE_BITS), stop - _SAMPLE_BITS):
            fill = self.bits.count(1, at, at + _SAMPLE_BITS) / _SAMPLE_BITS
            if found := self._contradiction_by(fill, f" around byte {at // 8:,}"):
                return found
        return None

    def _contradiction_by(self, fill: float, place: str) -> str | None:
        """Return how *fill*, measured over the size of a sample, contradicts the count."""
        expected = sizing.fill_ratio(self.count, self.spec.size_bits, self.spec.probes)
        # Each counted fingerprint has set a bit, since one that finds all of its bits set is taken for seen. At high
        # error rates that tells: 3 % more fill at p = 0.1, eight times the sampling error in a large layer.
        highest = sizing.fill_ratio(self.count / (1 - self.error_rate), self.spec.size_bits, self.spec.probes)
        tolerance = self._sampling_error(expected)
        if expected - tolerance <= fill <= highest + tolerance:
            return None
        expectation = f"{self.count} fingerprints set {expected:.2%} (give or take {tolerance:.2%})"
        return f"{fill:.2%} of the bits{place} are set, but {expectation}"

    def _sample(self) -> list[tuple[int, int]]:
        """Return ranges of bits in the even part, at most 1 MiB of them, spread evenly; of a tiny layer, all."""
        start, stop = self.spec.even_bits or (0, self.spec.array_bits)
        if stop - start <= _SAMPLE_BITS:
            return [(start, stop)]
        pieces = _SAMPLE_BITS // _PIECE_BITS
        step = (stop - start - _PIECE_BITS) // (pieces - 1)
        return [(at, at + _PIECE_BITS) for at in range(start, start + pieces * step, step)]

    def _block_of_ones(self, *, thorough: bool) -> int | None:
        """Return the byte where 512 ones in a row begin. Half the bits of a full layer are ones, so none has them."""
        data = memoryview(self.bits)
        pieces = self._sample()
        if thorough:
            pieces = [(at, at + _SAMPLE_BITS + 8 * len(_ONES)) for at in range(0, self.spec.array_bits, _SAMPLE_BITS)]
        for start, stop in pieces:
            if (found := bytes(data[start // 8 : stop // 8]).find(_ONES)) >= 0:
                return start // 8 + found
        return None

    def _sampling_error(self, fill: float) -> float:
        """Return six standard errors of the sampled fill, which no sound layer exceeds: 0.35 % of 1 MiB at k = 22.

        Fingerprints, not bits, fall into a sampled page at random, and several of one's k bits often share a page.
        That makes the variance up to k (1 - f) times that of independent bits; pages of full layers measured 0.7 to 0.9
        of that.
        """
        start, stop = self.spec.even_bits or (0, self.spec.array_bits)
        sampled = min(_SAMPLE_BITS, stop - start)
        variance = max(fill * (1 - fill), 1 / sampled) / sampled
        return 6 * math.sqrt(variance * max(1.0, self.spec.probes * (1 - fill)))
