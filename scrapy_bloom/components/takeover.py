"""Takes over a job of Scrapy's own scheduler, gives one back, and keeps that scheduler from a job of ours.

Scrapy's scheduler itself reads and writes its queue, through its public methods.

Requests change places in one transaction of the database, which also puts a mark there. Files are renamed after it. If
the process is killed in between, the next one sees the mark and renames the files. So a kill loses no request, and
queues none twice.
"""

from __future__ import annotations

import logging
import re
import shutil
from typing import TYPE_CHECKING, Any

from scrapy.core.scheduler import Scheduler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.statscollectors import DummyStatsCollector
from scrapy.utils.misc import load_object

from scrapy_bloom.components import serialize
from scrapy_bloom.components.requests import lane_in, scrapys_order
from scrapy_bloom.errors import UnusableError, counted
from scrapy_bloom.frontier.lanes import Lane
from scrapy_bloom.job.database import AT_ONCE
from scrapy_bloom.job.records import Batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.filter.chain import ScalableBloomFilter
    from scrapy_bloom.job.database import Database

logger = logging.getLogger(__name__)

QUEUE, SEEN = "requests.queue", "requests.seen"
_EXPORT = f"{QUEUE}.export"
_STATE = "active.json"
_QUEUE_MARK, _SEEN_MARK, _EXPORT_MARK = "queue imported", "seen importing", "queue exported"
"""Keys of the notes on the state that a takeover or an export leaves until its files are renamed."""
_ROWS_AT_ONCE = 10 * AT_ONCE
"""Requests of a takeover that are in memory at a time, and the same again while SQLite writes them."""
_NOTE = """\
The pending requests of this job are in requests.bloom, which only scrapy_bloom.DurableScheduler reads. Scrapy's own
scheduler would find none and take their pages for seen, so this directory keeps it from starting.

To go on: SCHEDULER = "scrapy_bloom.DurableScheduler".
To take the requests back to Scrapy's own queue: scrapy bloom export JOBDIR
"""


def import_queue(jobdir: Path, database: Database, crawler: Crawler) -> int:
    """Take the requests of Scrapy's own disk queue over into *database*, in order; return how many there were.

    The queue is kept as ``requests.queue.imported``. All requests are taken over in one transaction, or none. Raises
    UnusableError if the queue was not stopped cleanly, so that it lacks requests that the filter knows; or it cannot be
    read.
    """
    queue = jobdir / QUEUE
    state, paths = queue / _STATE, [queue, *queue.rglob("*")]
    if not any(path.is_file() and path.parent != state for path in paths):
        return 0
    # Directories, too: a run that took all out of a queue has deleted its file.
    if not state.is_file() or any(path.stat().st_mtime > state.stat().st_mtime for path in paths):
        raise UnusableError(
            queue,
            f"was left by Scrapy's own scheduler without a clean stop: its {_STATE} is missing or older than its files",
            advice="Pending requests are lost, but the duplicate filter knows their pages, so these would never be "
            "fetched. Nothing was changed. To get every page, begin again with an empty JOBDIR. To go on without the "
            f"lost requests, delete {queue}. If the crawl was stopped cleanly, and only the times of the files were "
            f"lost in a copy, say so with: touch {state}",
        )
    mark = b"%d" % state.stat().st_mtime_ns
    imported, _, noted_count = database.notes("state").get(_QUEUE_MARK, b"").partition(b" ")
    # If the mark is there, a run was killed before it renamed the queue.
    count = int(noted_count) if imported == mark else _import_copy(queue, database, crawler, mark)
    kept = queue.with_name(f"{QUEUE}.imported")
    shutil.rmtree(kept, ignore_errors=True)
    queue.rename(kept)
    database.set_mark(_QUEUE_MARK, b"")
    logger.info("Imported %s of Scrapy's own disk queue", counted(count, "pending request"))
    return count


def _import_copy(queue: Path, database: Database, crawler: Crawler, mark: bytes) -> int:
    copy = queue.with_name(f"{QUEUE}.copy")  # reading empties the files
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(queue, copy / QUEUE)
    # The state of Scrapy's two priority queues tells them apart; which one is the default changed in Scrapy 2.14.
    is_dict = (queue / _STATE).read_bytes().lstrip()[:1] == b"{"
    try:
        scheduler = _scrapys_scheduler(crawler, copy, DownloaderAwarePriorityQueue if is_dict else ScrapyPriorityQueue)
        scheduler.open(crawler.spider)  # type: ignore[arg-type] # a crawl has a spider
        count = len(scheduler)
        database.write_all(_batches(scheduler, database, crawler, mark))
        scheduler.close("imported")
    except Exception as error:
        raise UnusableError(
            f"{queue}, left by Scrapy's own scheduler,",
            f"cannot be read: {error!r}",
            advice="Finish that crawl with SCHEDULER = 'scrapy.core.scheduler.Scheduler' and the settings and code it "
            "was begun with, or begin again with an empty JOBDIR.",
        ) from error
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    return count


def _batches(scheduler: Scheduler, database: Database, crawler: Crawler, mark: bytes) -> Iterator[Batch]:
    """Yield batches that have the requests of *scheduler* in its order; the first one has the *mark*, too."""
    order = scrapys_order(crawler.settings, in_job=True)
    count = len(scheduler)
    (first,) = database.select("SELECT min(0, ifnull(min(id), 0)) FROM request")[0]
    batch = Batch(state=database.state)
    batch.note("state", {_QUEUE_MARK: b"%s %d" % (mark, count)})
    for index, request in enumerate(_drain(scheduler)):
        key = lane_in(order, request)
        # Before all later ones, and in the order in which Scrapy would have handed them out. No two are equal.
        id_ = first + (-index - 1 if order.is_lifo[key.is_start] else index - 2 * count)
        batch.add(id_, Lane(key, is_lifo=True), serialize.dumps(request, crawler.spider))
        if len(batch.added) >= _ROWS_AT_ONCE:
            yield batch
            batch = Batch(state=database.state)
    yield batch


def _drain(scheduler: Scheduler) -> Iterator[Request]:
    while len(scheduler):
        if (request := scheduler.next_request()) is not None:
            yield request


def import_seen(jobdir: Path, chain: ScalableBloomFilter, database: Database) -> None:
    """Take the fingerprints of Scrapy's own filter into an empty *chain*, and keep the file under another name.

    Scrapy's own filter would take its pages for fetched, and some are pending. A kill leaves a mark in *database*, and
    the next call goes on.
    """
    seen = jobdir / SEEN
    has_begun = database.notes("state").get(_SEEN_MARK) is not None
    if (len(chain) and not has_begun) or not seen.is_file() or not seen.stat().st_size:
        return
    database.set_mark(_SEEN_MARK, b"1")
    for fingerprint in read_fingerprints(seen):
        chain.add(fingerprint)
    chain.sync()
    kept = seen.replace(seen.with_name(f"{SEEN}.imported"))
    database.set_mark(_SEEN_MARK, b"")
    logger.info("Imported %s of Scrapy's own filter, kept as %s", counted(len(chain), "fingerprint"), kept)


def read_fingerprints(path: Path) -> Iterator[bytes]:
    """Yield the fingerprints in *path*, a ``requests.seen``: text up to Scrapy 2.18, binary from 2.19 on.

    A torn record, which a killed process leaves, ends a binary file; its pages may be fetched again, and a WARNING says
    so.
    """
    content = path.read_bytes()
    if re.match(rb"[0-9a-fA-F]{8}", content):
        for line in re.findall(rb"^(?:[0-9a-fA-F]{2})+(?=\r?$)", content, re.MULTILINE):
            yield bytes.fromhex(line.decode())
        return
    at = 0
    while at < len(content):
        end = at + 2 + int.from_bytes(content[at : at + 2], "big")
        if end == at + 2 or end > len(content):
            logger.warning("%s is torn at byte %d of %d: what follows may be fetched again", path, at, len(content))
            return
        yield content[at + 2 : end]
        at = end


def block_scrapys_scheduler(jobdir: Path) -> None:
    """Keep Scrapy's own scheduler from starting: create a directory at the path of its state file.

    It then fails with an IsADirectoryError that names this path. A note in the directory says what to do.
    """
    state = jobdir / QUEUE / _STATE
    if not state.exists():
        state.mkdir(parents=True)
        (state / "THE-PENDING-REQUESTS-ARE-IN-requests.bloom.txt").write_text(_NOTE, encoding="utf-8")


def unblock_scrapys_scheduler(jobdir: Path) -> None:
    """Undo :func:`block_scrapys_scheduler`."""
    if (jobdir / QUEUE / _STATE).is_dir():
        shutil.rmtree(jobdir / QUEUE)


def export_queue(jobdir: Path, database: Database, crawler: Crawler) -> int:
    """Give the requests in *database* to Scrapy's own scheduler, in ``requests.queue``; return how many there were.

    ``requests.seen`` gets their fingerprints, for Scrapy's own filter; all other pages would be fetched again by that.
    Raises UnusableError if requests cannot be read or written, or there is a queue of Scrapy's already. Nothing has
    been changed then.
    """
    work, queue = jobdir / _EXPORT, jobdir / QUEUE
    exported = finish_export(jobdir, database) or 0
    if not database.state.pending and (queue / _STATE).is_file():  # the command is repeated
        return exported
    if (queue / _STATE).is_file():
        advice = "Finish that crawl with Scrapy's own scheduler, or delete the queue to give its requests up."
        raise UnusableError(queue, "is there already", advice=advice)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        scheduler = _scrapys_scheduler(crawler, work, load_object(crawler.settings["SCHEDULER_PRIORITY_QUEUE"]))
        seen = RFPDupeFilter(str(work), fingerprinter=crawler.request_fingerprinter)
        scheduler.open(crawler.spider)  # type: ignore[arg-type] # a crawl has a spider
        count = 0
        for _, _, body in database.requests():
            request, _ = serialize.loads(body or b"", crawler.spider)
            scheduler.enqueue_request(request)
            count += 1
            if not request.dont_filter:
                seen.request_seen(request)
        if count != database.state.pending or len(scheduler.mqs):
            raise ValueError(f"{count} of {database.state.pending} found, {len(scheduler.mqs)} not written")  # noqa: TRY301 - said below
        seen.close("exported")
        scheduler.close("exported")
    except Exception as error:
        shutil.rmtree(work, ignore_errors=True)
        raise UnusableError(
            database.path,
            f"cannot be exported: {error!r}",
            advice="Nothing was changed. Run this with the spider and the settings of the crawl. Scrapy's own queues "
            "open a file per host and priority; `ulimit -n` may be too small for them.",
        ) from error
    database.clear_requests(_EXPORT_MARK, b"%d" % count)
    finish_export(jobdir, database)
    return count


def finish_export(jobdir: Path, database: Database) -> int | None:
    """Rename the files of an export whose requests have left *database*; return how many, None if there is none."""
    mark, work, queue = database.notes("state").get(_EXPORT_MARK), jobdir / _EXPORT, jobdir / QUEUE
    if mark is None:
        return None
    if (work / SEEN).exists() and not (jobdir / SEEN).exists():
        (work / SEEN).replace(jobdir / SEEN)
    if (work / QUEUE).exists():
        unblock_scrapys_scheduler(jobdir)
        (work / QUEUE).replace(queue)
    shutil.rmtree(work, ignore_errors=True)
    database.set_mark(_EXPORT_MARK, b"")
    return int(mark)


def _scrapys_scheduler(crawler: Crawler, directory: Path, priority_queue: type[Any]) -> Scheduler:
    return Scheduler(
        BaseDupeFilter(),
        jobdir=str(directory),
        dqclass=load_object(crawler.settings["SCHEDULER_DISK_QUEUE"]),
        mqclass=load_object(crawler.settings["SCHEDULER_MEMORY_QUEUE"]),
        stats=DummyStatsCollector(crawler),
        pqclass=priority_queue,
        crawler=crawler,
    )
