"""Which files the directory of a filter holds, and whether they belong to one chain.

Looks at names and headers. Does not know the bits, and does not decide what is done about a contradiction.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from scrapy_bloom.old.files import layerfile
from scrapy_bloom.old.files.damage import damaged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scrapy_bloom.old.errors import DamagedError
    from scrapy_bloom.old.files.layerfile import Origin
    from scrapy_bloom.old.filter.layer import LayerSpec

FILTER_NAME = "requests.bloom"
"""Directory of the filter in a job directory."""

LOCK_NAME = "lock"
OWNER_NAME = "owner"
FORGOTTEN_NAME = "forgotten"
IMPORT_MARKER_NAME = "importing"


_LAYER_NAME = re.compile(r"layer-\d{3,10}\.bloom", re.ASCII)


def layer_path(directory: Path, index: int) -> Path:
    """Return where layer *index* of the filter in *directory* is."""
    return directory / f"layer-{index:03d}.bloom"


def layer_paths(directory: Path) -> list[Path]:
    """Return the layer files in *directory*, oldest first."""
    return sorted((path for path in directory.glob("layer-*.bloom") if _LAYER_NAME.fullmatch(path.name)), key=index_of)


def index_of(path: Path) -> int:
    """Return which layer a layer file says by its name that it is."""
    return int(path.name.removeprefix("layer-").removesuffix(".bloom"))


def unfinished(directory: Path) -> list[Path]:
    """Return the layer files whose creation was cut short. They never held anything."""
    return sorted(directory.glob("layer-*.bloom.tmp"))


def gaps(directory: Path, paths: Sequence[Path], *, oldest: int | None) -> Iterator[DamagedError]:
    """Yield an error for each layer that is missing from *paths*, the layer files in *directory*.

    *oldest* is what the newest one notes. None: what it notes is unreadable, and the first that is there is the oldest.
    """
    present = set(paths)
    if not paths:
        return
    for index in range(index_of(paths[0]) if oldest is None else oldest, index_of(paths[-1])):
        if (missing := layer_path(directory, index)) not in present:
            yield damaged(missing, 0, f"the file is missing, and {paths[-1].name} shows that there was one")


def missing_behind(newest: Path) -> DamagedError:
    """Return the error about the layer after *newest*, which notes that there was one."""
    missing = layer_path(newest.parent, index_of(newest) + 1)
    return damaged(missing, 0, f"the file is missing, and {newest.name} notes that there was one")


def strangers(layers: Sequence[tuple[Path, LayerSpec, Origin]]) -> Iterator[DamagedError]:
    """Yield an error for each of *layers*, given by path and header, that does not belong where it is."""
    for path, spec, origin in layers:
        if spec.index != index_of(path):
            yield damaged(path, layerfile.INDEX_AT, f"it holds layer {spec.index}, not layer {index_of(path)}")
        if origin.chain_id != layers[0][2].chain_id:
            yield damaged(path, layerfile.CHAIN_ID_AT, f"it belongs to another filter than {layers[0][0].name}")
        if origin.merged != layers[0][2].merged:
            problem = f"it notes {origin.merged} merged filters, and {layers[0][0].name} notes {layers[0][2].merged}"
            yield damaged(path, layerfile.MERGED_AT, problem)
