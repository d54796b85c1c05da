"""Writes one page about a crawl, in HTML that loads no other files.

Names, URLs and findings come from strangers: everything is escaped, no URL is a link, and the page's content policy
forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from datetime import timedelta
from html import escape
from importlib.resources import files
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from scrapy_bloom.commands.changes import cycles_of
from scrapy_bloom.commands.info import counts_of, dead_letters_of, info
from scrapy_bloom.commands.targets import add_target, queue_at
from scrapy_bloom.commands.terminal import OK, by_host, left_of, show, shown, utc
from scrapy_bloom.crawl.estimate import left_in_words
from scrapy_bloom.errors import counted
from scrapy_bloom.job.inspect import inspect_job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from scrapy_bloom.fleet.shared_queue import SharedQueue
    from scrapy_bloom.job.inspect import JobInfo
    from scrapy_bloom.job.records import Figures

_MOST_HOSTS, _MOST_ROWS = 25, 100
_LINES = {
    "Crawled": {"URLs known": "urls", "pages": "pages", "duplicates": "duplicates"},
    "Waiting": {"pending": "pending"},
    "Errors": {"HTTP 400 or more": "http_errors", "network": "failures", "callbacks": "spider_errors"},
}
"""The lines of each chart, with the name of the figure that they draw."""
_LONGEST_NAME = 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 96, 505, 12, 225
_MOST_POINTS = 500
"""Points of a line in a chart. More cannot be seen."""
_DASHES = ("\N{EM DASH}", "- -", "\N{MIDDLE DOT}" * 3)
"""How the first, second and third line of a chart are drawn, so that they differ in black and white, too."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    add_target(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the page, such as report.html")


def run(options: argparse.Namespace) -> int:
    """Write the page and print where it is."""
    with queue_at(options.directory, options.key) as queue:
        if queue is None:
            summary, job = info(options.directory), inspect_job(options.directory)
            lines = [*page(f"Crawl report: {job.directory.absolute().name}", _body(summary, job))]
        else:
            lines = [*page(f"Crawl report: {queue.prefix}", _body_of_fleet(queue))]
    options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    show({"written": str(options.output)}, options)
    return OK


def _body(summary: dict[str, Any], job: JobInfo) -> Iterator[str]:
    ended = f"Ended: {summary['finish_reason'] or 'closed'}" if summary["clean"] else "Killed, and not resumed since"
    state = "A crawl is running" if summary["in_use"] else ended
    runs = counted(summary["runs"], "run")
    yield note(f"Spider {summary['spider']}. {state}. Begun {summary['begun']}, {runs}.")
    yield from (f'<p class="finding">{text(finding)}</p>' for finding in summary["findings"])
    yield from _tiles(summary, job)
    yield "<h2>Over time</h2>"
    yield from _charts(job.figures)
    waiting = "Pending or in flight" if summary["in_use"] else "Pending"
    yield from table(f"{waiting}: busiest hosts", summary["pending_by_host"][:_MOST_HOSTS])
    yield from table(f"{waiting}: kinds of URLs", summary["pending_by_kind"])
    yield from table("Files of items", summary["feeds"])
    cycles = [{name: value for name, value in cycle.items() if name != "ended"} for cycle in cycles_of(job.directory)]
    yield from table("Changes from cycle to cycle", cycles)
    yield note(
        f"Written by scrapy-bloom, {utc(time.time())}. Expected lost: pages that were not fetched because the filter "
        "took their URLs for seen. Counts are of all runs; a dotted line begins a run."
    )


def _tiles(summary: dict[str, Any], job: JobInfo) -> Iterator[str]:
    lost, new, speed = summary["expected_lost"], summary["recent_links_new"], summary["pages_per_minute"]
    in_flight = summary["in_flight"] if summary["in_use"] else 0
    items: Counter[str] = Counter()  # by feed: its files add up, and several feeds have the same items
    for feed in job.feeds:
        items[feed.template] += feed.items
    return tiles(
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
        yield note("The crawl has kept no figures to draw over time.")
        return
    hours, runs = [0.0], []  # that the crawl had run: pauses between runs do not count
    for before, row in pairwise(course):
        if row.run != before.run:
            runs.append(hours[-1])
        hours.append(hours[-1] + (max(row.time - before.time, 0) / 3600 if row.run == before.run else 0))
    yield '<div class="charts">'
    for title, lines in _LINES.items():
        values = {name: [getattr(row, figure) for row in course] for name, figure in lines.items()}
        yield chart(title, hours, values, runs)
    yield "</div>"


def _body_of_fleet(queue: SharedQueue) -> Iterator[str]:
    counts = counts_of(queue)
    alive = sum(worker["is_alive"] for worker in counts["workers"])
    over = "No worker is alive" if counts["pending"] + counts["leased"] else "Everything is done"
    state = f"{counted(alive, 'worker')} alive" if alive else over
    paused = counts["hosts_paused"]
    yield note(f"On {counts['server']}. {state}.")
    yield from tiles(
        [
            ("Done", counts["done"], f"of {counts['enqueued']:,} that were found"),
            ("Pending", counts["pending"], f"{counted(paused, 'host')} paused" if paused else ""),
            ("In hand", counts["leased"], ""),
            _left(counts, 0),
            ("Failed", counts["failed"], ""),
            ("Dead letters", counts["dead_lettered"], ""),
        ]
    )
    yield from table("Workers", counts["workers"][:_MOST_ROWS])
    yield from table("Failed", by_host([*queue.listed("failed")])["failed_by_host"][:_MOST_ROWS])
    yield from table("Dead letters", dead_letters_of(queue))
    yield note(f"Written by scrapy-bloom, {utc(time.time())}.")


def page(title: str, body: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a page."""
    style = files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<h1>{text(title)}</h1>"
    yield from body
    yield "</body>\n</html>"


def tiles(figures: Iterable[tuple[str, int | str, str]]) -> Iterator[str]:
    """Yield a tile for each of *figures*: its name, its value, and a remark."""
    yield "<dl>"
    for label, value, remark in figures:
        yield f"<div><dt>{text(label)}</dt><dd>{text(shown(label, value))}<small>{text(remark)}</small></dd></div>"
    yield "</dl>"


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of *rows*, whose names are its header, under its *title*; nothing if there are no rows."""
    if not rows:
        return
    numbers = {name: ' class="number"' if isinstance(value, (int, float)) else "" for name, value in rows[0].items()}
    header = "".join(f"<th{numbers[name]}>{text(name.replace('_', ' '))}</th>" for name in rows[0])
    yield f"<h2>{text(title)}</h2>\n<table><thead><tr>{header}</tr></thead>"
    for row in rows:
        cells = (f"<td{numbers[name]}><bdi>{text(shown(name, value))}</bdi></td>" for name, value in row.items())
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table>"


def note(sentences: str) -> str:
    """Return a paragraph in the background."""
    return f'<p class="quiet">{text(sentences)}</p>'


def text(name: str) -> str:
    """Return *name* for HTML: escaped, cut, and without characters that change what is around it."""
    cut = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in cut))


def chart(title: str, hours: Sequence[float], lines: Mapping[str, Sequence[int]], runs: Sequence[float]) -> str:
    """Return a chart of up to three *lines*, values from 0 up by name, over *hours*: two or more, in ascending order.

    A dotted vertical line marks each of *runs*, the hours at which a later run began.
    """
    end = max(hours[-1], 1e-6)
    tops: Iterator[int] = (factor * 10**power for power in count() for factor in (2, 4, 10))  # with whole halves
    top = next(top for top in tops if top >= max(map(max, lines.values())))

    def path(kind: str, points: Iterable[tuple[float, float]]) -> str:
        width, height = (_RIGHT - _LEFT) / end, (_BOTTOM - _TOP) / top
        drawn = "L".join(f"{_LEFT + width * hour:.1f} {_BOTTOM - height * value:.1f}" for hour, value in points)
        return f'<path class="{kind}" d="M{drawn}"/>'

    parts = [f'<svg viewBox="0 0 520 270" role="img" aria-label="{escape(title)} over time">']
    for value, y in zip((0, top // 2, top), (_BOTTOM, (_BOTTOM + _TOP) / 2, _TOP), strict=True):
        parts.append(path("grid", [(0, value), (end, value)]))
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>')
    duration = timedelta(seconds=round(3600 * end))
    parts.append(f'<text x="{_RIGHT}" y="{_BOTTOM + 20}" text-anchor="end">{duration} of crawling</text>')
    parts += [path("run", [(hour, 0), (hour, top)]) for hour in runs]
    drawn = (*range(0, len(hours), math.ceil(len(hours) / _MOST_POINTS)), len(hours) - 1)
    legend = ""
    for number, (name, values) in enumerate(lines.items()):
        parts.append(path(f"line{number}", [(hours[at], values[at]) for at in drawn]))
        legend += f'<span class="line{number}">{_DASHES[number]} {escape(name)} {values[-1]:,}</span> '
    caption = f"<figcaption><b>{escape(title)}</b>{legend}</figcaption>"
    return "\n".join(["<figure>", caption, *parts, "</svg>", "</figure>"])
