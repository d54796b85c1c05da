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
from scrapy_bloom.filter.layer import Layer, LayerSpec
from scrapy_bloom.filter.lock import is_locked, owner

if TYPE_CHECKING:
    import os

    from scrapy_bloom.filter.layerfile import Header


@dataclass(frozen=True)
class LayerDescription:
    """One layer file."""

    path: Path
    spec: LayerSpec  # capacity, error rate, bytes
    count: int  # URLs in it: exact after a clean stop, otherwise estimated from the bits
    fill_ratio: float  # the share of its bits that is set, 0 to 1, from a sample
    created: float  # seconds since 1970
    is_clean: bool  # whether it was closed, or has been full and on disk since


@dataclass(frozen=True)
class FilterDescription:
    """The filter in a directory at one moment."""

    directory: Path
    exists: bool  # whether there is at least one layer file, sound or not
    layers: tuple[LayerDescription, ...]  # those that can be read, oldest first
    forgotten: int  # URLs taken back because their requests failed
    chain_id: str  # empty without a layer
    error_rate: float | None  # bound for the whole chain that was set when the newest layer was born
    watermark: int
    is_in_use: bool  # whether a process holds the directory's lock
    owner: str  # the last process that held it, in words, or nothing
    damage: tuple[str, ...]  # what is wrong, in sentences with what to do

    @property
    def urls(self) -> int:
        """URLs remembered: exact after a clean stop, otherwise estimated from the bits."""
        return max(0, sum(layer.count for layer in self.layers) - self.forgotten)

    @property
    def nbytes(self) -> int:
        """Bytes of all bit arrays."""
        return sum(layer.spec.nbytes for layer in self.layers)

    @property
    def expected_lost(self) -> float:
        """Pages that the approximation may have cost, from the counts."""
        return plan.expected_false_positives([(layer.spec, layer.count) for layer in self.layers])

    @property
    def is_clean(self) -> bool:
        """Whether the last crawl closed it. Also False while a crawl runs."""
        return not self.damage and all(layer.is_clean for layer in self.layers)


def inspect_directory(directory: str | os.PathLike[str], *, thorough: bool = False) -> FilterDescription:
    """Describe the filter in *directory*, which need not exist and may hold anything.

    If *thorough*, hold the bits of every layer against its count MiB by MiB (0.4 s per GB if they are in memory);
    otherwise look at a sample, as opening the filter does.
    """
    path = Path(directory)
    damage: list[Exception] = []
    headers: dict[Path, Header] = {}
    layers, forgotten = [], set[bytes]()
    for file in (paths := layer_paths(path)):
        try:
            header = headers[file] = layerfile.read_header(file)
            layers.append(_described(file, header, damage, thorough=thorough))
        except (BloomError, OSError, ValueError) as error:
            damage.append(error)
    if len(headers) == len(paths):
        damage += contradictions(headers)
    try:
        forgotten, _ = read_forgotten(path / FORGOTTEN_NAME)
    except (BloomError, OSError) as error:
        damage.append(error)
    newest = list(headers.values())[-1] if headers else None
    return FilterDescription(
        directory=path,
        exists=bool(paths),
        layers=tuple(layers),
        forgotten=len(forgotten),
        chain_id="" if newest is None else newest.chain_id,
        error_rate=None if newest is None else newest.chain_error_rate,
        watermark=0 if newest is None else newest.watermark,
        is_in_use=is_locked(path),
        owner=owner(path),
        damage=tuple(
            str(error) if isinstance(error, BloomError) else f"It cannot be read: {error}. Check owner, mode and disk."
            for error in damage
        ),
    )


def _described(path: Path, header: Header, damage: list[Exception], *, thorough: bool) -> LayerDescription:
    """Describe the layer at *path*, and add what contradicts its count to *damage*."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        layer = Layer(header.spec, memoryview(data)[layerfile.HEADER_BYTES :])
        try:
            layerfile.check_bits(path, header, layer, thorough=thorough)
        except BloomError as error:
            damage.append(error)
        fill_ratio = layer.fill_ratio
        layer.bits = type(layer.bits)()  # lets go of the mapping
    return LayerDescription(path, header.spec, layer.count, fill_ratio, header.created, header.is_clean)
