"""``scrapy bloom info redis://...``: says what a fleet holds, and with ``--watch`` how its crawl is doing."""

from __future__ import annotations

import json
import time
from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.terminal import OK, by_host, show, utc, write
from scrapy_bloom.crawl.estimate import Estimate, Left, left_in_words
from scrapy_bloom.fleet.server import Server
from scrapy_bloom.fleet.shared_queue import DEAD, FAILED, SharedQueue

if TYPE_CHECKING:
    import argparse

_MOST_DEAD = 100
"""Dead letters that are named."""
_WATCHED = ("done", "pending", "leased", "failed", "dead_lettered")


def run_for_fleet(options: argparse.Namespace) -> int:
    """Print what the queue of a fleet holds, what has failed, or how it is doing until its crawl ends."""
    with closing(Server(options.directory)) as server:
        queue = SharedQueue(server, options.key)
        if options.watch is not None:
            _watch(queue, options.watch, as_json=options.json)
        elif options.failed:
            show({"server": server.where, "key": queue.prefix, **failed_of(queue)}, options)
        else:
            show({**counts_of(queue), "dead_letters": dead_letters_of(queue)}, options)
    return OK


def dead_letters_of(queue: SharedQueue) -> list[dict[str, str]]:
    """Return the first dead letters."""
    return [
        {"url": row.url, "reason": row.reason, "when": utc(row.time)} for row in islice(queue.listed(DEAD), _MOST_DEAD)
    ]


def failed_of(queue: SharedQueue) -> dict[str, Any]:
    """Return what has failed for good: how often by host and reason, and each, the newest first."""
    return by_host([*queue.listed(FAILED)])


def counts_of(queue: SharedQueue) -> dict[str, Any]:
    """Return what is there, and how many pages are left."""
    told, estimate = queue.info(), Estimate()
    for dumped in queue.estimates():
        estimate.add(dumped)
    outstanding = told["pending"] + told["leased"]
    estimate.expect(outstanding)
    left = estimate.left(outstanding, held=queue.of_full_hosts()) if estimate.found else None
    return {**told, "left_at_least": left and left.low, "left_at_most": left and left.high}


def _watch(queue: SharedQueue, seconds: float, *, as_json: bool) -> None:
    """Print a line every so many *seconds*, until no worker is alive or somebody presses Ctrl-C."""
    done, moment = None, 0.0
    with suppress(KeyboardInterrupt):
        while True:
            now, told = time.monotonic(), counts_of(queue)
            speed = 0 if done is None else round(60 * (told["done"] - done) / (now - moment))
            done, moment = told["done"], now
            counts = ", ".join(f"{told[name]:,} {name.replace('_', ' ')}" for name in _WATCHED)
            alive = sum(worker["is_alive"] for worker in told["workers"])
            line = f"{utc(time.time())}: {speed:,} requests/min, {counts}; {alive} workers alive"
            if told["left_at_least"] is not None:
                left = Left(told["left_at_least"], told["left_at_most"])
                line += f"; {', '.join(left_in_words(left, speed))}"
            write([json.dumps(told) if as_json else line])
            if not alive:
                return
            time.sleep(max(seconds, 0.1))
