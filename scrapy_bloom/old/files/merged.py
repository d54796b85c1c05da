"""Reads the chains of other crawls that were merged into a filter: a directory ``merged-NNN`` in its own for each.

Each is a whole filter, as its crawl left it. The headers of the filter around them say how many there are. Does not
know which filters may be merged, nor who asks them.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from scrapy_bloom.old.errors import counted
from scrapy_bloom.old.files import layerfile, layout
from scrapy_bloom.old.files.damage import damaged
from scrapy_bloom.old.files.forgotten import read_forgotten
from scrapy_bloom.old.filter.layer import Layer
from scrapy_bloom.old.filter.merged import MergedChain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from scrapy_bloom.old.errors import DamagedError


def merged_path(directory: Path, number: int) -> Path:
    """Return where chain *number* is that was merged into the filter in *directory*."""
    return directory / f"merged-{number:03d}"


def merged_paths(directory: Path) -> list[Path]:
    """Return the directories of merged chains that are in *directory*."""
    return sorted(path for path in directory.glob("merged-[0-9][0-9][0-9]") if path.is_dir())


def missing(directory: Path, count: int) -> Iterator[DamagedError]:
    """Yield an error for each of the *count* merged chains of the filter in *directory* that is not there."""
    merged = counted(count, "filter was merged", "filters were merged")
    for number in range(count):
        path = merged_path(directory, number)
        if not layout.layer_paths(path):
            yield damaged(layout.layer_path(path, 0), 0, f"the file is missing, and {merged} here")


def load(directory: Path, count: int) -> list[tuple[MergedChain, Mapping[str, str]]]:
    """Return the *count* chains merged into the filter in *directory*, each with its key space.

    Raises:
        DamagedError: A file is missing or contradicts itself.
        UnknownFormatError: A file was written by a newer version.
        OSError: A file cannot be read.

    """
    for error in missing(directory, count):
        raise error
    return [load_one(merged_path(directory, number)) for number in range(count)]


def load_one(directory: Path) -> tuple[MergedChain, Mapping[str, str]]:
    """Return the chain in *directory* itself, with its key space; raise as :func:`load` does."""
    paths = layout.layer_paths(directory)
    headers = [(path, layerfile.read_header(path)) for path in paths]
    for gap in layout.gaps(directory, paths, oldest=headers[-1][1].oldest):
        raise gap
    for stranger in layout.strangers([(path, header.spec, header.origin) for path, header in headers]):
        raise stranger
    if headers[-1][1].is_followed:
        raise layout.missing_behind(paths[-1])
    layers = []
    for path, header in headers:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):  # not on Windows
            mapping.madvise(mmap.MADV_RANDOM)  # as in layerfile
        bits = memoryview(mapping)[layerfile.HEADER_BYTES :]
        layer = Layer(header.spec, bits, header.noted or 0, created=header.origin.created)
        if not header.is_clean or header.noted is None:
            layer.recount()
        if problem := layer.contradiction():  # as of the filter's own layers, by a sample
            raise damaged(path, layerfile.HEADER_BYTES, problem)
        layers.append(layer)
    forgotten = read_forgotten(directory / layout.FORGOTTEN_NAME)
    return MergedChain(layers, forgotten), headers[-1][1].origin.key_space
