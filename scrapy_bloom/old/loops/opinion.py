"""What the guard of a job would do with a URL, asked from outside of its crawl: :func:`objections_in`.

Reads what the guard has stored, and changes nothing. Does not know who asks, nor what ``allow`` lets through.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.loops.judging import accounts_in, judge_of
from scrapy_bloom.old.loops.parked import account_rows
from scrapy_bloom.old.loops.shapes import Shapes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def objections_in(path: Path, connection: sqlite3.Connection) -> Callable[[str], str | None]:
    """Return what says why the guard would park a URL, or None.

    Args:
        path: The guard's file, to be named.
        connection: To that file, or to a copy.

    Raises:
        UnusableError: The file cannot be read.

    """
    shapes = Shapes()
    try:
        accounts = accounts_in(account_rows(connection))
        shapes.load(connection.execute("SELECT name, is_wide, children FROM folders").fetchall())
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise UnusableError(path, f"cannot be read: {error}", advice="`scrapy bloom verify` says more.") from error

    def objection(url: str) -> str | None:
        judge = judge_of(url, shapes, accounts)
        if judge is None:
            return None
        return f"{judge.shape} has run dry: of {judge.fetched:,} pages the last {judge.dry:,} brought nothing new"

    return objection
