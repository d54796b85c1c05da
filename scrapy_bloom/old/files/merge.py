"""Makes one filter out of several: :func:`merge`. Copies files, because bits are tied to the hash seed of their chain.

Knows files. Does not know a job, nor whether requests are pending in it.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_bytes
from typing import TYPE_CHECKING

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.files import layerfile, layout
from scrapy_bloom.old.files.forgotten import ForgottenFile, read_forgotten
from scrapy_bloom.old.files.merged import load_one, merged_path, merged_paths
from scrapy_bloom.old.filter.chain import TIGHTENING, next_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

UNFINISHED_NAME = f"{layout.FILTER_NAME}.merging"
"""Directory in which a filter grows until it is whole."""


@dataclass(frozen=True)
class Design:
    """The layers that the merged filter will grow."""

    capacity: int
    error_rate: float
    growth: float
    key_space: Mapping[str, str]


def merge(jobdir: Path, sources: Sequence[Path], design: Design) -> None:
    """Make a filter in *jobdir* that has seen what the filters in *sources* have seen; whole, or not at all.

    Args:
        jobdir: Has no filter yet; created if missing.
        sources: Directories of filters that are sound and closed, and that nobody uses meanwhile. Nothing of them
            changes.
        design: Of the layers to come.

    Raises:
        UnusableError: There is a filter already, or nothing to merge.
        OSError: No room, or no permission. What was begun is deleted.

    """
    out = jobdir / layout.FILTER_NAME
    if out.exists():
        raise UnusableError(
            out, "exists already", advice="Name a new directory; a filter is never merged into another."
        )
    chains = [(chain, source) for source in sources for chain in _chains(source)]
    if not chains:
        raise UnusableError(", ".join(map(str, sources)), "hold no URLs", advice="There is nothing to merge.")
    unfinished = jobdir / UNFINISHED_NAME
    shutil.rmtree(unfinished, ignore_errors=True)  # of an earlier attempt that was killed
    unfinished.mkdir(parents=True)
    try:
        spec = next_spec(None, capacity=design.capacity, error_rate=design.error_rate, growth=design.growth)
        _check_room(unfinished, spec.nbytes + sum(path.stat().st_size for chain, _ in chains for path in _files(chain)))
        for number, (chain, source) in enumerate(chains):
            _copy(chain, merged_path(unfinished, number))
            _copy_forgotten({chain, source}, merged_path(unfinished, number))
        origin = layerfile.Origin(
            chain_id=token_bytes(16),
            capacity=design.capacity,
            error_rate=design.error_rate,
            tightening=TIGHTENING,
            growth=design.growth,
            created=time.time(),
            key_space=design.key_space,
            merged=len(chains),
        )
        file = layerfile.create(layout.layer_path(unfinished, 0), spec, origin)
        try:
            file.write_state(clean=True)
            file.fsync()
        finally:
            file.close()
        layerfile.sync_directory(unfinished)
        unfinished.rename(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        with suppress(OSError):  # what else is there stays
            jobdir.rmdir()
        raise
    layerfile.sync_directory(jobdir)


def _chains(source: Path) -> Iterator[Path]:
    """Yield the directories of the chains in *source* that have URLs: those merged into it, then its own."""
    for chain in (*merged_paths(source), source):
        if any(layerfile.read_header(path).noted for path in layout.layer_paths(chain)):
            yield chain


def _files(chain: Path) -> Iterable[Path]:
    forgotten = chain / layout.FORGOTTEN_NAME
    return [*layout.layer_paths(chain), *([forgotten] if forgotten.exists() else [])]


def _check_room(directory: Path, nbytes: int) -> None:
    if nbytes > shutil.disk_usage(directory).free:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, {nbytes:,} bytes are needed", str(directory))


def _copy(chain: Path, to: Path) -> None:
    to.mkdir()
    for path in layout.layer_paths(chain):
        shutil.copyfile(path, to / path.name)
        with (to / path.name).open("rb+") as copy:
            os.fsync(copy.fileno())
    layerfile.sync_directory(to)


def _copy_forgotten(noted_by: Iterable[Path], to: Path) -> None:
    """Note for the chain in *to* what it has of all that the filters *noted_by* have taken back.

    A chain that has been merged before goes by two lists: its own, and that of the filter it was merged into.
    """
    taken_back = set().union(*(read_forgotten(path / layout.FORGOTTEN_NAME) for path in noted_by))
    if not taken_back:
        return
    chain, _ = load_one(to)
    try:
        held = sorted(fingerprint for fingerprint in taken_back if fingerprint in chain)
    finally:
        chain.close()
    noted = ForgottenFile(to / layout.FORGOTTEN_NAME)
    try:
        for fingerprint in held:
            noted.add(fingerprint)
        noted.fsync()
    finally:
        noted.close()
    layerfile.sync_directory(to)
