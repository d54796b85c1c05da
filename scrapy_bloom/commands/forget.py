"""Takes URLs back: the next link to one of them is followed, as if it were new."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.fingerprinting import fingerprints_in, settings_of
from scrapy_bloom.commands.terminal import OK, show
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.stopped import stopped_job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from scrapy.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``forget``."""
    parser.add_argument("directory", metavar="JOBDIR", help="of a crawl that has been stopped, or a fleet's redis://")
    parser.add_argument("urls", metavar="URL", nargs="+", help="in a fleet, after the key of its queue")


def run(options: argparse.Namespace) -> int:
    """Take the URLs back, and say which of them had been seen."""
    settings = settings_of(options)
    if "://" in options.directory:
        key, *urls = options.urls
        if not urls:
            advice = (
                f"Name the key of the fleet's queue, and then the URLs: scrapy bloom forget {options.directory} KEY URL"
            )
            raise UnusableError(key, "is followed by no URL", advice=advice)
        forget_in_fleet(options.directory, key, urls, settings)
        show({"urls": [{"url": url} for url in urls]}, options)
        return OK
    show({"urls": forget(options.directory, options.urls, settings)}, options)
    return OK


def forget(directory: str, urls: Iterable[str], settings: Settings) -> list[dict[str, Any]]:
    """Take the plain GET requests of *urls* back in the job in *directory*; return each, and whether it was seen.

    Raises UnusableError if there is no job, a crawl is running there, its fingerprints are another project's, or a URL
    is none.
    """
    job = inspect_job(directory)
    fingerprints = fingerprints_in(job.state.key_space, job.directory, urls, settings)
    with stopped_job(directory) as (chain, _):
        return [{"url": url, "was_seen": chain.forget(fingerprint)} for url, fingerprint in fingerprints.items()]


def forget_in_fleet(server_url: str, key: str, urls: Iterable[str], settings: Settings) -> None:
    """Take the plain GET requests of *urls* back in the queue *key* of a fleet. Workers that run may know them still.

    Raises UnusableError as :func:`forget`.
    """
    from scrapy_bloom.fleet.server import Server
    from scrapy_bloom.fleet.shared_queue import SharedQueue  # imports redis

    with closing(Server(server_url)) as server:
        queue = SharedQueue(server, key)
        queue.forget(fingerprints_in(queue.key_space, queue.where, urls, settings).values())
