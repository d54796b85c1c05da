"""Takes URLs back: the next link to one of them is followed, as if it were new. Or the pages of a delta crawl."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.commands.targets import fingerprints_in, queue_at, settings_of
from scrapy_bloom.commands.terminal import OK, show
from scrapy_bloom.crawl.delta import forget_pages, home_of
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.filter.lock import is_locked
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.store import stopped_job

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``forget``."""
    parser.add_argument("directory", metavar="JOBDIR", help="of a crawl that has been stopped, or a fleet's redis://")
    parser.add_argument("urls", metavar="URL", nargs="*", help="in a fleet, after the key of its queue")
    parser.add_argument(
        "--delta",
        metavar="SPIDER",
        help="forget all pages that gave an item, of this spider; JOBDIR is BLOOM_DELTA then",
    )


def run(options: argparse.Namespace) -> int:
    """Take the URLs back, and print which of them a job had seen."""
    if options.delta:
        show({"forgotten": str(_in_delta(Path(options.directory), options.delta))}, options)
        return OK
    settings, urls = settings_of(options), options.urls["://" in options.directory :]
    if not urls:
        advice = "Name the URLs to forget; in a fleet, behind the key of its queue: forget redis://... KEY URL"
        raise UnusableError(options.directory, "is not followed by a URL", advice=advice)
    with queue_at(options.directory, options.urls[0]) as queue:
        if queue is not None:  # running workers may still drop links to these URLs
            queue.forget(fingerprints_in(queue.key_space, queue.where, urls, settings).values())
            show({"urls": [{"url": url} for url in urls]}, options)
            return OK
    fingerprints = fingerprints_in(inspect_job(options.directory).state.key_space, options.directory, urls, settings)
    with stopped_job(options.directory) as job:
        rows = [{"url": url, "was_seen": job.chain.forget(fingerprint)} for url, fingerprint in fingerprints.items()]
    show({"urls": rows}, options)
    return OK


def _in_delta(directory: Path, spider: str) -> Path:
    home = home_of(directory, spider)
    if not home.is_dir():
        advice = "Name the directory of BLOOM_DELTA, which is .scrapy/delta if that is True, and the spider."
        raise UnusableError(home, "is not there: no delta crawl of this spider was here", advice=advice)
    if any(map(is_locked, home.glob("[0-9]*"))):
        raise UnusableError(home, "is in use by a crawl", advice="Stop the crawl first.")
    forget_pages(home)
    return home
