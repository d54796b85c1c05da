"""Writes one page about a crawl: HTML that needs nothing else.

Names, URLs and findings come from strangers: everything is escaped, no URL is a link, and the page's content policy
forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

import time
from collections import Counter
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from scrapy_bloom.commands import charts
from scrapy_bloom.commands.info import info, left_of
from scrapy_bloom.commands.terminal import OK, show, utc
from scrapy_bloom.crawl.estimate import left_in_words
from scrapy_bloom.errors import counted
from scrapy_bloom.job.inspect import inspect_job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from scrapy_bloom.job.inspect import JobInfo
    from scrapy_bloom.job.records import FeedLength, Figures

_MOST_HOSTS, _LONGEST_NAME = 25, 400
"""In a table, and in characters."""

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2129; --quiet: #5d6673; --line: #d9dde3; --card: #f6f7f9;
  --mark: #1f62b0; --warn: #a4500f; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171c; --ink: #e6e9ee; --quiet: #9aa4b2; --line: #343b45;
  --card: #1d2229; --mark: #6aa9f0; --warn: #f0a860; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
.quiet { color: var(--quiet); max-width: 46rem; }
.finding { border-left: 4px solid var(--warn); padding: .4rem .8rem; background: var(--card); overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.3rem, 1fr)); gap: .75rem; margin: 1.5rem 0; }
dl div { background: var(--card); border-radius: .5rem; padding: .7rem .9rem; }
dt, dd small { color: var(--quiet); font-size: .85rem; }
dd { margin: 0; font-size: 1.45rem; line-height: 1.3; }
dd small { display: block; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .35rem 0 .35rem .75rem; border-bottom: 1px solid var(--line); text-align: right; }
th:nth-child(odd), td:nth-child(odd) { text-align: left; overflow-wrap: anywhere; }
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    parser.add_argument("directory", metavar="JOBDIR")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the page, such as report.html")


def run(options: argparse.Namespace) -> int:
    """Write the page and say where it is."""
    lines = _page(info(options.directory), inspect_job(options.directory))
    options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    show({"written": str(options.output)}, options)
    return OK


def _page(found: dict[str, Any], job: JobInfo) -> Iterator[str]:
    title = _text(f"Crawl report: {Path(found['directory']).absolute().name}")
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title>\n<style>{_STYLE}{charts.STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>"
    state = f"Ended: {found['finish_reason'] or 'closed'}" if found["clean"] else "Not closed: killed, or still running"
    state = "A crawl is running" if found["in_use"] else state
    yield _note(f"Spider {found['spider']}. {state}. Begun {found['begun']}, {counted(found['runs'], 'run')}.")
    yield from (f'<p class="finding">{_text(finding)}</p>' for finding in found["findings"])
    yield from _tiles(found, job.feeds)
    yield "<h2>Over time</h2>"
    yield from _charts(job.figures)
    hosts = [(each["host"], f"{each['pending']:,}") for each in found["pending_by_host"][:_MOST_HOSTS]]
    pending = "pending or in flight" if found["in_use"] else "pending"
    yield from _table("Busiest hosts", ["host", pending], hosts)
    kinds = [(each["kind"], f"{each['pending']:,}", each["example"]) for each in found["pending_by_kind"]]
    yield from _table("Kinds of URLs that wait", ["kind", pending, "example"], kinds)
    yield from _table("Files of items", ["file", "items"], [(feed.path, f"{feed.items:,}") for feed in job.feeds])
    yield _note(
        f"Written by scrapy-bloom, {utc(time.time())}. Expected lost: pages that were not fetched because the filter "
        "took their URLs for seen. Counts are of all runs; a dotted line begins a run."
    )
    yield "</body>\n</html>"


def _tiles(found: dict[str, Any], feeds: Sequence[FeedLength]) -> Iterator[str]:
    lost, new = found["expected_lost"], found["recent_links_new"]
    left = left_in_words(told, found["pages_per_minute"]) if (told := left_of(found)) else ["unknown"]
    in_flight = found["in_flight"] if found["in_use"] else 0
    items: Counter[str] = Counter()  # by feed: its files add up, and several feeds have the same items
    for feed in feeds:
        items[feed.template] += feed.items
    tiles = [
        ("URLs known", f"{found['urls']:,}", "about" if found["urls_are_estimated"] else ""),
        ("Pages", f"{found['pages']:,}", f"{found['pages_per_minute']:,} a minute" if found["in_use"] else ""),
        *([("Items", f"{max(items.values()):,}", f"in {counted(len(feeds), 'file')}")] if items else []),
        ("Duplicates", f"{found['duplicates']:,}", "" if new is None else f"{100 * new:.0f} % of the last links new"),
        ("Errors", f"{found['errors']:,}", f"{found['failed']:,} pages given up" if found["failed"] else ""),
        ("Pending", f"{found['pending'] - in_flight:,}", f"and {in_flight:,} in flight" if in_flight else ""),
        ("Left", left[0].removesuffix(" pages left"), "".join(left[1:])),
        ("Expected lost", f"{lost:.2g}" if lost >= 0.001 else "< 0.001", "pages, of all URLs"),
        ("Filter", decimal(found["bytes_of_filter"]), ""),
    ]
    yield "<dl>"
    for label, value, remark in tiles:
        yield f"<div><dt>{_text(label)}</dt><dd>{_text(value)}<small>{_text(remark)}</small></dd></div>"
    yield "</dl>"


def _charts(course: Sequence[Figures]) -> Iterator[str]:
    if len(course) < 2:
        yield _note("The crawl has kept no figures to draw over time.")
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


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    yield f"<h2>{_text(title)}</h2>"
    yield f"<table><thead><tr>{''.join(f'<th>{_text(name)}</th>' for name in header)}</tr></thead>"
    yield from (f"<tr>{''.join(f'<td><bdi>{_text(cell)}</bdi></td>' for cell in row)}</tr>" for row in rows)
    yield "</table>"


def _note(text: str) -> str:
    return f'<p class="quiet">{_text(text)}</p>'


def _text(text: str) -> str:
    """Return *text* for HTML: escaped, cut, and without characters that change what is around it."""
    shown = text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "…"
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown))
