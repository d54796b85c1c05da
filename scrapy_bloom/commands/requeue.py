"""Puts requests that have failed for good back into the queue of a job or a fleet."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import TYPE_CHECKING

from scrapy_bloom.commands.targets import add_target, queue_at
from scrapy_bloom.commands.terminal import OK, show
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.frontier.lanes import Lane
from scrapy_bloom.frontier.order import MARK, OF_THE_LAST_TRY, PICKLE_PROTOCOL, lane_of_stored
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.records import Batch
from scrapy_bloom.job.store import stopped_job

if TYPE_CHECKING:
    import argparse

    from scrapy_bloom.job.database import Database


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``requeue``."""
    add_target(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--failed", action="store_true", help="what `info --failed` lists and can be queued")
    which.add_argument("--dead", action="store_true", help="dead letters of a fleet")
    parser.add_argument("--host", help="of these, the ones of this host only")


def run(options: argparse.Namespace) -> int:
    """Put back what has failed. Raises UnusableError if a crawl is running in that directory."""
    with queue_at(options.directory, options.key) as queue:
        if queue is not None:
            requeued = queue.requeue("dead" if options.dead else "failed", options.host)
            show({"server": options.directory, "requeued": requeued}, options)
            return OK
    if options.dead:
        advice = "Take --failed, or name the redis:// server of a fleet."
        raise UnusableError(options.directory, "is a job, and only fleets have dead letters", advice=advice)
    inspect_job(options.directory)  # raises if there is no job
    with stopped_job(options.directory) as job:
        requeued = _requeue(job.database, options.host)
    show({"directory": options.directory, "requeued": requeued}, options)
    return OK


def _requeue(database: Database, host: str | None) -> int:
    """Make what has failed in a job, of *host* if given, pending again in one transaction; return how many."""
    failed = database.select("SELECT id, body FROM failed WHERE body IS NOT NULL AND host = ifnull(?, host)", host)
    (first,) = database.select("SELECT min(0, ifnull(min(id), 0)) FROM request")[0]
    requests = {}  # once each, however often they have failed
    for _, body in sorted(failed):
        attributes = pickle.loads(body)  # noqa: S301 - as trusted as in the crawl itself
        attributes.pop(MARK, None)
        meta = attributes.get("meta", {})
        for name in OF_THE_LAST_TRY:
            meta.pop(name, None)
        names = ["url", "method", "body", "callback", "cb_kwargs"]
        if attributes.get("dont_filter"):  # its meaning may be in anything
            names += ["headers", "cookies", "meta"]
        same = [attributes.get(name) for name in names]
        requests[pickle.dumps(same)] = lane_of_stored(attributes), attributes
    batch = Batch(state=database.state, put_back=[id_ for id_, _ in failed])
    for number, (key, attributes) in enumerate(requests.values(), start=1):
        batch.add(first - number, Lane(key, is_lifo=True), pickle.dumps(attributes, PICKLE_PROTOCOL))
    pages = database.pages()  # a page that is put back counts when it is done again
    put_back = Counter(key.slot for key, _ in requests.values())
    batch.note("pages", {slot: b"%d" % max(0, pages[slot] - put_back[slot]) for slot in put_back.keys() & pages.keys()})
    database.write(batch)
    return len(requests)
