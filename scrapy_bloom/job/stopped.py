"""Changes a job that has been stopped: for commands, for what has failed, and for a crawl that begins anew."""

from __future__ import annotations

import pickle
import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.filter.directory import FORGOTTEN_NAME
from scrapy_bloom.filter.lock import lock_directory
from scrapy_bloom.frontier.lanes import Lane
from scrapy_bloom.frontier.order import lane_of_stored
from scrapy_bloom.frontier.stored import MARK, OF_THE_LAST_TRY, PICKLE_PROTOCOL
from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.inspect import DIRECTORY
from scrapy_bloom.job.records import Batch
from scrapy_bloom.job.store import open_files
from scrapy_bloom.settings import BloomSettings

if TYPE_CHECKING:
    import os

    from scrapy_bloom.job.store import JobFiles


def stopped_job(
    jobdir: str | os.PathLike[str], spider: str | None = None, settings: BloomSettings | None = None
) -> closing[JobFiles]:
    """Open the job in *jobdir*, or begin one under *settings* (None: the defaults), as a context manager.

    Raises BloomError if a crawl runs there, the job belongs to another spider than *spider*, or it is damaged.
    """
    return closing(open_files(Path(jobdir, DIRECTORY), settings or BloomSettings(), spider, None))


def begin_cycle(jobdir: Path, spider: str) -> None:
    """Empty the filter of a job of *spider* that has ended, so that the next run looks at each page again.

    Figures of kinds and hosts, and failed requests, belong to the last cycle alone, and are deleted, too. Raises
    BloomError if the job is in use, or damaged.
    """
    directory = jobdir / DIRECTORY
    if not (directory / NAME).exists():
        return
    with lock_directory(directory), closing(Database(directory / NAME)) as database:
        if not database.state.is_finished or database.state.spider != spider:
            return
        for path in (*sorted(directory.glob("layer-*.bloom")), directory / FORGOTTEN_NAME):
            path.unlink(missing_ok=True)
        shutil.rmtree(directory / "novelty", ignore_errors=True)
        database.writer.executescript(
            "BEGIN IMMEDIATE; DELETE FROM note WHERE topic IN ('kind', 'pages'); DELETE FROM failed; DELETE FROM redo; "
            "COMMIT"
        )


def requeue(database: Database, host: str | None) -> int:
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
