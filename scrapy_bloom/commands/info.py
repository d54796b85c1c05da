"""Prints the contents of a job directory or of the queue of a fleet, and with ``--watch`` how its crawl is doing."""

from __future__ import annotations

import json
import math
import pickle
import time
from collections import Counter
from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.targets import add_target, queue_at
from scrapy_bloom.commands.terminal import OK, WRONG, by_host, left_of, show, utc, write
from scrapy_bloom.crawl.estimate import Estimate, Left, in_words, left_in_words
from scrapy_bloom.frontier.order import PagesPerHost
from scrapy_bloom.job.database import NAME, connect, unsealed
from scrapy_bloom.job.inspect import DIRECTORY, inspect_job
from scrapy_bloom.job.records import Figures
from scrapy_bloom.loops.kinds import readable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy_bloom.fleet.shared_queue import SharedQueue
    from scrapy_bloom.job.inspect import JobInfo
    from scrapy_bloom.loops.aliases import Alias

    Glance = tuple[dict[str, Any], str, bool]
    """A summary of a crawl, a line about it for people, and whether the crawl is over."""

_MOST_HOSTS, _MOST_KINDS = 1_000, 100
"""In the JSON, those with the most pending requests first."""
_WINDOW = 30.0
"""Seconds over which the speed is averaged."""
_WATCHED = ("pages", "urls", "duplicates", "errors_with_retries", "in_flight")
_WATCHED_IN_FLEET = ("done", "pending", "leased", "failed", "dead_lettered")
_MOST_LETTERS = 100
"""Dead letters of a fleet that are listed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``info``."""
    add_target(parser)
    every = "print every so many seconds how a running crawl is doing (default: 5)"
    parser.add_argument("--failed", action="store_true", help="list the requests that have failed for good")
    parser.add_argument("--watch", metavar="SECONDS", nargs="?", type=float, const=5.0, help=every)


def run(options: argparse.Namespace) -> int:
    """Print the contents, the failed requests, or how the crawl is doing until it ends."""
    directory = options.directory
    with queue_at(directory, options.key) as queue:
        if options.watch is not None:
            _watch(_glances(directory) if queue is None else _glances_at_fleet(queue), options)
            return OK
        if options.failed and queue is None:
            summary = {"directory": directory, **by_host(inspect_job(directory).failed)}
        elif queue is None:
            summary = info(directory)
        elif options.failed:
            summary = {"server": queue.server.where, "key": queue.prefix, **by_host([*queue.listed("failed")])}
        else:
            summary = {**counts_of(queue), "dead_letters": dead_letters_of(queue)}
    show(summary, options)
    return WRONG if summary.get("findings") else OK


def info(directory: str) -> dict[str, Any]:
    """Return what the job in *directory* holds, in plain types, under stable names. Raises as :func:`inspect_job`."""
    job = inspect_job(directory)
    seen, state = job.filter, job.state
    hosts: Counter[str] = Counter()
    for lane in job.lanes:
        hosts[lane.slot] += lane.rows
    full = _full_hosts(job, hosts)
    estimate, left = _estimate(job, held=sum(host["pending"] for host in full))
    return {
        "directory": str(job.directory),
        "spider": state.spider,
        "runs": state.runs,
        "begun": utc(min((layer.created for layer in seen.layers), default=0.0)),
        "in_use": seen.is_in_use,
        "last_opened_by": seen.owner,
        "clean": state.clean and not seen.is_in_use,
        "finish_reason": state.finish_reason or None,
        "urls": job.urls,
        "urls_are_estimated": not seen.is_clean,
        "urls_taken_back": seen.forgotten,
        "pending": state.pending,
        "hosts": len(hosts),
        "in_flight": state.in_flight,
        "failed": len(job.failed),
        **_crawled(job.figures),
        "left_at_least": left.low if left else None,
        "left_at_most": left.high if left else None,
        "error_rate_at_most": max((layer.chain_error_rate for layer in seen.layers), default=0.0),
        "error_rate_now": 1 - math.prod(1 - layer.spec.error_rate_at(layer.count) for layer in seen.layers),
        "expected_lost": seen.expected_lost,
        "bytes_of_filter": seen.nbytes,
        "bytes_on_disk": job.nbytes,
        "key_space": dict(state.key_space or {}),
        "layers": [
            {"layer": layer.spec.index, "urls": layer.count, "of": layer.spec.capacity} for layer in seen.layers
        ],
        "feeds": [{"feed": feed.path, "items": feed.items, "bytes": feed.size} for feed in job.feeds],
        "pending_by_host": [{"host": host, "pending": count} for host, count in hosts.most_common(_MOST_HOSTS)],
        "pending_by_full_host": full,
        "endless": [{"kind": kind, "pending": count} for kind, count in estimate.endless.most_common()],
        "pending_by_kind": _kinds(job),
        "aliases": list(map(_described, job.aliases)),
        "findings": list(map(str, seen.damage)),
    }


def _estimate(job: JobInfo, held: int) -> tuple[Estimate, Left | None]:
    """Return the estimate as the last commit noted it, and the pages left, if it noted anything.

    *held* requests are pending of hosts that have had their pages.
    """
    estimate = Estimate()
    if job.estimate is None:
        return estimate, None
    estimate.load(job.estimate)
    return estimate, estimate.left(job.state.pending, held)


def _described(alias: Alias) -> dict[str, Any]:
    return {**alias._asdict(), "part": alias.describe(), "rule": alias.rule()}


def _crawled(figures: Sequence[Figures]) -> dict[str, Any]:
    """Return what all runs have crawled, and how fast the last run was in its last half minute."""
    last = figures[-1] if figures else Figures(*[0] * len(Figures._fields))
    first = next((row for row in figures if row.run == last.run and row.time >= last.time - _WINDOW), last)
    new, known = max(0, last.urls - first.urls), last.duplicates - first.duplicates  # the filter forgets, too
    return {
        "pages": last.pages,
        "duplicates": last.duplicates,
        "errors_with_retries": last.failures + last.http_errors + last.spider_errors,
        "pages_per_minute": round(60 * (last.pages - first.pages) / max(last.time - first.time, 1.0)),
        "recent_links_new": new / (new + known) if new + known > 0 else None,
    }


def _full_hosts(job: JobInfo, pending: Counter[str]) -> list[dict[str, Any]]:
    """Return the hosts with *pending* requests that had reached their ``BLOOM_PAGES_PER_HOST`` of the last run."""
    pages = PagesPerHost(job.state.pages_per_host or {}, job.pages)
    return [
        {"host": host, "pending": count, "pages": job.pages[host], "limit": pages.limit_of(host)}
        for host, count in pending.most_common()
        if pages.is_full(host, 0)
    ]


def _kinds(job: JobInfo) -> list[dict[str, Any]]:
    """Return how many requests of each kind are pending, with an example; nothing if the loop guard is off."""
    kinds: Counter[str] = Counter()
    for lane in job.lanes:
        kinds[readable(lane.kind)] += lane.rows
    del kinds[""]
    lanes = {readable(lane.kind): lane.id for lane in job.lanes}
    return [
        {"kind": kind, "pending": pending, "example": next(pending_requests(job, lanes[kind]), {"url": ""})["url"]}
        for kind, pending in kinds.most_common(_MOST_KINDS)
    ]


def pending_requests(job: JobInfo, lane: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the ``Request.to_dict()`` of each pending request of *job*, or of one *lane*, that is not damaged."""
    lanes = (-(1 << 63), (1 << 63) - 1) if lane is None else (lane, lane)
    with closing(connect(job.directory / DIRECTORY / NAME, read_only=True)) as connection:
        for row in connection.execute("SELECT lane, id, body FROM request WHERE lane BETWEEN ? AND ?", lanes):
            with suppress(Exception):  # a damaged row, which `verify` reports, or a class of another project's
                yield pickle.loads(unsealed(*row) or b"")  # noqa: S301 - as trusted as in the crawl itself


def _glances(directory: str) -> Iterator[Glance]:
    """Yield how the crawl is doing, until it ends."""
    while True:
        summary = info(directory)
        left = left_of(summary)
        progress = in_words(summary["pages_per_minute"], summary["pending"], summary["recent_links_new"], left)
        counts = ", ".join(f"{summary[name]:,} {name.replace('_', ' ')}" for name in _WATCHED)
        ended = "the crawl has ended" if summary["clean"] else "the crawl was killed, and can be resumed"
        yield summary, f"{progress}; {counts}" + ("" if summary["in_use"] else f"; {ended}"), not summary["in_use"]


def _watch(glances: Iterable[Glance], options: argparse.Namespace) -> None:
    """Print one of *glances* every ``options.watch`` seconds, until the crawl is over or somebody presses Ctrl-C."""
    with suppress(KeyboardInterrupt):
        for summary, line, is_over in glances:
            write([json.dumps(summary) if options.json else f"{utc(time.time())}: {line}"])
            if is_over:
                return
            time.sleep(max(options.watch, 0.1))


def dead_letters_of(queue: SharedQueue) -> list[dict[str, str]]:
    """Return the first dead letters of the queue, in plain types."""
    letters = islice(queue.listed("dead"), _MOST_LETTERS)
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


def _glances_at_fleet(queue: SharedQueue) -> Iterator[Glance]:
    """Yield how the crawl is doing, until no worker is alive."""
    done, moment = None, 0.0
    while True:
        now, counts = time.monotonic(), counts_of(queue)
        speed = 0 if done is None else round(60 * (counts["done"] - done) / (now - moment))
        done, moment = counts["done"], now
        watched = ", ".join(f"{counts[name]:,} {name.replace('_', ' ')}" for name in _WATCHED_IN_FLEET)
        alive = sum(worker["is_alive"] for worker in counts["workers"])
        line = f"{speed:,} requests/min, {watched}; {alive} workers alive"
        if (left := left_of(counts)) is not None:
            line += f"; {', '.join(left_in_words(left, speed))}"
        yield counts, line, not alive
