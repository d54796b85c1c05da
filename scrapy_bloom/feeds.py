"""FeedExporter: Scrapy's, with the items of a page written when the page is done, as part of the commit.

A feed in JSON lines or CSV to a local file survives ``kill -9`` with each item once: its length stands in the
transaction that deletes the rows of its pages, and the next run cuts it to that length.
"""

from __future__ import annotations

import copy
import csv
import io
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from scrapy.extensions.feedexport import FeedExporter as ScrapyFeedExporter
from scrapy.extensions.feedexport import FileFeedStorage as ScrapyFileFeedStorage

from scrapy_bloom.crawl import Crawl
from scrapy_bloom.job.feedfile import feed_begun
from scrapy_bloom.job.records import FeedLength

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.extensions.feedexport import FeedSlot
    from scrapy.http import Response

    from scrapy_bloom.job.store import JobStore

logger = logging.getLogger(__name__)

COMMITTED_FORMATS = ("jsonlines", "jsonl", "jl", "csv")
"""Feed formats without an end: what was written stays right when more is appended."""
WRITE_AT = 1 << 20
"""Bytes that wait in memory before they are written between two commits."""


class FeedExporter(ScrapyFeedExporter):
    """For ``EXTENSIONS``, in the place of Scrapy's; the add-on does that with ``JOBDIR``.

    Feeds of other formats, compressed ones, and those that are not local files are written by Scrapy alone; a line in
    the log says what a kill costs there.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self.crawl = Crawl.of(crawler)
        self.crawl.feeds.append(self)
        self._noted: dict[str, FeedLength] = {}  # by path, as noted last
        self._finished: list[FeedSlot] = []

    def open_spider(self, spider: Spider) -> None:
        """Open the feeds; go on with those that an unfinished job has begun."""
        super().open_spider(spider)
        if self.crawl.delta is not None and not all(map(_survives_kill, self.slots)):
            self.crawl.delta.waits_for_end = True
        if self.crawl.jobdir is None:
            return
        job = self.crawl.job
        if job is not None:
            self.slots = [self._resumed(slot, job) if _can_commit(slot) else slot for slot in self.slots]
        others = [slot.uri for slot in self.slots if not _is_committed(slot)]
        if others:
            logger.info(
                "%s: a kill may lose items of this feed or give them twice, since it is not JSON lines or CSV in a "
                "local, uncompressed file%s",
                ", ".join(others),
                "" if job is not None else ", or the scheduler is not ours",
            )

    def _resumed(self, slot: FeedSlot, job: JobStore) -> FeedSlot:
        """Return *slot*, or one that goes on with the file that was being written when the job ended."""
        path = str(Path(cast("Any", slot.storage).path).absolute())
        begun = feed_begun(job.database, slot.uri_template, path)
        goes_on = begun is not None and (bool(slot.feed_options["batch_item_count"]) or begun.path == path)
        if begun is not None and goes_on:
            slot = self._start_new_batch(begun.batch, begun.path, slot.feed_options, slot.spider, slot.uri_template)
            slot.itemcount = begun.items
        self._begin(slot, job.feed_begins, goes_on=goes_on)
        if slot.itemcount:
            slot.start_exporting()  # Scrapy closes a feed that has items
        return slot

    def item_scraped(self, item: Any, spider: Spider, response: Response | None = None) -> None:  # noqa: ARG002 - Scrapy's arguments
        """Keep *item* until its page is committed; write it at once if the page is unknown."""
        page = self.crawl.page_of(response)
        if page is None:
            self._export(item)
        else:
            page.items.append((self._export, copy.deepcopy(item)))

    def _export(self, item: Any) -> bool:
        """Write *item* to the feeds. Never raises: other items of its page wait to be written."""
        before = self.slots
        spider = self.crawler.spider
        assert spider is not None  # noqa: S101 - it has scraped the item
        is_written = True
        try:
            super().item_scraped(item, spider)
        except Exception:  # as Scrapy does: an item of a type that the format cannot hold, say
            logger.exception("An item could not be written to the feeds: %r", item)
            is_written = False
        for old, new in zip(before, self.slots, strict=True):
            if old is not new and _is_committed(old):
                self._finished.append(old)
                self._begin(new, cast("FileFeedStorage", old.storage).begins)
        return is_written

    def _begin(self, slot: FeedSlot, begins: Callable[[FeedLength], None], *, goes_on: bool = False) -> None:
        """Make the file of *slot* part of the commits. The job knows of it, by *begins*, before it is opened."""
        storage: Any = slot.storage
        path, mode = Path(storage.path).absolute(), "ab" if goes_on else storage.write_mode
        kept = path.stat().st_size if mode == "ab" and path.is_file() else 0
        feed = FeedLength(str(path), kept, slot.batch_id, slot.itemcount, slot.uri_template)
        slot.storage = FileFeedStorage(feed, mode, begins)
        if slot.format == "csv" and kept:
            slot.feed_options = _without_header(slot.feed_options, path)

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        for slot in self.slots:
            if slot.file is not None and not slot.file.closed:
                slot.file.flush()

    def lengths(self) -> list[FeedLength]:
        """Write the files that are part of the commit, and return how long they are, if that has changed.

        Raises:
            OSError: The disk is full, say. Nothing is lost: the next call tries again.

        """
        lengths = []
        for slot in filter(_is_committed, [*self._finished, *self.slots]):
            storage = cast("FileFeedStorage", slot.storage)
            if slot.file is not None:  # without items yet, it has a number among the batches
                storage.settle()
            lengths.append(storage.feed._replace(items=slot.itemcount, is_finished=slot in self._finished))
        self._finished.clear()
        changed = [length for length in lengths if self._noted.get(length.path) != length]
        self._noted.update((length.path, length) for length in changed)
        return changed


class FileFeedStorage(io.RawIOBase):
    """A local file that is written by commits, and Scrapy's storage of it. Scrapy's stats have this name, and keep it.

    What is written waits in memory until :meth:`settle`, also while the disk has no room.

    Args:
        feed: The file with its numbers, as it is before it is opened.
        mode: "ab" to append to it, "wb" to overwrite it.
        begins: Called before it is opened. If that raises OSError, all waits on.

    """

    def __init__(self, feed: FeedLength, mode: str, begins: Callable[[FeedLength], None]) -> None:
        super().__init__()
        self.feed, self._mode, self.begins = feed, mode, begins
        self._waiting = bytearray()
        self._file: Any = None

    def open(self, spider: Spider) -> IO[bytes]:  # noqa: ARG002 - Scrapy's arguments
        """Return the file, which waits for commits."""
        return cast("IO[bytes]", self)

    def store(self, file: IO[bytes]) -> None:
        """Close *file*."""
        file.close()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Take *data* in."""
        self._waiting += data
        if len(self._waiting) >= WRITE_AT:
            with suppress(OSError):  # the next commit says so
                self.settle()
        return len(data)

    def settle(self) -> None:
        """Write what waits. Raise OSError if that fails: what is not written waits on."""
        if self._file is None:
            path = Path(self.feed.path)
            self.begins(self.feed)
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._mode == "ab" and not _ends_a_line(path):
                self._waiting[:0] = b"\n"
            self._file = path.open(self._mode, buffering=0)
        if self._file.closed:
            return
        while self._waiting:
            written = self._file.write(self._waiting)
            del self._waiting[:written]
        self.feed = self.feed._replace(length=self._file.tell())
        if self.closed:
            self._file.close()

    def close(self) -> None:
        """Let no more be written. The file is closed by the commit that writes the last of it."""
        super().close()
        with suppress(OSError):
            self.settle()


def _ends_a_line(path: Path) -> bool:
    """Return whether the file at *path* is empty, missing or ends a line; one that was cut would tear the next."""
    try:
        with path.open("rb") as file:
            file.seek(-min(4, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return b"\n" in (file.read() or b"\n")  # of UTF-16 or UTF-32, too
    except OSError:
        return True


def _survives_kill(slot: FeedSlot) -> bool:
    """Return whether a kill leaves what was flushed to *slot*, and no less than that can be read."""
    is_file = isinstance(slot.storage, ScrapyFileFeedStorage)
    return is_file and slot.format in COMMITTED_FORMATS and "postprocessing" not in slot.feed_options


def _can_commit(slot: FeedSlot) -> bool:
    return type(slot.storage) is ScrapyFileFeedStorage and _survives_kill(slot)


def _is_committed(slot: FeedSlot) -> bool:
    return isinstance(slot.storage, FileFeedStorage)


def _without_header(options: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the *options* of a CSV feed that goes on below the header in the file at *path*."""
    encoding = options["encoding"] or "utf-8"
    with path.open(newline="", encoding=encoding) as file:
        header = next(csv.reader(file), [])
    kwargs = {**options["item_export_kwargs"], "include_headers_line": False}
    return {**options, "fields": options["fields"] or header, "item_export_kwargs": kwargs}
