"""Puts requests that have failed for good back into the queue of a job or a fleet."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from scrapy_bloom.commands.terminal import OK, show
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.stopped import requeue, stopped_job

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``requeue``."""
    parser.add_argument("directory", metavar="JOBDIR", help="of a crawl that has been stopped, or a fleet's redis://")
    parser.add_argument("key", metavar="KEY", nargs="?", default="", help="of a fleet's queue, such as bloom:books")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--failed", action="store_true", help="what `info --failed` lists and can be queued")
    which.add_argument("--dead", action="store_true", help="dead letters of a fleet")
    parser.add_argument("--host", help="of these, the ones of this host only")


def run(options: argparse.Namespace) -> int:
    """Put back what has failed. Raises UnusableError if a crawl is running in that directory."""
    if "://" in options.directory:
        show({"server": options.directory, "requeued": _in_fleet(options)}, options)
        return OK
    if options.dead:
        advice = "Take --failed, or name the redis:// server of a fleet."
        raise UnusableError(options.directory, "is a job, and only fleets have dead letters", advice=advice)
    inspect_job(options.directory)  # raises if there is no job
    with stopped_job(options.directory) as (_, database):
        requeued = requeue(database, options.host)
    show({"directory": options.directory, "requeued": requeued}, options)
    return OK


def _in_fleet(options: argparse.Namespace) -> int:
    from scrapy_bloom.fleet.server import Server
    from scrapy_bloom.fleet.shared_queue import DEAD, FAILED, SharedQueue  # imports redis

    with closing(Server(options.directory)) as server:
        return SharedQueue(server, options.key).requeue(DEAD if options.dead else FAILED, options.host)
