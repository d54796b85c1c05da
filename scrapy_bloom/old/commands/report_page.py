"""Makes the page of a report: HTML that needs nothing else. Does not know where a figure comes from.

Names, URLs and findings come from strangers: everything is escaped, no URL is a link, and the page's content policy
forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.pictures import INK
from scrapy_bloom.old.commands.plan import SCRAPY_BYTES_PER_URL
from scrapy_bloom.old.commands.terminal import size
from scrapy_bloom.old.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy_bloom.old.files.figures import Figures

_HOSTS = 25
_SHAPES = 100
_RUNS = 20
_LONGEST = 400
"""Characters of a name or URL that are shown."""

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2129; --quiet: #5d6673; --line: #d9dde3; --card: #f6f7f9;
  --mark: #2b74c9; --warn: #a4500f; }
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
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1.5rem; }
figure { margin: 0; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { fill: currentColor; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; color: var(--quiet); font-weight: 600; vertical-align: bottom; }
th, td { padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.text { overflow-wrap: anywhere; min-width: 9rem; }
td.text bdi { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .85em; }
meter { width: 100%; min-width: 3rem; height: .8rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .75rem; font-size: .85rem; }
@media print { :root { --paper: #fff; --ink: #000; --quiet: #444; --line: #bbb; --card: #fff; --warn: #000; }
  body { max-width: none; padding: 0 2px; font-size: 10pt; } dl div { border: 1px solid var(--line); }
  figure, tr, dl div { break-inside: avoid; } h2 { break-after: avoid; }
  .pictures { grid-template-columns: 1fr 1fr; } .table { overflow: visible; } }
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
    """The figures that the crawl has kept; none of a crawl by an earlier version."""
    pictures: Sequence[tuple[str, str]]
    """What each shows, in words, and its ``<svg>``."""


def page(report: Report) -> str:
    """Return the page, in UTF-8."""
    return "\n".join(_page(report)) + "\n"


def _page(report: Report) -> Iterator[str]:
    title = f"Crawl report: {report.name}"
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{_text(title)}</h1>"
    yield f'<p class="quiet">{_text(_state(report))}</p>'
    for finding in report.info["findings"]:
        yield f'<p class="finding">{_text(finding)}</p>'
    yield from _tiles(report)
    yield "<h2>Pictures</h2>"
    if len(report.course) < 2:
        yield '<p class="quiet">The crawl has kept no figures to draw over time.</p>'
    yield '<div class="pictures">'
    for what, svg in report.pictures:
        yield _figure(what, svg)
    yield "</div>"
    yield from _runs(report)
    yield from _hosts(report)
    yield from _shapes(report)
    yield (
        f'<footer class="quiet"><p>Written by scrapy-bloom on {_moment(report.written)}. <em>Expected lost</em>: pages '
        "that were not fetched because the filter took their URLs for seen, as an expectation. Counts of pages, "
        "duplicates and errors are of all runs; after a kill, those of its last seconds are missing.</p></footer>"
    )
    yield "</body>\n</html>"


def _state(report: Report) -> str:
    found = report.info
    state = (
        "A crawl is running."
        if found["in_use"]
        else "Closed cleanly."
        if found["clean"]
        else "Not closed by its last crawl."
    )
    if not report.course:
        return state
    first, last = report.course[0], report.course[-1]
    runs = "1 run" if last.run == 1 else f"{last.run:,} runs"
    began, ended = _moment(first.time), _moment(last.time)
    if began == ended:
        return f"{state} {runs}, on {began}, in {_duration(last.time - first.time)}."
    return f"{state} {runs} from {began} to {ended}."


def _tiles(report: Report) -> Iterator[str]:
    found = report.info
    tiles = [("URLs known", f"{found['urls']:,}", "about" if found["urls_are_estimated"] else "")]
    if report.course:
        last = report.course[-1]
        asked = last.duplicates + last.urls
        errors = last.failures + last.http_errors + last.spider_errors
        tiles += [
            ("Pages", f"{last.pages:,}", ""),
            (
                "Duplicates",
                f"{last.duplicates:,}",
                f"{last.duplicates / asked:.0%} of what was checked" if asked else "",
            ),
            (
                "Errors",
                f"{errors:,}",
                f"{last.http_errors:,} HTTP, {last.failures:,} network, {last.spider_errors:,} callback",
            ),
        ]
    pending = found["pending"]
    if pending is None and report.course and report.course[-1].pending >= 0:
        tiles.append(("Pending", f"{report.course[-1].pending:,}", "when last noted"))
    else:
        tiles.append(("Pending", "not known" if pending is None else f"{pending:,}", ""))
    lost = found["expected_lost"]
    tiles += [
        ("Expected lost", f"{lost:.2g}" if lost >= 0.001 else "under 0.001", "pages, of all URLs"),
        ("Filter", size(found["bytes"]), f"Scrapy's set: {size(found['urls'] * SCRAPY_BYTES_PER_URL)}"),
    ]
    yield "<dl>"
    for label, value, remark in tiles:
        small = f"<small>{_text(remark)}</small>" if remark else ""
        yield f"<div><dt>{_text(label)}</dt><dd>{_text(value)}{small}</dd></div>"
    yield "</dl>"


def _figure(what: str, svg: str) -> str:
    """Return the picture in the page's own colour of text."""
    drawn = svg.replace(INK, "currentColor").replace("<svg ", f'<svg role="img" aria-label="{_text(what)}" ', 1)
    return f"<figure>{drawn}</figure>"


def _runs(report: Report) -> Iterator[str]:
    runs = [list(rows) for _, rows in groupby(report.course, key=lambda row: row.run)]
    if len(runs) < 2:
        return
    rows = []
    pages_before = errors_before = 0
    for each in runs:
        last = each[-1]
        errors = last.failures + last.http_errors + last.spider_errors
        rows.append(
            (
                f"{last.run:,}",
                _moment(each[0].time),
                _duration(last.time - each[0].time),
                f"{last.pages - pages_before:,}",
                f"{errors - errors_before:,}",
            )
        )
        pages_before, errors_before = last.pages, errors
    yield "<h2>Runs</h2>"
    if len(rows) > _RUNS:
        yield f'<p class="quiet">The last {_RUNS} of {len(rows):,}.</p>'
    yield _table(["run", "began", "took", "pages", "errors"], rows[-_RUNS:], numbers={2, 3, 4})


def _hosts(report: Report) -> Iterator[str]:
    found = report.info
    hosts = list(found["pending_by_host"].items())
    yield "<h2>Busiest hosts</h2>"
    if found["pending"] is None:
        yield '<p class="quiet">Not known now.</p>'
    elif not hosts:
        yield '<p class="quiet">No request is pending for any host.</p>'
    else:
        pending = counted(found["pending"], "pending request")
        yield f'<p class="quiet">{pending} for {counted(found["hosts"], "host")}.</p>'
        header = '<th>host</th><th class="number">pending</th><th></th>'
        yield f'<div class="table"><table><thead><tr>{header}</tr></thead><tbody>'
        most = hosts[0][1]
        for host, count in hosts[:_HOSTS]:
            yield (
                f'<tr><td class="text">{_foreign(host)}</td><td class="number">{count:,}</td>'
                f'<td><meter min="0" max="{most}" value="{count}"></meter></td></tr>'
            )
        yield "</tbody></table></div>"


def _shapes(report: Report) -> Iterator[str]:
    verdicts = report.info["verdicts"]
    yield "<h2>Loop guard</h2>"
    if verdicts is None:
        yield '<p class="quiet">Not known now.</p>'
        return
    if not verdicts:
        yield '<p class="quiet">No shape has run dry, or BLOOM_LOOP_GUARD was off.</p>'
        return
    yield (
        '<p class="quiet">Shapes whose pages brought nothing new. Their parked requests are tried now and then;  '
        "scrapy bloom release takes a verdict back.</p>"
    )
    header = '<th>shape</th><th class="number">waiting</th><th class="number">fetched</th><th>example</th>'
    yield f'<div class="table"><table><thead><tr>{header}</tr></thead><tbody>'
    for verdict in verdicts[:_SHAPES]:
        note = "<br>taken back by a person" if verdict["is_taken_back"] else ""
        yield (
            f'<tr><td class="text">{_foreign(verdict["shape"])}{note}</td>'
            f'<td class="number">{verdict["waiting"]:,}</td><td class="number">{verdict["fetched"]:,}</td>'
            f'<td class="text">{_foreign(verdict["example"])}</td></tr>'
        )
    yield "</tbody></table></div>"
    if len(verdicts) > _SHAPES:
        yield f'<p class="quiet">And {len(verdicts) - _SHAPES:,} more.</p>'


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: set[int]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="number">{_text(cell)}</{tag}>' if at in numbers else f"<{tag}>{_text(cell)}</{tag}>"
            for at, cell in enumerate(cells)
        )

    body = "\n".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{line('th', header)}</tr></thead>"
    return f'<div class="table"><table>{head}<tbody>\n{body}\n</tbody></table></div>'


def _foreign(text: str) -> str:
    """Return a name or URL of a crawl: escaped, cut, and unable to change the text direction around it."""
    shown = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return f"<bdi>{_text(shown)}</bdi>"


def _text(text: str) -> str:
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
