""":class:`BloomDupeFilter`, the face that Scrapy sees on one machine.

Turns Scrapy's questions into questions to a chain, and the chain's state into stats. What counts as the same page is
decided in ``url``, what is remembered and where in ``filter`` and ``store``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object

from scrapy_bloom.crawl.failures import FailureWatch
from scrapy_bloom.crawl.keys import Keys, keys_of
from scrapy_bloom.crawl.link_filter import LinkFilter, link_filter_wanted
from scrapy_bloom.crawl.request_log import RequestLog
from scrapy_bloom.crawl.startup import told_before_the_traceback
from scrapy_bloom.files.directory import open_filter
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.settings import BloomSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class BloomDupeFilter(BaseDupeFilter):
    """For ``DUPEFILTER_CLASS``: decides as Scrapy's own filter does, in a few bytes per URL.

    With ``JOBDIR`` the filter lives in ``JOBDIR/requests.bloom`` and survives the process; otherwise in memory.
    ``docs/settings.md`` lists the settings and ``docs/stats.md`` the stats.

    Raises:
        SettingsError: On construction; names every wrong ``BLOOM_*`` setting.
        BloomError: On :meth:`open`; the files in the job directory cannot be used as they are.

    """

    def __init__(
        self,
        settings: BloomSettings,
        keys: Keys,
        stats: StatsCollector,
        *,
        jobdir: str | None = None,
        debug: bool = False,
        queue_survives_kill: bool = False,
        crawler: Crawler | None = None,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._stats = stats
        self._jobdir = jobdir
        self._log = RequestLog(logger, stats, debug=debug)
        self._queue_survives_kill = queue_survives_kill
        self._crawler = crawler
        self._fingerprint = keys.of_request
        self._chain: ScalableBloomFilter | None = None
        self._add: Callable[[bytes], bool] = self._open_and_add
        self._held: set[bytes] = set()
        self._volatile: set[bytes] = set()
        self._failures: FailureWatch | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter from the settings of *crawler*."""
        if crawler.stats is None:
            raise TypeError("the crawler has no stats yet: it applies its settings first")
        with told_before_the_traceback(logger):
            settings = BloomSettings.from_settings(crawler.settings)
        dupefilter = cls(
            settings,
            keys_of(crawler),
            crawler.stats,
            jobdir=job_dir(crawler.settings),
            debug=crawler.settings.getbool("DUPEFILTER_DEBUG"),
            queue_survives_kill=getattr(load_object(crawler.settings["SCHEDULER"]), "survives_kill", False),
            crawler=crawler,
        )
        crawler.signals.connect(dupefilter.link_filter, signal=link_filter_wanted)
        if settings.forget_failed:
            dupefilter.watch_failures(crawler)
        return dupefilter

    def open(self) -> None:
        """Open the filter in the job directory, or an empty one in memory."""
        settings = self._settings
        if self._jobdir:
            jobdir = Path(self._jobdir)
            with told_before_the_traceback(logger, self._crawler):
                self._chain = open_filter(
                    jobdir / "requests.bloom",
                    settings.capacity,
                    settings.error_rate,
                    growth=settings.growth,
                    key_space=self._keys.space,
                    sync_interval=settings.sync_interval,
                    import_from=jobdir / "requests.seen",
                    on_checkpoint=self._set_stats,
                )
            if self._chain.was_unclean and not self._queue_survives_kill:
                logger.warning(_QUEUE_MAY_BE_LOST, self._jobdir)
        else:
            self._chain = ScalableBloomFilter(
                settings.capacity, settings.error_rate, growth=settings.growth, on_checkpoint=self._set_stats
            )
        self._add = self._chain.add
        self._set_stats()

    def request_seen(self, request: Request) -> bool:
        """Return whether *request* was seen before, and remember it if not.

        Never raises, since Scrapy would lose the request: one that cannot be checked is let through and counted in
        ``bloom/unchecked``.
        """
        try:
            return not self._add(self._fingerprint(request))
        except Exception:  # whatever it is, the page must not be lost
            self._log.unchecked(request)
            return False

    def log(self, request: Request, spider: Spider) -> None:
        """Log that *request* was filtered, as Scrapy's own filter does, and count it in ``dupefilter/filtered``."""
        self._log.filtered(request, spider)

    def close(self, reason: str) -> None:  # noqa: ARG002 - Scrapy's signature
        """Set the final stats and close the filter.

        What is still held back is dropped: its requests never became durable, and in the files it would lose their
        pages.
        """
        if self._chain is None:
            return
        self._held.clear()
        self._set_stats()
        self._chain.close()

    def link_filter(self) -> LinkFilter:
        """Return what answers for links: the filter itself."""
        return self

    def seen_urls(self, urls: Sequence[str]) -> Sequence[bool]:
        """Return for each URL whether its plain GET request was seen before, without recording it.

        False where that cannot be told: before opening, with a custom fingerprinter, for what is not a URL.
        """
        fingerprint_of = self._keys.of_url
        chain = self._chain
        if fingerprint_of is None or chain is None:
            return [False] * len(urls)
        held, volatile = self._held, self._volatile
        seen = []
        for url in urls:
            try:
                fingerprint = fingerprint_of(url)
                seen.append(fingerprint in chain or fingerprint in held or fingerprint in volatile)
            except Exception:  # the request that is made of it shall fail, or not, as it would without us
                seen.append(False)
        return seen

    def watch_failures(self, crawler: Crawler) -> None:
        """From now on, take back the fingerprints of requests that fail for good."""
        self._failures = FailureWatch(crawler, self.forget, self._recall)

    def forget(self, request: Request) -> None:
        """Take *request* back: the next one like it is new, in this run or a later one."""
        try:
            fingerprint = self._fingerprint(request)
            self._held.discard(fingerprint)
            self._volatile.discard(fingerprint)
            if self._chain is not None:
                self._chain.forget(fingerprint)
        except Exception:  # Scrapy's signals swallow it; here it is at least said in our words
            self._log.unchecked(request)

    def _recall(self, request: Request) -> None:
        """Undo :meth:`forget`: the request is under way again. A retry has not come through :meth:`request_seen`."""
        if self._chain is not None and self._chain.forgotten:
            self._chain.recall(self._fingerprint(request))

    def hold_back(self) -> None:
        """Keep new fingerprints in memory until :meth:`release`, for a scheduler whose requests become durable later.

        A fingerprint in the job directory survives ``kill -9`` at once. If its request does not, the page is lost.
        """
        if self._chain is None:
            self.open()
        self._add = self._add_held

    def release(self) -> None:
        """Put all fingerprints that were held back into the filter: their requests are durable now."""
        if self._chain is not None:
            for fingerprint in self._held:
                self._chain.add(fingerprint)
            self._held.clear()

    def never_release(self, request: Request) -> None:
        """Keep the fingerprint of *request* out of the files for good: it waits in memory only, and may be lost.

        A later run fetches its page again if a link leads there, whether it was fetched in this one or not.
        """
        fingerprint = self._fingerprint(request)
        if fingerprint in self._held:
            self._held.discard(fingerprint)
            self._volatile.add(fingerprint)

    def _add_held(self, fingerprint: bytes) -> bool:
        if (
            fingerprint in self._held
            or fingerprint in self._volatile
            or (self._chain is not None and fingerprint in self._chain)
        ):
            return False
        self._held.add(fingerprint)
        return True

    def _open_and_add(self, fingerprint: bytes) -> bool:
        """Open the filter under a scheduler that does not call :meth:`open`."""
        self.open()
        return self._add(fingerprint)

    def _set_stats(self) -> None:
        chain = self._chain
        if chain is None:
            return
        set_value = self._stats.set_value
        set_value("bloom/urls", len(chain) + len(self._held) + len(self._volatile))
        set_value("bloom/layers", len(chain.layers))
        set_value("bloom/bytes", chain.nbytes)
        set_value("bloom/fill_ratio", chain.layers[-1].fill_ratio)
        set_value("bloom/estimated_error_rate", chain.estimated_error_rate())
        set_value("bloom/expected_lost", chain.expected_false_positives())
        set_value("bloom/forgotten", chain.forgotten)


_QUEUE_MAY_BE_LOST = (
    "The last crawl in %s did not stop cleanly, and Scrapy's scheduler writes its queue only on a clean stop: requests "
    "that were pending may be lost, while the filter takes their pages for seen. To crawl them all, start over: delete "
    'the job directory, or use a new JOBDIR. With ADDONS = {"scrapy_bloom.Addon": 300} from the start, or SCHEDULER = '
    '"scrapy_bloom.DurableScheduler", which it sets, the next kill loses nothing.'
)
