"""Puts requests that have failed for good back into the queue of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.commands.terminal import OK, show
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.stopped import requeue, stopped_job

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``requeue``."""
    parser.add_argument("directory", metavar="JOBDIR", help="of a crawl that has been stopped")
    parser.add_argument("--failed", action="store_true", required=True, help="those that `info --failed` lists")
    parser.add_argument("--host", help="of these, the ones of this host only")


def run(options: argparse.Namespace) -> int:
    """Put back what has failed. Raises UnusableError if a crawl is running there."""
    inspect_job(options.directory)  # raises if there is no job
    with stopped_job(options.directory) as (_, database):
        requeued = requeue(database, options.host)
    show({"directory": options.directory, "requeued": requeued}, options)
    return OK
