"""Makes the page of a report: HTML that needs nothing else.

Names, URLs and findings come from strangers: everything is escaped, no URL is a link, and the page's content policy
forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands import charts
from scrapy_bloom.commands.charts import Line, time_chart
from scrapy_bloom.commands.plan import SCRAPY_BYTES_PER_URL
from scrapy_bloom.commands.terminal import size
from scrapy_bloom.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy_bloom.job.database import Figures

_HOSTS, _KINDS, _RUNS = 25, 100, 20
"""Rows of a table."""
_LONGEST = 400
"""Characters of a name or URL that are shown."""

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
p { margin: .4rem 0; max-width: 46rem; }
.quiet { color: var(--quiet); }
.finding { border-left: 4px solid var(--warn); padding: .4rem .8rem; margin: .75rem 0; max-width: none;
  background: var(--card); overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 9.3rem), 1fr)); gap: .75rem;
  margin: 1.5rem 0; }
dl div { background: var(--card); border-radius: .5rem; padding: .7rem .9rem; }
dt { color: var(--quiet); font-size: .85rem; }
dd { margin: 0; font-size: 1.45rem; font-variant-numeric: tabular-nums; line-height: 1.3; }
dd small { display: block; font-size: .8rem; color: var(--quiet); line-height: 1.35; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1.5rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { color: var(--quiet); font-weight: 600; }
th, td { padding: .35rem 0 .35rem .75rem; border-bottom: 1px solid var(--line); vertical-align: top;
  text-align: right; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; padding-left: 0; overflow-wrap: anywhere; min-width: 3rem; }
meter { width: 8rem; max-width: 20vw; height: .8rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .75rem; font-size: .85rem; }
@media print { :root { --paper: #fff; --ink: #000; --quiet: #444; --line: #bbb; --card: #fff; --mark: #000;
  --warn: #000; } body { max-width: none; padding: 0 2px; font-size: 10pt; } svg, tr, dl div { break-inside: avoid; } }
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Report:
    """What is on the page."""

    name: str
    """Of the job."""
    written: float
    """Seconds since 1970."""
    info: dict[str, Any]
    """The answer of ``scrapy bloom info``."""
    course: Sequence[Figures]
    """The figures that the crawl has kept, oldest first."""


def page(report: Report) -> str:
    """Return the page, to be written in UTF-8."""
    return "\n".join(_page(report)) + "\n"


def _page(report: Report) -> Iterator[str]:
    title = _text(f"Crawl report: {report.name}")
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title>\n<style>{_STYLE}{charts.STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>"
    yield _note(_state(report))
    yield from (f'<p class="finding">{_text(finding)}</p>' for finding in report.info["findings"])
    yield from _tiles(report)
    yield "<h2>Over time</h2>"
    yield from _charts(report.course)
    yield from _runs(report.course)
    yield from _layers(report.info)
    yield from _hosts(report.info)
    yield from _kinds(report.info)
    yield (
        f'<footer class="quiet"><p>Written by scrapy-bloom on {_moment(report.written)}. <em>Expected lost</em>: pages '
        "that were not fetched because the filter took their URLs for seen, as an expectation. Counts of pages, "
        "duplicates and errors are of all runs; after a kill, those of its last seconds are missing.</p></footer>"
    )
    yield "</body>\n</html>"


def _state(report: Report) -> str:
    found = report.info
    state = "A crawl is running."
    if not found["in_use"]:
        state = "Closed cleanly." if found["clean"] else "Not closed by its last crawl."
    if not report.course:
        return state
    first, last = report.course[0], report.course[-1]
    runs = counted(last.run, "run")
    if (began := _moment(first.time)) == (ended := _moment(last.time)):
        return f"{state} {runs}, on {began}, in {_duration(last.time - first.time)}."
    return f"{state} {runs} from {began} to {ended}."


def _tiles(report: Report) -> Iterator[str]:
    found, course = report.info, report.course
    tiles = [("URLs known", f"{found['urls']:,}", "about" if found["urls_are_estimated"] else "")]
    if course:
        last = course[-1]
        asked = last.duplicates + last.urls
        share = f"{last.duplicates / asked:.0%} of what was checked" if asked else ""
        kinds = f"{last.http_errors:,} HTTP, {last.failures:,} network, {last.spider_errors:,} callback"
        tiles += [
            ("Pages", f"{last.pages:,}", ""),
            ("Duplicates", f"{last.duplicates:,}", share),
            ("Errors", f"{_errors(last):,}", kinds),
        ]
    lost = found["expected_lost"]
    tiles += [
        ("Pending", f"{found['pending']:,}", f"{found['failed']:,} failed" if found["failed"] else ""),
        ("Expected lost", f"{lost:.2g}" if lost >= 0.001 else "under 0.001", "pages, of all URLs"),
        ("Filter", size(found["bytes"]), f"Scrapy's set: {size(found['urls'] * SCRAPY_BYTES_PER_URL)}"),
    ]
    yield "<dl>"
    for label, value, remark in tiles:
        small = f"<small>{_text(remark)}</small>" if remark else ""
        yield f"<div><dt>{_text(label)}</dt><dd>{_text(value)}{small}</dd></div>"
    yield "</dl>"


def _charts(course: Sequence[Figures]) -> Iterator[str]:
    if len(course) < 2:
        yield _note("The crawl has kept no figures to draw over time.")
        return
    hours, runs = _hours_of_work(course)
    speeds = _pages_per_minute(course, hours)
    drawn = {
        "Crawled": [
            Line("URLs known", [row.urls for row in course]),
            Line("pages", [row.pages for row in course]),
            Line("duplicates", [row.duplicates for row in course]),
        ],
        "Waiting": [Line("pending", [max(row.pending, 0) for row in course])],
        "Pages per minute": [Line("pages/min", speeds)],
        "Errors": [
            Line("HTTP 400 or more", [row.http_errors for row in course]),
            Line("network", [row.failures for row in course]),
            Line("callbacks", [row.spider_errors for row in course]),
        ],
    }
    yield '<div class="charts">'
    yield from (time_chart(title, hours, lines, runs=runs) for title, lines in drawn.items())
    yield "</div>"


def _hours_of_work(course: Sequence[Figures]) -> tuple[list[float], list[float]]:
    """Return for each row the hours that the crawl had run, and the hours at which later runs began, without pauses."""
    hours, runs = [0.0], []
    for before, row in pairwise(course):
        if row.run == before.run:
            hours.append(hours[-1] + max(row.time - before.time, 0) / 3600)
        else:
            hours.append(hours[-1])
            runs.append(hours[-1])
    return hours, runs


def _pages_per_minute(course: Sequence[Figures], hours: Sequence[float]) -> list[float]:
    """Return for each row the speed over the fiftieth of the crawl before it, so that the line can be read."""
    speeds, first = [], 0
    for at, row in enumerate(course):
        while first + 1 < at and hours[at] - hours[first + 1] >= hours[-1] / 50:
            first += 1
        minutes = 60 * (hours[at] - hours[first])
        speeds.append((row.pages - course[first].pages) / minutes if minutes else 0.0)
    return [speeds[1], *speeds[1:]]


def _runs(course: Sequence[Figures]) -> Iterator[str]:
    """Return a table of the runs if there were several; counts in the figures go on from run to run."""
    rows, pages, errors = [], 0, 0
    for run, group in groupby(course, key=lambda row: row.run):
        of_run = list(group)
        last = of_run[-1]
        took = _duration(last.time - of_run[0].time)
        counts = (f"{last.pages - pages:,}", f"{_errors(last) - errors:,}")
        rows.append((f"{run:,}", _moment(of_run[0].time), took, *counts))
        pages, errors = last.pages, _errors(last)
    if len(rows) > 1:
        yield "<h2>Runs</h2>"
        yield from _table(["run", "began", "took", "pages", "errors"], rows[-_RUNS:])


def _layers(found: dict[str, Any]) -> Iterator[str]:
    yield "<h2>Filter</h2>"
    yield _note(f"The chance that a new URL is taken for seen is {found['error_rate_now']:.2g} now.")
    layers = ((each["file"], each["urls"], each["capacity"]) for each in found["layers"])
    rows = [(name, f"{urls:,}", f"{most:,}", urls / most) for name, urls, most in layers]
    yield from _table(["layer", "URLs", "of", ""], rows)


def _hosts(found: dict[str, Any]) -> Iterator[str]:
    hosts = list(found["pending_by_host"].items())
    pending = counted(found["pending"], "pending request")
    yield "<h2>Busiest hosts</h2>"
    yield _note(f"{pending} for {counted(found['hosts'], 'host')}." if hosts else "No request is pending.")
    if hosts:
        yield from _table(["host", "pending", ""], [(host, f"{n:,}", n / hosts[0][1]) for host, n in hosts[:_HOSTS]])


def _kinds(found: dict[str, Any]) -> Iterator[str]:
    kinds = found["pending_by_kind"]
    if kinds:
        yield "<h2>Kinds of URLs that wait</h2>"
        rows = [(f"{each['kind']}\n{each['example']}", f"{each['pending']:,}") for each in kinds[:_KINDS]]
        yield from _table(["kind, with an example", "pending"], rows)
        yield _note(f"And {len(kinds) - _KINDS:,} more.") if len(kinds) > _KINDS else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str | float]]) -> Iterator[str]:
    """Return a table; a number from 0 to 1 becomes a bar."""
    yield f'<div class="table"><table><thead><tr>{"".join(f"<th>{_text(name)}</th>" for name in header)}</tr></thead>'
    yield from (f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    yield "</table></div>"


def _cell(cell: str | float) -> str:
    if isinstance(cell, float):
        return f'<meter value="{cell:.3f}"></meter>'
    return "<br>".join(f"<bdi>{_text(line)}</bdi>" for line in cell.split("\n"))


def _note(text: str) -> str:
    return f'<p class="quiet">{_text(text)}</p>'


def _errors(row: Figures) -> int:
    return row.failures + row.http_errors + row.spider_errors


def _text(text: str) -> str:
    """Return *text* for HTML: escaped, cut, and without characters that change what is around it."""
    shown = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown))


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
