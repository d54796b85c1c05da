"""Crawl the maze with scrapy-bloom and with plain Scrapy, kill both, lead both into an endless calendar, and compare.

Every figure but memory is of crawls that are run here, each in a process and a job directory of its own, and counted
in the record that the spider writes, which knows nothing of the filter. Memory is computed: nobody would wait for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from example.record import FILE_NAME
from example.site import CALENDAR

PROJECT = Path(__file__).parent.parent

BLOOM = ()
PLAIN = ("-s", "ADDONS={}", "-a", "filter_start=no")
"""Scrapy as it is without us: its own filter, scheduler and queue, and a start page that every run fetches."""

MANY = 100_000_000
BLOOM_BYTES = "408.6 MB"
PLAIN_BYTES = "9.1 GB"
"""For so `MANY` URLs: ``scrapy bloom plan --urls 1e8``."""

_PATIENCE = 120  # seconds until a crawl counts as hung
_SECONDS_UNTIL_KILL = 1.5  # so that the scheduler has committed, which it does once a second


@dataclass(frozen=True)
class Outcome:
    """What one side did."""

    after_kill: int
    """Different pages that were crawled before and after a kill, together."""
    exit_code: int
    """Of the crawl that was resumed."""
    beside_calendar: int
    """Different pages that were crawled on the site with the calendar, without the calendar's."""
    months: int
    """Pages of the calendar that were fetched."""
    ended_by_itself: bool
    """Whether the crawl with the calendar ended without being told to."""


def compare(pages: int) -> str:
    """Crawl a maze of *pages* pages in both ways and return the table."""
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor() as pool:
        sides = {"bloom": BLOOM, "plain": PLAIN}
        bloom, plain = pool.map(lambda side: _outcome(Path(directory, side), pages, sides[side]), sides)
    rows = [
        ("", "scrapy-bloom", "plain Scrapy"),
        ("killed in the middle, then resumed", "", ""),
        ("  pages crawled in the end", *(f"{side.after_kill:,} of {pages:,}" for side in (bloom, plain))),
        ("  exit code", str(bloom.exit_code), str(plain.exit_code)),
        ("with an endless calendar on the site", "", ""),
        ("  pages crawled", *(f"{side.beside_calendar:,} of {pages:,}" for side in (bloom, plain))),
        ("  months of the calendar", f"{bloom.months:,}", f"{plain.months:,}"),
        ("  ended", *("by itself" if side.ended_by_itself else "by a limit only" for side in (bloom, plain))),
        (f"memory for {MANY:,} URLs", BLOOM_BYTES, PLAIN_BYTES),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    rule = "-" * max(map(len, lines))
    told = (
        f"These crawls were run just now: kill -9, and with the calendar up to {_budget(pages):,} pages.\n"
        "Memory is computed: scrapy bloom plan --urls 1e8"
    )
    return "\n".join(["", f"The same site, {pages:,} pages, in both ways", rule, *lines, rule, told])


def _outcome(directory: Path, pages: int, side: tuple[str, ...]) -> Outcome:
    killed, calendar = directory / "killed", directory / "calendar"
    slowly = ("-s", f"DOWNLOAD_DELAY={3 * _SECONDS_UNTIL_KILL / pages:.4f}")
    with subprocess.Popen(_command(killed, pages, *side, *slowly), **_QUIET) as crawl:
        deadline = time.monotonic() + _PATIENCE
        while crawl.poll() is None and len(_crawled(killed)) < pages // 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        crawl.kill()
    resumed = subprocess.run(_command(killed, pages, *side), check=False, timeout=_PATIENCE, **_QUIET)
    # Without our add-on nobody reads that setting.
    guard = ("-s", "BLOOM_LOOP_GUARD=True")
    budget = ("-s", f"CLOSESPIDER_PAGECOUNT={_budget(pages)}", "-a", "calendar=yes")
    quiet = {**_QUIET, "stdout": subprocess.PIPE, "text": True}
    said = subprocess.run(
        _command(calendar, pages, *side, *guard, *budget), check=False, timeout=_PATIENCE, **quiet
    ).stdout
    fetched = _crawled(calendar)
    months = sum(page.startswith(CALENDAR) for page in fetched)
    return Outcome(
        after_kill=len(_crawled(killed)),
        exit_code=resumed.returncode,
        beside_calendar=len(fetched) - months,
        months=months,
        ended_by_itself=re.search(r"^ended because +finished$", said, flags=re.MULTILINE) is not None,
    )


def _budget(pages: int) -> int:
    return 2 * pages


def _command(job: Path, pages: int, *arguments: str) -> list[str]:
    crawl = [sys.executable, "-m", "scrapy", "crawl", "maze", "-a", f"pages={pages}", "-a", "compare=no"]
    return [*crawl, "-s", f"JOBDIR={job}", *arguments]


_QUIET = {"cwd": PROJECT, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _crawled(job: Path) -> set[str]:
    """Return the different pages that the spider has recorded in *job*."""
    record = job / FILE_NAME
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    return {line.partition("\t")[2] for line in lines if line.startswith("page\t")}
