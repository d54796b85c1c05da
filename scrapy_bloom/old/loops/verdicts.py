"""What the loop guard has decided in a job directory, to be read and taken back while no crawl runs.

Knows the file, not the guard.
"""

from __future__ import annotations

import difflib
import json
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.errors import InUseError, UnknownFormatError, UnusableError
from scrapy_bloom.old.loops.parked import (
    APPLICATION_ID,
    FORMAT_VERSION,
    TAKEN_BACK,
    account_rows,
    guard_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scrapy_bloom.old.errors import BloomError

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
        return shapes_in(guard_file(jobdir), connection)


def parked_requests(jobdir: Path) -> int:
    """Return how many requests of the job of *jobdir* the guard alone has. Raises as :func:`parked_shapes` does."""
    with closing(_open(jobdir, "ro")) as connection:
        return parked_in(guard_file(jobdir), connection)


def shapes_in(path: Path, connection: sqlite3.Connection) -> list[ParkedShape]:
    """Return the same as :func:`parked_shapes`, over a *connection* to the guard's file at *path*, or to a copy."""
    _refuse_newer(path, connection)
    rows = _ask(
        path,
        connection,
        f"SELECT {_COLUMNS}, (SELECT count(*) FROM parked WHERE account = accounts.id) AS waiting "  # noqa: S608 - constants
        f"FROM accounts WHERE {_DRY} ORDER BY waiting DESC, shape",
    )
    return [
        ParkedShape(shape, fetched, dry, queued, waiting, bool(pardoned), example)
        for shape, fetched, dry, queued, _, pardoned, example, waiting in rows
    ]


def parked_in(path: Path, connection: sqlite3.Connection) -> int:
    """Return how many requests are in the guard's file at *path*: those that were put back and not fetched yet, too."""
    return int(_ask(path, connection, "SELECT count(*) FROM parked")[0][0])


def problems(path: Path, connection: sqlite3.Connection) -> list[str]:
    """Return everything that is wrong with the guard's file at *path*, read through *connection*, as sentences."""
    found: list[str] = []
    advice = f"Restore it from a backup, or delete {path.parent}: what is parked there is lost then."
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            return [f"{path} is not a file of the loop guard: its application id is {application:#x}. {advice}"]
        if not 1 <= version <= FORMAT_VERSION:
            return [f"{path} has format version {version}, which this scrapy-bloom does not know. Upgrade it."]
        found += [row[0] for row in connection.execute("PRAGMA integrity_check(100)") if row[0] != "ok"]
        account_rows(connection)
        for name, children in connection.execute("SELECT name, children FROM folders"):
            if not _is_json_object(children):
                found.append(f"what is known of the folder {name!r} cannot be read")
    except sqlite3.Error as error:
        found.append(str(error))
    return [f"{path} is damaged: {each}. {advice}" for each in found]


def _is_json_object(text: object) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def take_back(jobdir: Path, shape: str) -> int:
    """Take back the verdict on *shape*: the next run fetches what is parked for it, and never parks it again.

    Return how many requests were parked for it.

    Raises:
        InUseError: A crawl is running there.
        UnusableError: There is no such file or shape, or the file cannot be written.

    """
    path = guard_file(jobdir)
    with closing(_open(jobdir, "rw")) as connection:
        found = _ask(path, connection, f"SELECT id FROM accounts WHERE shape = ? AND ({_DRY})", shape)  # noqa: S608 - constants
        if not found:
            known = [row[0] for row in _ask(path, connection, f"SELECT shape FROM accounts WHERE {_DRY}")]  # noqa: S608 - likewise
            raise UnusableError(path, f"has no verdict on {shape!r}", advice=_which_shape(shape, known))
        number = found[0][0]
        with _transaction(path, connection):
            connection.execute("UPDATE accounts SET pardoned = 1, dry = 0 WHERE id = ?", (number,))
            moved = connection.execute("UPDATE parked SET account = ? WHERE account = ?", (TAKEN_BACK, number))
        return moved.rowcount


def try_again(jobdir: Path) -> int:
    """Put all that is parked back on its way to the queue, and let the pages that come decide anew.

    Every shape begins with a clean slate: it runs dry again if its next pages bring nothing, and what is still waiting
    then is parked once more. Return how many requests were parked.

    Raises:
        InUseError: A crawl is running there.
        UnusableError: There is no such file, or it cannot be written.

    """
    path = guard_file(jobdir)
    with closing(_open(jobdir, "rw")) as connection:
        _ask(path, connection, "SELECT count(*) FROM accounts")
        with _transaction(path, connection):
            connection.execute("UPDATE accounts SET dry = 0, told = 0, tried = 0, strangers = 0 WHERE dry OR told")
            connection.execute("UPDATE parked SET account = ?", (TAKEN_BACK,))
            (waiting,) = connection.execute("SELECT count(*) FROM parked").fetchone()
        return int(waiting)


def _which_shape(shape: str, known: Sequence[str]) -> str:
    if not known:
        return "It has no verdicts at all: nothing has run dry."
    close = difflib.get_close_matches(shape, known, n=3, cutoff=0.0)
    return f"Give the shape as the log and `scrapy bloom info` show it, such as {', '.join(map(repr, close))}."


@contextmanager
def _transaction(path: Path, connection: sqlite3.Connection) -> Iterator[None]:
    try:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
    except sqlite3.Error as error:
        raise _explained(path, error, "written") from error


def _open(jobdir: Path, mode: str) -> sqlite3.Connection:
    path = guard_file(jobdir)
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=1.0
        )
    except sqlite3.Error as error:
        raise UnusableError(
            path, f"cannot be opened: {error}", advice="Give the JOBDIR of a crawl with BLOOM_LOOP_GUARD."
        ) from error
    try:
        _refuse_newer(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_newer(path: Path, connection: sqlite3.Connection) -> None:
    ((version,),) = _ask(path, connection, "PRAGMA user_version")
    if version > FORMAT_VERSION:
        raise UnknownFormatError(
            path, "format version", version, FORMAT_VERSION, advice="Upgrade scrapy-bloom. Nothing was changed."
        )


def _ask(path: Path, connection: sqlite3.Connection, query: str, *values: str) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise _explained(path, error, "read") from error


def _explained(path: Path, error: sqlite3.Error, what: str) -> BloomError:
    if "locked" in str(error):
        return InUseError(path, "is in use by a crawl", advice="Stop it first. Nothing was changed.")
    return UnusableError(path, f"cannot be {what}: {error}", advice="Is this a JOBDIR of scrapy-bloom?")
