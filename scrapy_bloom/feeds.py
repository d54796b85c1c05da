"""FeedExporter: Scrapy's, with the items of a page written when the page is done, as part of the commit.

A feed in JSON lines or CSV to a local file survives ``kill -9`` with each item once: its length stands in the
transaction that deletes the rows of its pages, and the next run cuts it to that length.
"""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from scrapy.extensions.feedexport import FeedExporter as ScrapyFeedExporter
from scrapy.extensions.feedexport import FileFeedStorage as ScrapyFileFeedStorage

from scrapy_bloom.crawl import Crawl
from scrapy_bloom.job.feedfile import FeedFile
from scrapy_bloom.job.records import FeedLength

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.extensions.feedexport import FeedSlot
    from scrapy.http import Response

logger = logging.getLogger(__name__)

COMMITTED_FORMATS = ("jsonlines", "jsonl", "jl", "csv")
"""Feed formats without an end: what was written stays right when more is appended."""


class FeedExporter(ScrapyFeedExporter):
    """For ``EXTENSIONS``, in the place of Scrapy's; the add-on does that with ``JOBDIR``.

    Feeds of other formats, compressed ones, and those that are not local files are written by Scrapy alone; a line in
    the log says what a kill costs there.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self.crawl = Crawl.of(crawler)
        self.crawl.use_feed(self)
        self._noted: dict[str, FeedLength] = {}  # by path, as noted last
        self._finished: list[FeedSlot] = []

    def open_spider(self, spider: Spider) -> None:
        """Open the feeds; go on with those that an unfinished job has begun."""
        super().open_spider(spider)
        if self.crawl.jobdir is None:
            return
        self.slots = [self._resumed(slot) if self._can_commit(slot) else slot for slot in self.slots]
        others = [slot.uri for slot in self.slots if not _is_committed(slot)]
        if others:
            logger.info(
                "%s: a kill may lose items of this feed or give them twice, since it is not JSON lines or CSV in a "
                "local, uncompressed file%s",
                ", ".join(others),
                "" if self.crawl.commits_feeds else ", or the scheduler is not ours",
            )

    def _can_commit(self, slot: FeedSlot) -> bool:
        return (
            self.crawl.commits_feeds
            and type(slot.storage) is ScrapyFileFeedStorage
            and slot.format in COMMITTED_FORMATS
            and "postprocessing" not in slot.feed_options
        )

    def _resumed(self, slot: FeedSlot) -> FeedSlot:
        """Return *slot*, or one that goes on with the file that was being written when the job ended."""
        path = _path_of(slot)
        begun = self.crawl.feed_begun(slot.uri_template, path)
        goes_on = begun is not None and (bool(slot.feed_options["batch_item_count"]) or begun.path == path)
        if begun is not None and goes_on:
            slot = self._start_new_batch(begun.batch, begun.path, slot.feed_options, slot.spider, slot.uri_template)
            slot.itemcount = begun.items
        self._begin(slot, goes_on=goes_on)
        if slot.itemcount:
            slot.start_exporting()  # Scrapy closes a feed that has items
        return slot

    def item_scraped(self, item: Any, spider: Spider, response: Response | None = None) -> None:  # noqa: ARG002 - Scrapy's arguments
        """Keep *item* until its page is done."""
        self.crawl.stage(None if response is None else response.request, self, item)

    def export(self, item: Any) -> None:
        """Write *item* to the feeds. Never raises: other items of its page wait to be written."""
        before = self.slots
        assert self.crawl.spider is not None  # noqa: S101 - it has scraped the item
        try:
            super().item_scraped(item, self.crawl.spider)
        except Exception:  # as Scrapy does: an item of a type that the format cannot hold, say
            logger.exception("An item could not be written to the feeds: %r", item)
        for old, new in zip(before, self.slots, strict=True):
            if old is not new and _is_committed(old):
                self._finished.append(old)
                self._begin(new)

    def _begin(self, slot: FeedSlot, *, goes_on: bool = False) -> None:
        """Make the file of *slot* part of the commits. The job knows of it before it is opened."""
        path, items = Path(_path_of(slot)), slot.itemcount

        def begins(length: int) -> None:
            self.crawl.feed_begins(FeedLength(str(path), length, slot.batch_id, items, slot.uri_template))

        storage: Any = slot.storage
        slot.storage = FileFeedStorage(str(path), "ab" if goes_on else storage.write_mode, begins)
        if slot.format == "csv" and slot.storage.kept():
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
            file, storage = cast("Any", slot.file), cast("Any", slot.storage)
            if file is not None:
                file.settle()
            # Without items yet, it has a number among the batches.
            length = storage.kept() if file is None else file.length
            ids = (slot.batch_id, slot.itemcount, slot.uri_template)
            lengths.append(FeedLength(_path_of(slot), length, *ids, slot in self._finished))
        self._finished.clear()
        changed = [length for length in lengths if self._noted.get(length.path) != length]
        self._noted.update((length.path, length) for length in changed)
        return changed


class FileFeedStorage:
    """A local file that is written by commits. Scrapy's stats have the name of the class, and keep it."""

    def __init__(self, path: str, write_mode: str, begins: Callable[[int], None]) -> None:
        self.path, self.write_mode, self._begins = path, write_mode, begins

    def kept(self) -> int:
        """Return how many bytes the file keeps when it is opened."""
        path = Path(self.path)
        return path.stat().st_size if self.write_mode == "ab" and path.is_file() else 0

    def open(self, spider: Spider) -> IO[bytes]:  # noqa: ARG002 - Scrapy's arguments
        """Return a file that waits for commits."""
        file: Any = FeedFile(Path(self.path), self.write_mode, lambda: self._begins(self.kept()))
        return cast("IO[bytes]", file)

    def store(self, file: IO[bytes]) -> None:
        """Close *file*."""
        file.close()


def _is_committed(slot: FeedSlot) -> bool:
    return isinstance(slot.storage, FileFeedStorage)


def _path_of(slot: FeedSlot) -> str:
    storage: Any = slot.storage  # Scrapy's for local files, or the one above
    return str(Path(storage.path).absolute())


def _without_header(options: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the *options* of a CSV feed that goes on below the header in the file at *path*."""
    encoding = options["encoding"] or "utf-8"
    with path.open(newline="", encoding=encoding) as file:
        header = next(csv.reader(file), [])
    kwargs = {**options["item_export_kwargs"], "include_headers_line": False}
    return {**options, "fields": options["fields"] or header, "item_export_kwargs": kwargs}
