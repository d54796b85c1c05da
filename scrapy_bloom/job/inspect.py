"""Looks into a job directory without changing it, also while a crawl runs in it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.filter.directory import FilterDescription, inspect_directory
from scrapy_bloom.frontier.order import LaneRow
from scrapy_bloom.frontier.page import FailedRow
from scrapy_bloom.job.database import NAME, Database, repaired
from scrapy_bloom.job.records import FeedLength, Figures, JobState
from scrapy_bloom.loops.aliases import Alias, Aliases
from scrapy_bloom.loops.share import aliases_in

if TYPE_CHECKING:
    import os

DIRECTORY = "requests.bloom"


@dataclass(frozen=True)
class JobInfo:
    """What a job directory holds at one moment."""

    directory: Path
    """``JOBDIR``."""
    filter: FilterDescription
    urls: int
    """URLs remembered, with new ones of commits whose bits a kill has kept from being set."""
    state: JobState
    """As the last commit left it."""
    lanes: tuple[LaneRow, ...]
    """Pending requests by slot, priority and kind."""
    feeds: tuple[FeedLength, ...]
    figures: tuple[Figures, ...]
    """How far the crawl was from time to time, oldest first."""
    pages: dict[str, int]
    """How many each host has had, in runs with ``BLOOM_PAGES_PER_HOST``."""
    failed: tuple[FailedRow, ...]
    """Without their bodies."""
    aliases: tuple[Alias, ...]
    """Parts of URLs that the loop guard has learned not to matter."""
    estimate: bytes | None
    """What the last commit noted for :class:`scrapy_bloom.crawl.estimate.Estimate`."""
    nbytes: int
    """Bytes of all files in ``requests.bloom``."""


def inspect_job(jobdir: str | os.PathLike[str]) -> JobInfo:
    """Return what *jobdir* holds.

    Raises UnusableError if there is no job of ours, or one of another format. Raises DamagedError if the database
    cannot be read.
    """
    directory, path = files_of(jobdir)
    aliases = Aliases(lambda _: True)
    with closing(Database(path, read_only=True)) as database:
        aliases.load(aliases_in(database.notes("kind")))
        redo = database.redo()  # before the filter: a crawl beside it sets bits
        described = inspect_directory(directory)
        unset = sum(len(fingerprints) for first_id, fingerprints in redo if first_id >= described.watermark)
        return JobInfo(
            directory=Path(jobdir),
            filter=described,
            urls=described.urls + unset,
            state=database.state,
            lanes=tuple(LaneRow(*row) for row in database.select("SELECT * FROM lane WHERE rows > 0")),
            feeds=tuple(database.feeds()),
            figures=tuple(Figures(*row) for row in database.select("SELECT * FROM figures ORDER BY time")),
            pages=database.pages(),
            failed=tuple(FailedRow(*row) for row in database.select("SELECT url, host, reason, time FROM failed")),
            aliases=tuple(aliases.believed()),
            estimate=database.notes("state").get("estimate"),
            nbytes=sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()),
        )


def files_of(jobdir: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return the directory and the database of the job in *jobdir*. Raises UnusableError if there is none."""
    if "://" in str(jobdir):
        advice = "For a fleet, there are info, report, import, seed, requeue and forget."
        raise UnusableError(jobdir, "is a server, and this command works on a job directory", advice=advice)
    directory = Path(jobdir, DIRECTORY)
    path = directory / NAME
    if repaired(path).exists():
        advice = f"Finish it with: scrapy bloom verify --fix {jobdir}"
        raise UnusableError(jobdir, "holds a job whose repair was interrupted", advice=advice)
    if not path.is_file():
        advice = "Name the JOBDIR of a crawl with scrapy-bloom."
        raise UnusableError(jobdir, f"holds no job: {path} does not exist", advice=advice)
    return directory, path
