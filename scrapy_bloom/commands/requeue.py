"""Puts requests that have failed for good back into the queue of a job."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.commands.terminal import OK, show, utc
from scrapy_bloom.filter.lock import lock_directory
from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.frontier import LaneKey
from scrapy_bloom.job.inspect import DIRECTORY, inspect_job
from scrapy_bloom.job.records import Batch, LaneRow
from scrapy_bloom.job.serialize import PICKLE_PROTOCOL

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``requeue``."""
    parser.add_argument("directory", metavar="JOBDIR", help="of a crawl that has been stopped")
    parser.add_argument("--list", action="store_true", help="only list them")


def run(options: argparse.Namespace) -> int:
    """List what has failed, and put it back. Raises UnusableError if a crawl is running there."""
    failed = inspect_job(options.directory).failed
    shown = [{"failed": each.url, "why": each.reason, "when": utc(each.time)} for each in failed]
    requeued = 0 if options.list or not failed else requeue(options.directory)
    show({"directory": options.directory, "requeued": requeued, "failures": shown}, options)
    return OK


def requeue(jobdir: str) -> int:
    """Make everything that has failed in *jobdir* pending, behind all other requests; return how many there are.

    A kill in the middle may leave requests both failed and pending.
    """
    directory = Path(jobdir, DIRECTORY)
    with lock_directory(directory), closing(Database(directory / NAME)) as database:
        failed = database.reader.execute("SELECT id, host, body FROM failed ORDER BY id").fetchall()
        (first,) = database.reader.execute("SELECT min(0, ifnull(min(id), 0)) FROM request").fetchone()
        requests = {}  # once each, however often they have failed
        for _, host, body in failed:
            attributes = pickle.loads(body)  # noqa: S301 - as trusted as in the crawl itself
            attributes.get("meta", {}).pop("retry_times", None)  # or the first failure would end it again
            requests[attributes["url"], attributes.get("method"), attributes.get("body")] = host, attributes
        batch = Batch(state=database.state)
        for place, (host, attributes) in enumerate(requests.values(), start=1):
            key = LaneKey(host, attributes.get("priority", 0))
            batch.lanes[key.id()] = LaneRow(key.id(), *key, 0)
            batch.added[first - place] = (key.id(), pickle.dumps(attributes, PICKLE_PROTOCOL))
        database.write(batch)
        database.writer.execute("DELETE FROM failed WHERE id <= ?", (failed[-1][0],))
        return len(requests)
