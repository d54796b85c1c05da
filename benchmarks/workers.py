"""Whole crawls of a CPU-bound site: ``scrapy bloom crawl --workers 4`` beside one ``scrapy crawl``, by the clock.

The pages are files, so that no server takes part of the processors. The callback reads a table of each page cell by
cell, as many do, and follows its links. Pages a minute are counted from the first item to the last: starting Python and
Scrapy takes some seconds, which no crawl that needs several processes would notice.

CPU time is that between the first item of a process and its last, and all of the server's. Other programs on the
machine leave it nearly alone, so from it follows what the ratio would be on processors that had nothing else to do.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import measure

if TYPE_CHECKING:
    import argparse

ONE, MANY = "one process, Scrapy's own filter and queue", "workers"

_SPIDER = """
import os
import time
import scrapy

class Tables(scrapy.Spider):
    name = "tables"

    def __init__(self, first, **kwargs):
        super().__init__(**kwargs)
        self.first = first

    async def start(self):
        yield scrapy.Request(self.first)

    def parse(self, response):
        total = 0
        for row in response.css("tr"):
            total += int(row.css("td.price::text").get()) + len(row.xpath("./td[1]//text()").get())
        yield {"url": response.url, "total": total, "at": time.time(), "cpu": time.process_time(), "pid": os.getpid()}
        for link in response.css("nav a"):
            yield response.follow(link)
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--pages", type=int, default=400, help="pages of the site (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=400, help="rows of the table of each page (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="processes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="crawls of each kind (default: %(default)s)")
    parser.add_argument("--large", action="store_true", help="the same as --pages 1500 --rounds 3")


class _Crawled(NamedTuple):
    pages_a_minute: float
    cpu_ms: float
    """Of all processes that crawl, per page."""
    server_ms: float
    """Of the server, per page."""
    seconds: float
    """From start to end."""


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print a table."""
    measure.print_environment("Scrapy", "redis")
    pages, rounds = (1500, 3) if options.large else (options.pages, options.rounds)
    with tempfile.TemporaryDirectory() as temporary:
        project = Path(temporary)
        _make_project(project)
        first = _make_site(project / "site", pages, options.rows)
        found = measure.side_by_side(
            {
                ONE: lambda: _crawl(project, ["scrapy", "crawl", "tables"], first, pages),
                MANY: lambda: _crawl(
                    project,
                    ["scrapy_bloom", "crawl", "tables", f"--workers={options.workers}"],
                    first,
                    pages,
                ),
            },
            rounds,
        )
    print(f"{pages:,} pages with {options.rows} rows and 10 links each; median of {rounds} rounds (lowest-highest)\n")
    rates = {side: [one.pages_a_minute for one in ones] for side, ones in found.items()}
    names = {ONE: ONE, MANY: f"{options.workers} workers of scrapy bloom crawl"}
    rows = []
    for side, ones in found.items():
        figures = [measure.Spread.of([one[at] for one in ones]) for at in range(4)]
        cells = [f"{each:,.{digits}f}" for each, digits in zip(figures, (0, 1, 2, 1), strict=True)]
        rows.append([names[side], f"{measure.ratios(rates[side], rates[ONE]):.2f}", *cells])
    header = ["", "times as fast", "pages a minute", "CPU ms per page", "server's", "whole run, s"]
    measure.print_table(header, rows)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    costs = {side: [one.cpu_ms + one.server_ms for one in ones] for side, ones in found.items()}
    possible = min(cores, options.workers) * measure.ratios(costs[ONE], costs[MANY]).median
    print(f"By CPU time, {cores} cores with nothing else to do make it {possible:.2f} times as fast at most.")
    if cores > 1:
        ratio = measure.ratios(rates[MANY], rates[ONE]).median
        measure.print_target(f"{options.workers} workers on {cores} cores, times one process", ratio, at_least=1.7)
    return measure.Picture(
        "A CPU-bound site", "pages a minute", {names[side]: measure.Spread.of(values) for side, values in rates.items()}
    )


def _crawl(project: Path, command: list[str], first: str, pages: int) -> _Crawled:
    items, job, log = project / "items.jl", project / "job", project / "log.txt"
    items.unlink(missing_ok=True)
    shutil.rmtree(job, ignore_errors=True)
    path = os.pathsep.join(filter(None, [str(measure.ROOT), os.environ.get("PYTHONPATH")]))
    whole = [sys.executable, "-m", *command, "-a", f"first={first}", "-o", "items.jl", "-s", "LOG_LEVEL=WARNING"]
    whole += ["-s", "JOBDIR=job"] if "scrapy_bloom" in command else []
    began, server = time.monotonic(), 0.0
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            whole, cwd=project, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL, stderr=stderr
        )
        while process.poll() is None:
            server = max(server, _server_seconds(job))
            time.sleep(0.05)
    seconds = time.monotonic() - began
    found = [json.loads(line) for line in items.read_text(encoding="utf-8").splitlines()] if items.exists() else []
    if process.returncode or len(found) != pages:
        said = log.read_text(encoding="utf-8", errors="replace")
        sys.exit(f"{command}: status {process.returncode}, {len(found)} of {pages} pages:\n{said}")
    by_process: dict[int, list[float]] = {}
    for item in found:
        by_process.setdefault(item["pid"], []).append(item["cpu"])
    # Each process counts from its first page on, so that page itself is left out.
    cpu = sum(max(times) - min(times) for times in by_process.values()) / max(1, pages - len(by_process))
    clock = [item["at"] for item in found]
    return _Crawled(60 * (pages - 1) / (max(clock) - min(clock)), 1000 * cpu, 1000 * server / pages, seconds)


def _server_seconds(job: Path) -> float:
    """Return the CPU time of the server that runs on *job*; 0 if there is none, or the system does not tell."""
    try:
        pid = json.loads((job / "fleet" / "members").read_text(encoding="utf-8"))["server"]
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (OSError, ValueError, KeyError):
        return 0.0
    return float(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _make_project(directory: Path) -> None:
    (directory / "scrapy.cfg").write_text("[settings]\ndefault = tables.settings\n", encoding="utf-8")
    package = directory / "tables"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "spiders.py").write_text(_SPIDER, encoding="utf-8")
    (package / "settings.py").write_text(
        'BOT_NAME = "tables"\nSPIDER_MODULES = ["tables.spiders"]\nTELNETCONSOLE_ENABLED = False\n'
        "REMOTE_CONTROL_ENABLED = False\n",
        encoding="utf-8",
    )


def _make_site(directory: Path, pages: int, rows: int) -> str:
    """Write the pages as files, and return the URL of the first, from which all can be reached."""
    directory.mkdir()
    rng = random.Random(1)
    for page in range(pages):
        tree = [child for child in (2 * page + 1, 2 * page + 2) if child < pages]
        links = tree + [rng.randrange(pages) for _ in range(10 - len(tree))]
        table = "".join(
            f'<tr><td><a href="#{row}">Item {rng.randrange(10**6)}</a></td><td class="note">of shelf {row % 7}</td>'
            f'<td class="price">{rng.randrange(1000)}</td></tr>'
            for row in range(rows)
        )
        nav = "".join(f'<a href="{link}.html">{link}</a>' for link in links)
        (directory / f"{page}.html").write_text(
            f"<html><table>{table}</table><nav>{nav}</nav></html>", encoding="utf-8"
        )
    return (directory / "0.html").as_uri()
