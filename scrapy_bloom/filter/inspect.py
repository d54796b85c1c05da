"""Looks into the filter in a directory without touching it.

Works beside a running crawl and on a read-only disk. Damage is part of the description, not an exception.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter import plan
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.filter.directory import FORGOTTEN_NAME, open_layers, read_forgotten
from scrapy_bloom.filter.layer import LayerStore
from scrapy_bloom.filter.lock import is_locked, owner

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from scrapy_bloom.filter.layerfile import Header


@dataclass(frozen=True)
class FilterDescription:
    """The filter in a directory at one moment."""

    directory: Path
    layers: tuple[Header, ...]  # that can be read, oldest first; without a clean stop, the counts are from the bits
    forgotten: int  # URLs taken back because their requests failed
    is_in_use: bool  # whether a process holds the directory's lock
    owner: str  # the last process that held it, in words, or ""
    damage: tuple[str, ...]  # each problem, in sentences that end with advice

    @property
    def chain_id(self) -> str:
        """Id of the chain, as its newest layer has it; empty if none can be read."""
        return self.layers[-1].chain_id if self.layers else ""

    @property
    def watermark(self) -> int:
        """The watermark of the newest layer; 0 if none can be read."""
        return self.layers[-1].watermark if self.layers else 0

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

    If *thorough*, look at all bits; otherwise at a sample, as opening the filter does.
    """
    path = Path(directory)
    files, problems = open_layers(path, read_only=True, thorough=thorough)
    layers = tuple(replace(file.header, count=file.layer.count) for file in files)
    for file in files:
        file.close()
    forgotten: set[bytes] = set()
    try:
        forgotten, _ = read_forgotten(path / FORGOTTEN_NAME)
    except BloomError as error:
        problems.append(error)
    return FilterDescription(path, layers, len(forgotten), is_locked(path), owner(path), tuple(map(str, problems)))


@contextmanager
def reading(directory: str | os.PathLike[str], max_age: float | None = None) -> Iterator[ScalableBloomFilter]:
    """Open the filter in *directory* for questions only, without layers older than *max_age* seconds.

    Another process may be adding to it. Raises as :func:`open_filter` does.
    """
    forgotten, _ = read_forgotten(Path(directory, FORGOTTEN_NAME))
    files, problems = open_layers(Path(directory), read_only=True)
    with ExitStack() as opened:
        for file in files:
            opened.callback(file.close)
        for error in problems:
            raise error
        store = LayerStore([file.layer for file in files], forgotten)
        yield opened.enter_context(ScalableBloomFilter(max_age=max_age, store=store))
