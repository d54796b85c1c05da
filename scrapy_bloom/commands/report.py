"""Writes one page about a crawl."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from scrapy_bloom.commands import charts, html
from scrapy_bloom.commands.changes import table_of
from scrapy_bloom.commands.info import info
from scrapy_bloom.commands.terminal import OK, left_of, show, utc
from scrapy_bloom.errors import counted
from scrapy_bloom.job.cycles import last_cycles
from scrapy_bloom.job.database import Database
from scrapy_bloom.job.inspect import files_of, inspect_job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from scrapy_bloom.job.inspect import JobInfo
    from scrapy_bloom.job.records import FeedLength, Figures

_OF_A_CYCLE = ("new", "changed", "same", "gone", "unknown", "pages", "not_modified", "bytes_saved")
_MOST_HOSTS = 25
"""In a table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    parser.add_argument("directory", metavar="JOBDIR", help="or the redis:// server of a fleet")
    parser.add_argument("key", metavar="KEY", nargs="?", default="", help="of a fleet's queue, such as bloom:books")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the page, such as report.html")


def run(options: argparse.Namespace) -> int:
    """Write the page and print where it is."""
    if "://" in options.directory:
        from scrapy_bloom.commands.info_fleet import fleet_page  # imports redis

        lines = fleet_page(options.directory, options.key)
    else:
        summary = info(options.directory)
        title = f"Crawl report: {Path(summary['directory']).absolute().name}"
        lines = [*html.page(title, _body(summary, inspect_job(options.directory)))]
    options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    show({"written": str(options.output)}, options)
    return OK


def _body(summary: dict[str, Any], job: JobInfo) -> Iterator[str]:
    state = (
        f"Ended: {summary['finish_reason'] or 'closed'}" if summary["clean"] else "Not closed: killed, or still running"
    )
    state = "A crawl is running" if summary["in_use"] else state
    yield html.note(
        f"Spider {summary['spider']}. {state}. Begun {summary['begun']}, {counted(summary['runs'], 'run')}."
    )
    yield from (f'<p class="finding">{html.text(finding)}</p>' for finding in summary["findings"])
    yield from _tiles(summary, job.feeds)
    yield "<h2>Over time</h2>"
    yield from _charts(job.figures)
    hosts = [(row["host"], f"{row['pending']:,}") for row in summary["pending_by_host"][:_MOST_HOSTS]]
    pending = "pending or in flight" if summary["in_use"] else "pending"
    yield from html.table("Busiest hosts", ["host", pending], hosts)
    kinds = [(row["kind"], f"{row['pending']:,}", row["example"]) for row in summary["pending_by_kind"]]
    yield from html.table("Kinds of URLs that wait", ["kind", pending, "example"], kinds)
    yield from html.table("Files of items", ["file", "items"], [(feed.path, f"{feed.items:,}") for feed in job.feeds])
    yield from html.table("Changes", ["cycle", *_OF_A_CYCLE], [*_cycles(job)])
    yield html.note(
        f"Written by scrapy-bloom, {utc(time.time())}. Expected lost: pages that were not fetched because the filter "
        "took their URLs for seen. Counts are of all runs; a dotted line begins a run."
    )


def _cycles(job: JobInfo) -> Iterator[list[str]]:
    """Yield the last cycles of a job with ``BLOOM_CHANGES``, the newest first."""
    with closing(Database(files_of(job.directory)[1], read_only=True)) as database:
        for row in table_of(last_cycles(database)):
            yield [f"{row['number']}, {row['began']}", *(f"{row[name]:,}" for name in _OF_A_CYCLE)]


def _tiles(summary: dict[str, Any], feeds: Sequence[FeedLength]) -> Iterator[str]:
    lost, new = summary["expected_lost"], summary["recent_links_new"]
    in_flight = summary["in_flight"] if summary["in_use"] else 0
    items: Counter[str] = Counter()  # by feed: its files add up, and several feeds have the same items
    for feed in feeds:
        items[feed.template] += feed.items
    tiles = [
        ("URLs known", f"{summary['urls']:,}", "about" if summary["urls_are_estimated"] else ""),
        ("Pages", f"{summary['pages']:,}", f"{summary['pages_per_minute']:,} a minute" if summary["in_use"] else ""),
        *([("Items", f"{max(items.values()):,}", f"in {counted(len(feeds), 'file')}")] if items else []),
        ("Duplicates", f"{summary['duplicates']:,}", "" if new is None else f"{100 * new:.0f} % of the last links new"),
        ("Errors", f"{summary['errors_with_retries']:,}", f"with retries; {summary['failed']:,} pages given up"),
        ("Pending", f"{summary['pending'] - in_flight:,}", f"and {in_flight:,} in flight" if in_flight else ""),
        html.left_tile(left_of(summary), summary["pages_per_minute"]),
        ("Expected lost", f"{lost:.2g}" if lost >= 0.001 else "< 0.001", "pages, of all URLs"),
        ("Filter", decimal(summary["bytes_of_filter"]), ""),
    ]
    return html.tiles(tiles)


def _charts(course: Sequence[Figures]) -> Iterator[str]:
    if len(course) < 2:
        yield html.note("The crawl has kept no figures to draw over time.")
        return
    hours, runs = [0.0], []  # that the crawl had run: pauses between runs do not count
    for before, row in pairwise(course):
        if row.run != before.run:
            runs.append(hours[-1])
        hours.append(hours[-1] + (max(row.time - before.time, 0) / 3600 if row.run == before.run else 0))

    drawn = {
        "Crawled": {"URLs known": "urls", "pages": "pages", "duplicates": "duplicates"},
        "Waiting": {"pending": "pending"},
        "Errors": {"HTTP 400 or more": "http_errors", "network": "failures", "callbacks": "spider_errors"},
    }
    yield '<div class="charts">'
    for title, lines in drawn.items():
        yield charts.time_chart(
            title, hours, {name: [getattr(row, of) for row in course] for name, of in lines.items()}, runs
        )
    yield "</div>"
