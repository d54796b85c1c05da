"""Prints the contents of the queue of a fleet, and how its crawl is doing: ``info`` of ``redis://...``."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.targets import queue_of
from scrapy_bloom.commands.terminal import OK, by_host, left_of, show, utc, watch
from scrapy_bloom.crawl.estimate import Estimate, left_in_words
from scrapy_bloom.fleet.shared_queue import DEAD, FAILED

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_bloom.commands.terminal import Glance
    from scrapy_bloom.fleet.shared_queue import SharedQueue

_MOST_LETTERS = 100
_WATCHED = ("done", "pending", "leased", "failed", "dead_lettered")


def run_for_fleet(options: argparse.Namespace) -> int:
    """Print the counts of the queue of a fleet, its failed requests, or how its crawl is doing until that ends."""
    with queue_of(options) as queue:
        if options.watch is not None:
            watch(_glances(queue), options)
        elif options.failed:
            failed = by_host([*queue.listed(FAILED)])
            show({"server": queue.info()["server"], "key": queue.prefix, **failed}, options)
        else:
            show({**counts_of(queue), "dead_letters": dead_letters_of(queue)}, options)
    return OK


def dead_letters_of(queue: SharedQueue) -> list[dict[str, str]]:
    """Return the first dead letters of the queue, in plain types."""
    letters = islice(queue.listed(DEAD), _MOST_LETTERS)
    return [{"url": row.url, "reason": row.reason, "when": utc(row.time)} for row in letters]


def counts_of(queue: SharedQueue) -> dict[str, Any]:
    """Return the counts of the queue, and how many pages are left."""
    counts, estimate = queue.info(), Estimate()
    for dumped in queue.estimates():
        estimate.add(dumped)
    outstanding = counts["pending"] + counts["leased"]
    estimate.expect(outstanding)
    left = estimate.left(outstanding, held=queue.of_full_hosts()) if estimate.requests else None
    return {**counts, "left_at_least": left and left.low, "left_at_most": left and left.high}


def _glances(queue: SharedQueue) -> Iterator[Glance]:
    """Yield how the crawl is doing, until no worker is alive."""
    done, moment = None, 0.0
    while True:
        now, counts = time.monotonic(), counts_of(queue)
        speed = 0 if done is None else round(60 * (counts["done"] - done) / (now - moment))
        done, moment = counts["done"], now
        watched = ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in _WATCHED)
        alive = sum(worker["is_alive"] for worker in counts["workers"])
        line = f"{speed:,} requests/min, {watched}; {alive} workers alive"
        if (left := left_of(counts)) is not None:
            line += f"; {', '.join(left_in_words(left, speed))}"
        yield counts, line, not alive
