"""Looks into a job directory without changing it, also while a crawl runs in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.filter.inspect import FilterDescription, inspect_directory
from scrapy_bloom.job.database import NAME, UNREADABLE, check_format, damaged, read_state
from scrapy_bloom.job.records import FeedLength, Figures, LaneRow, State

if TYPE_CHECKING:
    import os

DIRECTORY = "requests.bloom"


class Failed(NamedTuple):
    """A request that has failed for good."""

    id: int
    url: str
    host: str
    reason: str
    time: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class JobInfo:
    """What a job directory holds at one moment."""

    directory: Path
    """``JOBDIR``."""
    filter: FilterDescription
    state: State
    """As the last commit left it."""
    lanes: tuple[LaneRow, ...]
    """Pending requests by slot, priority and kind."""
    feeds: tuple[FeedLength, ...]
    figures: tuple[Figures, ...]
    """How far the crawl was from time to time, oldest first."""
    failed: tuple[Failed, ...]
    nbytes: int
    """Bytes of all files in ``requests.bloom``."""


def inspect_job(jobdir: str | os.PathLike[str]) -> JobInfo:
    """Return what *jobdir* holds.

    Raises:
        UnusableError: There is no job of ours, or one of another format.
        DamagedError: The database cannot be read.

    """
    directory = Path(jobdir, DIRECTORY)
    path = directory / NAME
    if not path.is_file():
        raise UnusableError(
            jobdir, f"holds no job: {path} does not exist", advice="Name the JOBDIR of a crawl with scrapy-bloom."
        )
    try:
        with closing(read_only(path)) as connection:
            check_format(connection, path)
            return JobInfo(
                directory=Path(jobdir),
                filter=inspect_directory(directory),
                state=read_state(connection, path),
                lanes=tuple(LaneRow(*row) for row in connection.execute("SELECT * FROM lane WHERE rows > 0")),
                feeds=tuple(
                    feed
                    for row in connection.execute("SELECT * FROM feed")
                    if (feed := FeedLength.unpack(*row)) is not None
                ),
                figures=tuple(Figures(*row) for row in connection.execute("SELECT * FROM figures ORDER BY time")),
                failed=tuple(
                    Failed(*row) for row in connection.execute("SELECT id, url, host, reason, time FROM failed")
                ),
                nbytes=sum(file.stat().st_size for file in directory.iterdir() if file.is_file()),
            )
    except UNREADABLE as error:
        raise damaged(path, error) from error


def read_only(path: Path) -> sqlite3.Connection:
    """Return a connection to the database at *path* that cannot change it, and leaves no file beside a closed one."""
    has_log = path.with_name(f"{path.name}-wal").exists()
    uri = f"{path.absolute().as_uri()}?mode=ro" + ("" if has_log else "&immutable=1")
    return sqlite3.connect(uri, uri=True, isolation_level=None)
