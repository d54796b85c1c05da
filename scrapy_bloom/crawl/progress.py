"""How far a crawl is: its stats, a line in the log once a minute, and the figures that the job keeps."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from scrapy_bloom.crawl.estimate import Estimate, Left, in_words
from scrapy_bloom.errors import counted
from scrapy_bloom.frontier.order import HOSTS_SHOWN
from scrapy_bloom.frontier.store import MemoryStore
from scrapy_bloom.job.records import Figures
from scrapy_bloom.job.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy_bloom.crawl.delta import NoDelta
    from scrapy_bloom.crawl.guard import LoopGuard
    from scrapy_bloom.frontier.store import Store
    from scrapy_bloom.job.records import Batch

logger = logging.getLogger(__name__)

LINE_SECONDS = 60.0
"""Seconds between two log lines, as between Scrapy's own lines "Crawled 1234 pages"."""
FIGURES_SECONDS = 5.0
TOLD_SECONDS = 1.0
"""Seconds between two notes of the estimate that a worker of a fleet sends to the server, for the commands."""
ENDLESS_SHOWN = 3
"""Endless kinds of URLs that are named each time, those with the most pending requests."""
LONGEST_SHOWN = 500
"""Characters of a URL that are logged; a trap's URLs can be endless."""
_STATUS = "downloader/response_status_count/"


class Progress:
    """The stats and log lines of one crawl.

    *store* is open. *delta* is another filter than the chain, which may cost pages, too. *debug*: every duplicate is
    logged.
    """

    def __init__(self, stats: Any, store: Store, guard: LoopGuard, delta: NoDelta, *, debug: bool) -> None:
        self._stats, self._store, self._guard, self._delta = stats, store, guard, delta
        self._debug = debug
        self.estimate = Estimate()
        self._told = b""  # what others know of the estimate
        self._logged: set[str] = set()
        self._known_before = 0
        self._at_line = (0, 0, 0)
        self._line_at = self._noted_at = 0.0
        self._last: Figures | None = None
        self._before = Figures()

    def opened(self, switched_on: Sequence[str]) -> None:
        """Log what is *switched_on*, and what the filter holds."""
        store, chain = self._store, self._store.chain
        if isinstance(store, JobStore) and store.is_resumed:
            if (noted := store.database.notes("state").get("estimate")) is not None:
                self.estimate.load(noted)
            elif len(store):
                logger.info("How many pages are left is estimated anew: the job did not count them so far")
        self._set_stats()
        self._known_before = len(chain)
        size = decimal(chain.nbytes)
        if not isinstance(store, MemoryStore):
            holds = f"is shared by all workers; this one takes {size} for the URLs that it has seen itself"
        elif self._known_before:
            holds = f"knows {counted(self._known_before, 'URL')} in {counted(len(chain.layers), 'layer')}, {size}"
        else:
            holds = f"is empty: {size} for the first {chain.layers[0].capacity:,} URLs, and it grows by itself"
        logger.info("%s. The filter %s %s.", ", ".join(switched_on), store.where, holds)
        self._line_at, self._at_line = time.monotonic(), self._counts()

    def tick(self) -> None:
        """Learn what the last pages have led to; set the stats and log the line, if they are due."""
        self.estimate.learn()
        now = time.monotonic()
        if now >= self._noted_at + TOLD_SECONDS:
            self.tell_others()
        if now >= self._line_at + LINE_SECONDS:
            self._set_stats()
            counts = self._counts()
            # The filter forgets, too, and knows less then.
            pages, new, known = (max(0, count - before) for count, before in zip(counts, self._at_line, strict=True))
            if pages or new or known:
                logger.info(
                    "%s. The filter knows %s, its newest layer is %.0f %% full, expected loss %s pages",
                    in_words(
                        60 * pages / (now - self._line_at),
                        len(self._store),
                        new / (new + known) if new + known else None,
                        self._left(),
                    ),
                    counted(self._number("bloom/urls"), "URL"),
                    100 * min(-math.log2(1 - float(self._stats.get_value("bloom/fill_ratio", 0))), 1),
                    self._expected_lost(),
                )
                for kind, waiting in self.estimate.endless.most_common(ENDLESS_SHOWN):
                    logger.info("Not counted as left, since they bring nothing new: %s %s", f"{waiting:,}", kind)
            self._at_line, self._line_at = counts, now

    def tell_others(self) -> None:
        """Note the estimate for those who share the crawl."""
        if isinstance(self._store, MemoryStore) or not self.estimate.requests:
            return  # nobody shares what is there
        self._noted_at = time.monotonic()
        if (known := self.estimate.dump()) != self._told:
            self._told = known
            self._store.note_estimate(known)

    def _counts(self) -> tuple[int, int, int]:
        """Return how many pages have come, and how many links were new, and how many known."""
        number = self._number
        return number("response_received_count"), number("bloom/urls"), number("dupefilter/filtered")

    def _left(self) -> Left | None:
        """Return how many pages are left; None if this process cannot know: in a fleet, or with another scheduler."""
        store = self._store
        self.estimate.learn()
        if not isinstance(store, MemoryStore) or not self.estimate.requests:
            return None
        return self.estimate.left(len(store), sum(store.frontier.full().values()))

    def prepare_commit(self, batch: Batch, *, is_last: bool) -> None:
        """Add to *batch* the estimate, and changed figures: as a new row if due, else in the last.

        *is_last*: the crawl is closed, so its stats are set once more.
        """
        store = self._store
        if not isinstance(store, JobStore):
            return
        dumped = self.estimate.dump()
        if self.estimate.requests:
            batch.note("state", {"estimate": dumped})
        is_new = time.monotonic() >= self._noted_at + FIGURES_SECONDS
        if self._last is None:
            self._last = store.database.last_figures()
            self._before = self._last or Figures()
        if is_new:
            self._noted_at = time.monotonic()
        if is_new or is_last:
            self._set_stats()
        figures = self._figures_now(store)
        if self._last is None or figures[1:] != self._last[1:]:
            if not is_new and self._last is not None:  # one row is kept of these seconds, and a kill loses no count
                batch.outdated_figures.append(self._last.time)
            self._last = figures
            batch.figures.append(figures)

    def _figures_now(self, store: JobStore) -> Figures:
        values = self._stats.get_stats()
        before = self._before
        error_statuses = [name for name in list(values) if name.startswith((f"{_STATUS}4", f"{_STATUS}5"))]
        return Figures(
            # In order, also if somebody has put back the clock.
            time=max(round(time.time(), 1), round(self._last.time + 0.1, 1) if self._last else 0.0),
            run=store.state.runs,
            urls=len(store.chain),
            duplicates=self._number("dupefilter/filtered") + before.duplicates,
            pages=self._number("response_received_count") + before.pages,
            failures=self._number("downloader/exception_count") + before.failures,
            http_errors=sum(map(self._number, error_statuses)) + before.http_errors,
            spider_errors=self._number("spider_exceptions/count") + before.spider_errors,
            pending=len(store),
            nbytes=self._number("bloom/bytes"),
            expected_lost=float(self._stats.get_value("bloom/expected_lost", 0)),
        )

    def beyond_limit(self, url: str, limit: str, reason: str) -> None:
        """Log the first URL that is beyond *limit*, and count all."""
        if self._debug or limit not in self._logged:
            self._logged.add(limit)
            shown = url if len(url) <= LONGEST_SHOWN else f"{url[:LONGEST_SHOWN]}..."
            more = "" if self._debug else f". No more are shown (see DUPEFILTER_DEBUG); bloom/loop/{limit} counts them"
            logger.info("Loop guard, %s: %s (%s)%s", limit, shown, reason, more)
        self._stats.inc_value(f"bloom/loop/{limit}")

    def left_of_hosts(self, left: Mapping[str, int], *, stays: bool) -> int:
        """Count, log and return how many requests ``BLOOM_PAGES_PER_HOST`` has *left*, by host.

        *stays*: they stay in the queue of a job.
        """
        most = sorted(left.items(), key=lambda pair: -pair[1])[:HOSTS_SHOWN]
        self._stats.set_value("bloom/hosts/full", len(left))
        self._stats.set_value("bloom/hosts/left", sum(left.values()))
        logger.info(
            "BLOOM_PAGES_PER_HOST: %s of %s are left; %s. Most: %s",
            counted(sum(left.values()), "pending request"),
            counted(len(left), "host"),
            "they stay in the queue" if stays else "without a JOBDIR they are lost",
            ", ".join(f"{host} ({waiting:,})" for host, waiting in most),
        )
        return sum(left.values())

    def closing(self, job: JobStore | None, pending: int, given_up: int | None) -> None:
        """Set the final stats, and log the sums of the run. Call it before the filter is closed.

        *job* keeps the requests, of which so many are *pending*; the loop guard has *given_up* so many of these. None:
        there is no job, and the guard does not end the crawl.
        """
        chain = self._store.chain
        if given_up is not None:
            self._stats.set_value("bloom/loop/left", given_up)
        if job is not None:
            self._stats.set_value("bloom/frontier/pending", pending)
            self._stats.set_value("bloom/frontier/commits", job.commits)
            if job.left_unread:
                self._stats.set_value("bloom/frontier/unreadable", job.left_unread)
        self._set_stats()
        urls, duplicates = self._number("bloom/urls"), self._number("dupefilter/filtered")
        new = max(urls - self._known_before, 0)
        share = f" ({duplicates / (new + duplicates):.0%})" if new + duplicates else ""
        logger.info(
            "This run checked %s: %s new, %s%s",
            counted(new + duplicates, "URL"),
            f"{new:,}",
            f"{duplicates:,} duplicates",
            share,
        )
        logger.info(
            "The filter knows %s in %s, %s. Pages that its error rate may have cost: %s",
            counted(urls, "URL"),
            counted(len(chain.layers), "layer"),
            decimal(chain.nbytes),
            self._expected_lost(),
        )

    def _set_stats(self) -> None:
        chain, share = self._store.chain, self._guard.share
        if share is not None and isinstance(self._store, MemoryStore):
            self.estimate.promise, self.estimate.endless = share.promise(self._store.frontier.groups())
        layers = chain.layers
        values: dict[str, Any] = {
            "urls": len(chain),
            "layers": len(layers),
            "bytes": chain.nbytes,
            "fill_ratio": layers[-1].fill_ratio,
            "estimated_error_rate": chain.estimated_error_rate(),
            "expected_lost": chain.expected_false_positives() + self._delta.expected_lost(),
            "forgotten": chain.forgotten,
        }
        for name, value in values.items():
            self._stats.set_value(f"bloom/{name}", value)

    def _expected_lost(self) -> str:
        lost = float(self._stats.get_value("bloom/expected_lost", 0))
        return f"{lost:.2g}" if lost >= 0.001 else "under 0.001"

    def _number(self, name: str) -> int:
        return int(self._stats.get_value(name, 0))
