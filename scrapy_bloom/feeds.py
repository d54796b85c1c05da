"""FeedExporter: Scrapy's, with the items of a page written when the page is done, as part of the commit.

A feed in JSON lines or CSV to a local file survives ``kill -9`` with each item once: its length stands in the
transaction that deletes the rows of its pages, and the next run cuts it to that length.
"""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.extensions.feedexport import FeedExporter as ScrapyFeedExporter
from scrapy.extensions.feedexport import FileFeedStorage

from scrapy_bloom.crawl import Crawl
from scrapy_bloom.job.database import FeedLength

if TYPE_CHECKING:
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
        self._finished: list[FeedLength] = []

    def open_spider(self, spider: Spider) -> None:
        """Open the feeds; go on with those that an unfinished job has begun."""
        super().open_spider(spider)
        if self.crawl.jobdir is None:
            return
        self.slots = [self._resumed(slot) if _is_committed(slot) else slot for slot in self.slots]
        others = [slot.uri for slot in self.slots if not _is_committed(slot)]
        if others:
            logger.info(
                "%s: a kill may lose items of this feed or give them twice, since it is not JSON lines or CSV in a "
                "local, uncompressed file",
                ", ".join(others),
            )

    def _resumed(self, slot: FeedSlot) -> FeedSlot:
        """Return *slot*, or one that goes on with the file that was being written when the job ended."""
        begun = self.crawl.feed_begun(slot.uri_template)
        if begun is not None and (slot.feed_options["batch_item_count"] or begun.path == _path_of(slot)):
            slot = self._start_new_batch(begun.batch, begun.path, slot.feed_options, slot.spider, slot.uri_template)
            slot.itemcount = begun.items
            slot.storage.write_mode = "ab"  # type: ignore[attr-defined] # _is_committed() has looked at its class
        else:
            self._begin(slot)
        path = Path(_path_of(slot))
        if slot.format == "csv" and slot.storage.write_mode == "ab" and path.is_file() and path.stat().st_size:  # type: ignore[attr-defined] # likewise
            slot.feed_options = _without_header(slot.feed_options, path)
        return slot

    def item_scraped(self, item: Any, spider: Spider, response: Response | None = None) -> None:  # noqa: ARG002 - Scrapy's arguments
        """Keep *item* until its page is done."""
        self.crawl.stage(None if response is None else response.request, self, item)

    def export(self, item: Any) -> None:
        """Write *item* to the feeds."""
        before = self.slots
        assert self.crawl.spider is not None  # noqa: S101 - it has scraped the item
        super().item_scraped(item, self.crawl.spider)
        for old, new in zip(before, self.slots, strict=True):
            if old is not new and _is_committed(old):
                self._finished.append(self._length(old)._replace(is_finished=True))
                self._begin(new)

    def _begin(self, slot: FeedSlot) -> None:
        """Tell the job of the file of *slot*, so that the next run can cut it to what was in it before."""
        path = Path(_path_of(slot))
        keeps = slot.storage.write_mode == "ab" and path.is_file()  # type: ignore[attr-defined] # _is_committed() has looked at its class
        length = path.stat().st_size if keeps else 0
        self.crawl.feed_begins(FeedLength(str(path), length, slot.batch_id, slot.itemcount, slot.uri_template))

    def lengths(self) -> list[FeedLength]:
        """Flush the files that are part of the commit, and return how long they are, if that has changed."""
        changed, self._finished = self._finished, []
        for slot in self.slots:
            if _is_committed(slot) and slot.file is not None:
                length = self._length(slot)
                if self._noted.get(length.path) != length:
                    self._noted[length.path] = length
                    changed.append(length)
        return changed

    def _length(self, slot: FeedSlot) -> FeedLength:
        path = _path_of(slot)
        if slot.file is not None and not slot.file.closed:
            slot.file.flush()
            length = slot.file.tell()
        else:
            length = Path(path).stat().st_size
        return FeedLength(path, length, slot.batch_id, slot.itemcount, slot.uri_template)


def _is_committed(slot: FeedSlot) -> bool:
    return (
        isinstance(slot.storage, FileFeedStorage)
        and slot.format in COMMITTED_FORMATS
        and "postprocessing" not in slot.feed_options
    )


def _path_of(slot: FeedSlot) -> str:
    assert isinstance(slot.storage, FileFeedStorage)  # noqa: S101 - _is_committed() has looked
    return str(Path(slot.storage.path).absolute())


def _without_header(options: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the *options* of a CSV feed that goes on below the header in the file at *path*."""
    encoding = options["encoding"] or "utf-8"
    with path.open(newline="", encoding=encoding) as file:
        header = next(csv.reader(file), [])
    kwargs = {**options["item_export_kwargs"], "include_headers_line": False}
    return {**options, "fields": options["fields"] or header, "item_export_kwargs": kwargs}
