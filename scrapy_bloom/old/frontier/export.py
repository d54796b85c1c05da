"""Takes pending requests back to Scrapy's own disk queue: ``python -m scrapy_bloom.old.frontier.export SPIDER``.

Starts the crawl, so that spider, priority queue and settings are those of the crawl, with a scheduler that hands the
requests to Scrapy's own scheduler instead of the engine. Does not know how Scrapy stores them. ``docs/frontier.md``
says what else goes along.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import CrawlerProcess
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object
from scrapy.utils.project import get_project_settings

from scrapy_bloom.old.errors import BloomError, UnusableError, counted
from scrapy_bloom.old.files.directory import open_filter
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME
from scrapy_bloom.old.files.scrapy_seen import read_fingerprints
from scrapy_bloom.old.files.workers_job import refuse_workers_job
from scrapy_bloom.old.frontier.database import Database, damaged
from scrapy_bloom.old.frontier.scheduler import check_owner, state_of
from scrapy_bloom.old.frontier.scrapy_queue import QUEUE, SEEN, SEEN_DONE, ScrapyQueue, scrapys_scheduler
from scrapy_bloom.old.frontier.serialize import Serializer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

_WORK = f"{FRONTIER_NAME}.export"
_COMPLETE = "complete"
_STAT = "bloom/frontier/exported"

_QUIET = {
    "EXTENSIONS": {},
    "EXTENSIONS_BASE": {},  # spider.state and feeds stay as they are
    "FEEDS": {},
    "ITEM_PIPELINES": {},
    "LOG_LEVEL": "WARNING",
    "DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter",
    "SCHEDULER": "scrapy_bloom.old.frontier.export.ExportScheduler",
}


@dataclass(frozen=True)
class Exported:
    """What was written for Scrapy."""

    pending: int
    """Requests in ``requests.queue``."""
    seen: int
    """Fingerprints in ``requests.seen``."""


def export_pending(jobdir: Path, crawler: Crawler, spider: Spider) -> Exported:
    """Turn the frontier of *jobdir* into Scrapy's ``requests.queue`` and, beside our filter, ``requests.seen``.

    All or nothing: a kill leaves the job as it was, or one that every scheduler refuses until this is run again. The
    frontier is kept as ``requests.frontier.exported``.

    Args:
        jobdir: The job directory; no crawl may be running in it.
        crawler: Has an engine, and the settings under which Scrapy will go on.
        spider: The spider that the job belongs to.

    Raises:
        BloomError: The frontier cannot be read as a whole, is missing, in use or another spider's.

    """
    work = jobdir / _WORK
    path = jobdir / FRONTIER_NAME
    if not (work / _COMPLETE).exists() or path.exists():
        if not path.exists():
            refuse_workers_job(jobdir)
            raise UnusableError(path, "does not exist", advice="There is nothing to export; is JOBDIR right?")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        exported = _write(jobdir, work, crawler, spider)
        (work / _COMPLETE).write_text(f"{exported.pending} {exported.seen}", encoding="ascii")
        path.replace(path.with_name(f"{path.name}.exported"))
    pending, seen = map(int, (work / _COMPLETE).read_text(encoding="ascii").split())
    (jobdir / "requests.bloom" / "frontier").unlink(missing_ok=True)  # or the next frontier would be too old for it
    ScrapyQueue(jobdir).unblock()
    for name in (QUEUE, SEEN):
        there = jobdir / name
        if (work / name).exists() and _is_free(there):
            (work / name).replace(there)
    shutil.rmtree(work)
    return Exported(pending, seen)


def _write(jobdir: Path, work: Path, crawler: Crawler, spider: Spider) -> Exported:
    database = Database.open(jobdir / FRONTIER_NAME)
    try:
        check_owner(database.path, state_of(database), spider)
        scheduler = scrapys_scheduler(crawler, work, load_object(crawler.settings["SCHEDULER_PRIORITY_QUEUE"]))
        scheduler.open(spider)
        expected = sum(lane.rows for lane in database.lanes())
        seen = _Seen(jobdir, work, crawler)
        pending = 0
        for page in database.walk():
            for row in page:
                request = Serializer(spider).loads(row.body)
                scheduler.enqueue_request(request)
                seen.add(request)
                pending += 1
        if pending != expected or len(scheduler.mqs):
            problem = f"of {counted(expected, 'pending request')}, {pending} found and {len(scheduler.mqs)} not written"
            raise damaged(database.path, problem)  # noqa: TRY301 - the database is closed below
        scheduler.close("exported")
        return Exported(pending, seen.close())
    except BloomError:
        raise
    except Exception as error:
        raise UnusableError(
            database.path,
            f"cannot be exported: {error!r}",
            advice="Nothing was changed. Run this with the spider and the settings of the crawl. Scrapy's own queues "
            "open a file per host and priority; `ulimit -n` may be too small for them.",
        ) from error
    finally:
        database.abandon()


class _Seen:
    """The ``requests.seen`` for Scrapy's own filter, with what is known of it, if the job had our filter."""

    def __init__(self, jobdir: Path, work: Path, crawler: Crawler) -> None:
        self._jobdir = jobdir
        self._filter: Any = None
        self._count = 0
        if (jobdir / "requests.bloom").is_dir() and _is_free(jobdir / SEEN):
            self._filter = RFPDupeFilter(str(work), fingerprinter=crawler.request_fingerprinter)

    def add(self, request: Request) -> None:
        """Add the fingerprint of a pending request."""
        if self._filter is not None and not request.dont_filter:
            self._count += not self._filter.request_seen(request)

    def close(self) -> int:
        """Add what was once imported from Scrapy and not taken back since; return how many fingerprints there are."""
        if self._filter is None:
            return 0
        imported = self._jobdir / SEEN_DONE
        if imported.exists():
            is_binary = "b" in self._filter.file.mode  # from Scrapy 2.19 on
            with open_filter(self._jobdir / "requests.bloom") as chain:
                for fingerprint in read_fingerprints(imported):
                    if fingerprint in chain:
                        self._count += 1
                        size = len(fingerprint).to_bytes(2, "big")
                        self._filter.file.write(size + fingerprint if is_binary else f"{fingerprint.hex()}\n")
        self._filter.close("exported")
        return self._count


def _is_free(path: Path) -> bool:
    """Whether *path* is missing, or the empty file of Scrapy's filter after a start that the frontier made fail."""
    return not path.exists() or (path.is_file() and not path.stat().st_size)


class ExportScheduler(BaseScheduler):
    """Exports on opening, and has nothing to hand out."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        spider: Any = crawler.spider
        spider.start = _nothing

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the scheduler for *crawler*."""
        return cls(crawler)

    def open(self, spider: Spider) -> None:
        """Export, and set a stat to the result: an :class:`Exported`, or the error with its advice."""
        assert self._crawler.stats is not None  # noqa: S101 - a crawler that opens a scheduler has them
        jobdir = job_dir(self._crawler.settings)
        found: Exported | BloomError = UnusableError("JOBDIR", "is not set", advice="Name the job: -s JOBDIR=...")
        try:
            if jobdir:
                found = export_pending(Path(jobdir), self._crawler, spider)
        except BloomError as error:  # raised, Scrapy would log it with its traceback
            found = error
        self._crawler.stats.set_value(_STAT, found)

    def has_pending_requests(self) -> bool:
        """Return False: the crawl ends at once."""
        return False

    def enqueue_request(self, request: Request) -> bool:  # noqa: ARG002 - Scrapy's interface
        """Take nothing in."""
        return False

    def next_request(self) -> None:
        """Return nothing."""
        return


async def _nothing() -> AsyncIterator[Any]:
    return
    yield  # which makes it an iterator


def main(arguments: list[str]) -> int:
    """Export the job that *arguments* name; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scrapy_bloom.old.frontier.export",
        description="Take the pending requests of a job back to Scrapy's own disk queue. Run it in the project.",
    )
    parser.add_argument("spider", help="name of the spider, as for scrapy crawl")
    parser.add_argument("-s", action="append", default=[], metavar="NAME=VALUE", help="a setting, JOBDIR among them")
    parser.add_argument("-a", action="append", default=[], metavar="NAME=VALUE", help="an argument of the spider")
    options = parser.parse_args(arguments)
    for given in (*options.s, *options.a):
        if "=" not in given:
            parser.error(f"{given!r} has no value: write NAME=VALUE")
    settings = get_project_settings()
    settings.setdict(dict(setting.partition("=")[::2] for setting in options.s), priority="cmdline")
    settings.setdict(_QUIET, priority="cmdline")
    process = CrawlerProcess(settings)
    try:
        crawler = process.create_crawler(options.spider)
    except KeyError:
        known = ", ".join(process.spider_loader.list())
        has = f"The project's spiders are: {known}." if known else "No project is here, or it has no spiders."
        advice = "Run this where scrapy.cfg is, with the name that scrapy crawl takes."
        print(f"No spider is called {options.spider!r}. {has} {advice}", file=sys.stderr)  # noqa: T201 - a command
        return 2
    process.crawl(crawler, **dict(argument.partition("=")[::2] for argument in options.a))
    process.start()
    exported: Exported | BloomError | None = crawler.stats.get_value(_STAT) if crawler.stats else None
    if exported is None:
        return 1  # Scrapy has logged why the spider could not be opened
    if isinstance(exported, BloomError):
        print(exported, file=sys.stderr)  # noqa: T201 - likewise
        return 2
    print(  # noqa: T201 - a command
        f"Exported {counted(exported.pending, 'pending request')} to requests.queue. Go on with SCHEDULER = "
        '"scrapy.core.scheduler.Scheduler", and keep DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter", which knows '
        "all pages. A bloom filter cannot list them: Scrapy's own filter gets "
        f"{counted(exported.seen, 'fingerprint')} in requests.seen (those pending, and those it had itself) "
        "and would fetch all other pages again."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
