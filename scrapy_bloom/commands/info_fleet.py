"""What a fleet holds, as lines or as a page, and how its crawl is doing: ``info`` and ``report`` of ``redis://...``."""

from __future__ import annotations

import json
import time
from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands import html
from scrapy_bloom.commands.terminal import OK, by_host, left_of, show, utc, write
from scrapy_bloom.crawl.estimate import Estimate, left_in_words
from scrapy_bloom.errors import counted
from scrapy_bloom.fleet.server import Server
from scrapy_bloom.fleet.shared_queue import DEAD, FAILED, SharedQueue

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_MOST_ROWS = 100
"""Of a table; and of dead letters that are named."""
_WATCHED = ("done", "pending", "leased", "failed", "dead_lettered")


def run_for_fleet(options: argparse.Namespace) -> int:
    """Print what the queue of a fleet holds, what has failed, or how it is doing until its crawl ends."""
    with closing(Server(options.directory)) as server:
        queue = SharedQueue(server, options.key)
        if options.watch is not None:
            _watch(queue, options.watch, as_json=options.json)
        elif options.failed:
            show({"server": server.where, "key": queue.prefix, **by_host([*queue.listed(FAILED)])}, options)
        else:
            show({**counts_of(queue), "dead_letters": _dead_letters_of(queue)}, options)
    return OK


def _dead_letters_of(queue: SharedQueue) -> list[dict[str, str]]:
    letters = islice(queue.listed(DEAD), _MOST_ROWS)
    return [{"url": row.url, "reason": row.reason, "when": utc(row.time)} for row in letters]


def counts_of(queue: SharedQueue) -> dict[str, Any]:
    """Return what the queue holds, and how many pages are left."""
    counts, estimate = queue.info(), Estimate()
    for dumped in queue.estimates():
        estimate.add(dumped)
    outstanding = counts["pending"] + counts["leased"]
    estimate.expect(outstanding)
    left = estimate.left(outstanding, held=queue.of_full_hosts()) if estimate.requests else None
    return {**counts, "left_at_least": left and left.low, "left_at_most": left and left.high}


def _watch(queue: SharedQueue, seconds: float, *, as_json: bool) -> None:
    """Print a line every so many *seconds*, until no worker is alive or somebody presses Ctrl-C."""
    done, moment = None, 0.0
    with suppress(KeyboardInterrupt):
        while True:
            now, counts = time.monotonic(), counts_of(queue)
            speed = 0 if done is None else round(60 * (counts["done"] - done) / (now - moment))
            done, moment = counts["done"], now
            watched = ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in _WATCHED)
            alive = sum(worker["is_alive"] for worker in counts["workers"])
            line = f"{utc(time.time())}: {speed:,} requests/min, {watched}; {alive} workers alive"
            if (left := left_of(counts)) is not None:
                line += f"; {', '.join(left_in_words(left, speed))}"
            write([json.dumps(counts) if as_json else line])
            if not alive:
                return
            time.sleep(max(seconds, 0.1))


def fleet_page(url: str, key: str) -> list[str]:
    """Return the lines of the page about the queue under *key* on the server at *url*."""
    with closing(Server(url)) as server:
        queue = SharedQueue(server, key)
        return [*html.page(f"Crawl report: {queue.prefix}", _body(queue, counts_of(queue)))]


def _body(queue: SharedQueue, counts: dict[str, Any]) -> Iterator[str]:
    alive = [worker for worker in counts["workers"] if worker["is_alive"]]
    over = "Everything is done" if not counts["pending"] + counts["leased"] else "No worker is alive"
    state = f"{counted(len(alive), 'worker')} alive" if alive else over
    yield html.note(f"On {counts['server']}. {state}.")
    yield from _tiles(counts)
    workers = [(worker["worker"], f"{worker['leased']:,}") for worker in counts["workers"]]
    yield from html.table("Workers", ["worker", "in hand"], workers[:_MOST_ROWS])
    failed = [
        (row["host"], f"{row['requests']:,}", row["reason"])
        for row in by_host([*queue.listed(FAILED)])["failed_by_host"]
    ]
    yield from html.table("Failed", ["host", "requests", "reason"], failed[:_MOST_ROWS])
    dead = [(letter["url"], letter["when"], letter["reason"]) for letter in _dead_letters_of(queue)]
    yield from html.table("Dead letters", ["URL", "since", "reason"], dead)
    yield html.note(f"Written by scrapy-bloom, {utc(time.time())}.")


def _tiles(counts: dict[str, Any]) -> Iterator[str]:
    paused = counts["hosts_paused"]
    return html.tiles(
        [
            ("Done", f"{counts['done']:,}", f"of {counts['enqueued']:,} that were found"),
            ("Pending", f"{counts['pending']:,}", f"{counted(paused, 'host')} paused" if paused else ""),
            ("In hand", f"{counts['leased']:,}", ""),
            html.left_tile(left_of(counts), 0),
            ("Failed", f"{counts['failed']:,}", ""),
            ("Dead letters", f"{counts['dead_lettered']:,}", ""),
        ]
    )
