"""Requests that are held back, and what the guard knows, in one SQLite file; or the requests alone in memory.

Knows no shape: an account is a number here. A request lives in the file from :meth:`ParkedFile.park`, which returns
when it would survive a power failure, until it has come out of the queue once more. A kill in between finds it in both
places, and its page is fetched twice rather than never.
"""

from __future__ import annotations

import pickle
import random
import sqlite3
import time
from collections import Counter, deque
from contextlib import ExitStack
from typing import TYPE_CHECKING

from scrapy.utils.request import request_from_dict

from scrapy_bloom.old.errors import DamagedError, InUseError, UnknownFormatError, UnusableError
from scrapy_bloom.old.loops.account import AccountRow
from scrapy_bloom.old.loops.parked_mark import MARK_NAME, ParkedMark, read_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from scrapy import Request, Spider

APPLICATION_ID = 0x53624C67
"""The four bytes ``SbLg`` in SQLite's header, by which a file is known as ours."""

FORMAT_VERSION = 3
"""2 counts what pages bring, and how many URLs of their own shape they lead to. 3 has a count less."""

IN_MEMORY = 100_000
"""Most requests parked without a job directory, some 200 MB. Further ones are fetched."""

PICKLE_PROTOCOL = 4
"""As in Scrapy's disk queues: read by every Python we support, whichever wrote it."""

TAKEN_BACK = 0
"""Account of requests whose verdict a person has taken back. No shape has this number, so it never runs dry."""

_ACCOUNTS = """
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY,
    shape TEXT NOT NULL,
    fetched INTEGER NOT NULL,
    dry INTEGER NOT NULL,
    queued INTEGER NOT NULL,
    tried INTEGER NOT NULL,
    strangers INTEGER NOT NULL,
    lately INTEGER NOT NULL,
    bred INTEGER NOT NULL,
    brought INTEGER NOT NULL,
    loops INTEGER NOT NULL,
    told INTEGER NOT NULL,       -- 1: has run dry at least once; 2: and bred then
    pardoned INTEGER NOT NULL,   -- 1: a person has taken its verdict back
    example TEXT NOT NULL
);
"""

_TABLES = f"""
BEGIN;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
CREATE TABLE parked (
    id INTEGER PRIMARY KEY,
    account INTEGER NOT NULL,    -- whose verdict parked it
    released INTEGER NOT NULL,   -- 1: on its way back into the queue
    url TEXT NOT NULL,
    body BLOB NOT NULL           -- pickled Request.to_dict()
);
CREATE INDEX parked_by_account ON parked (account, released);
{_ACCOUNTS}CREATE TABLE folders (name TEXT PRIMARY KEY, is_wide INTEGER NOT NULL, children TEXT NOT NULL);
COMMIT;
"""


_LEARNED_AGAIN = ("strangers", "lately", "bred", "brought", "loops")
"""Counts that version 1 does not have, or takes in another way. They begin at 0, and are right in a few pages."""

_COLUMNS = ", ".join(AccountRow._fields)
_PLACES = ", ".join("?" * len(AccountRow._fields))


class ParkedInMemory:
    """Requests parked for this run only."""

    unreadable = 0
    """As in :class:`ParkedFile`; there is nothing to be read here."""

    def __init__(self) -> None:
        self.waiting: Counter[int] = Counter()
        self._requests: dict[int, deque[Request]] = {}

    def __str__(self) -> str:
        return "memory"

    def urls(self) -> list[str]:
        """Return the URLs that are parked."""
        return [request.url for requests in self._requests.values() for request in requests]

    def park(self, account: int, request: Request) -> bool:
        """Keep *request* unless there are too many."""
        if self.waiting.total() >= IN_MEMORY:
            return False
        self._requests.setdefault(account, deque()).append(request.copy())
        self.waiting[account] += 1
        return True

    def release(self, account: int, most: int) -> list[tuple[int, Request]]:
        """Return up to *most* requests of *account*, oldest first."""
        requests = self._requests.get(account, deque())
        released = [(0, requests.popleft()) for _ in range(min(most, len(requests)))]
        self.waiting[account] -= len(released)
        return released

    def release_any(self, account: int) -> list[tuple[int, Request]]:
        """Return one of the requests of *account*, if there are any, each with the same probability."""
        requests = self._requests.get(account, deque())
        before = random.randrange(len(requests) or 1)  # noqa: S311 - no secret
        requests.rotate(-before)
        released = self.release(account, 1)
        requests.rotate(before)
        return released

    def drop(self, number: int) -> None:
        """Do nothing: a released request is not kept."""


class ParkedFile:
    """Requests parked in a job directory, with what the guard knows about shapes beside them."""

    def __init__(self, connection: sqlite3.Connection, path: Path, spider: Spider | None, mark: Path) -> None:
        self._connection = connection
        self._path = path
        self._spider = spider
        self.unreadable = 0
        """Parked requests that could not be read; they stay in the file."""
        self.waiting: Counter[int] = _waiting(connection)
        self._last_id = newest_parked(connection)
        self.lacked_some = read_mark(mark) > self._last_id
        """Whether the file was without requests that had been parked: an older one, or one without its log."""
        self._mark = ParkedMark(mark, self._last_id)
        self._unread: list[int] = []
        self._waits = False
        self._dropped: list[int] = []
        self._sealed: list[int] = []

    def __str__(self) -> str:
        return str(self._path)

    @classmethod
    def open(cls, jobdir: Path, spider: Spider | None) -> ParkedFile:
        """Open the file of the job in *jobdir*, or begin one.

        What was released and had not come out of the queue when the last run ended without :meth:`close` is parked
        again: its queue may be lost.

        Raises:
            InUseError: Another process has it open.
            UnknownFormatError: A newer version wrote it.
            DamagedError: It contradicts itself.
            UnusableError: It cannot be created, read or written.

        """
        path = guard_file(jobdir)
        with ExitStack() as on_failure:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                connection = sqlite3.connect(path, isolation_level=None, timeout=1.0)
                on_failure.callback(connection.close)
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                _check(connection, path)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")  # the frontier forgets a parked request within a second
                connection.execute("UPDATE parked SET released = 0 WHERE released")
                opened = cls(connection, path, spider, jobdir / MARK_NAME)
            except sqlite3.OperationalError as error:
                if "locked" in str(error):
                    raise InUseError(
                        path, "another process has it open", advice="Stop the other crawl, or use another JOBDIR."
                    ) from error
                raise _unusable(path, error) from error
            except sqlite3.DatabaseError as error:
                raise _damaged(path, error) from error
            except OSError as error:
                raise _unusable(path, error) from error
            on_failure.pop_all()
        return opened

    def park(self, account: int, request: Request) -> bool:
        """Write *request* to the disk. Return False if it cannot be serialized, or the disk does not take it."""
        try:
            body = pickle.dumps(request.to_dict(spider=self._spider), protocol=PICKLE_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError, ValueError):
            return False
        # Never a number that another request had: that one may still be in a queue, which drops it by its number.
        number = max(self._last_id + 1, time.time_ns())
        try:
            self._connection.execute(
                "INSERT INTO parked (id, account, released, url, body) VALUES (?, ?, 0, ?, ?)",
                (number, account, request.url, body),
            )
        except sqlite3.Error:
            return False
        self._last_id = number
        self._mark.note(number)
        self.waiting[account] += 1
        return True

    def release(self, account: int, most: int) -> list[tuple[int, Request]]:
        """Return up to *most* requests of *account*, oldest first; they stay in the file until :meth:`drop`."""
        return self._release(account, most, after=0)

    def release_any(self, account: int) -> list[tuple[int, Request]]:
        """Return one of the requests of *account*, if there are any, each with the same probability."""
        return self._release(account, 1, after=random.randrange(self.waiting[account] or 1))  # noqa: S311 - no secret

    def _release(self, account: int, most: int, *, after: int) -> list[tuple[int, Request]]:
        rows = self._connection.execute(
            "SELECT id, body FROM parked WHERE account = ? AND NOT released ORDER BY id LIMIT ? OFFSET ?",
            (account, most, after),
        ).fetchall()
        self._mark_released([row_id for row_id, _ in rows])
        self.waiting[account] -= len(rows)
        requests = []
        for row_id, body in rows:
            try:
                # The job directory is as trusted as with Scrapy's own queues, which are pickles too.
                requests.append((row_id, request_from_dict(pickle.loads(body), spider=self._spider)))  # noqa: S301
            except Exception:  # whatever a callback or a class in its meta has become
                self.unreadable += 1
                self._unread.append(row_id)
        return requests

    def hold_back(self) -> None:
        """From now on, delete what is dropped only once the queue has it on disk: :meth:`seal`, :meth:`checkpoint`."""
        self._waits = True

    def seal(self) -> None:
        """Tell what was dropped so far, and is in the commit of the queue that begins, from what comes later."""
        self._sealed += self._dropped
        self._dropped = []

    def checkpoint(self) -> None:
        """Delete what was sealed: the queue's commit is durable."""
        if self._sealed:
            self._delete("DELETE FROM parked WHERE id = ?", ((number,) for number in self._sealed))
            self._sealed.clear()

    def drop(self, number: int) -> None:
        """Delete a released request, at once or when its queue has it on disk."""
        if self._waits:
            self._dropped.append(number)
        else:
            self._delete("DELETE FROM parked WHERE id = ?", [(number,)])

    def release_urls(self, allowed: Callable[[str], bool]) -> int:
        """Hand every request whose URL is *allowed* to TAKEN_BACK, and return how many there are."""
        rows = self._connection.execute("SELECT id, url FROM parked WHERE account != ?", (TAKEN_BACK,)).fetchall()
        found = [(TAKEN_BACK, row_id) for row_id, url in rows if allowed(url)]
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany("UPDATE parked SET account = ? WHERE id = ?", found)
        self.waiting = _waiting(self._connection)
        return len(found)

    def accounts(self) -> list[AccountRow]:
        """Return what is known about each shape."""
        return account_rows(self._connection)

    def folders(self) -> list[tuple[str, int, str]]:
        """Return what is known about each folder."""
        return self._connection.execute("SELECT name, is_wide, children FROM folders").fetchall()

    def save(
        self,
        accounts: Iterable[AccountRow],
        folders: Iterable[tuple[str, int, str]],
        *,
        forgotten_accounts: Iterable[int] = (),
        forgotten_folders: Iterable[str] = (),
    ) -> None:
        """Write what has changed, in one transaction."""
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany(
                f"INSERT OR REPLACE INTO accounts ({_COLUMNS}) VALUES ({_PLACES})",  # noqa: S608 - constants
                accounts,
            )
            self._connection.executemany("INSERT OR REPLACE INTO folders VALUES (?,?,?)", folders)
            self._connection.executemany("DELETE FROM accounts WHERE id = ?", ((i,) for i in forgotten_accounts))
            self._connection.executemany("DELETE FROM folders WHERE name = ?", ((n,) for n in forgotten_folders))

    def close(self, *, queue_is_kept: bool) -> None:
        """Close the file. Released requests now belong to the queue, if that is kept."""
        try:
            if queue_is_kept:
                unread = ((row_id,) for row_id in self._unread)
                self._connection.executemany("UPDATE parked SET released = 0 WHERE id = ?", unread)
                self._delete("DELETE FROM parked WHERE released", [()])
        finally:  # also on a full disk, where the next run finds the released ones in both places
            self._connection.close()
            self._mark.close()

    def _delete(self, statement: str, which: Iterable[tuple[int, ...]]) -> None:
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany(statement, which)
            self._mark.note(newest_parked(self._connection))  # before the commit, so never too large

    def _mark_released(self, row_ids: Iterable[int]) -> None:
        with self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany("UPDATE parked SET released = 1 WHERE id = ?", ((i,) for i in row_ids))


def guard_file(jobdir: Path) -> Path:
    """Return where the loop guard keeps what it knows and parks in *jobdir*."""
    return jobdir / "requests.loops" / "guard.sqlite"


def lacks_some(jobdir: Path) -> str:
    """Return what to say where requests that were parked are not in the file of *jobdir*, and what to do then."""
    path = guard_file(jobdir)
    return (
        f"{path} lacks requests that the loop guard has parked: it is older than {jobdir / MARK_NAME}, or was copied "
        "without its -wal file. Their pages count as seen and will not be fetched. If that was not meant, stop the "
        f"crawl, and restore {path.parent}, with all that was in it, from a newer backup."
    )


def missing_in(jobdir: Path, noted: int, connection: sqlite3.Connection | None) -> list[str]:
    """Return a finding if parked requests are missing over a *connection* to the file of *jobdir*; None: there is none.

    *noted* is what :func:`newest_noted` said before the file was read: a crawl may park and fetch meanwhile.
    """
    newest = 0 if connection is None else newest_parked(connection)
    return [lacks_some(jobdir)] if min(noted, newest_noted(jobdir)) > newest else []


def newest_noted(jobdir: Path) -> int:
    """Return the number of the newest parked request as noted beside the file of *jobdir*; 0 without any."""
    return read_mark(jobdir / MARK_NAME)


def newest_parked(connection: sqlite3.Connection) -> int:
    """Return the number of the newest parked request, 0 without any, over a *connection* to the file or to a copy."""
    return int(connection.execute("SELECT ifnull(max(id), 0) FROM parked").fetchone()[0])


def account_rows(connection: sqlite3.Connection) -> list[AccountRow]:
    """Return what is known about each shape, over a *connection* to the file or to a copy, of any version."""
    return [AccountRow(*row) for row in connection.execute(_select_accounts(connection, "accounts"))]


def _select_accounts(connection: sqlite3.Connection, table: str) -> str:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    again = _LEARNED_AGAIN if version == 1 else ()
    columns = ", ".join("0" if name in again else name for name in AccountRow._fields)
    return f"SELECT {columns} FROM {table}"  # noqa: S608 - constants


def _waiting(connection: sqlite3.Connection) -> Counter[int]:
    counts = connection.execute("SELECT account, count(*) FROM parked WHERE NOT released GROUP BY account")
    return Counter(dict(counts.fetchall()))


def _check(connection: sqlite3.Connection, path: Path) -> None:
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not tables and not application:
        connection.executescript(_TABLES)
    elif application != APPLICATION_ID:
        raise DamagedError(path, "it is no file of the loop guard", advice=_DELETE.format(path.parent))
    elif version in (1, 2):
        _upgrade(connection)
    elif version != FORMAT_VERSION:
        raise UnknownFormatError(
            path, "format version", version, FORMAT_VERSION, advice="Upgrade scrapy-bloom, or use another JOBDIR."
        )


def _upgrade(connection: sqlite3.Connection) -> None:
    """Write the accounts of an older version anew: before SQLite 3.35 no column can be dropped."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ALTER TABLE accounts RENAME TO older")
        connection.execute(_ACCOUNTS)
        connection.execute(f"INSERT INTO accounts ({_COLUMNS}) {_select_accounts(connection, 'older')}")
        connection.execute("DROP TABLE older")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


_DELETE = "Restore it from a backup, or delete {} to begin without the guard's verdicts; what is parked there is lost."


def _damaged(path: Path, error: Exception) -> DamagedError:
    return DamagedError(path, f"SQLite says: {error}", advice=_DELETE.format(path.parent))


def _unusable(path: Path, error: Exception) -> UnusableError:
    return UnusableError(path, str(error), advice="Check the owner, the permissions and the disk.")
