"""One crawl: queues requests, hands them out, and commits what came of their pages. It works on plain data.

    in     push       a request that is new, with the page that led to it
    out    pop        the page of the next request
    done   done       its items and its row go with the next commit
           tick       commits what is due

:class:`Decisions` says of requests and links whether they are new, seen or over a limit.

Three stores stand behind it: memory, job directory, fleet. :mod:`~scrapy_bloom.components.assembly` puts it together.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import BloomError, counted
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.frontier.page import State
from scrapy_bloom.frontier.store import MemoryStore, PageEffects
from scrapy_bloom.job.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapy_bloom.crawl.changes import NoChanges
    from scrapy_bloom.crawl.delta import NoDelta
    from scrapy_bloom.crawl.guard import LoopGuard
    from scrapy_bloom.crawl.progress import Progress
    from scrapy_bloom.frontier.page import FailedRow, Page, Pending
    from scrapy_bloom.frontier.store import Store
    from scrapy_bloom.job.records import Batch, Feeds

logger = logging.getLogger(__name__)

MOST_LISTED = 100_000
"""Failed requests that a job lists, over all its runs."""


@dataclass(eq=False, kw_only=True)
class Crawl(PageEffects):
    """Everything that one crawl remembers, until :meth:`end`."""

    store: Store
    decisions: Decisions
    guard: LoopGuard
    delta: NoDelta
    changes: NoChanges
    progress: Progress
    feeds: Feeds
    notes: Sequence[Callable[[], Mapping[str, bytes]]]
    """Each returns a thing that a job notes, by the key of the note."""
    end_crawl: Callable[[str], None]
    """Ends the crawl for a reason, one word, when the present call has returned."""
    wake: Callable[[], None]
    """Makes the engine ask for a request."""
    keeps_requests: bool
    """Whether pending requests are in :attr:`store`: not with another scheduler."""
    stays: bool
    """Whether what is left at the end stays in a job directory."""
    url_rules: Sequence[str]
    finish_reason: str | None = None
    """None: it is not closed."""
    has_failed: bool = False

    @property
    def job(self) -> JobStore | None:
        """The store, if it is a job's and keeps the requests."""
        return self.store if isinstance(self.store, JobStore) and self.keeps_requests else None

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self.finish_reason is not None

    def push(self, pending: Pending, parent: Page | None, depth: object) -> bool | None:
        """Queue a request, to which *parent* led; *depth* is how many links led to it from a start request.

        Return whether it survives the process; None: the crawl has failed.
        """
        try:
            is_durable = self.store.push(pending, parent)
        except BloomError as error:
            self.fail(error)
            return None
        self.progress.estimate.queued.append(depth)
        return is_durable

    def pop(self) -> Page | None:
        """Return the page of the next request; None: none has a turn, or the crawl has failed."""
        if self.has_failed:
            return None
        try:
            return self.store.pop()
        except BloomError as error:
            self.fail(error)
            return None

    def done(self, page: Page, depth: object) -> None:
        """Note that the engine is done with *page*, whose request has this *depth*."""
        self.progress.estimate.finished.append(depth)
        self.guard.done(page)
        self.store.done(page)

    def is_given_up(self) -> bool:
        """Return whether the loop guard ends the crawl, with requests pending."""
        return isinstance(self.store, MemoryStore) and self.store.is_over() and self.store.frontier.has_given_up()

    def take(self, page: Page, batch: Batch | None = None) -> None:
        """Write the items of *page*; if it is committed next, note its failure, and what the next crawl needs of it."""
        for feed, item, given in page.gave:
            if not self.feeds.write(feed, item):
                page.note_item(failed=True)
                if given is not None:
                    given.is_lost = True
        page.gave.clear()
        if page.state is not State.COMMITTED:  # its items are committed in parts
            return
        if page.failed is not None:
            if self.decisions.is_listed(page.failed) and batch is not None:
                batch.failed.append(page.failed)
        elif page.key is not None and not page.failed_items:
            self.delta.done(page.key)
        if batch is not None:
            self.changes.take(page, batch)

    def flush(self) -> None:
        """Hand what was written to the feeds to the operating system: a kill does not lose it."""
        self.feeds.flush()
        self.delta.commit_begins()

    def add_to(self, batch: Batch) -> None:
        """Add to *batch*, which a commit that begins writes, all that belongs to this moment beside requests."""
        batch.feeds += self.feeds.notes()
        self.delta.commit_begins()
        for note in self.notes:
            batch.note("state", note())
        self.progress.prepare_commit(batch, is_last=self.is_closed)

    def written(self) -> None:
        """Append to the feeds what the transaction that is written notes of them."""
        self.feeds.committed()

    def tick(self) -> None:
        """Write what is due. A timer calls this."""
        self.progress.tick()
        if self.store.paused and self.store.end_pauses():
            self.wake()
        if not self.has_failed:
            try:
                self.store.commit()
            except Exception as error:  # without commits nothing is kept, so whatever it is ends the crawl
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the crawl because of *error*: what is not committed is fetched again."""
        if not self.has_failed:
            self.has_failed = True
            logger.critical("The crawl is being ended. %s", error, exc_info=not isinstance(error, BloomError))
            in_fleet = "fleet_lost" if isinstance(error, BloomError) else "fleet_failed"
            self.end_crawl("job_damaged" if isinstance(self.store, JobStore) else in_fleet)

    def close(self, reason: str) -> None:
        """Write what is left, and set the final stats.

        Feeds, extensions and the spider do something at the end, too. So :meth:`end` writes that the crawl has ended.
        *reason* is its ``finish_reason``.
        """
        self.finish_reason = reason
        given_up = self._log_left(self.store) if isinstance(self.store, MemoryStore) else None
        pending = len(self.store)
        self.progress.tell_others()
        try:
            self.store.flush()
        except BloomError as error:
            self.fail(error)
        if reason == "finished" and not (len(self.store) or self.has_failed):
            self.changes.end()
        self.progress.closing(self.job, pending, given_up)
        self.delta.crawl_closes()

    def _log_left(self, store: MemoryStore) -> int | None:
        """Log what is left; return how much of it the loop guard has given up, None if it does not end the crawl."""
        left, given_up = 0, None
        if full := store.frontier.full():
            left = self.progress.left_of_hosts(full, stays=self.stays)
        if self.is_given_up():
            left += (given_up := self.guard.log_left(store.frontier.groups(), stays=self.stays))
        self.guard.log_aliases(self.url_rules)
        if left and self.job is not None and (self.delta.is_on or self.changes.is_on):
            logger.warning(
                "The job has not ended, since %s are left in it. The next run goes on with these, looks at no other "
                "page again, and calls nothing gone, unless you raise BLOOM_PAGES_PER_HOST, switch BLOOM_LOOP_GUARD "
                "off, or take another JOBDIR.",
                counted(left, "request"),
            )
        return given_up

    def end(self) -> bool:
        """Let go of everything, and note that the crawl has ended; return whether a job has nothing left to do."""
        pending = len(self.store)
        try:
            self.store.close(self.finish_reason or "")
        except BloomError as error:
            self.fail(error)
        self.delta.ended()
        return self.job is not None and not (pending or self.has_failed or self.job.left_unread)


class Decisions:
    """The decisions of one crawl, by what *store* and *delta* know and the limits of *guard*.

    *listed* is how many failed requests a job lists so far; None: there is no list. *answers_for_links*: links may be
    dropped. Not if a filter of the user's has the last word on requests.
    """

    def __init__(
        self,
        store: Store,
        guard: LoopGuard,
        delta: NoDelta,
        progress: Progress,
        stats: Any,
        listed: int | None,
        *,
        forget_failed: bool,
        answers_for_links: bool,
    ) -> None:
        self._store, self._guard, self._delta, self._progress = store, guard, delta, progress
        self._stats, self._listed, self._answers_for_links = stats, listed, answers_for_links
        self._forgotten = 0
        self._failed = ScalableBloomFilter(1_000, 1e-3)
        self._followed_again: set[bytes] = set()
        self.forget_failed = forget_failed
        self.add: Callable[[bytes], bool] = guard.counting(self._add_once if forget_failed else store.add)

    def _add_once(self, fingerprint: bytes) -> bool:
        """Add *fingerprint*. The page of one that has failed in this run is followed once.

        Otherwise failing pages that link to each other would be fetched for ever.
        """
        if fingerprint in self._followed_again or not self._store.add(fingerprint):
            return False
        if fingerprint in self._failed:
            self._followed_again.add(fingerprint)
        return True

    def is_listed(self, failed: FailedRow) -> bool:
        """Count *failed*, a request that has failed for good, and return whether the job lists it."""
        self._stats.inc_value("bloom/failed")
        if self._listed is None:
            return False
        if self._listed >= MOST_LISTED:
            self._stats.inc_value("bloom/failed/unlisted")
            if self._stats.get_value("bloom/failed/unlisted") == 1:
                logger.warning(
                    "The job lists %s failed requests, and no more: bloom/failed/unlisted counts the others, such as "
                    "%s. Put the listed requests back with: scrapy bloom requeue JOBDIR --failed",
                    f"{MOST_LISTED:,}",
                    failed.url,
                )
            return False
        self._listed += 1
        return True

    def take_back(self, page: Page | None, fingerprints: Sequence[bytes]) -> None:
        """Make *page*, which has failed and has these *fingerprints*, new again, at the latest with its commit.

        None: another scheduler keeps its request.
        """
        self._forgotten += 1
        self._failed.update(fingerprints)
        if page is not None:
            self._store.take_back(page, fingerprints)
            return
        for fingerprint in fingerprints:
            self._store.forget(fingerprint)

    def forget(self, fingerprint: bytes) -> None:
        """Take *fingerprint* back: the next request with it is new."""
        self._forgotten += 1
        self._store.forget(fingerprint)

    def seen(self, fingerprints: Sequence[bytes]) -> list[bool]:
        """Return for each of *fingerprints* whether it was seen. Remembers nothing, and never raises."""
        if not self._answers_for_links:
            return [False] * len(fingerprints)
        try:
            seen, known = self._store.seen(fingerprints), self._delta.known(fingerprints)
            return [either or other for either, other in zip(seen, known, strict=True)]
        except Exception:
            logger.exception("Links could not be checked for being seen, and pass")
            return [False] * len(fingerprints)

    @property
    def epoch(self) -> tuple[int, ...]:
        """What changes whenever something seen may have become new: taken back, forgotten by the server, or too old."""
        return self._forgotten, self._store.times_anew, self._store.chain.drops

    def within_limits(self, urls: Sequence[str]) -> list[bool]:
        """Return for each of *urls* whether the limits of the loop guard allow it; count those they do not."""
        objections = [self._guard.objection(url) for url in urls]
        for url, objection in zip(urls, objections, strict=True):
            if objection is not None:
                self._progress.beyond_limit(url, objection.limit, objection.reason)
        return [objection is None for objection in objections]

    def note_dropped(self, fingerprints: Sequence[bytes]) -> None:
        """Count links that were dropped because their pages, by *fingerprints*, were asked for before."""
        for name in ("bloom/links_dropped", "dupefilter/filtered") if fingerprints else ():
            self._stats.inc_value(name, len(fingerprints))
        self._guard.count_links(fingerprints)
