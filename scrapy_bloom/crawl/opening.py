"""Begins a job anew that has ended: for delta crawls, and for a cycle of ``BLOOM_CHANGES``."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

from scrapy_bloom.filter.directory import FORGOTTEN_NAME
from scrapy_bloom.filter.lock import lock_directory
from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.inspect import DIRECTORY

if TYPE_CHECKING:
    from pathlib import Path


def begin_cycle(jobdir: Path, spider: str) -> None:
    """Empty the filter of a job of *spider* that has ended, so that the next run looks at each page again.

    Raises:
        BloomError: The job is in use, or damaged.

    """
    directory = jobdir / DIRECTORY
    if not (directory / NAME).exists():
        return
    with lock_directory(directory), closing(Database(directory / NAME)) as database:
        if not database.state.is_finished or database.state.spider != spider:
            return
        for path in (*sorted(directory.glob("layer-*.bloom")), directory / FORGOTTEN_NAME):
            path.unlink(missing_ok=True)
        shutil.rmtree(directory / "novelty", ignore_errors=True)
        database.begin_cycle()
