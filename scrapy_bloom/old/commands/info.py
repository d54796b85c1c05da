"""Shows what a job directory holds: filter, pending requests, verdicts of the loop guard.

Only reads, also while the crawl runs. Does not know whether the files are sound: ``verify`` does.
"""

from __future__ import annotations

import math
import sqlite3
import time
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_bloom.old.commands import fleet
from scrapy_bloom.old.commands.job import filter_place
from scrapy_bloom.old.commands.terminal import OK, WRONG, Table, rows, show
from scrapy_bloom.old.commands.verify import disagreements
from scrapy_bloom.old.commands.watch import DEFAULT_SECONDS, seconds_argument, watch
from scrapy_bloom.old.errors import BloomError, UnusableError, counted
from scrapy_bloom.old.files.frontier_check import Contents, contents
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME, half_salvaged
from scrapy_bloom.old.files.frontier_mark import read_mark
from scrapy_bloom.old.files.inspect import inspect
from scrapy_bloom.old.files.layout import FILTER_NAME
from scrapy_bloom.old.files.sqlite_copy import reading
from scrapy_bloom.old.loops.parked import guard_file, missing_in, newest_noted
from scrapy_bloom.old.loops.verdicts import ParkedShape, shapes_in

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scrapy_bloom.old.files.inspect import FilterDescription

MOST_HOSTS = 1_000
"""Hosts in the JSON, those with the most pending requests first."""

SHOWN_HOSTS = 10
"""Of these, the ones that people are shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``info``."""
    parser.add_argument("directory", metavar="DIR|URL", help="a JOBDIR, or the redis:// server of a fleet")
    fleet.add_arguments(parser)
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=seconds_argument,
        const=DEFAULT_SECONDS,
        help=f"say every so many seconds how a crawl that runs is doing (default: {DEFAULT_SECONDS:g})",
    )


def run(options: argparse.Namespace) -> int:
    """Print what the job holds, or with ``--watch`` how its crawl is doing until it ends."""
    if fleet.is_server(options.directory):
        if options.watch is not None:
            advice = "Give the JOBDIR of a crawl, or repeat the command without it, as `watch -n 5` does."
            raise UnusableError(
                "--watch", "follows a crawl by files in its JOBDIR, and a server has none", advice=advice
            )
        return fleet.show_info(options)
    fleet.refuse_options(options, "spider", "key")
    if options.watch is not None:
        return watch(options.directory, options.watch, as_json=options.json)
    found = info(options.directory)
    show(found, options, job_lines)
    return WRONG if found["findings"] else OK


def info(directory: str) -> dict[str, Any]:
    """Return what is known of the job in *directory*, in plain types, under stable names."""
    path = filter_place(directory)
    seen = inspect(path)
    beside = (
        _beside(path.parent, seen)
        if path.name == FILTER_NAME
        else _Beside("it is in a job directory, and this is none")
    )
    pending, verdicts = beside.pending, beside.verdicts
    begun = min((layer.created for layer in seen.layers), default=None)
    return {
        "directory": str(path),
        "exists": seen.exists,
        "urls": seen.about,
        "urls_are_estimated": seen.exists and not seen.is_clean,
        "forgotten": seen.forgotten,
        "pending": None if pending is None else pending.pending,
        "pending_not_known": beside.why_not_known or None,
        "hosts": None if pending is None else len(pending.by_host),
        "pending_by_host": {} if pending is None else dict(islice(pending.by_host.items(), MOST_HOSTS)),
        "bytes": seen.nbytes,
        "error_rate": seen.error_rate,
        "error_rate_now": 1 - math.prod(1 - layer.spec.error_rate_at(layer.about) for layer in seen.layers),
        "expected_lost": seen.expected_lost,
        "clean": seen.is_clean,
        "in_use": seen.is_in_use,
        "last_opened_by": seen.owner or None,
        "begun": None if begun is None else _as_text(begun),
        "age_seconds": None if begun is None else max(0, round(time.time() - begun)),
        "key_space": dict(seen.key_space),
        "layers": [
            {
                "file": layer.path.relative_to(path).as_posix(),
                "urls": layer.about,
                "capacity": layer.capacity,
                "bytes": layer.nbytes,
                "error_rate": layer.error_rate,
                "created": _as_text(layer.created),
                "clean": layer.is_clean,
            }
            for layer in seen.layers
        ],
        "verdicts": None if verdicts is None else [asdict(verdict) for verdict in verdicts],
        "findings": [*seen.findings, *beside.findings],
    }


class _Beside(NamedTuple):
    """What else is in the job directory of a filter; None: not known."""

    why_not_known: str
    """Why :attr:`pending` is not known; empty if it is."""
    pending: Contents | None = None
    verdicts: list[ParkedShape] | None = None
    """Shapes that have run dry."""
    findings: Sequence[str] = ()


def _beside(jobdir: Path, seen: FilterDescription) -> _Beside:
    findings: list[str] = []
    pending: Contents | None = Contents(0, {}, 0, "")
    verdicts: list[ParkedShape] | None = []
    frontier, guard = jobdir / FRONTIER_NAME, guard_file(jobdir)
    why = ""
    if unfinished := half_salvaged(frontier):
        pending, why = None, "they are saved, and not in their place yet"
        findings.append(str(unfinished))
    elif frontier.exists():
        pending, why = None, "the file cannot be read"
        with _finding(frontier, findings):
            # Before the frontier: what the filter has noted of the frontier is never ahead of it.
            mark = read_mark(seen.directory / "frontier")
            with reading(frontier) as connection:
                if connection is None:
                    why = "the file is not closed, and too large to copy"
                else:
                    pending, why = contents(connection), ""
            if pending is not None:
                findings += disagreements(frontier, pending.filter_id, pending.last_id, seen, mark)
    elif missing := disagreements(frontier, None, 0, seen, read_mark(seen.directory / "frontier")):
        pending, why = None, "the file is missing"
        findings += missing
    elif _scrapys_queue_may_hold_requests(jobdir, seen):
        pending, why = None, "the requests are in Scrapy's own queue"
    noted = newest_noted(jobdir)
    if guard.exists():
        verdicts = None
        with _finding(guard, findings), reading(guard) as connection:
            if connection is not None:
                verdicts = shapes_in(guard, connection)
                findings += missing_in(jobdir, noted, connection)
    else:
        findings += missing_in(jobdir, noted, None)
    return _Beside(why, pending, verdicts, findings)


def _scrapys_queue_may_hold_requests(jobdir: Path, seen: FilterDescription) -> bool:
    """Return whether the crawl goes on under Scrapy's own scheduler and may have requests in its queue."""
    state = jobdir / "requests.queue" / "active.json"
    if not state.parent.is_dir() or state.is_dir():  # a directory keeps Scrapy's scheduler out: see ScrapyQueue.block
        return False
    if not seen.is_clean or not state.is_file():
        return True
    return state.read_text(encoding="utf-8").strip() not in {"", "[]", "{}", '""'}


@contextmanager
def _finding(path: Path, findings: list[str]) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        findings.append(f"{path} cannot be read: {error}. `scrapy bloom verify` says more.")
    except BloomError as error:
        findings.append(str(error))


def job_lines(found: dict[str, Any]) -> Iterator[str | Table]:
    """Return the lines for what :func:`info` has *found*."""
    state = "in use" if found["in_use"] else "closed cleanly" if found["clean"] else "not closed"
    opened = f"last opened by {found['last_opened_by']}" if found["last_opened_by"] else "never opened by a crawl"
    made_by = ", ".join(f"{name}: {value or 'none'}" for name, value in found["key_space"].items())
    promised = "not known" if found["error_rate"] is None else f"{found['error_rate']:.2g} at most"
    labelled = [
        ("filter", found["directory"] if found["exists"] else f"{found['directory']}: none, as with a fleet's worker"),
        ("state", f"{state}; {opened}"),
        ("begun", f"{found['begun']}, {_age(found['age_seconds'])} ago" if found["begun"] else "not known"),
        (
            "URLs",
            f"{'about ' if found['urls_are_estimated'] else ''}{found['urls']:,}"
            + (f", and {found['forgotten']:,} taken back" if found["forgotten"] else ""),
        ),
        ("pending", _pending(found)),
        ("bytes", f"{found['bytes']:,}"),
        ("expected lost", f"{found['expected_lost']:.2g} pages"),
        ("error rate", f"{promised}; now {found['error_rate_now']:.2g}"),
        ("made by", made_by or "not known"),
        *((each["file"], f"{each['urls']:,} of {each['capacity']:,} URLs") for each in found["layers"]),
    ]
    yield from rows(labelled if found["exists"] else [each for each in labelled if each[0] in {"filter", "pending"}])
    if len(found["pending_by_host"]) > 1:
        shown = list(found["pending_by_host"].items())[:SHOWN_HOSTS]
        yield ""
        yield Table(("host", "pending"), [(host, f"{count:,}") for host, count in shown])
    if found["verdicts"]:
        yield ""
        yield Table(
            ("run dry", "parked", "pages", "of which last, without news", "example"),
            [
                (
                    each["shape"] + (" (taken back)" if each["is_taken_back"] else ""),
                    f"{each['waiting']:,}",
                    f"{each['fetched']:,}",
                    f"{each['dry']:,}",
                    each["example"],
                )
                for each in found["verdicts"]
            ],
        )
    yield from (f"! {finding}" for finding in found["findings"])


def _pending(found: dict[str, Any]) -> str:
    if found["pending"] is None:
        return f"not known: {found['pending_not_known']}"
    hosts = f", of {counted(found['hosts'], 'host')}" if found["hosts"] else ""
    return f"{found['pending']:,}{hosts}"


def _as_text(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _age(seconds: int) -> str:
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,} {unit}"
    return f"{seconds} seconds"
