"""What the loop guard has decided in a job directory, to be read and taken back while no crawl runs.

Knows the file, not the guard.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import InUseError, UnusableError
from scrapy_bloom.loops.parked import FILE_NAME, TAKEN_BACK

if TYPE_CHECKING:
    from pathlib import Path

_COLUMNS = "shape, fetched, dry, queued, told, pardoned, example"
_DRY = "told OR pardoned OR id IN (SELECT account FROM parked)"


@dataclass(frozen=True)
class ParkedShape:
    """A shape that has run dry at least once."""

    shape: str
    """As in the log: ``example.com/calendar/N/**``."""
    fetched: int
    """Its pages that were fetched."""
    dry: int
    """Of the last ones in a row, those that brought nothing new. 0: it has brought something since."""
    queued: int
    """Its URLs that were new to the duplicate filter."""
    waiting: int
    """Its requests that are parked."""
    is_taken_back: bool
    """Whether a person has taken the verdict back. It is never parked again."""
    example: str
    """One of its URLs."""


def parked_shapes(jobdir: Path) -> list[ParkedShape]:
    """Return what has run dry in the job of *jobdir*, with the most requests waiting first. Changes nothing.

    Raises:
        InUseError: A crawl is running there.
        UnusableError: There is no such file, or it cannot be read.

    """
    with closing(_open(jobdir, "ro")) as connection:
        rows = _ask(
            jobdir,
            connection,
            f"SELECT {_COLUMNS}, (SELECT count(*) FROM parked WHERE account = accounts.id) AS waiting "  # noqa: S608 - constants
            f"FROM accounts WHERE {_DRY} ORDER BY waiting DESC, shape",
        )
    return [
        ParkedShape(shape, fetched, dry, queued, waiting, bool(pardoned), example)
        for shape, fetched, dry, queued, _, pardoned, example, waiting in rows
    ]


def take_back(jobdir: Path, shape: str) -> int:
    """Take back the verdict on *shape*: the next run fetches what is parked for it, and never parks it again.

    Return how many requests were parked for it.

    Raises:
        InUseError: A crawl is running there.
        UnusableError: There is no such file or shape, or the file cannot be written.

    """
    with closing(_open(jobdir, "rw")) as connection:
        found = _ask(jobdir, connection, f"SELECT id FROM accounts WHERE shape = ? AND ({_DRY})", shape)  # noqa: S608 - constants
        if not found:
            raise UnusableError(
                jobdir / "requests.loops" / FILE_NAME,
                f"has no verdict on {shape!r}",
                advice="Give the shape as the log and parked_shapes() show it.",
            )
        number = found[0][0]
        with connection:
            connection.execute("BEGIN")
            connection.execute("UPDATE accounts SET pardoned = 1, dry = 0 WHERE id = ?", (number,))
            moved = connection.execute("UPDATE parked SET account = ? WHERE account = ?", (TAKEN_BACK, number))
        return moved.rowcount


def _open(jobdir: Path, mode: str) -> sqlite3.Connection:
    path = jobdir / "requests.loops" / FILE_NAME
    try:
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=1.0)
    except sqlite3.Error as error:
        raise UnusableError(
            path, f"cannot be opened: {error}", advice="Give the JOBDIR of a crawl with BLOOM_LOOP_GUARD."
        ) from error


def _ask(jobdir: Path, connection: sqlite3.Connection, query: str, *values: str) -> list[tuple[Any, ...]]:
    path = jobdir / "requests.loops" / FILE_NAME
    try:
        return connection.execute(query, values).fetchall()
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise InUseError(path, "is in use by a crawl", advice="Stop it first.") from error
        raise UnusableError(path, f"cannot be read: {error}", advice="Is this a JOBDIR of scrapy-bloom?") from error
