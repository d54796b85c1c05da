"""Puts requests that have failed for good back into the queue of a job or a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.commands.targets import add_target, queue_of
from scrapy_bloom.commands.terminal import OK, show
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.stopped import requeue, stopped_job

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``requeue``."""
    add_target(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--failed", action="store_true", help="what `info --failed` lists and can be queued")
    which.add_argument("--dead", action="store_true", help="dead letters of a fleet")
    parser.add_argument("--host", help="of these, the ones of this host only")


def run(options: argparse.Namespace) -> int:
    """Put back what has failed. Raises UnusableError if a crawl is running in that directory."""
    if "://" in options.directory:
        with queue_of(options) as queue:
            requeued = queue.requeue("dead" if options.dead else "failed", options.host)
        show({"server": options.directory, "requeued": requeued}, options)
        return OK
    if options.dead:
        advice = "Take --failed, or name the redis:// server of a fleet."
        raise UnusableError(options.directory, "is a job, and only fleets have dead letters", advice=advice)
    inspect_job(options.directory)  # raises if there is no job
    with stopped_job(options.directory) as job:
        requeued = requeue(job.database, options.host)
    show({"directory": options.directory, "requeued": requeued}, options)
    return OK
