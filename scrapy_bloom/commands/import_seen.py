"""Marks the pages of another crawl as seen, or takes over a crawl of scrapy-redis.

Added fingerprints stay, so the command may be interrupted and repeated.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.locations import check_readable, made_of_urls
from scrapy_bloom.commands.targets import crawler_of, fingerprints_by, of_url_in, queue_to_fill, settings_of
from scrapy_bloom.commands.terminal import OK, WRONG, show, tracked
from scrapy_bloom.components.takeover import import_seen, read_fingerprints
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.job.records import Batch
from scrapy_bloom.job.store import stopped_job
from scrapy_bloom.settings import BloomSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from scrapy.settings import Settings

    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.job.database import Database

_HEAD = 1 << 16
_FINGERPRINTS = re.compile(rb"\0|(?:[0-9a-fA-F]{2}){8,}\r?$", re.MULTILINE)
"""The beginning of a ``requests.seen``: the length of a fingerprint in two bytes, or a line in hexadecimal."""

_ADVICE_ON_SEEN = (
    "A requests.seen does not name the fingerprinter that made it. If this job uses another one, the pages in it are "
    "fetched again."
)
_ADVICE_ON_URLS = (
    "A URL counts as seen as a plain GET request. Requests to it with another method or a body are still new."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``import``."""
    parser.add_argument("target", metavar="JOBDIR", help="of a crawl that has been stopped, or a new one")
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="+",
        help="a requests.seen of Scrapy's; or URLs, one a line, also gzipped, - for standard input. If JOBDIR is a "
        "redis:// server, the spiders whose crawls under scrapy-redis are taken over",
    )


def run(options: argparse.Namespace) -> int:
    """Import, and print how much was new."""
    settings = settings_of(options)
    if "://" in options.target:
        for summary in _take_over(options.target, options.sources, settings):
            show(summary, options)
        return OK
    summary = import_into(options.target, options.sources, settings)
    show(summary, options)
    return WRONG if summary["findings"] else OK


def import_into(jobdir: str, sources: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Add the fingerprints in *sources* to the filter of *jobdir*. Begins a job there if it has none.

    Raises UnusableError or OSError if the job or a source cannot be read. Fingerprints that were added before stay.
    """
    check_readable(sources)
    findings: list[str] = []
    counts = []
    advice: dict[str, None] = {}
    with job_to_fill(jobdir, settings) as (chain, database, space, of_url):
        database.write(Batch(state=replace(database.state, filter=chain.chain_id, key_space=space)))
        for source in sources:
            if _is_requests_seen(source):
                advice[_ADVICE_ON_SEEN] = None
                fingerprints = tracked(read_fingerprints(Path(source)), f"Reading {source}")
            else:
                advice[_ADVICE_ON_URLS] = None
                fingerprints = made_of_urls(source, of_url, findings)
            read = new = 0
            for fingerprint in fingerprints:
                read, new = read + 1, new + chain.add(fingerprint)
            counts.append({"source": source, "read": read, "new": new})
        summary = {"directory": jobdir, "urls": len(chain), "key_space": dict(space), "sources": counts}
        return {**summary, "advice": [*advice], "findings": findings}


@contextmanager
def job_to_fill(
    jobdir: str, settings: Settings, spider: str | None = None
) -> Iterator[tuple[ScalableBloomFilter, Database, Mapping[str, str], Callable[[str], bytes]]]:
    """Open the stopped job of *spider* in *jobdir*, or begin one under *settings*; a ``requests.seen`` there goes in.

    Yields the filter, the database, the key space, and a function that makes the fingerprint of a URL.
    """
    with stopped_job(jobdir, spider, BloomSettings.from_settings(settings)) as job:
        space = job.database.state.key_space or fingerprints_by(settings).space
        of_url = of_url_in(space, jobdir, settings)
        import_seen(Path(jobdir), job.chain, job.database)  # a crawl does so only with an empty filter
        yield job.chain, job.database, space, of_url


def _is_requests_seen(source: str) -> bool:
    """Return whether *source* is a ``requests.seen``. Raises UnusableError if it is not a list of URLs either."""
    if source == "-":
        return False
    with Path(source).open("rb") as file:
        head = file.read(_HEAD)
    is_seen = _FINGERPRINTS.match(head) is not None
    if head and not is_seen and b"://" not in head and not head.startswith(b"\x1f\x8b"):
        expected = "URLs, one a line, or a requests.seen of Scrapy's"
        raise UnusableError(source, f"begins with {head[:40]!r}", expected=expected, advice="Nothing was imported.")
    return is_seen


def _take_over(url: str, names: Sequence[str], settings: Settings) -> Iterator[dict[str, Any]]:
    """Take over the crawls of the spiders *names*, and yield a summary of each. All are known, or none is taken."""
    from scrapy_bloom.fleet.takeover import ScrapyRedis, take_over

    for crawler in [crawler_of(settings, name) for name in names]:
        spider = crawler.spidercls.from_crawler(crawler)
        with queue_to_fill(url, crawler, spider) as (queue, _, requests):
            yield take_over(queue, ScrapyRedis.of(spider.name, crawler.settings), requests.rewritten)
