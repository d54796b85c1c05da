"""Describes the filter in a job directory without touching it: :func:`inspect`.

Reads, and never writes, locks or deletes, so it works beside a running crawl and on a read-only disk. Does not know
what is done about what it finds: trouble is part of the description, not an exception.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from scrapy_bloom.old.errors import BloomError
from scrapy_bloom.old.files import layerfile, layout
from scrapy_bloom.old.files.damage import damaged
from scrapy_bloom.old.files.forgotten import read_forgotten
from scrapy_bloom.old.files.merged import merged_path, merged_paths, missing
from scrapy_bloom.old.filter.chain import expected_in_merged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from scrapy_bloom.old.files.layerfile import Header
    from scrapy_bloom.old.filter.layer import LayerSpec

    _Headers = list[tuple[Path, Header]]

_T = TypeVar("_T")

_STATE_READS = 3  # a running crawl may be writing the note of the count while we read it


@dataclass(frozen=True)
class LayerDescription:
    """One layer file, as its header describes it."""

    path: Path
    capacity: int
    """URLs that the layer is made for."""
    urls: int | None
    """URLs in it, as noted last: up to date after a clean stop, otherwise behind by a 64th of the capacity at most.
    None if the note is unreadable."""
    about: int
    """URLs in it: as noted after a clean stop, otherwise what the bits say if that is more."""
    error_rate: float
    """Designed chance that the full layer takes a new URL for seen."""
    nbytes: int
    """Bytes of its bits."""
    created: float
    """Seconds since 1970."""
    is_clean: bool
    """Whether it was closed, or has been full and on disk since."""
    spec: LayerSpec
    """Its whole design."""


@dataclass(frozen=True)
class FilterDescription:
    """The filter in a directory at one moment."""

    directory: Path
    exists: bool
    """Whether there is a filter: at least one layer file, sound or not."""
    layers: tuple[LayerDescription, ...]
    """The layers whose headers can be read, oldest first; those of merged filters before its own."""
    forgotten: int
    """URLs taken back because their requests failed."""
    key_space: Mapping[str, str]
    """What made the fingerprints, from the newest layer: fingerprinter, URL rules, version of w3lib."""
    error_rate: float | None
    """Bound for the whole chain that was set when the newest layer was born."""
    expected_lost: float
    """Pages that the approximation may have cost, from the counts."""
    is_clean: bool
    """Whether the last crawl closed it. Also False while a crawl runs."""
    is_in_use: bool | None
    """Whether a process has it open; None where only taking the lock would tell (everywhere but on Linux)."""
    owner: str
    """The last process that opened it, in words, or nothing."""
    findings: tuple[str, ...]
    """What is wrong or unfinished, in sentences with what to do, the gravest first."""

    @property
    def about(self) -> int:
        """URLs remembered: exact after a clean stop, otherwise estimated from the bits."""
        return sum(layer.about for layer in self.layers) - self.forgotten

    @property
    def urls(self) -> int:
        """URLs remembered, as noted last."""
        return sum(layer.urls or 0 for layer in self.layers) - self.forgotten

    @property
    def nbytes(self) -> int:
        """Bytes of all bit arrays."""
        return sum(layer.nbytes for layer in self.layers)


def inspect(
    directory: str | os.PathLike[str],
    *,
    read_bits: bool = False,
    tracked: Callable[[_Headers], Iterable[tuple[Path, Header]]] = iter,
) -> FilterDescription:
    """Describe the filter in *directory*, which is ``requests.bloom`` in a job directory.

    Args:
        directory: Need not exist, and may hold anything.
        read_bits: Also hold the bits of every layer against its count, MiB by MiB; opening the filter for a crawl looks
            at a sample. Reads all of them: 0.4 s per GB if they are in memory.
        tracked: Walks through the layers while they are read, for somebody who waits.

    """
    path = Path(directory)
    findings: list[str] = []
    headers: list[tuple[Path, Header]] = []
    paths = _trying(findings, lambda: layout.layer_paths(path)) or []
    for layer in paths:
        header = _trying(findings, lambda layer=layer: _read_header(layer))  # type: ignore[misc] # bound per turn
        if header is not None:
            headers.append((layer, header))
    newest_noted = headers[-1][1].oldest if headers and headers[-1][0] == paths[-1] else None
    findings += map(str, layout.gaps(path, paths, oldest=newest_noted))
    if not paths and merged_paths(path):
        findings.append(
            str(damaged(layout.layer_path(path, 0), 0, "the file is missing, and filters were merged here"))
        )
    if len(headers) == len(paths) and not findings:
        findings += map(str, layout.strangers([(layer, header.spec, header.origin) for layer, header in headers]))
        if headers and headers[-1][1].is_followed:
            findings.append(str(layout.missing_behind(headers[-1][0])))
    for layer, header in tracked(headers) if read_bits else headers:
        findings += _about_counts(layer, header)
        if read_bits:
            found = _trying(
                findings,
                lambda layer=layer, header=header: layerfile.contradiction(layer, header),  # type: ignore[misc]
            )
            findings += [] if found is None else [str(found)]
    forgotten = _trying(findings, lambda: read_forgotten(path / layout.FORGOTTEN_NAME)) or set()
    is_in_use = _is_locked(path / layout.LOCK_NAME)
    is_clean = bool(headers) and len(headers) == len(paths) and all(header.is_clean for _, header in headers)
    if not is_in_use:
        findings += _leftovers(path, paths=paths, is_clean=is_clean, is_in_use=is_in_use)
    newest = headers[-1][1].origin if headers else None
    own = [_described(layer, header) for layer, header in headers]
    merged = _merged(path, newest.merged if newest is not None else 0, read_bits=read_bits, findings=findings)
    return FilterDescription(
        directory=path,
        exists=bool(paths),
        layers=(*(layer for each in merged for layer in each.layers), *own),
        forgotten=len(forgotten) + sum(each.forgotten for each in merged),
        key_space={} if newest is None else dict(newest.key_space),
        error_rate=None
        if newest is None
        else newest.error_rate + sum(layer.error_rate for each in merged for layer in each.layers),
        expected_lost=expected_in_merged(
            [(layer.spec, layer.about) for layer in own],
            [[(layer.spec, layer.about) for layer in each.layers] for each in merged],
        ),
        is_clean=is_clean and all(each.is_clean for each in merged),
        is_in_use=is_in_use,
        owner=_owner(path),
        findings=tuple(findings),
    )


def _merged(path: Path, count: int, *, read_bits: bool, findings: list[str]) -> list[FilterDescription]:
    """Describe the *count* filters that were merged into that in *path*, and add what is wrong to *findings*."""
    findings += map(str, missing(path, count))
    described = [inspect(merged_path(path, number), read_bits=read_bits) for number in range(count)]
    for each in described:
        findings += each.findings
    return described


def _read_header(path: Path) -> Header:
    header = layerfile.read_header(path)
    for _ in range(_STATE_READS - 1):
        if header.noted is not None:
            break
        header = layerfile.read_header(path)
    return header


def _described(path: Path, header: Header) -> LayerDescription:
    return LayerDescription(
        path=path,
        capacity=header.spec.capacity,
        urls=header.noted,
        about=_about(path, header),
        error_rate=header.spec.error_rate,
        nbytes=header.spec.nbytes,
        created=header.origin.created,
        is_clean=header.is_clean,
        spec=header.spec,
    )


def _about(path: Path, header: Header) -> int:
    noted = min(header.noted or 0, header.spec.capacity)
    if header.is_clean:
        return noted
    with suppress(OSError, ValueError):  # a finding already
        return max(noted, layerfile.estimated_count(path, header))
    return noted


def _trying(findings: list[str], read: Callable[[], _T]) -> _T | None:
    """Return what *read* returns, or None with what is wrong added to *findings*."""
    try:
        return read()
    except BloomError as error:
        findings.append(str(error))
    except (OSError, ValueError) as error:
        findings.append(f"It cannot be read: {error}. Check the owner, the permissions and the disk of what is named.")
    return None


def _about_counts(path: Path, header: Header) -> list[str]:
    if header.noted is None:
        return [f"The count in {path} is unreadable. The next crawl counts the bits instead."]
    if header.noted > header.spec.capacity:
        problem = f"{header.noted} fingerprints are noted in a layer made for {header.spec.capacity}"
        return [str(damaged(path, layerfile.STATE_AT, problem))]
    return []


def _leftovers(directory: Path, *, paths: list[Path], is_clean: bool, is_in_use: bool | None) -> list[str]:
    """Return what a killed crawl has left behind. Beside a running crawl the same is normal."""
    found = [
        f"{leftover} is a layer whose creation was cut short. Nothing was ever in it, and the next crawl deletes it."
        for leftover in layout.unfinished(directory)
    ]
    if (directory / layout.IMPORT_MARKER_NAME).exists():
        found.append(f"The import of Scrapy's own filter into {directory} was cut short. The next crawl repeats it.")
    if paths and not is_clean:
        maybe = "" if is_in_use is False else ", or is in use"
        found.append(
            f"The filter in {directory} was not closed by its last crawl{maybe}. The next one counts the URLs of the "
            "newest layer from its bits, and forgets none."
        )
    return found


def _owner(directory: Path) -> str:
    try:
        return (directory / layout.OWNER_NAME).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _is_locked(path: Path) -> bool | None:
    """Return whether any process holds the lock. Trying to take it would refuse a crawl that starts just then."""
    if sys.platform != "linux":
        return None
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
        status = path.stat()
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return None
    # "1: FLOCK  ADVISORY  WRITE 12345 fd:01:131 0 EOF": process, device and inode.
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(line.split()[1] == "FLOCK" and place in line.split() for line in locks.splitlines() if "->" not in line)
