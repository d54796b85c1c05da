"""Counts the pending requests in a job directory that only DurableScheduler can hand out.

So everything else can notice that there are some. Knows the name of the file and one of its tables, but no request.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FRONTIER_NAME = "requests.frontier"


def count_pending(jobdir: Path) -> int:
    """Return how many requests wait in the frontier of *jobdir*, 0 if it has none.

    Raises:
        sqlite3.Error: The file cannot be read.

    """
    path = jobdir / FRONTIER_NAME
    if not path.exists() or not path.stat().st_size:
        return 0
    with closing(sqlite3.connect(path)) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        count = "SELECT count(*) FROM requests" if version == 1 else "SELECT ifnull(sum(rows), 0) FROM lanes"
        return int(database.execute(count).fetchone()[0])
