"""Counts the pending requests of a job by host. Reads the queue's file only while nobody writes to it."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

from scrapy_bloom.files.frontier_file import FRONTIER_NAME

if TYPE_CHECKING:
    from pathlib import Path

_LANE = re.compile(r"/(.+)-[0-9a-f]{32}/-?\d+s?")
"""``/example.com-<md5>/-1``: what Scrapy's priority queue for many hosts calls the queue of one and its priority."""


def pending_by_host(jobdir: Path) -> list[tuple[str, int]] | None:
    """Return the hosts with their numbers of pending requests, most first; characters unfit for a file name are ``_``.

    Requests in a queue that does not tell hosts apart are not in it. None if nobody can say: a crawl is running there,
    was killed and not resumed since, or the file cannot be read.
    """
    path = jobdir / FRONTIER_NAME
    log = path.with_name(path.name + "-wal")
    try:
        if not path.exists():
            return []
        if log.exists() and log.stat().st_size:
            return None  # what stands there is not in the file yet, and opening both together would write
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            lanes = database.execute("SELECT key, rows FROM lanes WHERE rows > 0").fetchall()
    except (OSError, sqlite3.Error):
        return None
    hosts: Counter[str] = Counter()
    for name, rows in lanes:
        matched = _LANE.fullmatch(str(name))
        if matched:
            hosts[matched[1]] += int(rows)
    return sorted(hosts.items(), key=lambda host: (-host[1], host[0]))
