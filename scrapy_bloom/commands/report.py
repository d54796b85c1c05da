"""Writes one page about a crawl."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from scrapy_bloom.commands import html
from scrapy_bloom.commands.changes import cycles_of
from scrapy_bloom.commands.info import counts_of, dead_letters_of, info
from scrapy_bloom.commands.targets import add_target, queue_of
from scrapy_bloom.commands.terminal import OK, by_host, left_of, show, utc
from scrapy_bloom.crawl.estimate import left_in_words
from scrapy_bloom.errors import counted
from scrapy_bloom.job.inspect import inspect_job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from scrapy_bloom.fleet.shared_queue import SharedQueue
    from scrapy_bloom.job.inspect import JobInfo
    from scrapy_bloom.job.records import Figures

_OF_A_CYCLE = ("number", "began", "new", "changed", "same", "gone", "unknown", "pages", "not_modified", "bytes_saved")
_MOST_HOSTS, _MOST_ROWS = 25, 100
"""In a table of hosts of a job, and in a table of a fleet."""
_LINES = {
    "Crawled": {"URLs known": "urls", "pages": "pages", "duplicates": "duplicates"},
    "Waiting": {"pending": "pending"},
    "Errors": {"HTTP 400 or more": "http_errors", "network": "failures", "callbacks": "spider_errors"},
}
"""The lines of each chart, with the name of the figure that they draw."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    add_target(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the page, such as report.html")


def run(options: argparse.Namespace) -> int:
    """Write the page and print where it is."""
    if "://" in options.directory:
        with queue_of(options) as queue:
            lines = [*html.page(f"Crawl report: {queue.prefix}", _body_of_fleet(queue))]
    else:
        summary, job = info(options.directory), inspect_job(options.directory)
        lines = [*html.page(f"Crawl report: {job.directory.absolute().name}", _body(summary, job))]
    options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    show({"written": str(options.output)}, options)
    return OK


def _body(summary: dict[str, Any], job: JobInfo) -> Iterator[str]:
    ended = f"Ended: {summary['finish_reason'] or 'closed'}" if summary["clean"] else "Killed, and not resumed since"
    state = "A crawl is running" if summary["in_use"] else ended
    runs = counted(summary["runs"], "run")
    yield html.note(f"Spider {summary['spider']}. {state}. Begun {summary['begun']}, {runs}.")
    yield from (f'<p class="finding">{html.text(finding)}</p>' for finding in summary["findings"])
    yield from _tiles(summary, job)
    yield "<h2>Over time</h2>"
    yield from _charts(job.figures)
    waiting = "Pending or in flight" if summary["in_use"] else "Pending"
    yield from html.table(f"{waiting}: busiest hosts", summary["pending_by_host"][:_MOST_HOSTS])
    yield from html.table(f"{waiting}: kinds of URLs", summary["pending_by_kind"])
    yield from html.table("Files of items", summary["feeds"])
    cycles = [{name: cycle[name] for name in _OF_A_CYCLE} for cycle in cycles_of(job.directory)]
    yield from html.table("Changes from cycle to cycle", cycles)
    yield html.note(
        f"Written by scrapy-bloom, {utc(time.time())}. Expected lost: pages that were not fetched because the filter "
        "took their URLs for seen. Counts are of all runs; a dotted line begins a run."
    )


def _tiles(summary: dict[str, Any], job: JobInfo) -> Iterator[str]:
    lost, new, speed = summary["expected_lost"], summary["recent_links_new"], summary["pages_per_minute"]
    in_flight = summary["in_flight"] if summary["in_use"] else 0
    items: Counter[str] = Counter()  # by feed: its files add up, and several feeds have the same items
    for feed in job.feeds:
        items[feed.template] += feed.items
    return html.tiles(
        [
            ("URLs known", summary["urls"], "about" if summary["urls_are_estimated"] else ""),
            ("Pages", summary["pages"], f"{speed:,} a minute" if summary["in_use"] else ""),
            *([("Items", max(items.values()), f"in {counted(len(job.feeds), 'file')}")] if items else []),
            ("Duplicates", summary["duplicates"], "" if new is None else f"{100 * new:.0f} % of the last links new"),
            ("Errors", summary["errors_with_retries"], f"with retries; {summary['failed']:,} pages given up"),
            ("Pending", summary["pending"] - in_flight, f"and {in_flight:,} in flight" if in_flight else ""),
            _left(summary, speed),
            ("Expected lost", f"{lost:.2g}" if lost >= 0.001 else "< 0.001", "pages, of all URLs"),
            ("Filter", decimal(summary["bytes_of_filter"]), ""),
        ]
    )


def _left(summary: dict[str, Any], pages_per_minute: float) -> tuple[str, str, str]:
    """Return the tile for the number of pages left."""
    left = left_of(summary)
    words = ["unknown"] if left is None else left_in_words(left, pages_per_minute)
    return "Left", words[0].removesuffix(" pages left"), "".join(words[1:])


def _charts(course: Sequence[Figures]) -> Iterator[str]:
    if len(course) < 2:
        yield html.note("The crawl has kept no figures to draw over time.")
        return
    hours, runs = [0.0], []  # that the crawl had run: pauses between runs do not count
    for before, row in pairwise(course):
        if row.run != before.run:
            runs.append(hours[-1])
        hours.append(hours[-1] + (max(row.time - before.time, 0) / 3600 if row.run == before.run else 0))
    yield '<div class="charts">'
    for title, lines in _LINES.items():
        values = {name: [getattr(row, figure) for row in course] for name, figure in lines.items()}
        yield html.chart(title, hours, values, runs)
    yield "</div>"


def _body_of_fleet(queue: SharedQueue) -> Iterator[str]:
    counts = counts_of(queue)
    alive = sum(worker["is_alive"] for worker in counts["workers"])
    over = "No worker is alive" if counts["pending"] + counts["leased"] else "Everything is done"
    state = f"{counted(alive, 'worker')} alive" if alive else over
    paused = counts["hosts_paused"]
    yield html.note(f"On {counts['server']}. {state}.")
    yield from html.tiles(
        [
            ("Done", counts["done"], f"of {counts['enqueued']:,} that were found"),
            ("Pending", counts["pending"], f"{counted(paused, 'host')} paused" if paused else ""),
            ("In hand", counts["leased"], ""),
            _left(counts, 0),
            ("Failed", counts["failed"], ""),
            ("Dead letters", counts["dead_lettered"], ""),
        ]
    )
    yield from html.table("Workers", counts["workers"][:_MOST_ROWS])
    yield from html.table("Failed", by_host([*queue.listed("failed")])["failed_by_host"][:_MOST_ROWS])
    yield from html.table("Dead letters", dead_letters_of(queue))
    yield html.note(f"Written by scrapy-bloom, {utc(time.time())}.")
