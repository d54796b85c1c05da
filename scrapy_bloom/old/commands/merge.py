"""Makes one filter out of several crawls', and says what error rate they have together.

Merges filters only. Does not know how to merge pending requests, and refuses a job that has some.
"""

from __future__ import annotations

import math
import sqlite3
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.fingerprinting import settings_of
from scrapy_bloom.old.commands.job import filter_directory, local
from scrapy_bloom.old.commands.plan import count_argument, rate_argument
from scrapy_bloom.old.commands.terminal import OK, rows, show, size, tracked
from scrapy_bloom.old.errors import KeySpaceError, UnusableError, counted
from scrapy_bloom.old.files.frontier_check import contents
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME, half_salvaged
from scrapy_bloom.old.files.inspect import inspect
from scrapy_bloom.old.files.job_lock import hold_filter, hold_job
from scrapy_bloom.old.files.layout import FILTER_NAME
from scrapy_bloom.old.files.merge import Design, merge
from scrapy_bloom.old.files.sqlite_copy import reading
from scrapy_bloom.old.filter.key_space import check_key_space
from scrapy_bloom.old.loops.parked import guard_file
from scrapy_bloom.old.loops.verdicts import parked_in
from scrapy_bloom.old.settings import BloomSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from scrapy_bloom.old.files.inspect import FilterDescription


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``merge``."""
    parser.add_argument("out", metavar="OUT", help="a JOBDIR to create")
    parser.add_argument("sources", metavar="DIR", nargs="+", help="JOBDIRs of crawls that have ended")
    parser.add_argument("--capacity", type=count_argument, help="BLOOM_CAPACITY of the layers to come")
    parser.add_argument("--error-rate", type=rate_argument, help="BLOOM_ERROR_RATE of the layers to come")
    parser.add_argument(
        "--accept-lost-requests",
        action="store_true",
        help="merge although requests are still pending: their pages count as seen, and are not fetched",
    )


def run(options: argparse.Namespace) -> int:
    """Merge, and print what came of it."""
    settings = BloomSettings.from_settings(settings_of(options))
    found = merge_jobs(
        options.out,
        options.sources,
        capacity=options.capacity or settings.capacity,
        error_rate=options.error_rate or settings.error_rate,
        growth=settings.growth,
        accept_lost=options.accept_lost_requests,
    )
    show(found, options, _lines)
    return OK


def merge_jobs(
    out: str,
    sources: Sequence[str],
    *,
    capacity: int,
    error_rate: float,
    growth: float,
    accept_lost: bool,
) -> dict[str, Any]:
    """Make a filter in *out* that has seen what any of *sources* has seen.

    Raises:
        InUseError: A crawl is running in one of them.
        KeySpaceError: Their fingerprints are made differently.
        UnusableError: *out* has a filter already, or one of *sources* is damaged, unclean, or has requests pending.

    """
    jobdir = local(out)
    paths = [filter_directory(source) for source in sources]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UnusableError(", ".join(sources), "names one filter twice", advice="Name each once.")
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(hold_job(path.parent) if path.name == FILTER_NAME else hold_filter(path))
        described = [inspect(path, read_bits=True) for path in tracked(paths, "Reading")]
        notes = [note for each in described for note in _objections(each, described[0], accept_lost=accept_lost)]
        merge(jobdir, paths, Design(capacity, error_rate, growth, described[0].key_space))
    made = inspect(jobdir / FILTER_NAME)
    return {
        "directory": str(made.directory),
        "sources": [{"directory": str(each.directory), "urls": each.urls} for each in described],
        "urls": made.urls,
        "bytes": made.nbytes,
        "layers": len(made.layers),
        "error_rate": made.error_rate,
        "error_rate_now": 1 - math.prod(1 - layer.spec.error_rate_at(layer.urls or 0) for layer in made.layers),
        "expected_lost": made.expected_lost,
        "key_space": dict(made.key_space),
        "notes": notes,
    }


def _objections(found: FilterDescription, first: FilterDescription, *, accept_lost: bool) -> Iterator[str]:
    """Yield warnings about merging each filter with *first*; raise if one must not be merged."""
    path = found.directory
    if not found.is_clean or found.findings:
        problem = " ".join(found.findings) or "it was not closed."
        advice = "Start and stop its crawl once, so that it is closed; `scrapy bloom verify` says more."
        raise UnusableError(path, f"cannot be merged: {problem.rstrip('.')}", advice=advice)
    advice = f"Its URLs would look new beside those of {first.directory}. Merge only what one project has crawled."
    try:
        yield from check_key_space(f"The filter in {path}", first.key_space, found.key_space, advice=advice)
    except KeySpaceError as error:
        differences = "; ".join(f"{name} {ours!r} and {theirs!r}" for name, (ours, theirs) in error.differences.items())
        raise UnusableError(
            path,
            f"was filled under other settings than {first.directory}: {differences}",
            advice="Fingerprints that are made differently cannot be compared.",
        ) from None
    if path.name != FILTER_NAME:
        return
    pending, parked = _pending(path.parent), _parked(path.parent)
    for count, what, way in (
        (pending, counted(pending, "pending request"), "Let its crawl end first"),
        (parked, counted(parked, "parked request"), "`scrapy bloom requeue` it and let its crawl end first"),
        (_in_scrapys_queue(path.parent), "requests in Scrapy's queue", "Let its crawl end first"),
    ):
        if count and not accept_lost:
            raise UnusableError(
                path.parent,
                f"has {what}, whose pages would count as seen and never be fetched",
                advice=f"{way}, or go on without those pages by --accept-lost-requests.",
            )
        if count:
            yield f"{path.parent}: the pages of {what} count as seen, and are not fetched."


def _pending(jobdir: Path) -> int:
    path = jobdir / FRONTIER_NAME
    if unfinished := half_salvaged(path):
        raise unfinished
    return _asked(path, lambda connection: contents(connection).pending) if path.exists() else 0


def _parked(jobdir: Path) -> int:
    path = guard_file(jobdir)
    if not path.exists():
        return 0
    return _asked(path, lambda connection: parked_in(path, connection))


def _asked(path: Path, ask: Callable[[sqlite3.Connection], int]) -> int:
    """Return what *ask* finds in the file at *path*, read without touching it."""
    advice = "`scrapy bloom verify` says more. Until it is mended, nobody knows whether requests are pending there."
    try:
        with reading(path, most_bytes=None) as connection:
            return 0 if connection is None else ask(connection)
    except sqlite3.Error as error:
        raise UnusableError(path, f"cannot be read: {error}", advice=advice) from error


def _in_scrapys_queue(jobdir: Path) -> int:
    """Return 1 if the queue of Scrapy's own scheduler is not empty: only Scrapy can count it."""
    state = jobdir / "requests.queue" / "active.json"
    return int(state.is_file() and state.read_text(encoding="utf-8").strip() not in {"", "[]", "{}", '""'})


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield from rows(
        [
            ("filter", found["directory"]),
            ("URLs", f"{found['urls']:,} at most; what several have seen counts for each of them"),
            ("layers", f"{found['layers']:,}, {size(found['bytes'])}"),
            ("error rate", f"{found['error_rate_now']:.2g} now, {found['error_rate']:.2g} at most"),
            ("expected lost", f"{found['expected_lost']:.2g} pages so far, by all the crawls together"),
        ]
    )
    yield from (f"{each['directory']}: {counted(each['urls'], 'URL')}" for each in found["sources"])
    yield from found["notes"]
