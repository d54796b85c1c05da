""":class:`BloomDupeFilter`, the face that Scrapy sees on one machine.

Decides where the chain lives, in the job directory or in memory, and holds fingerprints back for a scheduler that asks
for it. Does not know the way of a request (``crawl.base_dupefilter``) or what counts as the same page (``url``).
"""

from __future__ import annotations

import logging
import sqlite3
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy.utils.misc import load_object

from scrapy_bloom.old.crawl.base_dupefilter import BaseBloomDupeFilter, State
from scrapy_bloom.old.crawl.failures import FailureWatch
from scrapy_bloom.old.crawl.held_back import HeldBack
from scrapy_bloom.old.crawl.job import refuse_job_of_workers
from scrapy_bloom.old.crawl.spider_state import spider_state_kept
from scrapy_bloom.old.crawl.startup import log_start_errors
from scrapy_bloom.old.errors import UnusableError, counted
from scrapy_bloom.old.files.directory import open_filter
from scrapy_bloom.old.files.frontier_file import FRONTIER_NAME, count_pending, half_salvaged
from scrapy_bloom.old.files.frontier_mark import FrontierMark, Noted
from scrapy_bloom.old.filter.chain import ScalableBloomFilter, first_layer_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class BloomDupeFilter(BaseBloomDupeFilter):
    """For ``DUPEFILTER_CLASS``: decides as Scrapy's own filter does, in a few bytes per URL.

    With ``JOBDIR`` the filter lives in ``JOBDIR/requests.bloom`` and survives the process; otherwise in memory.
    ``docs/settings.md`` lists the settings and ``docs/stats.md`` the stats.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.
        BloomError: On :meth:`open`; the files in the job directory cannot be used.

    """

    keeps_figures = True

    _logger = logger

    _chain: ScalableBloomFilter | None = None
    _held_back: HeldBack | None = None
    _mark: FrontierMark | None = None
    _failures: FailureWatch | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter from the settings of *crawler*."""
        self = super().from_crawler(crawler)
        if self._jobdir is not None:
            with log_start_errors(logger), spider_state_kept(crawler):
                refuse_job_of_workers(self._jobdir)  # before any scheduler creates its files
        if self._jobdir is not None and not _survives_kill(crawler):
            with log_start_errors(logger), spider_state_kept(crawler):
                _refuse_pending(self._jobdir, str(crawler.settings["SCHEDULER"]))
        if self._settings.forget_failed:
            self.watch_failures(crawler)
        return self

    def watch_failures(self, crawler: Crawler) -> None:
        """From now on, take back the fingerprints of requests that fail for good."""
        if self._decides_itself:
            logger.warning(
                "BLOOM_FORGET_FAILED may not find what %s.request_seen() has recorded, if that rewrites requests: "
                "pages that fail then stay seen. Override fingerprint() instead.",
                type(self).__qualname__,
            )
        self._failures = FailureWatch(crawler, self.forget, self._recall)

    def forget(self, request: Request) -> None:
        """Take *request* back: in this run or a later one, the next one like it is new."""
        self._epoch += 1
        try:
            fingerprint = self._fingerprints.of_request(request)
            if self._held_back is not None:
                self._held_back.forget(fingerprint)
        except Exception:  # Scrapy would log it without saying what it means
            self._log.unchecked(request)

    def _recall(self, request: Request) -> None:
        """Undo :meth:`forget`: the request is under way again. A retry has not come through :meth:`request_seen`."""
        if self._held_back is not None and self._held_back.forgotten:
            self._held_back.recall(self._fingerprints.of_request(request))

    def hold_back(self) -> None:
        """Keep new fingerprints in memory until :meth:`release`, for a scheduler whose requests become durable later.

        A fingerprint in the job directory survives ``kill -9`` at once. If its request does not, the page is lost.
        """
        if self._state is State.NOT_OPEN:
            self.open()
        self._enter(State.HOLDING_BACK)
        if self._guard is not None:
            self._guard.hold_back()

    def seal(self) -> None:
        """Mark what is held back now as the batch that the next :meth:`release` writes; what comes later waits."""
        if self._held_back is not None:
            self._held_back.seal()
        if self._guard is not None:
            self._guard.seal()

    def release(self) -> None:
        """Put the fingerprints of the sealed batch into the filter, because their requests are durable now."""
        if self._held_back is None or self._state is not State.HOLDING_BACK:
            return
        if self._guard is not None:
            try:
                self._guard.checkpoint()
            except Exception:
                logger.exception("The loop guard could not write down what it has parked; what is new is held back")
                return
        self._held_back.release()

    def queue_was_lost(self) -> None:
        """Keep what the loop guard has sent back to a queue that could not be written."""
        if self._guard is not None:
            self._guard.queue_was_lost()

    def never_release(self, request: Request) -> None:
        """Keep the fingerprint of *request* out of the files for good, because the request is in memory only.

        Call it for the request that :meth:`request_seen` has just let through. Never raises. If a link leads there, a
        later run fetches the page, whether or not this one did.
        """
        if self._held_back is None:
            return
        fingerprint = None
        with suppress(Exception):  # the scheduler has the request already, and must not lose it
            fingerprint = self._fingerprints.of_request(request)
        self._held_back.never_release(fingerprint)

    def frontier_noted(self) -> Noted | None:
        """Return what this filter has noted of its frontier; None without a job directory."""
        mark = self._mark
        if mark is None or self._chain is None:
            return None
        return Noted(
            mark.chain_id.hex(),
            is_empty=not len(self._chain),
            last_id=mark.noted,
            known=mark.known,
            is_lost=mark.is_lost,
        )

    def note_frontier(self, last_id: int) -> None:
        """Note that the filter has the fingerprints of all requests up to *last_id*, unless some are still sealed."""
        if self._mark is not None and self._held_back is not None and self._held_back.is_released:
            self._mark.note(last_id)

    @property
    def epoch(self) -> int | None:
        """A number that changes whenever something seen may have become new: taken back, or too old."""
        return self._epoch if self._chain is None else self._epoch + self._chain.drops()

    def _open_chain(self) -> None:
        settings = self._settings
        if self._jobdir is None:
            self._chain = self._chain_in_memory()
        else:
            jobdir = self._jobdir
            self._mark = FrontierMark(jobdir / "requests.bloom" / "frontier")
            self._chain = open_filter(
                jobdir / "requests.bloom",
                settings.capacity,
                settings.error_rate,
                growth=settings.growth,
                key_space=self._fingerprints.space,
                sync_interval=settings.sync_interval,
                import_from=jobdir / "requests.seen",
                on_checkpoint=self._set_stats,
                frontier_mark=self._mark,
                max_age=settings.max_age,
                clock=time.time,
            )
            if self._chain.was_unclean and not _survives_kill(self._crawler):
                logger.warning(_QUEUE_MAY_BE_LOST, self._jobdir)
        self._held_back = HeldBack(self._chain, settings.max_age, time.time)

    def _chain_in_memory(self) -> ScalableBloomFilter:
        settings = self._settings
        try:
            return ScalableBloomFilter(
                settings.capacity,
                settings.error_rate,
                growth=settings.growth,
                on_checkpoint=self._set_stats,
                max_age=settings.max_age,
                clock=time.time,
            )
        except (OSError, MemoryError, OverflowError) as error:
            needed = first_layer_bytes(settings.capacity, settings.error_rate)
            raise UnusableError(
                "The filter in memory",
                f"cannot be begun: {getattr(error, 'strerror', '') or error}",
                advice=f"It needs {needed:,} bytes. Lower BLOOM_CAPACITY, the URLs that its first layer is made for: "
                "it grows by itself.",
            ) from error

    def _close_chain(self) -> None:
        """Close the chain and drop what is held back: writing that would lose pages whose requests are not durable."""
        if self._chain is not None:
            if self._held_back is not None:
                self._held_back.drop()
            self._set_stats()
            self._chain.close()

    def _adder(self, state: State) -> Callable[[bytes], bool]:
        if self._chain is None or self._held_back is None:
            raise ValueError("the filter has not been opened")
        return self._chain.add if state is State.OPEN else self._held_back.add

    def _seen(self, fingerprints: Sequence[bytes]) -> Sequence[bool]:
        remembered = self._held_back
        return [remembered is not None and fingerprint in remembered for fingerprint in fingerprints]

    def _room(self) -> int:
        return 0 if self._chain is None else self._chain.layers[0].capacity

    def _expired(self) -> int:
        return 0 if self._chain is None else self._chain.expired

    def _where(self) -> str:
        return "in memory" if self._jobdir is None else f"in {self._jobdir / 'requests.bloom'}"

    def _figures(self) -> Mapping[str, float]:
        chain, held_back = self._chain, self._held_back
        if chain is None or held_back is None:
            return {}
        return {
            "bloom/urls": len(chain) + len(held_back),
            "bloom/layers": len(chain.layers),
            "bloom/bytes": chain.nbytes,
            "bloom/fill_ratio": chain.layers[-1].fill_ratio,
            "bloom/estimated_error_rate": chain.estimated_error_rate(),
            "bloom/expected_lost": chain.expected_false_positives(),
            "bloom/forgotten": held_back.forgotten,
        }


def _survives_kill(crawler: Crawler) -> bool:
    return bool(getattr(load_object(crawler.settings["SCHEDULER"]), "survives_kill", False))


def _refuse_pending(jobdir: Path, scheduler: str) -> None:
    """Raise UnusableError if *jobdir* holds pending requests that *scheduler* would not see."""
    if unfinished := half_salvaged(jobdir / FRONTIER_NAME):
        raise unfinished
    try:
        count = count_pending(jobdir)
        found = f"holds {counted(count, 'pending request')}"
    except sqlite3.Error as error:
        count = 1
        found = f"may hold pending requests, and cannot be read ({error})"
    if count:
        raise UnusableError(
            jobdir / FRONTIER_NAME,
            f"{found} of scrapy_bloom.DurableScheduler, and SCHEDULER is {scheduler}, under which their pages would "
            "count as seen and never be fetched",
            advice='Set SCHEDULER = "scrapy_bloom.DurableScheduler" to go on; or take the requests back to Scrapy\'s '
            f"own queue with: python -m scrapy_bloom.old.frontier.export SPIDER -s JOBDIR={jobdir}; or use another JOBDIR.",
        )


_QUEUE_MAY_BE_LOST = (
    "The last crawl in %s did not stop cleanly, and Scrapy's scheduler writes its queue only on a clean stop: requests "
    "that were pending may be lost, while the filter takes their pages for seen. To crawl them all, start over: delete "
    'the job directory, or use a new JOBDIR. With ADDONS = {"scrapy_bloom.Addon": 300} from the start, or SCHEDULER = '
    '"scrapy_bloom.DurableScheduler", which it sets, the next kill loses nothing.'
)
