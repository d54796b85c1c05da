"""Reads and writes the figures that a crawl keeps in its job directory: how far it is, every few seconds, as CSV.

Keeps the file small for ever, and does not know where the figures come from. They are for people: a damaged row is
skipped, and nothing a crawl does depends on the file. ``docs/format.md`` describes it.
"""

from __future__ import annotations

import csv
import io
import math
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FIGURES_NAME = "requests.figures.csv"
"""In a job directory."""

MAX_ROWS = 4_000
"""Rows at which the file is thinned to half of them or less: some 300 KB."""

_MAX_BYTES = 1 << 22  # a larger file was not written by us
_SMALLEST_GAP = 10


class Figures(NamedTuple):
    """One row. Counts are of the whole job, over all its runs."""

    time: int
    """Seconds since 1970."""
    run: int
    """Number of the run, from 1."""
    urls: int
    """URLs that the filter knows."""
    duplicates: int
    """Requests and links that were filtered as duplicates."""
    pages: int
    """Responses that reached the spider's side of the downloader, whatever their status."""
    failures: int
    """Downloads that ended without a response, each attempt counted."""
    http_errors: int
    """Responses with a status of 400 or more, each attempt counted."""
    spider_errors: int
    """Exceptions in callbacks."""
    pending: int
    """Requests that wait; -1 if nobody knows."""
    parked: int
    """Requests that the loop guard has parked."""
    nbytes: int
    """Bytes of the filter."""
    expected_lost: float
    """Pages that the approximation may have cost."""


_HEADER = ",".join(Figures._fields)


def read_figures(path: Path) -> list[Figures]:
    """Return the rows of the file at *path*, oldest first; those that cannot be read are left out.

    No file, a foreign one and a directory count as an empty one. Columns are found by their names.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            return []
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = []
    whole_lines = text.rpartition("\n")[0]  # the crawl may be writing one just now, or was killed at it
    with suppress(csv.Error):
        for fields in csv.DictReader(io.StringIO(whole_lines.replace("\0", "?"))):
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                found.append(_parsed(fields))
    return found


class FiguresFile:
    """The file at *path*, for the one crawl that has the job directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        rows = read_figures(path)
        self.last: Figures | None = rows[-1] if rows else None
        """The newest row."""
        self._rows = len(rows)
        self._is_sound = False
        """Whether the file has our header and ends with a whole line, as far as we know."""

    def append(self, row: Figures) -> None:
        """Add *row*.

        Raises:
            OSError: It could not be written. The next row is tried again.

        """
        if not self._is_sound or self._rows >= MAX_ROWS:
            self._rewrite()
        self._is_sound = False
        with self._path.open("ab", buffering=0) as file:
            line = _line(row)
            if file.write(line) != len(line):
                raise OSError(f"only a part of {len(line)} bytes could be written")
        self._is_sound = True
        self._rows += 1
        self.last = row

    def _rewrite(self) -> None:
        """Replace the file by its readable rows, thinned if they are too many."""
        rows = read_figures(self._path)
        if len(rows) >= MAX_ROWS:
            rows = thinned(rows, MAX_ROWS // 2)
        spare = self._path.with_name(self._path.name + ".tmp")
        try:
            spare.write_bytes(b"".join([_HEADER.encode() + b"\n", *map(_line, rows)]))
            spare.replace(self._path)
        except OSError:
            with suppress(OSError):
                spare.unlink(missing_ok=True)
            raise
        self._rows = len(rows)
        self._is_sound = True


def thinned(rows: Sequence[Figures], most: int) -> list[Figures]:
    """Return *rows* without those that follow another one too closely: at most *most*, the last of them always.

    The gap doubles until they are few enough, so old and new parts of a crawl keep the same resolution. Counts are of
    the whole job, so nothing is lost but resolution.
    """
    gap = _SMALLEST_GAP
    kept = list(rows)
    while len(kept) > most and gap < 1 << 31:
        kept = _spaced(rows, gap)
        gap *= 2
    return kept[-most:]


def _spaced(rows: Sequence[Figures], gap: int) -> list[Figures]:
    kept: list[Figures] = []
    for row in rows:
        # The absolute distance: if the clock was put back, all that follows would be dropped otherwise.
        if not kept or abs(row.time - kept[-1].time) >= gap:
            kept.append(row)
    if rows and kept[-1] is not rows[-1]:
        kept.append(rows[-1])
    return kept


def _parsed(fields: dict[str, str]) -> Figures:
    counts = [int(fields[name]) for name in Figures._fields[:-1]]
    row = Figures._make([*counts, float(fields["expected_lost"])])
    if not math.isfinite(row.expected_lost) or row.time < 0 or max(row) >= 1 << 62 or None in fields:
        raise ValueError("no figures of a crawl")
    return row


def _line(row: Figures) -> bytes:
    return (",".join(map(str, row[:-1])) + f",{row.expected_lost:.6g}\n").encode()
