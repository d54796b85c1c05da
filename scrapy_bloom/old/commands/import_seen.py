"""Marks as seen what another crawl has seen.

What it adds stays, so it may be interrupted and repeated. Does not know the formats it reads (``seen_sources``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.fingerprinting import fingerprints_by, of_url, of_url_under, settings_of
from scrapy_bloom.old.commands.job import is_filter, local
from scrapy_bloom.old.commands.plan import count_argument, rate_argument
from scrapy_bloom.old.commands.seen_sources import SCRAPY_BYTES, URLS, Source, check_readable, fingerprints_in
from scrapy_bloom.old.commands.terminal import OK, WRONG, rows, show, tracked
from scrapy_bloom.old.errors import counted
from scrapy_bloom.old.files.directory import open_filter
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME
from scrapy_bloom.old.files.inspect import inspect
from scrapy_bloom.old.files.layout import FILTER_NAME
from scrapy_bloom.old.files.workers_job import refuse_workers_job
from scrapy_bloom.old.settings import BloomSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from scrapy.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``import``."""
    parser.add_argument("directory", metavar="DIR", help="a JOBDIR whose crawl has been stopped, or a new one")
    parser.add_argument(
        "sources",
        metavar="FILE",
        nargs="+",
        help="a requests.seen of Scrapy's; URLs, or fingerprints in hexadecimal, one a line, also gzipped; - for "
        "standard input; redis://host:port#key for a set of scrapy-redis",
    )
    parser.add_argument(
        "--capacity", type=count_argument, help="BLOOM_CAPACITY of a new filter (default: the project's)"
    )
    parser.add_argument(
        "--error-rate", type=rate_argument, help="BLOOM_ERROR_RATE of a new filter (default: the project's)"
    )


def run(options: argparse.Namespace) -> int:
    """Import, and print how much was new."""
    found = import_seen(
        options.directory,
        options.sources,
        lambda: settings_of(options),
        capacity=options.capacity,
        error_rate=options.error_rate,
    )
    show(found, options, _lines)
    return WRONG if found["findings"] else OK


def import_seen(
    directory: str,
    sources: Sequence[str],
    settings: Callable[[], Settings],
    *,
    capacity: int | None = None,
    error_rate: float | None = None,
) -> dict[str, Any]:
    """Add what *sources* hold to the filter of *directory*, after beginning one if there is none.

    Raises:
        InUseError: A crawl is running there.
        BloomError: The filter cannot be opened, or a source not be read. What was read before stays.

    """
    check_readable(sources)
    given = local(directory)
    path = given if is_filter(given) or given.name == FILTER_NAME else given / FILTER_NAME
    existing = inspect(path)
    if not existing.exists:
        refuse_workers_job(path.parent)  # which would refuse to start beside a filter
    if existing.exists:
        space, of_one_url = existing.key_space, lambda: of_url_under(existing.key_space, path, settings)
    else:
        fingerprints = fingerprints_by(settings())
        space, of_one_url = fingerprints.space, lambda: of_url(fingerprints)
    design = BloomSettings() if existing.exists else BloomSettings.from_settings(settings())
    seen = path.parent / "requests.seen"
    length = SCRAPY_BYTES if space.get("fingerprinter", "scrapy") == "scrapy" else None
    # Without a frontier the next crawl would warn of that; the import closes the filter, so that it cannot.
    may_lack_requests = (
        existing.exists
        and not existing.is_clean
        and path.name == FILTER_NAME
        and not (path.parent / FRONTIER_NAME).exists()
    )
    imported: list[dict[str, Any]] = []
    findings: list[str] = []
    with open_filter(
        path,
        capacity or design.capacity,
        error_rate or design.error_rate,
        growth=design.growth,
        key_space=None if existing.exists else space,
        # As its first crawl would: a filter that is there already keeps that from happening later.
        import_from=seen if path.name == FILTER_NAME and str(seen) not in sources else None,
    ) as chain:
        taken_over = 0 if existing.exists else len(chain)
        try:
            for name in sources:
                source = Source(name)
                new = 0
                try:
                    found = fingerprints_in(source, of_one_url, length)
                    for fingerprint in tracked(found, f"Reading {source.shown}"):
                        new += chain.add(fingerprint)
                finally:
                    imported.append(_described(source, new))
        except KeyboardInterrupt:
            findings.append("Interrupted. What is counted here stays; repeat the command to go on.")
        urls = len(chain)
    findings += [
        f"{each['source']}: {counted(each['unreadable'], 'entry or byte', 'entries or bytes')} could not be used; "
        f"first: {each['example']}"
        for each in imported
        if each["unreadable"]
    ]
    return {
        "directory": str(path),
        "began": not existing.exists,
        "taken_over": taken_over,
        "sources": imported,
        "new": sum(each["new"] for each in imported),
        "urls": urls,
        "key_space": dict(space),
        "may_lack_requests": may_lack_requests,
        "is_assumed": any(each["kind"] != URLS for each in imported),
        "findings": findings,
    }


def _described(source: Source, new: int) -> dict[str, Any]:
    return {
        "source": source.name,
        "kind": source.kind,
        "read": source.read,
        "new": new,
        "already_seen": source.read - new,
        "unreadable": source.unreadable,
        "example": source.example,
    }


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield from rows([("filter", found["directory"] + (" (new)" if found["began"] else ""))])
    if found["taken_over"]:
        yield from rows([("requests.seen", f"{found['taken_over']:,} of the job's own, taken over first")])
    for each in found["sources"]:
        seen = f"{each['new']:,} new, {each['already_seen']:,} already seen"
        yield f"{each['source']}: {counted(each['read'], each['kind'].removesuffix('s'), each['kind'])} read, {seen}"
    yield from rows([("URLs now", f"{found['urls']:,}")])
    made_by = ", ".join(f"{name}: {value or 'none'}" for name, value in found["key_space"].items())
    if found["is_assumed"]:
        yield f"Fingerprints do not say what made them. They are taken for made by {made_by}."
        yield "If that is wrong, they match nothing, and their pages are fetched again."
    else:
        yield f"Fingerprints made by {made_by}."
    if found["may_lack_requests"]:
        yield "The filter had not been closed. If that was a crawl with Scrapy's own queue, what was pending is lost:"
        yield "its pages count as seen. To crawl them all, begin anew. After a killed import, nothing is lost."
    yield from (f"! {finding}" for finding in found["findings"])
