"""FeedExporter: Scrapy's, with items that become bytes when they are scraped, and are written when their page is done.

In a job, what is written is part of the commit: a feed in a local file survives ``kill -9`` with each item once.
"""

from __future__ import annotations

import logging
import operator
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.extensions import feedexport
from scrapy.extensions.feedexport import FeedExporter as ScrapyFeedExporter
from scrapy.extensions.feedexport import FileFeedStorage as ScrapyFileFeedStorage

from scrapy_bloom.components.feed_format import Feed, Frame, UnframedError, can_be_joined, compressed, path_of
from scrapy_bloom.crawl.crawl import Crawl
from scrapy_bloom.job.feedfile import FileFeedStorage, goes_on
from scrapy_bloom.job.feeds import is_of, path_now, place_of
from scrapy_bloom.job.records import FeedLength

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.extensions.feedexport import FeedSlot

    from scrapy_bloom.job.feeds import NotedFeeds

logger = logging.getLogger(__name__)

LINES = ("jsonlines", "jsonl", "jl", "csv")
"""Formats whose files can be read however many items they have."""


class FeedExporter(ScrapyFeedExporter):
    """For ``EXTENSIONS``, in the place of Scrapy's; the add-on does that with ``JOBDIR``.

    Feeds that are not local files, and those of exporters whose items cannot be told apart, are written by Scrapy
    alone; a line in the log says what a kill costs there.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self.crawl = Crawl.of(crawler)
        self.crawl.parts.feeds.append(self)
        self._feeds: list[Feed] = []
        self._full: list[FeedSlot] = []  # batches of a job that are not written yet, or not forgotten
        self._notes: list[FeedLength] = []  # changes of older notes, for the next commit

    # -- opening -------------------------------------------------------------------------------------------------------

    def open_spider(self, spider: Spider) -> None:
        """Open the feeds; continue the ones that an unfinished job has begun."""
        super().open_spider(spider)
        store, journal = self.crawl.store, self.crawl.parts.journal
        if not self.crawl.setup.scheduler or store is None or store.commits is None:  # pages are not acknowledged
            for slot in self.slots:
                self._tell_unsafe(slot, "the scheduler is not ours")
            return
        slots, self.slots = self.slots, []
        for slot in slots:
            self._open_feed(slot)
        if journal is not None:
            journal.open_feeds({feed.name: partial(self._append, feed) for feed in self._feeds if feed.is_committed})
        if self._noted is not None:
            self._noted.after_commit.append(self._committed)

    @property
    def _noted(self) -> NotedFeeds | None:
        """The feeds that are part of commits; None: there are none."""
        keeper = self.crawl.parts.journal if self.crawl.job is None else self.crawl.job
        return None if keeper is None else keeper.noted

    def _open_feed(self, slot: FeedSlot) -> None:
        """Make the feed of *slot* part of commits. If it cannot be, Scrapy alone writes it in a job."""
        why = "no commit of this job has it" if self._noted is None else _unfitness(slot)
        if why is None and self._noted is not None:
            if self._can_be_opened(slot):
                self._feeds.append(self._in_job(slot, self._noted))
        elif self.crawl.job is not None:
            self.slots.append(slot)
            self._tell_unsafe(slot, why)
        else:  # of a fleet: its items are written when their pages are done
            self._feeds.append(Feed(slot, slot))
            if not _survives_kill(slot):
                self._tell_unsafe(slot, why)

    def _tell_unsafe(self, slot: FeedSlot, why: str | None) -> None:
        if self.crawl.delta is not None:
            self.crawl.delta.waits_for_end = True
        if self.crawl.jobdir is not None:
            logger.info("%s: a kill may lose items of this feed or give them twice, since %s", slot.uri, why)

    def _can_be_opened(self, slot: FeedSlot) -> bool:
        """Return whether the file of *slot* can be written; if not, say so: every commit would fail."""
        path = Path(path_of(slot))
        try:
            if path.exists():
                path.open("ab").close()
        except OSError as error:
            logger.error("The feed %s cannot be written, and gets no items: %s", slot.uri, error)  # noqa: TRY400 - said
            self._count_failed(slot)
            return False
        return True

    def _count_failed(self, slot: FeedSlot) -> None:
        if self.crawl.delta is not None:
            self.crawl.delta.waits_for_end = True
        self.crawl.stats.inc_value("feedexport/failed_count/" + type(slot.storage).__name__)  # as Scrapy does

    def _in_job(self, plain: FeedSlot, noted: NotedFeeds) -> Feed:
        """Return the feed of *plain* as part of the commit, which goes on with what an unfinished job has begun."""
        jobdir, template = noted.jobdir, plain.uri_template
        is_batched = _is_batched(plain)
        notes = [note for note in noted.notes if is_of(note, template, path_of(plain), jobdir, is_batched=is_batched)]
        self._notes += [note._replace(is_finished=True) for note in notes]
        begun = max(notes, key=lambda note: note.batch, default=None)
        if begun is None or not noted.goes_on_with(begun):
            return Feed(plain, self._with_file(plain, noted))
        path = str(path_now(begun, jobdir)) if is_batched else path_of(plain)
        if is_batched:
            plain = self._start_new_batch(begun.batch, path, plain.feed_options, plain.spider, template)
        slot = self._with_file(plain, noted, begun)
        feed = Feed(plain, slot, is_begun=True, columns=begun.columns)
        feed.is_begun = goes_on(Path(path), begun, feed.shell())
        slot.itemcount = begun.items
        slot.file = slot.storage.open(slot.spider)
        if feed.is_begun:
            slot.start_exporting()  # so that Scrapy closes it with its end
            storage: Any = slot.storage
            storage.waiting.clear()  # the file has it
        return feed

    def _with_file(self, plain: FeedSlot, noted: NotedFeeds, begun: FeedLength | None = None) -> FeedSlot:
        """Return a copy of *plain* whose file is part of the commit; an earlier run may have *begun* it."""
        storage: Any = plain.storage
        options = {name: value for name, value in plain.feed_options.items() if name != "postprocessing"}
        is_compressed, is_new = options != plain.feed_options, begun is None or not (begun.size or begun.items)
        place = place_of(storage.path, noted.jobdir)
        slot = copy(plain)
        slot.feed_options = options
        slot.storage = FileFeedStorage(
            FeedLength(storage.path, 0, plain.batch_id, 0, plain.uri_template, place, noted.cycle),
            compress=partial(compressed, options=plain.feed_options) if is_compressed else None,
            overwrites=storage.write_mode == "wb" and is_new,
            keeps=noted.cycle > 1,
            mends=begun is not None and not is_compressed,
            may_write=noted.may_write,
            log=noted.log,
        )
        return slot

    # -- items ---------------------------------------------------------------------------------------------------------

    def item_scraped(self, item: Any, spider: Spider) -> None:
        """Make bytes of *item*, which are written when its page is committed, or at once if it belongs to none."""
        page = self.crawl.pages.current()
        for feed in list(self._feeds):
            try:
                if not feed.slot.filter.accepts(item):
                    continue
                frame, data = feed.serialized(item)
            except UnframedError as error:
                self._leave_to_scrapy(feed, str(error))
            except Exception:  # as Scrapy does: an item of a type that the format cannot hold, say
                logger.exception("An item could not be written to the feed %s: %r", feed.slot.uri, item)
                if page is not None:
                    page.note_item(failed=True)
            else:
                if page is None:
                    self._append(feed, frame, data)
                elif self.crawl.parts.journal is not None and feed.is_committed:
                    page.items.append((partial(self.crawl.parts.journal.hold, feed.name, frame), data))
                else:
                    page.items.append((partial(self._append, feed, frame), data))
        super().item_scraped(item, spider)

    def _leave_to_scrapy(self, feed: Feed, why: str) -> None:
        self._feeds.remove(feed)
        storage: Any = feed.plain.storage
        if feed.slot.itemcount:  # an earlier run has begun it
            storage.write_mode = "ab"
        self.slots.append(feed.plain)
        self._tell_unsafe(feed.plain, why)

    def _append(self, feed: Feed, frame: tuple[Any, ...], data: bytes) -> None:
        """Write *data*, an item, to *feed*. Never raises: other items of its page wait to be written."""
        frame = Frame(*frame)
        try:
            if not feed.is_like(frame) and _is_batched(feed.plain):
                self._begin_batch(feed)
            feed.write(frame, data)
            if _is_batched(feed.plain) and feed.slot.itemcount >= feed.slot.feed_options["batch_item_count"]:
                self._begin_batch(feed)
        except Exception:  # the disk is full, in a fleet
            logger.exception("An item could not be written to the feed %s", feed.slot.uri)
            self._count_failed(feed.plain)

    def _begin_batch(self, feed: Feed) -> None:
        full, noted = feed.slot, self._noted
        full.finish_exporting()
        params = self._get_uri_params(full.spider, full.feed_options["uri_params"], full)
        uri = _with_params(full.uri_template, params)
        plain = self._start_new_batch(full.batch_id + 1, uri, feed.plain.feed_options, full.spider, full.uri_template)
        if noted is None or not feed.is_committed:
            self._close(full)
            feed.begin_file(plain)
        else:
            self._full.append(full)
            feed.begin_file(self._with_file(plain, noted))

    def _close(self, slot: FeedSlot) -> None:
        """Close *slot* as Scrapy does, with its line in the log and its signal."""
        close = getattr(self, "_schedule_slot_close", self._close_slot)  # from Scrapy 2.18 on; before it
        close(slot, slot.spider)

    # -- commits -------------------------------------------------------------------------------------------------------

    def _files(self) -> list[tuple[FileFeedStorage, int, Any]]:
        """Return the files that are part of the commit, with their numbers of items and their columns."""
        full = [(slot.storage, slot.itemcount, None) for slot in self._full]
        now = [(feed.slot.storage, feed.slot.itemcount * feed.is_begun, feed.columns) for feed in self._feeds]
        return [row for row in (*full, *now) if isinstance(row[0], FileFeedStorage)]  # type: ignore[misc]

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        for slot in (*self.slots, *(feed.slot for feed in self._feeds)):
            if slot.file is not None and not slot.file.closed:
                slot.file.flush()

    def lengths(self) -> list[FeedLength]:
        """Begin a commit: return the notes of the files, with the bytes that :meth:`_committed` appends.

        Raises:
            OSError: The disk is full, say. Nothing is lost: the next call tries again.

        """
        self.flush()
        files = self._files()
        for file, _, _ in files:
            file.settle()
        notes = [note for file, items, columns in files if (note := file.note(items, columns)) is not None]
        self._full = [slot for slot in self._full if not getattr(slot.storage, "is_stored", False)]
        older, self._notes = self._notes, []
        known = {note.path for note in notes}
        return [*notes, *(note for note in older if note.path not in known)]

    def _committed(self) -> None:
        """Append the items of the commit whose transaction is written, and close the batches that are full."""
        for file, _, _ in self._files():
            file.committed()
        for slot in self._full:
            storage: Any = slot.storage
            if not (storage.is_stored or storage.waiting_bytes):
                storage.is_stored = True
                self._close(slot)

    async def close_spider(self, spider: Spider) -> None:
        """Close the feeds."""
        self.slots += [feed.slot for feed in self._feeds]
        self.slots += [slot for slot in self._full if not getattr(slot.storage, "is_stored", False)]
        await super().close_spider(spider)


def _is_batched(slot: FeedSlot) -> bool:
    return bool(slot.feed_options["batch_item_count"])


def _with_params(template: str, params: dict[str, Any]) -> str:
    """Return the URI of a feed, as this version of Scrapy makes it."""
    apply: Callable[[str, dict[str, Any]], str] = getattr(feedexport, "apply_uri_params", operator.mod)
    return apply(template, params)


def _survives_kill(slot: FeedSlot) -> bool:
    """Return whether the file of *slot*, a feed of a worker, can be read after a kill up to what was flushed."""
    is_file = isinstance(slot.storage, ScrapyFileFeedStorage)
    return is_file and slot.format in LINES and "postprocessing" not in slot.feed_options


def _unfitness(slot: FeedSlot) -> str | None:
    """Return why the feed of *slot* cannot be part of commits; None if it can."""
    if type(slot.storage) is not ScrapyFileFeedStorage:
        return "it is no local file"
    path = Path(path_of(slot))
    if path.exists() and not (path.is_file() or path.is_dir()):
        return "it is no regular file"
    return None if can_be_joined(slot.feed_options) else "files compressed in this way cannot be continued"
