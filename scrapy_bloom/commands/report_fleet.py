"""The page about the crawl of a fleet: what its server holds at the moment, since that keeps no figures of the past."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands import html
from scrapy_bloom.commands.info import left_of
from scrapy_bloom.commands.info_fleet import counts_of, dead_letters_of, failed_of
from scrapy_bloom.commands.terminal import utc
from scrapy_bloom.errors import counted
from scrapy_bloom.fleet.server import Server
from scrapy_bloom.fleet.shared_queue import SharedQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_ROWS = 100
"""Of a table."""


def fleet_page(url: str, key: str) -> list[str]:
    """Return the lines of the page about the queue under *key* on the server at *url*."""
    with closing(Server(url)) as server:
        queue = SharedQueue(server, key)
        return [*html.page(f"Crawl report: {queue.prefix}", _body(queue, counts_of(queue)))]


def _body(queue: SharedQueue, told: dict[str, Any]) -> Iterator[str]:
    alive = [worker for worker in told["workers"] if worker["is_alive"]]
    over = "Everything is done" if not told["pending"] + told["leased"] else "No worker is alive"
    state = f"{counted(len(alive), 'worker')} alive" if alive else over
    yield html.note(f"On {told['server']}. {state}.")
    yield from _tiles(told)
    workers = [(worker["worker"], f"{worker['leased']:,}") for worker in told["workers"]]
    yield from html.table("Workers", ["worker", "in hand"], workers[:_MOST_ROWS])
    failed = [(row["host"], f"{row['requests']:,}", row["reason"]) for row in failed_of(queue)["failed_by_host"]]
    yield from html.table("Failed", ["host", "requests", "reason"], failed[:_MOST_ROWS])
    dead = [(letter["url"], letter["when"], letter["reason"]) for letter in dead_letters_of(queue)]
    yield from html.table("Dead letters", ["URL", "since", "reason"], dead)
    yield html.note(f"Written by scrapy-bloom, {utc(time.time())}.")


def _tiles(told: dict[str, Any]) -> Iterator[str]:
    paused = told["hosts_paused"]
    return html.tiles(
        [
            ("Done", f"{told['done']:,}", f"of {told['enqueued']:,} that were found"),
            ("Pending", f"{told['pending']:,}", f"{counted(paused, 'host')} paused" if paused else ""),
            ("In hand", f"{told['leased']:,}", ""),
            html.left_tile(left_of(told), 0),
            ("Failed", f"{told['failed']:,}", ""),
            ("Dead letters", f"{told['dead_lettered']:,}", ""),
        ]
    )
