"""Where the bits of a chain live: :class:`LayerStore`, in memory. ``directory`` has the store in files."""

from __future__ import annotations

import mmap
import secrets
from typing import TYPE_CHECKING

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.filter.layer import Layer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy_bloom.filter.layer import LayerSpec

_HUGE_PAGES_FROM = 1 << 26  # 64 MiB: beyond it, a look-up in 4 KiB pages is half spent on finding the page


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
