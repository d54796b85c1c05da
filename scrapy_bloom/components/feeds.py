"""FeedExporter: a feed exporter that writes items when their page is committed.

In a job, what is written is part of the commit: a feed in a local file survives ``kill -9`` with each item once.
"""

from __future__ import annotations

import logging
import operator
from copy import copy, deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.extensions import feedexport
from scrapy.extensions.feedexport import FeedExporter as ScrapyFeedExporter
from scrapy.extensions.feedexport import FileFeedStorage as ScrapyFileFeedStorage

from scrapy_bloom.components.feed_format import (
    Feed,
    compressed,
    path_of,
    problem_of,
    survives_kill,
    without_postprocessing,
)
from scrapy_bloom.components.spider_crawl import ITEM, SpiderCrawl, crawl_of
from scrapy_bloom.job.feedfile import FileFeedStorage, goes_on, size_of
from scrapy_bloom.job.feeds import FeedJournal, path_now, place_of
from scrapy_bloom.job.records import FeedLength, Feeds, FeedState

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.extensions.feedexport import FeedSlot

    from scrapy_bloom.job.feeds import NotedFeeds

logger = logging.getLogger(__name__)


class FeedExporter(ScrapyFeedExporter, Feeds):
    """For ``EXTENSIONS``, in the place of Scrapy's; the add-on does that with ``JOBDIR``.

    Feeds that are not local files, and those of exporters that do more than write to their file, are written by Scrapy
    alone; a line in the log says what a kill costs there.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._stats: Any = crawler.stats
        # Set when the feeds are opened, if our scheduler keeps the requests.
        self._crawl: SpiderCrawl | None = None
        self._journal: FeedJournal | None = None  # of a fleet's worker that has a job directory
        self._noted: NotedFeeds | None = None  # the feeds that are part of commits
        self._feeds: dict[str, Feed] = {}  # by their names in FEEDS
        self._files: dict[Path, FileFeedStorage] = {}  # that are part of commits
        self._full: list[tuple[FeedSlot, FeedState]] = []  # files that are complete, and perhaps not written
        self._outdated: list[FeedLength] = []  # notes that the next commit deletes
        self._has_warned = False

    def open_spider(self, spider: Spider) -> None:
        """Open the feeds; continue the ones that an unfinished job has begun."""
        super().open_spider(spider)
        crawl = crawl_of(self.crawler)
        if crawl is None or not crawl.core.keeps_requests or crawl.store.commits is None:  # pages are not acknowledged
            for slot in self.slots:
                self._warn_of_kills(slot, "the scheduler is not ours")
            return
        self._crawl, self._commit_now = crawl, crawl.store.flush
        keeper = getattr(crawl.store, "journal", None) if crawl.job is None else crawl.job
        self._journal = keeper if isinstance(keeper, FeedJournal) else None
        self._noted = getattr(keeper, "noted", None)
        slots, self.slots = self.slots, []
        for slot in slots:
            self._open_feed(slot)
        if self._journal is not None:
            self._journal.open_feeds()

    def _open_feed(self, slot: FeedSlot) -> None:
        """Make the feed of *slot* part of commits. If it cannot be, Scrapy alone writes it in a job."""
        name, noted = str(slot.uri_template), self._noted
        if noted is None:
            problem: str | None = "no commit of this job has it"
        elif type(slot.storage) is not ScrapyFileFeedStorage:
            problem = "it is not a local file"
        else:
            problem = problem_of(slot, Path(path_of(slot)))
        if noted is not None and problem is None:
            if self._can_be_opened(slot):
                self._feeds[name] = self._open_in_job(slot, noted)
        elif self._crawl is not None and self._crawl.job is not None:
            self.slots.append(slot)
            self._warn_of_kills(slot, problem)
        else:  # of a fleet: its items are written when their pages are done
            self._feeds[name] = Feed(slot, slot)
            if not survives_kill(slot):
                self._warn_of_kills(slot, problem)

    def _is_outside_of_commits(self) -> None:
        if self._crawl is not None:
            self._crawl.core.delta.wait_for_end()

    def _warn_of_kills(self, slot: FeedSlot, problem: str | None) -> None:
        self._is_outside_of_commits()
        if self.settings["JOBDIR"]:
            logger.info("%s: a kill may lose items of this feed or give them twice, since %s", slot.uri, problem)

    def _can_be_opened(self, slot: FeedSlot) -> bool:
        """Return whether the file of *slot* can be written; if not, log it: every commit would fail."""
        path = Path(path_of(slot))
        try:
            if path.exists():
                path.open("ab").close()
        except OSError as error:
            logger.error("The feed %s cannot be written, and gets no items: %s", slot.uri, error)  # noqa: TRY400 - one line
            self._count_failed(slot)
            return False
        return True

    def _count_failed(self, slot: FeedSlot) -> None:
        self._is_outside_of_commits()
        self._stats.inc_value("feedexport/failed_count/" + type(slot.storage).__name__)  # as Scrapy does

    def _open_in_job(self, plain: FeedSlot, noted: NotedFeeds) -> Feed:
        """Return the feed of *plain* as part of the commit, which goes on with what an unfinished job has begun."""
        template, most = plain.uri_template, plain.feed_options["batch_item_count"]
        notes = noted.of_feed(template, path_of(plain), is_batched=bool(most))
        last, others = (notes[-1], notes[:-1]) if notes else (None, [])
        self._outdated += others
        for note in noted.notes:  # of runs that were killed, whose files are named by their time
            if template in note.feeds and note not in notes:
                self._end_file(note, plain, noted)
        if last is None or last.cycle != noted.cycle:
            return Feed(plain, self._with_file(plain, noted))
        if most and last.items >= most:
            plain.batch_id = last.batch
            plain = self._next_batch(plain, plain.feed_options)
            return Feed(plain, self._with_file(plain, noted))
        if most:
            path = str(path_now(last, noted.jobdir))
            plain = self._start_new_batch(last.batch, path, plain.feed_options, plain.spider, template)
        return self._resume(plain, noted, last)

    def _resume(self, plain: FeedSlot, noted: NotedFeeds, note: FeedLength) -> Feed:
        """Return the feed of *plain*, which goes on with the file of *note*."""
        feed = Feed(plain, self._with_file(plain, noted, note))
        renamed = [state for name, state in note.feeds.items() if name not in self.feeds]
        state = note.feeds.get(plain.uri_template) or (renamed[0] if len(note.feeds) == 1 == len(renamed) else None)
        if state is not None and goes_on(Path(path_of(plain)), note):
            feed.resume(state)
        elif state is not None:
            feed.slot.itemcount = state.items
        feed.slot.file = feed.slot.storage.open(feed.slot.spider)  # so that Scrapy closes it with its end
        return feed

    def _end_file(self, note: FeedLength, plain: FeedSlot, noted: NotedFeeds) -> None:
        """Write the end of the file of *note*, which a run that was killed left without it."""
        self._outdated.append(note)
        path = path_now(note, noted.jobdir)
        if note.cycle == noted.cycle and note.items and not note.end and size_of(path) == note.size:
            plain = self._start_new_batch(note.batch, str(path), plain.feed_options, plain.spider, plain.uri_template)
            feed = self._resume(plain, noted, note)
            self._finish(feed)

    def _with_file(self, plain: FeedSlot, noted: NotedFeeds, note: FeedLength | None = None) -> FeedSlot:
        """Return a copy of *plain* whose file is part of the commit. *note* tells how far an earlier run has got."""
        storage: Any = plain.storage
        slot = copy(plain)
        slot.feed_options = without_postprocessing(plain)
        is_compressed, is_begun = slot.feed_options != plain.feed_options, note is not None and note.items > 0
        path, is_batched = Path(storage.path).resolve(), bool(plain.feed_options["batch_item_count"])
        earlier = noted.of_feed(plain.uri_template, storage.path, is_batched=is_batched)
        if path not in self._files:
            named = FeedLength(storage.path, place_of(storage.path, noted.jobdir))
            self._files[path] = FileFeedStorage(
                (note or named)._replace(path=storage.path, place=named.place, cycle=noted.cycle, feeds={}, end=b""),
                noted.log,
                self._commit_now,
                compress=partial(compressed, options=plain.feed_options) if is_compressed else None,
                overwrites=storage.write_mode == "wb" and not is_begun,
                keeps=any(length.cycle < noted.cycle for length in earlier),
                mends=is_begun and not is_compressed,
            )
        slot.storage = self._files[path]
        return slot

    def item_scraped(self, item: Any, spider: Spider) -> None:
        """Keep a copy of *item* with its page, or write it at once if it belongs to none."""
        page, kept = None if self._crawl is None else self._crawl.current(), None
        for name, feed in list(self._feeds.items()):
            if not feed.slot.filter.accepts(item):
                continue
            if (problem := feed.problem_with(item)) is not None:
                self._leave_to_scrapy(name, problem)
            elif page is None:
                self.write(name, item)
            else:
                kept = self._copied(item) if kept is None else kept
                page.gave.append((name, kept, ITEM.get()))
        super().item_scraped(item, spider)

    def _copied(self, item: Any) -> Any:
        try:
            return deepcopy(item)
        except Exception as error:  # of the user's class
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "An item cannot be copied (%r): %.200r. If it is changed before its page is committed, the feed "
                    "has the changed values. No more are shown",
                    error,
                    item,
                )
            return item

    def _leave_to_scrapy(self, name: str, problem: str) -> None:
        feed = self._feeds.pop(name)
        if feed.file is not None:
            self._files.pop(feed.file.path.resolve(), None)
        self.slots.append(feed.plain)
        self._warn_of_kills(feed.plain, problem)

    def write(self, feed: str, item: Any, *, is_acknowledged: bool = False) -> bool:
        """Write *item* to *feed*. Return False if that fails, with an ERROR: other items of its page are written."""
        if feed not in self._feeds:
            logger.error("FEEDS no longer has %s: an item of a page that is done is lost", feed)
            return False
        into = self._feeds[feed]
        try:
            if self._journal is not None and not is_acknowledged and into.file and self._journal.hold(feed, item):
                return True  # it waits until its page is acknowledged
            into.write(item)
            most = into.slot.feed_options["batch_item_count"]
            if most and into.slot.itemcount >= most:
                self._begin_batch(into)
        except Exception as error:  # as Scrapy does: an item of a type that the format cannot hold, say
            logger.exception("An item could not be written to the feed %s: %.500r", into.slot.uri, item)
            if isinstance(error, OSError):
                self._count_failed(into.plain)
            return False
        return True

    def _begin_batch(self, feed: Feed) -> None:
        full, plain, noted = feed.slot, self._next_batch(feed.slot, feed.plain.feed_options), self._noted
        if noted is None or feed.file is None:
            full.finish_exporting()
            self._close(full)
            feed.begin(plain)
        else:
            self._finish(feed)
            feed.begin(self._with_file(plain, noted))

    def _next_batch(self, slot: FeedSlot, options: dict[str, Any]) -> FeedSlot:
        params = self._get_uri_params(slot.spider, options["uri_params"], slot)
        # A function of Scrapy's applies the parameters, if this version has it.
        uri = getattr(feedexport, "apply_uri_params", operator.mod)(slot.uri_template, params)
        return self._start_new_batch(slot.batch_id + 1, uri, options, slot.spider, slot.uri_template)

    def _finish(self, feed: Feed) -> None:
        """Write the end of the file of *feed*; it is closed when that is committed."""
        self._full.append((feed.slot, feed.state()))
        if feed.file is not None:
            feed.file.ends()
        feed.slot.finish_exporting()

    def _close(self, slot: FeedSlot) -> None:
        """Close *slot* as Scrapy does, with its line in the log and its signal."""
        close = getattr(self, "_schedule_slot_close", self._close_slot)  # from Scrapy 2.18 on; before it
        close(slot, slot.spider)

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        for slot in (*self.slots, *(feed.slot for feed in self._feeds.values())):
            if slot.file is not None and not slot.file.closed:
                slot.file.flush()

    def notes(self) -> list[FeedLength]:
        """Begin a commit: return the notes of the files, with the bytes that :meth:`committed` appends.

        Raises OSError if the disk is full, say. Nothing is lost: the next call tries again.
        """
        self.flush()
        for file in self._files.values():  # all of them, before the first note: one that fails stops the commit
            file.settle()
        notes = []
        for path, file in list(self._files.items()):
            writing = {name: feed.state() for name, feed in self._feeds.items() if feed.file is file}
            full = {slot.uri_template: state for slot, state in self._full if slot.storage is file}
            if (note := file.note({**full, **writing})) is not None:
                notes.append(note)
            if file.is_stored:
                del self._files[path]
        outdated = [note for note in self._outdated if Path(note.path).resolve() not in self._files]
        self._outdated = []
        return [*notes, *(note._replace(is_finished=True) for note in outdated)]

    def committed(self) -> None:
        """Append the items of the commit whose transaction is written, and close the batches that are full."""
        for file in self._files.values():
            file.committed()
        full, self._full = self._full, []
        for slot, state in full:
            storage: Any = slot.storage
            if storage.has_waiting:
                self._full.append((slot, state))
            else:
                storage.is_stored = True
                self._close(slot)

    async def close_spider(self, spider: Spider) -> None:
        """Close the feeds: what their exporters write at the end is committed, too."""
        for file in self._files.values():
            file.ends()
        self.slots += [feed.slot for feed in self._feeds.values()]
        self.slots += [slot for slot, _ in self._full]
        await super().close_spider(spider)
