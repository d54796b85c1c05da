"""Takes URLs back: the next link to one of them is followed, as if it were new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.fingerprinting import fingerprints_in, settings_of
from scrapy_bloom.commands.terminal import OK, show
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.stopped import stopped_job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from scrapy.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``forget``."""
    parser.add_argument("directory", metavar="JOBDIR", help="of a crawl that has been stopped")
    parser.add_argument("urls", metavar="URL", nargs="+")


def run(options: argparse.Namespace) -> int:
    """Take the URLs back, and say which of them had been seen."""
    show({"urls": forget(options.directory, options.urls, settings_of(options))}, options)
    return OK


def forget(directory: str, urls: Iterable[str], settings: Settings) -> list[dict[str, Any]]:
    """Take the plain GET requests of *urls* back in the job in *directory*; return each, and whether it was seen.

    Raises UnusableError if there is no job, a crawl is running there, its fingerprints are another project's, or a URL
    is none.
    """
    job = inspect_job(directory)
    fingerprints = fingerprints_in(job, urls, settings)
    with stopped_job(directory) as (chain, _):
        return [{"url": url, "was_seen": chain.forget(fingerprint)} for url, fingerprint in fingerprints.items()]
