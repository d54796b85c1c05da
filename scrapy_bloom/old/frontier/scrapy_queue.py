"""Imports the disk queue that Scrapy's own scheduler left in a job directory, and keeps it from coming back.

Scrapy's scheduler itself reads the queue, through its public methods, from a copy: reading empties the files, and the
original stays whole until everything is durably in the frontier. A queue that was not stopped cleanly is refused:
Scrapy writes down what is in it only at the end, so it lacks requests that the duplicate filter knows.

While requests are pending in the frontier, Scrapy's scheduler must not find an empty queue. So a directory takes the
place of the file that it reads first, which makes it fail before the first request. Does not know how the frontier
stores requests.
"""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from scrapy.core.scheduler import Scheduler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.statscollectors import DummyStatsCollector
from scrapy.utils.misc import load_object

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.frontier.slots import SlotQueue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

QUEUE = "requests.queue"
_STATE = "active.json"
_COPY = "requests.frontier.import"
_DONE = "requests.queue.imported"
SEEN, SEEN_DONE = "requests.seen", "requests.seen.imported"
_IMPORTING = "requests.bloom/importing"
_BLOCK_NOTE = "THE-PENDING-REQUESTS-ARE-IN-requests.frontier.txt"

_BLOCK_TEXT = """\
The pending requests of this job are in requests.frontier, which only scrapy_bloom.DurableScheduler reads. Scrapy's own
scheduler would find none and take their pages for seen, so this directory keeps it from starting.

To go on: SCHEDULER = "scrapy_bloom.DurableScheduler".
To take the requests back to Scrapy's own queue: python -m scrapy_bloom.old.frontier.export SPIDER -s JOBDIR=...
"""

_CLOCK_SLACK = 2.0
"""Seconds by which a queue file may be newer than the state that Scrapy writes after closing it: FAT keeps time in
steps of two."""


class ScrapyQueue:
    """What Scrapy's scheduler left in *jobdir*: ask :meth:`pending`, read :meth:`requests`, then :meth:`put_aside`."""

    def __init__(self, jobdir: Path) -> None:
        self._jobdir = jobdir
        self._directory = jobdir / QUEUE
        self._copy = jobdir / _COPY

    def pending(self) -> bool:
        """Return whether there is a cleanly stopped queue to import; UnusableError if it was not stopped cleanly."""
        if not self._directory.is_dir():
            return False
        state = self._directory / _STATE
        if state.is_dir():  # of block()
            return False
        files = [path for path in self._directory.rglob("*") if path.is_file() and path != state]
        written = state.stat().st_mtime + _CLOCK_SLACK if state.exists() else float("-inf")
        # Directories, too: a run that took all out of a queue has deleted its file.
        directories = [self._directory, *(path for path in self._directory.rglob("*") if path.is_dir())]
        if any(path.stat().st_mtime > written for path in (files + directories if state.exists() else files)):
            raise UnusableError(
                self._directory,
                f"was left by Scrapy's own scheduler without a clean stop: no {_STATE} was written after its queue "
                f"files ({len(files)} in all)",
                advice="Which requests were pending is lost, while the duplicate filter knows their pages and would "
                "never let them be fetched. Nothing was changed. Begin again with an empty JOBDIR to get every page; "
                f"or, to go on without the lost ones, delete {self._directory}. If the crawl was stopped cleanly, and "
                f"only the times of the files were lost in a copy, say so with: touch {state}",
            )
        return state.exists()

    def requests(self, crawler: Crawler, spider: Spider) -> Iterator[Request]:
        """Yield the pending requests in the order in which Scrapy would have handed them out."""
        shutil.rmtree(self._copy, ignore_errors=True)  # of an import that was killed
        shutil.copytree(self._directory, self._copy / QUEUE)
        try:
            configured = load_object(crawler.settings["SCHEDULER_PRIORITY_QUEUE"])
            scheduler = scrapys_scheduler(crawler, self._copy, self._priority_queue(configured))
            with _without_its_lines():
                scheduler.open(spider)
            self._check_complete(scheduler.dqs)
            while (request := scheduler.next_request()) is not None or len(scheduler):
                if request is not None:
                    yield request
            scheduler.close("imported")
        except (GeneratorExit, UnusableError):
            raise
        except Exception as error:
            raise UnusableError(
                f"{self._directory}, left by Scrapy's own scheduler,",
                f"cannot be read: {error!r}",
                advice="Nothing was changed. Finish that crawl with SCHEDULER = 'scrapy.core.scheduler.Scheduler' and "
                "the settings and code it was begun with, or begin again with an empty JOBDIR.",
            ) from error

    def _check_complete(self, queue: Any) -> None:
        """Raise UnusableError if the state names plain queues that *queue*, just opened, has not found.

        A clean stop names those with requests in them. A later run that took out all of one and was killed has deleted
        its file, and then no file of it is newer than the state.
        """
        if type(queue) not in {ScrapyPriorityQueue, DownloaderAwarePriorityQueue}:
            return
        state = json.loads((self._directory / _STATE).read_text(encoding="utf-8"))
        named = state if isinstance(state, dict) else {"": state}
        opened = queue.pqueues if isinstance(state, dict) else {"": queue}
        gone = sum(
            priority not in opened[slot].queues and priority not in getattr(opened[slot], "_start_queues", {})
            for slot, priorities in named.items()
            for priority in priorities
        )
        if gone:
            raise UnusableError(
                self._directory,
                f"was left by Scrapy's own scheduler without a clean stop: {_STATE} names {gone} queues with pending "
                "requests that are gone or empty",
                advice="Which requests were pending is lost, while the duplicate filter knows their pages and would "
                "never let them be fetched. Begin again with an empty JOBDIR to get every page; or, to go on without "
                f"the lost ones, delete {self._directory}.",
            )

    def block(self) -> None:
        """Make Scrapy's own scheduler fail on opening, by a directory where it opens a file.

        Its IsADirectoryError names the path, before the first request, and a note in the directory says what to do.
        """
        state = self._directory / _STATE
        if state.exists():
            return
        state.mkdir(parents=True, exist_ok=True)
        (state / _BLOCK_NOTE).write_text(_BLOCK_TEXT, encoding="utf-8")

    def unblock(self) -> None:
        """Undo :meth:`block`."""
        state = self._directory / _STATE
        if state.is_dir():
            shutil.rmtree(state)
            with suppress(OSError):  # not empty
                self._directory.rmdir()

    def put_seen_aside(self) -> None:
        """Rename a ``requests.seen`` that our filter has imported.

        Scrapy's own filter would take the pages in it for fetched, and some are pending in the frontier.
        """
        if (self._jobdir / SEEN).exists() and not (self._jobdir / _IMPORTING).exists():
            (self._jobdir / SEEN).replace(self._jobdir / SEEN_DONE)

    def put_aside(self) -> None:
        """Rename the imported directory, so that it is kept but never read again, and delete the copy."""
        shutil.rmtree(self._copy, ignore_errors=True)
        done = self._jobdir / _DONE
        shutil.rmtree(done, ignore_errors=True)
        if self._directory.is_dir():
            self._directory.rename(done)

    def _priority_queue(self, configured: type[Any]) -> type[Any]:
        # The state of Scrapy's two priority queues tells them apart; which one is the default changed in Scrapy 2.14.
        if configured not in {ScrapyPriorityQueue, DownloaderAwarePriorityQueue, SlotQueue}:
            return configured
        state = json.loads((self._directory / _STATE).read_text(encoding="utf-8"))
        return DownloaderAwarePriorityQueue if isinstance(state, dict) else ScrapyPriorityQueue


def scrapys_scheduler(crawler: Crawler, directory: Path, priority_queue: type[Any]) -> Scheduler:
    """Return a scheduler of Scrapy's for the disk queue in *directory* under the settings of *crawler*."""
    return Scheduler(
        BaseDupeFilter(),
        jobdir=str(directory),
        dqclass=load_object(crawler.settings["SCHEDULER_DISK_QUEUE"]),
        mqclass=load_object(crawler.settings["SCHEDULER_MEMORY_QUEUE"]),
        stats=DummyStatsCollector(crawler),
        pqclass=priority_queue,
        crawler=crawler,
    )


@contextmanager
def _without_its_lines() -> Iterator[None]:
    """Keep Scrapy's scheduler from logging "Resuming crawl" for the copy: ours logs it, once, for everything."""
    theirs = logging.getLogger(Scheduler.__module__)
    theirs.addFilter(_refuse)
    try:
        yield
    finally:
        theirs.removeFilter(_refuse)


def _refuse(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO
