"""Describes the filter in a directory without touching it: :func:`inspect_directory`.

Works beside a running crawl and on a read-only disk. What is wrong is part of the description, not an exception.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter import layerfile, plan
from scrapy_bloom.filter.directory import FORGOTTEN_NAME, contradictions, layer_paths
from scrapy_bloom.filter.forgotten import read_forgotten
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.lock import is_locked, owner

if TYPE_CHECKING:
    import os

    from scrapy_bloom.filter.layer import LayerSpec
    from scrapy_bloom.filter.layerfile import Header


@dataclass(frozen=True)
class LayerDescription:
    """One layer file."""

    path: Path
    spec: LayerSpec
    """Its design: capacity, error rate, bits."""
    count: int
    """URLs in it: exact after a clean stop, otherwise estimated from the bits."""
    fill_ratio: float
    """The share of its bits that is set, from a sample; 0 to 1."""
    created: float
    """Seconds since 1970."""
    is_clean: bool
    """Whether it was closed, or has been full and on disk since."""


@dataclass(frozen=True)
class FilterDescription:
    """The filter in a directory at one moment."""

    directory: Path
    exists: bool
    """Whether there is a filter: at least one layer file, sound or not."""
    layers: tuple[LayerDescription, ...]
    """The layers that can be read, oldest first."""
    forgotten: int
    """URLs taken back because their requests failed."""
    chain_id: str
    """As :attr:`ScalableBloomFilter.chain_id`; empty without a layer."""
    error_rate: float | None
    """Bound for the whole chain that was set when the newest layer was born."""
    watermark: int
    """As :attr:`ScalableBloomFilter.watermark`."""
    expected_lost: float
    """Pages that the approximation may have cost, from the counts."""
    is_in_use: bool
    """Whether a process holds the directory's lock."""
    owner: str
    """The last process that held it, in words, or nothing."""
    damage: tuple[str, ...]
    """What is wrong, in sentences with what to do."""

    @property
    def urls(self) -> int:
        """URLs remembered: exact after a clean stop, otherwise estimated from the bits."""
        return max(0, sum(layer.count for layer in self.layers) - self.forgotten)

    @property
    def nbytes(self) -> int:
        """Bytes of all bit arrays."""
        return sum(layer.spec.nbytes for layer in self.layers)

    @property
    def is_clean(self) -> bool:
        """Whether the last crawl closed it. Also False while a crawl runs."""
        return all(layer.is_clean for layer in self.layers) and not self.damage


def inspect_directory(directory: str | os.PathLike[str], *, thorough: bool = False) -> FilterDescription:
    """Describe the filter in *directory*, which need not exist and may hold anything.

    If *thorough*, hold the bits of every layer against its count MiB by MiB (0.4 s per GB if they are in memory);
    otherwise look at a sample, as opening the filter does.
    """
    path = Path(directory)
    damage: list[str] = []
    headers: dict[Path, Header] = {}
    paths = layer_paths(path)
    for file in paths:
        try:
            headers[file] = layerfile.read_header(file)
        except (BloomError, OSError) as error:
            damage.append(_sentence(error))
    if not damage:
        damage += map(str, contradictions(headers))
    layers = []
    for file, header in headers.items():
        try:
            layers.append(_described(file, header, damage, thorough=thorough))
        except (OSError, ValueError) as error:
            damage.append(_sentence(error))
    forgotten: set[bytes] = set()
    try:
        forgotten = read_forgotten(path / FORGOTTEN_NAME)
    except (BloomError, OSError) as error:
        damage.append(_sentence(error))
    newest = headers[list(headers)[-1]] if headers else None
    return FilterDescription(
        directory=path,
        exists=bool(paths),
        layers=tuple(layers),
        forgotten=len(forgotten),
        chain_id="" if newest is None else newest.origin.chain_id,
        error_rate=None if newest is None else newest.origin.error_rate,
        watermark=0 if newest is None else newest.watermark,
        expected_lost=plan.expected_false_positives([(layer.spec, layer.count) for layer in layers]),
        is_in_use=is_locked(path),
        owner=owner(path),
        damage=tuple(damage),
    )


def _described(path: Path, header: Header, damage: list[str], *, thorough: bool) -> LayerDescription:
    """Describe the layer at *path*, and add what contradicts its count to *damage*."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        layer = Layer(header.spec, memoryview(data)[layerfile.HEADER_BYTES :])
        try:
            layerfile.check_bits(path, header, layer, thorough=thorough)
        except BloomError as error:
            damage.append(str(error))
        fill_ratio = layer.fill_ratio
        layer.bits = type(layer.bits)()  # lets go of the mapping
    return LayerDescription(path, header.spec, layer.count, fill_ratio, header.origin.created, header.is_clean)


def _sentence(error: Exception) -> str:
    if isinstance(error, BloomError):
        return str(error)
    return f"It cannot be read: {error}. Check the owner, the permissions and the disk of what is named."
