"""Counts the pending requests in a job directory that only DurableScheduler can hand out.

So everything else can notice that there are some, or that salvage was killed half-way. Knows the names of the files and
one table, but no request.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.files.frontier_check import contents

if TYPE_CHECKING:
    from pathlib import Path

FRONTIER_NAME = "requests.frontier"

SALVAGE_NAME = f"{FRONTIER_NAME}.salvage"
"""Directory in which what is readable of a damaged frontier is saved."""

SAVED_NAME = "saved"
"""In that: a whole new frontier, which has to take the place of the damaged one."""


def half_salvaged(path: Path) -> UnusableError | None:
    """Return the error about what was saved of the frontier at *path* and is not in its place yet, if there is such."""
    saved = path.parent / SALVAGE_NAME / SAVED_NAME
    if path.name != FRONTIER_NAME or not saved.exists():
        return None
    return UnusableError(
        saved,
        f"holds the pending requests that were saved from a damaged {FRONTIER_NAME}, and is not in its place yet: the "
        "command that saved them was killed",
        advice=f"Run it again, and it goes on from there: python -m scrapy_bloom.old.frontier.salvage {path.parent}. If "
        f"you have restored {FRONTIER_NAME} from a backup since, delete {saved.parent} instead.",
    )


def count_pending(jobdir: Path) -> int:
    """Return how many requests wait in the frontier of *jobdir*, 0 if it has none.

    Raises:
        sqlite3.Error: The file cannot be read.

    """
    path = jobdir / FRONTIER_NAME
    if not path.exists() or not path.stat().st_size:
        return 0
    with closing(sqlite3.connect(path)) as database:
        return contents(database).pending
