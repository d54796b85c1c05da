"""One bloom filter of fixed size over a buffer: :class:`Layer`; its design; and the memory where layers live.

``directory`` has the store in files.
"""

from __future__ import annotations

import math
import mmap
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitarray import bitarray

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.filter import probes as probing
from scrapy_bloom.filter import sizing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_SAMPLE_BITS = 1 << 23  # 1 MiB, counted in under a millisecond
_PIECE_BITS = 1 << 15  # one 4 KiB page
_ONES = b"\xff" * 64
_HUGE_PAGES_FROM = 1 << 26  # 64 MiB: beyond it, a look-up in 4 KiB pages is half spent on finding the page


@dataclass(frozen=True)
class LayerSpec:
    """The design of a layer, which never changes."""

    index: int  # place in the chain, from 0
    capacity: int  # n, the number of fingerprints that the layer is made for
    error_rate: float  # p_i, the false-positive probability at capacity
    size_bits: int  # m, the range of starts
    probes: int  # k, the bits per fingerprint; the same in all layers of a chain
    seed: int  # of the hash, 32 bits; the same in all layers of a chain

    @classmethod
    def smallest(cls, *, index: int, capacity: int, error_rate: float, probes: int, seed: int) -> LayerSpec:
        """Return the smallest layer that holds *capacity* fingerprints at *error_rate* with k = *probes*.

        Runs spread their bits up to a padding's length behind their start, so both ends of the array are thinner than
        the middle. A layer has at least four paddings (15,000 fingerprints at 1e-6), so that most of it is middle.
        """
        least = 4 * probing.padding_bits(probes)
        return cls(
            index, capacity, error_rate, max(least, probing.size_bits(capacity, error_rate, probes)), probes, seed
        )

    @property
    def nbytes(self) -> int:
        """Length of the bit array in bytes: m and the padding, in whole 64-bit words."""
        return -(-(self.size_bits + probing.padding_bits(self.probes)) // 64) * 8

    @property
    def designed_fill(self) -> float:
        """The fill ratio expected at capacity, at most a little under one half."""
        return sizing.fill_ratio(self.capacity, self.size_bits, self.probes)

    def error_rate_at(self, count: float) -> float:
        """Return the false-positive probability after *count* fingerprints."""
        return probing.error_rate(sizing.fill_ratio(count, self.size_bits, self.probes), self.probes)


class Layer:
    """A layer: its spec, its bits and the number of fingerprints in them."""

    __slots__ = ("bits", "count", "created", "spec")

    def __init__(self, spec: LayerSpec, buffer: mmap.mmap | memoryview, created: float = 0.0) -> None:
        """Lay the bits over *buffer*, of exactly ``spec.nbytes`` bytes. *created* is in seconds since 1970."""
        self.spec = spec
        self.bits = bitarray(buffer=buffer, endian="little")
        if len(self.bits) != 8 * spec.nbytes:
            raise ValueError(f"the buffer holds {len(self.bits)} bits, the layer needs {8 * spec.nbytes}")
        self.count = 0
        self.created = created

    @property
    def capacity(self) -> int:
        """The number of fingerprints this layer is made for."""
        return self.spec.capacity

    @property
    def error_rate(self) -> float:
        """The designed false-positive probability at capacity."""
        return self.spec.error_rate

    @property
    def table(self) -> probing.Table:
        """The layer as :func:`scrapy_bloom.filter.probes.bind` takes it."""
        return self.bits, self.spec.size_bits

    @property
    def fill_ratio(self) -> float:
        """The share of set bits, 0 to 1, between the thin ends: from a sample of at most 1 MiB, in about 1 ms.

        The sample's standard error is under 0.0006 at half fill and k = 22.
        """
        sample = self._sample()
        return sum(self.bits.count(1, start, stop) for start, stop in sample) / sum(b - a for a, b in sample)

    @property
    def estimated_error_rate(self) -> float:
        """The false-positive probability at the present fill."""
        return probing.error_rate(self.fill_ratio, self.spec.probes)

    @property
    def is_saturated(self) -> bool:
        """True at capacity, and also when the bits are fuller than designed, whatever the count."""
        designed = self.spec.designed_fill
        return self.count >= self.capacity or self.fill_ratio > designed + self._sampling_error(designed)

    def estimated_count(self) -> int:
        """Return about how many fingerprints are in the bits, at most the capacity; within 1 % from 100,000 on."""
        estimate = sizing.count_from_fill(self.fill_ratio, self.spec.size_bits, self.spec.probes)
        return math.ceil(min(estimate, self.capacity))

    def ones(self, *, thorough: bool = False) -> int | None:
        """Return the offset of 64 bytes in which all bits are set, or None. Sound layers do not have such bytes.

        This is the only damage that makes many new fingerprints look seen: zeros only forget fingerprints, and random
        bits look like a full layer. Looks at a sample of 1 MiB; if *thorough*, at all bits.
        """
        start, stop = probing.padding_bits(self.spec.probes), self.spec.size_bits
        parts = [(0, start), (stop, len(self.bits)), *self._sample()]
        if thorough:
            parts = [(at, at + _SAMPLE_BITS + 8 * len(_ONES)) for at in range(0, len(self.bits), _SAMPLE_BITS)]
        data = memoryview(self.bits)
        for at, end in parts:
            if (offset := bytes(data[at // 8 : end // 8]).find(_ONES)) >= 0:
                return at // 8 + offset
        return None

    def _sample(self) -> list[tuple[int, int]]:
        """Return ranges of bits between the thin ends, at most 1 MiB of them, spread evenly."""
        start, stop = probing.padding_bits(self.spec.probes), self.spec.size_bits
        if stop - start <= _SAMPLE_BITS:
            return [(start, stop)]
        pieces = _SAMPLE_BITS // _PIECE_BITS
        step = (stop - start - _PIECE_BITS) // (pieces - 1)
        return [(at, at + _PIECE_BITS) for at in range(start, start + pieces * step, step)]

    def _sampling_error(self, fill: float) -> float:
        """Return six standard errors of the sampled fill, which no sound layer exceeds: 0.35 % of 1 MiB at k = 22.

        Fingerprints, not bits, fall into a sampled page at random, and several of one's k bits often share a page.
        That makes the variance up to k (1 - f) times the variance of independent bits; on pages of full layers it
        was 0.7 to 0.9 of this.
        """
        sampled = min(_SAMPLE_BITS, self.spec.size_bits - probing.padding_bits(self.spec.probes))
        variance = max(fill * (1 - fill), 1 / sampled) / sampled
        return 6 * math.sqrt(variance * max(1.0, self.spec.probes * (1 - fill)))


class LayerStore:
    """Where the layers of one chain live: here in anonymous memory. A store in files overrides everything."""

    synced = 0  # see ScalableBloomFilter.synced

    def __init__(self, layers: Iterable[Layer] = (), forgotten: Iterable[bytes] = (), watermark: int = 0) -> None:
        self.chain_id = secrets.token_hex(16)
        self.watermark = watermark
        self._content = list(layers), set(forgotten)

    def load(self) -> tuple[list[Layer], set[bytes]]:
        """Return the layers that are there already, oldest first, and the fingerprints that were forgotten."""
        return self._content

    def create(self, spec: LayerSpec, created: float) -> Layer:
        """Return a new empty layer, begun at *created*. It costs memory only where it has been touched.

        Raises:
            UnusableError: It does not fit into memory.

        """
        try:
            # Private: in a shared mapping, additions of a forked child would look seen to its parent, which would never
            # fetch these pages.
            memory = mmap.mmap(-1, spec.nbytes, access=mmap.ACCESS_COPY)
        except (OSError, MemoryError, OverflowError) as error:
            raise UnusableError(
                "The filter in memory",
                f"cannot be begun or grow: {getattr(error, 'strerror', '') or error}",
                advice=f"A layer for {spec.capacity:,} fingerprints needs {spec.nbytes:,} bytes. Lower the capacity "
                "(BLOOM_CAPACITY), which sizes the first layer: the filter grows by itself.",
            ) from error
        if spec.nbytes >= _HUGE_PAGES_FROM and hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
            memory.madvise(mmap.MADV_HUGEPAGE)
        return Layer(spec, memory, created)

    def drop(self, before: int) -> None:
        """Delete the layers before index *before*, which are not read any more."""

    def note_forgotten(self, fingerprint: bytes, *, forgotten: bool) -> None:
        """Note that *fingerprint* has been forgotten, or accepted once more. Must not fail."""

    def sync(self) -> None:
        """Return once everything added so far would survive a power failure."""

    def close(self) -> None:
        """Save the counts and release the buffers."""


def reader(layers: Sequence[Layer]) -> Callable[[bytes], bool]:
    """Return a function that returns whether a fingerprint is in one of the *layers* of a chain, forgotten or not."""
    spec = layers[0].spec
    probes = probing.bind(spec.probes, spec.seed, on_quota_spent=lambda: None)
    probes.set_tables([layer.table for layer in layers], 0)
    return probes.contains
