"""Puts requests that have failed for good back into the queue of a job."""

from __future__ import annotations

import pickle
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.commands.terminal import OK, show
from scrapy_bloom.filter.lock import lock_directory
from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.frontier import Lane, LaneKey
from scrapy_bloom.job.inspect import DIRECTORY, inspect_job
from scrapy_bloom.job.records import Batch
from scrapy_bloom.job.serialize import PICKLE_PROTOCOL

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
    requeued = requeue(options.directory, options.host)
    show({"directory": options.directory, "requeued": requeued}, options)
    return OK


def requeue(jobdir: str, host: str | None) -> int:
    """Make what has failed in *jobdir*, of *host* if given, pending again; return how many.

    A kill in the middle may leave requests both failed and pending.
    """
    directory = Path(jobdir, DIRECTORY)
    with lock_directory(directory), closing(Database(directory / NAME)) as database:
        failed = database.reader.execute(
            "SELECT host, body FROM failed WHERE body IS NOT NULL AND host = ifnull(?, host) ORDER BY id", (host,)
        ).fetchall()
        (first,) = database.reader.execute("SELECT min(0, ifnull(min(id), 0)) FROM request").fetchone()
        requests = {}  # once each, however often they have failed
        for slot, body in failed:
            attributes = pickle.loads(body)  # noqa: S301 - as trusted as in the crawl itself
            meta = attributes.get("meta", {})
            meta.pop("retry_times", None)  # or the first failure would end it again
            place = meta.get("download_slot", slot), attributes
            same = [attributes.get(name) for name in ("url", "method", "body", "callback", "cb_kwargs")]
            requests[pickle.dumps(same)] = place
        batch = Batch(state=database.state)
        for number, (slot, attributes) in enumerate(requests.values(), start=1):
            lane = Lane(LaneKey(slot, attributes.get("priority", 0)), is_lifo=True)
            batch.lanes[lane.id] = lane
            batch.added[first - number] = (lane.id, pickle.dumps(attributes, PICKLE_PROTOCOL))
        pages = database.pages()  # those that are put back count when they are done again
        put_back = Counter(slot for slot, _ in requests.values())
        batch.note(
            "pages", {slot: b"%d" % max(0, pages[slot] - put_back[slot]) for slot in put_back.keys() & pages.keys()}
        )
        database.write(batch)
        database.writer.execute("DELETE FROM failed WHERE body IS NOT NULL AND host = ifnull(?, host)", (host,))
        return len(requests)
