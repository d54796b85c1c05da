"""What belongs to each commit of a job beside its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from scrapy_bloom.frontier.page import Outcome, State
from scrapy_bloom.frontier.store import PageEffects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy_bloom.crawl.delta import NoDelta
    from scrapy_bloom.crawl.failures import Failures
    from scrapy_bloom.crawl.progress import Progress
    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.job.records import Batch, Feeds


class Noted(Protocol):
    """Something that a job notes, and that the next run goes on with."""

    def changed(self) -> Mapping[str, bytes]:
        """Return what has changed since the last commit, by the key of the note."""


class NoChanges:
    """What a crawl without ``BLOOM_CHANGES`` knows of earlier cycles: nothing."""

    is_on = False

    def takes(self, page: Page, item: Any) -> bool:  # noqa: ARG002 - nothing is compared
        """Return whether *item*, which *page* has given, is new or changed, and goes on to the pipelines."""
        return True

    def lost_copy(self, page: Page, copy: object) -> None:
        """Note that a feed has lost *copy*, the copy of an item that *page* has given."""

    def needs_answer(self, page: Page) -> None:
        """Have the next cycle ask for *page* in full: more came of it than its answer alone leads to."""

    def take(self, page: Page, batch: Batch) -> None:
        """Add what is known of *page* to *batch*."""

    def sweep(self) -> bool:
        """Enqueue requests of earlier cycles that this one has not made; return whether any is pending then."""
        return False

    def end(self) -> None:
        """End the cycle, in which nothing is pending."""


class CommitParts(PageEffects):
    """Feeds, *notes*, *failures*, keys of *delta*, rows of *changes*, and figures of *progress*."""

    def __init__(
        self,
        feeds: Feeds,
        failures: Failures,
        delta: NoDelta,
        changes: NoChanges,
        progress: Progress,
        notes: Sequence[Noted],
    ) -> None:
        self._feeds, self._failures, self._delta, self._changes = feeds, failures, delta, changes
        self._progress, self._notes = progress, notes

    def take(self, page: Page, batch: Batch | None = None) -> None:
        """Write the items of *page*; if it is committed next, note its failure, and what the next crawl needs of it."""
        for feed, item in page.gave:
            if not self._feeds.write(feed, item):
                page.note_item(failed=True)
                self._changes.lost_copy(page, item)
        page.gave.clear()
        if page.state is not State.COMMITTED:  # its items are committed in parts
            return
        if page.failed is not None:
            if self._failures.is_listed(page.failed) and batch is not None:
                batch.failed.append(page.failed)
        elif page.result.outcome is Outcome.ANSWERED and page.failed_items is False:
            self._delta.done(page)
        if batch is not None and self._changes.is_on:
            self._changes.take(page, batch)

    def flush(self) -> None:
        """Hand what was written to the feeds to the operating system: a kill does not lose it."""
        self._feeds.flush()
        self._delta.commit_begins()

    def add_to(self, batch: Batch) -> None:
        """Add all parts of this moment to *batch*, which a commit that begins writes."""
        batch.feeds += self._feeds.notes()
        self._delta.commit_begins()
        for part in self._notes:
            batch.note("state", part.changed())
        self._progress.prepare_commit(batch)

    def written(self) -> None:
        """Append to the feeds what the transaction that is written notes of them."""
        self._feeds.committed()
