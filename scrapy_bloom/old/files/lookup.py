"""Looks fingerprints up in the files of a filter, read-only and without its lock: :func:`layers_of`.

Does not know how a fingerprint is made, and checks no header; ``inspect`` does.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from scrapy_bloom.old.files import layerfile, layout
from scrapy_bloom.old.files.forgotten import read_forgotten
from scrapy_bloom.old.files.merged import merged_paths
from scrapy_bloom.old.filter import probes as probing
from scrapy_bloom.old.filter.layer import Layer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def layers_of(directory: Path, fingerprints: Sequence[bytes]) -> list[int | None]:
    """Return for each of *fingerprints* the oldest layer of the filter in *directory* that has it, or None.

    Layers count from 0, those of merged filters first.

    Raises:
        DamagedError: A file contradicts itself.
        UnknownFormatError: A file was written by a newer version.
        OSError: A file cannot be read.

    """
    found: list[int | None] = [None] * len(fingerprints)
    taken_back = read_forgotten(directory / layout.FORGOTTEN_NAME)
    of_chains = [
        (path, read_forgotten(chain / layout.FORGOTTEN_NAME) | taken_back)
        for chain in (*merged_paths(directory), directory)
        for path in layout.layer_paths(chain)
    ]
    for index, (path, forgotten) in enumerate(of_chains):
        spec = layerfile.read_header(path).spec
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            layer = Layer(spec, memoryview(data)[layerfile.HEADER_BYTES :])
            probes = probing.bind(spec.probes, spec.seed, on_quota_spent=lambda: None)
            probes.set_tables([layer.table], 0)
            for place, fingerprint in enumerate(fingerprints):
                if found[place] is None and fingerprint not in forgotten and probes.contains(fingerprint):
                    found[place] = index
            probes.set_tables((), 0)
            layer.bits = type(layer.bits)()  # lets go of the mapping
    return found
