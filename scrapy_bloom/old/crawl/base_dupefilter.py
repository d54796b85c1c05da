""":class:`BaseBloomDupeFilter`: the way of a request through a duplicate filter, on one machine or in a fleet.

    fingerprint -> limits -> add -> guard -> and the reason that log() tells

Knows Scrapy and the settings. Does not know where the chain lives; the faces on top say that, and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.misc import load_object

from scrapy_bloom.old.crawl import subclass
from scrapy_bloom.old.crawl.figures import CrawlFigures
from scrapy_bloom.old.crawl.fingerprints import fingerprints_of
from scrapy_bloom.old.crawl.job import job_of
from scrapy_bloom.old.crawl.link_filter import LinkFilter, link_filter_wanted
from scrapy_bloom.old.crawl.loop_guard import guard_of, objection_of
from scrapy_bloom.old.crawl.progress import Progress, age_text
from scrapy_bloom.old.crawl.request_log import RequestLog
from scrapy_bloom.old.crawl.shutdown import end_crawl
from scrapy_bloom.old.crawl.spider_state import spider_state_kept
from scrapy_bloom.old.crawl.startup import REFUSED, log_start_errors
from scrapy_bloom.old.crawl.unchecked import UncheckedRequests
from scrapy_bloom.old.errors import BloomError, counted
from scrapy_bloom.old.files.figures import FIGURES_NAME
from scrapy_bloom.old.loops.parked import guard_file
from scrapy_bloom.old.loops.verdict import PASSED
from scrapy_bloom.old.loops.verdicts import parked_requests
from scrapy_bloom.old.settings import BloomSettings

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping, Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_bloom.old.crawl.loop_guard import Guard
    from scrapy_bloom.old.loops.limits import Objection
    from scrapy_bloom.old.loops.verdict import Verdict


class State(Enum):
    """Where a duplicate filter is in its life. What becomes of a new fingerprint depends on nothing else."""

    NOT_OPEN = "not open"
    """The first fingerprint opens the filter, for schedulers that never call ``open()``."""
    OPEN = "open"
    """Fingerprints go into the chain at once."""
    HOLDING_BACK = "holding back"
    """Fingerprints wait in memory until their requests are durable."""
    CLOSED = "closed"
    """Requests that come late are let through."""


class BaseBloomDupeFilter(ABC, BaseDupeFilter):
    """What ``BloomDupeFilter`` and ``RedisBloomDupeFilter`` have in common.

    A subclass of either may override :meth:`fingerprint`, which everything here uses. One that overrides
    ``request_fingerprint()``, as with Scrapy's filter, is honoured with a warning. One that overrides
    :meth:`request_seen` has the last word on requests; links are then not asked about, since only it knows the answer.
    """

    asks_loop_guard: ClassVar[bool] = True
    """Whether :meth:`request_seen` shows requests to the loop guard; filters that are not ours do not."""

    keeps_figures: ClassVar[bool] = False
    """Whether the filter is in the job directory, so that the figures there are those of this process alone."""

    _logger: ClassVar[logging.Logger]

    _add: Callable[[bytes], bool]

    def __init__(
        self,
        crawler: Crawler,
        settings: BloomSettings,
        *,
        objection: Callable[[str], Objection | None] | None = None,
        guard: Guard | None = None,
    ) -> None:
        if crawler.stats is None:
            raise TypeError("the crawler has no stats yet: it applies its settings first")
        self._crawler = crawler
        self._settings = settings
        self._stats = crawler.stats
        self._jobdir = job_of(crawler)
        self._log = RequestLog(self._logger, self._stats, debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        fingerprints = fingerprints_of(crawler)
        self._default_fingerprint = fingerprints.of_request
        self._fingerprints = subclass.fingerprints_as_overridden(self, BaseBloomDupeFilter, fingerprints)
        self._fingerprint = self._fingerprints.of_request
        self._decides_itself = subclass.overrides(self, BaseBloomDupeFilter, "request_seen")
        self._objection = objection
        self._guard = guard
        self._watches_loops = objection is not None or guard is not None
        self._held_back_by: tuple[str, str] | None = None
        self._unchecked = UncheckedRequests()
        self._epoch = self._expired_before = 0
        self._progress = Progress(self._logger, self._stats, self._set_stats)
        self._crawl_figures = (
            None
            if self._jobdir is None or not self.keeps_figures
            else CrawlFigures(crawler, self._jobdir / FIGURES_NAME, self._set_stats)
        )
        self._is_ending = False
        self._has_logged_guard_error = self._has_warned_of_links = False
        self._enter(State.NOT_OPEN)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the filter from the settings of *crawler*."""
        with log_start_errors(cls._logger):
            settings = BloomSettings.from_settings(crawler.settings)
            self = cls(crawler, settings, objection=objection_of(settings), guard=guard_of(crawler, settings))
            subclass.check(self)
        crawler.signals.connect(self.link_filter, signal=link_filter_wanted)
        return self

    # -- for a face to implement ------------------------------------------------------------------------------------

    @abstractmethod
    def _open_chain(self) -> None:
        """Open the chain; raise BloomError if it cannot be used."""

    @abstractmethod
    def _close_chain(self) -> None:
        """Write out and release the chain."""

    @abstractmethod
    def _adder(self, state: State) -> Callable[[bytes], bool]:
        """Return what adds a fingerprint, and says whether it was new, in *state*: open or holding back."""

    @abstractmethod
    def _seen(self, fingerprints: Sequence[bytes]) -> Sequence[bool]:
        """Return for each of *fingerprints* whether it was added before. Adds nothing."""

    @abstractmethod
    def _where(self) -> str:
        """Return where the chain lives, to be read after "the filter"."""

    @abstractmethod
    def _room(self) -> int:
        """Return how many URLs the first layer is made for."""

    @abstractmethod
    def _expired(self) -> int:
        """Return how many URLs the chain has dropped for their age while it was open, as far as this process knows."""

    @abstractmethod
    def _figures(self) -> Mapping[str, float]:
        """Return the stats of the chain by name."""

    # -- Scrapy's interface -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the filter where it lives.

        Raises:
            BloomError: It cannot be used. One CRITICAL line says why.

        """
        with log_start_errors(self._logger), spider_state_kept(self._crawler):
            self._open_chain()
            try:
                if self._guard is None:
                    self._warn_of_parked()
                else:
                    begins_anew = self.keeps_figures and not self._figures()["bloom/urls"]
                    self._guard.open(self._jobdir, begins_anew=begins_anew)
            except BaseException:
                self._close_chain()
                raise
        self._enter(State.OPEN)
        if not self._may_be_refused():
            self.crawl_begins()

    def crawl_begins(self) -> None:
        """Say what the crawl begins with.

        :meth:`open` calls it, unless the scheduler may still refuse to start (``begins_filter``): then that does.
        """
        self._set_stats()
        self._progress.opened(self._switched_on(), self._where(), self._room())
        if self._crawl_figures is not None:
            self._crawl_figures.begin()

    def _may_be_refused(self) -> bool:
        return bool(getattr(load_object(self._crawler.settings["SCHEDULER"]), "begins_filter", False))

    def request_seen(self, request: Request) -> bool:
        """Return False if *request* is to be fetched, and remember it; True if it is to be dropped.

        Never raises, since Scrapy would lose the request: one that cannot be checked is let through and counted in
        ``bloom/unchecked``. If the filter is on a server, the call may wait for the server, as ``BLOOM_REDIS_ON_ERROR``
        says (``docs/fleet_filter.md``).
        """
        try:
            admits = self._admits(request) if self._watches_loops else self._add(self._fingerprint(request))
        except Exception as error:  # whatever it is, the page must not be lost
            self._let_through(request, error)
            return False
        if self._unchecked.in_a_row:
            self._unchecked.in_a_row = 0
        return not admits

    def log(self, request: Request, spider: Spider) -> None:
        """Log and count why *request* was filtered: as a duplicate, in Scrapy's words, or as part of a loop.

        The loop guard is told, too: a redirect to a known page has brought nothing. Scrapy's signal for it would take
        15 us for each duplicate.
        """
        if self._guard is not None:
            self._guard.saw_nothing(request)
        held_back_by, self._held_back_by = self._held_back_by, None
        if held_back_by is None:
            self._log.filtered(request, spider)
        else:
            self._log.loop(request.url, *held_back_by, spider=spider)

    def close(self, reason: str) -> None:
        """Set the final stats and close the filter. Fingerprints that are still held back are dropped.

        If *reason* is ``"refused"``, the crawl has not started, and there is nothing to sum up.
        """
        if self._state not in (State.OPEN, State.HOLDING_BACK):
            return
        self._enter(State.CLOSED)
        if self._guard is not None:
            try:
                self._guard.close()
            except Exception:
                self._logger.exception("The loop guard could not write down its verdicts and what it has parked")
        where = self._where()
        self._close_chain()
        if reason == REFUSED:
            self._progress.stop()
        else:
            self._progress.closed(where=where)
        if self._crawl_figures is not None:
            self._crawl_figures.end()

    # -- for schedulers, links and subclasses -----------------------------------------------------------------------

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of *request*; override it to merge or tell apart more.

        Used for everything: checking, taking back, holding back, and asking about links, for which *request* is the
        plain GET request of the link's URL. It must depend on *request* alone.
        """
        return self._default_fingerprint(request)

    def request_fingerprint(self, request: Request) -> str:
        """Return :meth:`fingerprint` in hexadecimal, as Scrapy's own filter does."""
        return self._default_fingerprint(request).hex()

    def remember(self, request: Request) -> None:
        """Record *request*, which is already pending, without judging it. Never raises."""
        try:
            self._add(self._fingerprint(request))
        except Exception:  # it is pending, so its page is fetched; a link to it may fetch it once more
            self._log.unchecked(request)

    def link_filter(self) -> LinkFilter:
        """Return what answers for links: the filter itself."""
        return self

    @property
    def fingerprint_url(self) -> Callable[[str], bytes] | None:
        """The fingerprint of the plain GET request of a URL; None with a custom fingerprinter."""
        return self._fingerprints.of_url

    @property
    def ignores_fragments(self) -> bool:
        """Whether the fragment of a URL makes no difference to its fingerprint."""
        return self._fingerprints.ignore_fragments

    @property
    def epoch(self) -> int | None:
        """A number that changes whenever something seen may have become new; None if nothing but asking can tell."""
        return self._epoch

    def seen_fingerprints(self, fingerprints: Sequence[bytes]) -> Sequence[bool]:
        """Return for each of *fingerprints* whether it was seen before, without recording it. Never raises.

        Looks all of them up together. Before opening, and where the filter cannot tell, the answer is False.
        """
        if self._state not in (State.OPEN, State.HOLDING_BACK):
            return [False] * len(fingerprints)
        if self._decides_itself:
            self._warn_of_links()
            return [False] * len(fingerprints)
        try:
            return self._seen(fingerprints)
        except Exception:
            self._logger.exception("Links could not be checked for being seen, and pass")
            return [False] * len(fingerprints)

    def within_limits(self, urls: Sequence[str]) -> Sequence[bool]:
        """Return for each URL whether the limits of the loop guard allow it; log and count those they do not."""
        if self._objection is None:
            return [True] * len(urls)
        objections = [self._objection(url) for url in urls]
        for url, objection in zip(urls, objections, strict=True):
            if objection is not None:
                self._log.loop(url, objection.limit, objection.reason)
        return [objection is None for objection in objections]

    # -- the way of a request ---------------------------------------------------------------------------------------

    def _admits(self, request: Request) -> bool:
        """Return whether to fetch *request*; if not, note the reason for :meth:`log`."""
        self._held_back_by = None
        if self._objection is not None:
            objection = self._objection(request.url)
            if objection is not None:  # a trap's URLs take no room in the chain
                self._held_back_by = (objection.limit, objection.reason)
                return False
        if not self._add(self._fingerprint(request)):
            return False
        verdict = self._verdict_on(request)
        if verdict.is_parked:
            self._held_back_by = (verdict.rule, verdict.reason)
            return False
        if verdict.rule:
            self._log.loop(request.url, verdict.rule, verdict.reason)
        return True

    def _let_through(self, request: Request, error: Exception) -> None:
        """Count *request*, which could not be checked, and end the crawl if it would otherwise never end."""
        self._log.unchecked(request)
        endless = self._unchecked.failed(request)
        if endless is None or self._is_ending or self._state is State.CLOSED:
            return
        self._is_ending = True
        self._logger.critical(
            "The crawl is being ended: %s (%r). Unchecked requests are let through, so pages that link to each other "
            "would be fetched for ever. Repair %s; with JOBDIR, the crawl can be resumed then.",
            endless,
            error,
            self._fingerprints.space["fingerprinter"],
        )
        end_crawl(self._crawler, "bloom_unchecked")

    def _verdict_on(self, request: Request) -> Verdict:
        if self._guard is None:
            return PASSED
        try:
            return self._guard.queued(request)
        except Exception:  # its fingerprint is in the filter already, so the page would be lost
            if not self._has_logged_guard_error:
                self._has_logged_guard_error = True
                self._logger.exception("The loop guard failed to judge %s, which goes to the queue", request)
            return PASSED

    # -- states -----------------------------------------------------------------------------------------------------

    def _enter(self, state: State) -> None:
        """Change the state, and with it the function that adds a fingerprint: one attribute, so that a call is fast."""
        self._state = state
        if state is State.NOT_OPEN:
            self._add = self._open_and_add
        elif state is State.CLOSED:
            self._add = self._refuse
        else:
            self._add = self._adder(state)

    def _open_and_add(self, fingerprint: bytes) -> bool:
        self.open()
        return self._add(fingerprint)

    def _refuse(self, fingerprint: bytes) -> bool:
        raise ValueError(f"the duplicate filter is closed; {fingerprint.hex()} came too late")

    # -- stats and log lines ----------------------------------------------------------------------------------------

    def _warn_of_parked(self) -> None:
        """Warn of requests that the loop guard parked in an earlier run: without it nobody fetches them."""
        if not self._jobdir or not guard_file(self._jobdir).exists():
            return
        try:
            waiting = parked_requests(self._jobdir)
        except BloomError as error:
            self._logger.warning("%s What the loop guard has parked there is not fetched and counts as seen.", error)
            return
        if waiting:
            self._logger.warning(
                "The loop guard parked %s in %s, and BLOOM_LOOP_GUARD is off: what is parked is not fetched and counts "
                "as seen. Switch it on again to go on with it; its option allow lets through what matches.",
                counted(waiting, "request"),
                self._jobdir,
            )

    def _set_stats(self) -> None:
        for name, value in self._figures().items():
            self._stats.set_value(name, value)
        expired, before = self._expired(), self._expired_before
        self._expired_before = expired
        if expired > before and self._settings.max_age is not None:
            self._progress.forgot(expired - before, self._settings.max_age)
        self._progress.noted()

    def _switched_on(self) -> list[str]:
        """Return the names of our parts that this crawl uses."""
        scheduler = load_object(self._crawler.settings["SCHEDULER"])
        names = [type(self).__name__]
        if scheduler.__module__.startswith("scrapy_bloom."):
            names.append(scheduler.__name__)
        if self._watches_loops:
            names.append("loop guard")
        if rules := self._fingerprints.space.get("rules"):
            names.append(f"URL rules {rules}")
        if self._settings.max_age is not None:
            names.append(f"maximum age {age_text(self._settings.max_age)}")
        return names

    def _warn_of_links(self) -> None:
        if not self._has_warned_of_links:
            self._has_warned_of_links = True
            self._logger.warning(
                "%s overrides request_seen(), so nothing else can tell which links are duplicates: unseen_links() lets "
                "all pass. If it only changes what counts as the same page, override fingerprint() instead.",
                type(self).__qualname__,
            )
