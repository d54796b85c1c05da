"""Judges the shapes of a crawl by what their pages bring: demotes what grows, parks what has run dry.

Knows requests and what ``news`` says of a response. Knows no scheduler and no filter: ``crawl/base_dupefilter`` tells
it what is new, ``crawl/loop_guard_middleware`` shows it what comes back and takes what it releases. What comes out of
the queue is shown by ``frontier/scheduler``, or under another scheduler by that middleware.

A page that brings nothing new counts against each of its shapes, and news count for them: for those of the page, and
for those of the page that *linked* to it. A list has no text that its items do not repeat, so its news are what it
leads to. (Counting new links instead would reward mazes.)
"""

from __future__ import annotations

import logging
import math
import random
import re
import shutil
from collections import Counter
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.errors import counted
from scrapy_bloom.old.files.directory import open_filter
from scrapy_bloom.old.filter.chain import ScalableBloomFilter
from scrapy_bloom.old.loops.account import Account
from scrapy_bloom.old.loops.demotion import Candidate, breeds, rank_of, steps_later, steps_of
from scrapy_bloom.old.loops.judging import accounts_in, folder_of, judge_among, known_accounts, number_of, with_evidence
from scrapy_bloom.old.loops.news import News
from scrapy_bloom.old.loops.parked import TAKEN_BACK, ParkedFile, ParkedInMemory, guard_file, lacks_some
from scrapy_bloom.old.loops.shapes import Shapes
from scrapy_bloom.old.loops.skimming import Skimming
from scrapy_bloom.old.loops.verdict import PASSED, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from scrapy import Request, Spider
    from scrapy.http import Response
    from scrapy.statscollectors import StatsCollector

    from scrapy_bloom.old.loops.options import LoopOptions

logger = logging.getLogger(__name__)

PORTION = 64
"""Parked requests released or tried at a time, when a verdict is taken back or the crawl would end."""

FOR_NEWS = 8
"""Parked requests that a page with news releases. If they bring news, too, they release the next ones, so this is no
limit to a good section; of a shop's filters, 64 were fetched for each product that one of them found."""

LAST_TRIES = 8
"""Requests of each dry shape that are tried when the crawl would end otherwise: one of them may lead to the rest of its
section, and there is nothing left that it could delay. After news they are counted anew."""

FIRST_TRIES = 4_096
"""Pages after which one request of each shape that has run dry is tried whether or not others come up, and again each
time there are four times as many: a crawl that never ends would leave them parked for good."""

ACCOUNTS = 100_000
"""Shapes that are remembered, some 40 MB. Past that, the least fetched ones without a verdict are forgotten."""

LOST = 256
"""Pages of the crawl after which a request that was handed out counts as lost: it has failed, or its answer says
nothing. Until then it takes the place of another one where a shape must wait for its pages."""

SAVE_INTERVAL = 5.0
"""Seconds between saves of what is known about shapes. What a kill loses costs a few more fetches."""

NEWS_CAPACITY = 1_000_000
NEWS_ERROR_RATE = 1e-3

LINKED_FROM = "bloom_linked_from"
"""Key in ``request.meta``: the shapes of the page that linked to it, the number of each followed by how many of its
pages had been fetched by then."""

BARREN = "bloom_loop_barren"
"""Key in ``request.meta``: how many pages in a row, up to the one that linked to it, brought nothing."""

QUEUED = "bloom_loop_queued"
"""Key in ``request.meta`` while a request is in the queue: by how many steps it was demoted, its rank then, and whether
it was sent back. A queue on disk hands out another object, so the spider's own keeps the mark, and so does what the
spider derives from it."""

RELEASED = "bloom_loop_released"
"""Key in ``request.meta`` while a released request is in the queue: its number among those parked."""

UNDER_WAY = "bloom_loop_under_way"
"""Key in ``request.meta`` while a request is fetched: the numbers of its shapes that must wait for it."""

TRIED_FOR = "bloom_loop_tried"
"""Key in ``request.meta``: number of the shape whose verdict it is to try."""


class LoopGuard:
    """One crawl's guard. Nothing it does raises: what it cannot judge is fetched."""

    def __init__(
        self,
        options: LoopOptions,
        stats: StatsCollector,
        spider: Spider | None = None,
        *,
        filter_is_shared: bool = False,
        max_age: float | None = None,
    ) -> None:
        """Guard the crawl of *spider* under *options*.

        With a filter that is shared, and so outlives this process, nothing is parked in memory: it would be lost. Where
        the filter forgets URLs after *max_age* seconds, what their pages showed is forgotten in half of that, so that
        no page counts as a copy of what it was before.
        """
        self._spider = spider
        self._allowed = [re.compile(pattern).search for pattern in options.allow]
        self._stats = stats
        self._filter_is_shared = filter_is_shared
        self._news_age = None if max_age is None else max_age / 2
        self._shapes = Shapes()
        self._accounts: dict[int, Account] = {}
        self._last_page: tuple[str, Sequence[Account]] = "", ()
        self._changed: set[int] = set()
        self._forgotten: list[int] = []
        self._lot: ParkedInMemory | ParkedFile | None = None
        self._seen: ScalableBloomFilter | None = None
        self._news: News | None = None
        self._send_back: Callable[[Request], None] | None = None
        self._skimming = Skimming()
        self._tried_last: Counter[int] = Counter()
        self._waited_for: set[Account] = set()  # those with pages under way
        self._pages = 0
        self._next_tries = FIRST_TRIES
        self._queue_is_lost = False
        self._jobdir: Path | None = None
        self._next_save = 0.0
        self._next_news = math.inf
        self._has_warned: set[str] = set()
        self.is_open = False
        self.is_told_of_signals = False

    # -- opening and closing -------------------------------------------------------------------------------------

    def open(self, jobdir: Path | None, *, begins_anew: bool = False) -> None:
        """Begin with what an earlier run has left in *jobdir*; None: in memory only.

        Where the crawl *begins_anew*, the filter knows no URL, and no page is a copy of what an earlier crawl has seen.

        Raises:
            BloomError: What is there cannot be used.

        """
        if self.is_open:
            return
        self._jobdir = jobdir
        if jobdir is None:
            self._seen = ScalableBloomFilter(NEWS_CAPACITY, NEWS_ERROR_RATE, max_age=self._news_age, clock=time)
            self._lot = None if self._filter_is_shared else ParkedInMemory()
            if self._filter_is_shared:
                logger.info(
                    "The loop guard demotes and does not park: the fleet's filter outlives this worker, and what it "
                    "parks without a JOBDIR does not. Give each worker a JOBDIR of its own to park."
                )
        else:
            news, file = jobdir / "requests.news", guard_file(jobdir)
            is_gone = news.exists() and not (file.exists() and file.stat().st_size)
            self._lot = ParkedFile.open(jobdir, self._spider)
            if is_gone and not begins_anew:
                logger.warning(
                    "%s of an earlier run is gone, and with it the loop guard's verdicts and what was parked: "
                    "those pages count as seen and will not be fetched. If that was not meant, stop, and restore it "
                    "from a backup.",
                    file,
                )
            elif self._lot.lacked_some and not begins_anew:
                logger.warning("%s", lacks_some(jobdir))
            try:
                if begins_anew and news.exists():
                    shutil.rmtree(news)
                self._seen = open_filter(
                    news, NEWS_CAPACITY, NEWS_ERROR_RATE, sync_interval=30.0, max_age=self._news_age
                )
            except BaseException:
                self._lot.close(queue_is_kept=False)
                raise
            self._load(self._lot)
        self._begin_news(self._seen)
        self._next_save = monotonic() + SAVE_INTERVAL
        self.is_open = True

    def _begin_news(self, seen: ScalableBloomFilter) -> None:
        """Forget the lines that were on many pages, which have no age; what is in *seen* has."""
        self._news = News(seen)
        if self._news_age is not None:
            self._next_news = monotonic() + self._news_age / 4

    def hold_back(self) -> None:
        """From now on, keep what was released and has come out of the queue until the queue has it on disk."""
        if isinstance(self._lot, ParkedFile):
            self._lot.hold_back()

    def seal(self) -> None:
        """Tell what has come out of the queue before a commit of it from what comes later."""
        if isinstance(self._lot, ParkedFile):
            self._lot.seal()

    def queue_was_lost(self) -> None:
        """Keep what was sent back to the queue: it could not be written."""
        self._queue_is_lost = True

    def checkpoint(self) -> None:
        """Let go of what came out of the queue before its commit. What was parked is on the disk already."""
        if self.is_open and isinstance(self._lot, ParkedFile):
            try:
                self._lot.checkpoint()
            except Exception:  # a full disk: it stays, and is fetched twice at worst
                self._warn_once("drop", "What has left %s cannot be deleted there", self._lot, exc_info=True)

    def close(self) -> None:
        """Write down what a later run needs."""
        if not self.is_open:
            return
        self.is_open = False
        self._set_stats()
        try:
            if isinstance(self._lot, ParkedFile):
                self._save(self._lot)
                self._lot.close(queue_is_kept=not self._queue_is_lost)
        finally:
            if self._seen is not None:
                self._seen.close()
        waiting = self._lot.waiting.total() if self._lot is not None else 0
        if waiting and isinstance(self._lot, ParkedInMemory):
            logger.warning(
                "The loop guard parked %s in memory; gone now (no JOBDIR), and the pages were not fetched. With JOBDIR "
                "they wait there; the option allow of BLOOM_LOOP_GUARD lets through what matches.",
                counted(waiting, "request"),
            )
        if not self.is_told_of_signals:  # without the middleware, which says it last
            self.warn_of_parked()

    def warn_of_parked(self) -> None:
        """Say once, when the crawl has ended, how what is parked in the job directory comes back."""
        waiting = self._lot.waiting.total() if isinstance(self._lot, ParkedFile) else 0
        if waiting and "left" not in self._has_warned:
            self._has_warned.add("left")
            logger.warning(
                "The loop guard has parked %s, whose pages are not fetched. See them with: scrapy bloom info %s. To "
                "bring them back, use scrapy bloom release or requeue, or the option allow of BLOOM_LOOP_GUARD.",
                counted(waiting, "request"),
                self._jobdir,
            )

    def parked_in_memory(self) -> list[str]:
        """Return the URLs that are parked for this run only, as without a job directory; also when it is over."""
        return self._lot.urls() if isinstance(self._lot, ParkedInMemory) else []

    def itself(self) -> LoopGuard:
        """Return the guard: the answer to the signal by which the parts of one crawl find it."""
        return self

    # -- what the crawl shows it ---------------------------------------------------------------------------------

    def queued(self, request: Request) -> Verdict:
        """Count *request*, which the filter has just called new, among its shapes, and lower its priority."""
        # A callback that passes on all of its page's meta says of its links that they are the spider's first requests.
        is_start = request.meta.get("is_start_request") and LINKED_FROM not in request.meta
        if not self.is_open or is_start:
            return PASSED
        try:
            if derived_from := request.meta.pop(QUEUED, None):
                request.priority += derived_from[0]
            return self._demote(request)
        except Exception:  # somebody has overwritten the marks of the page that linked to it
            self._warn_once("queue", "%s cannot be judged, and is queued as it is", request, exc_info=True)
            return PASSED

    def _demote(self, request: Request) -> Verdict:
        accounts = self._accounts_of(self._shapes.learn(request.url))
        rank = steps = 0
        if not self._is_allowed(request.url):
            rank = rank_of(accounts)
            steps = steps_of(self._candidate(request, rank, accounts), is_due=False)
        self._count_link(request.meta.get(LINKED_FROM, ()), accounts)
        for account in accounts:
            account.queued += 1
            self._changed.add(account.id)
        request.meta[QUEUED] = (steps, rank, False)
        if not steps:
            return PASSED
        request.priority -= steps
        own = accounts[0]
        return Verdict(
            "demoted",
            f"by {steps} step{'' if steps == 1 else 's'}. {own.shape}: "
            f"{own.fetched:,} of {own.queued:,} URLs have been fetched",
        )

    def out_of_queue(self, request: Request, send_back: Callable[[Request], None] | None = None) -> bool:
        """Undo what was done to *request* for the queue. Return whether it waits longer instead of being fetched.

        Unless it is parked, what waits is a copy that *send_back* was called with: by default the function that
        :meth:`sends_back_by` was told. A released request goes back by the latter in any case, at once: until it is in
        the queue again, it stays among those parked.
        """
        queued = request.meta.pop(QUEUED, None)
        number = request.meta.pop(RELEASED, None)
        if queued is None:
            return False
        try:
            steps, rank, was_sent_back = queued
            request.priority += steps
            if request.dont_filter and not was_sent_back:  # the mark is that of a request which it was derived from
                return False
            request.dont_filter = False  # what was sent back had to pass the filter once more
            back = self._send_back if send_back is None or number is not None else send_back
            is_kept = self.is_open and self._waits_longer(request, steps, rank, back)
        except Exception:  # a page that is fetched too early or twice is better than one that is lost
            self._warn_once("judge", "%s cannot be judged, and is fetched", request, exc_info=True)
            return False
        if number is not None and self._lot is not None:
            try:  # after it was parked again: a kill in between fetches it twice
                self._lot.drop(number)
            except Exception:  # a full disk: it stays there, and is fetched twice at worst
                self._warn_once("drop", "What has left %s cannot be deleted there", self._lot, exc_info=True)
        return is_kept

    def saw(self, response: Response, request: Request) -> None:
        """Take note of what *response* brought, which *request* has led to, maybe over redirects."""
        if self._news is None or not self.is_open:
            return
        url = _asked_for(request)
        accounts = self._accounts_of(self._shapes.of(url))
        is_news: bool | None
        is_in_doubt = False
        try:
            if self._skimming.may_skim(response.body, accounts) and self._news.skim(response):
                is_news = True
                self._skimming.keep(url, response.body)
                self._stats.inc_value("bloom/loop/skimmed")
            else:
                is_news = self._news.brought(response, breeds=breeds(accounts))
                is_in_doubt = is_news is None
            if self._news.was_shown(url) and not is_news:
                is_news = None  # fetched again, after a kill or at the spider's wish: that is no copy of another page
                is_in_doubt = False
        except Exception:  # whatever it is, no page is parked because of it
            self._warn_once("news", "What %s brought cannot be told, and counts as news", url, exc_info=True)
            is_news = True
        try:
            self._note(url, accounts, request, is_news=is_news, is_in_doubt=is_in_doubt)
        except Exception:  # likewise; its callback gets the page all the same
            self._warn_once("note", "What %s brought cannot be counted", url, exc_info=True)

    def saw_nothing(self, request: Request) -> None:
        """Take note that *request* has been dropped, if it has come from a redirect: the page is known."""
        if self._news is None or not self.is_open or not request.meta.get("redirect_urls"):
            return
        try:
            url = _asked_for(request)
            is_news = None if self._news.was_shown(url) else False
            self._note(url, self._accounts_of(self._shapes.of(url)), request, is_news=is_news)
        except Exception:  # it is dropped all the same
            self._warn_once("note", "%s, which is dropped, cannot be counted", request, exc_info=True)

    def marks_of_links(self, request: Request) -> dict[str, Any]:
        """Return what the ``meta`` of each link on the page of *request* is to have."""
        source = self._source(request)
        self._skimming.links_begin(_asked_for(request), source)
        return {LINKED_FROM: source, BARREN: request.meta.get(BARREN, 0)}

    def _source(self, request: Request) -> tuple[int, ...]:
        # A tuple, since garbage collection passes over it: it is in every request that waits.
        url = _asked_for(request)
        last, accounts = self._last_page
        if url == last:
            return tuple([number for account in accounts for number in (account.id, account.fetched)])
        source: list[int] = []
        for number in map(number_of, self._shapes.of(url)):
            account = self._accounts.get(number)
            source += [number, 0 if account is None else account.fetched]
        return tuple(source)

    def sends_back_by(self, send_back: Callable[[Request], None]) -> None:
        """Call *send_back* with each request that is to go back to the queue, from now on.

        The first ones are those that a person has taken back since: by ``allow``, or with ``verdicts.take_back()``.
        """
        self._send_back = send_back
        if isinstance(self._lot, ParkedFile):
            try:
                allowed = self._lot.release_urls(self._is_allowed) if self._allowed else 0
            except Exception:  # a full disk: the next run looks again
                allowed = 0
                self._warn_once("allow", "What is allowed now cannot be released from %s", self._lot, exc_info=True)
            if allowed:
                logger.info("Loop guard: back to the queue, as allowed now: %s", counted(allowed, "parked request"))
            self._release(TAKEN_BACK)
        for id_ in self._waiting():  # some had waited for pages that were under way when an earlier run ended
            if id_ in self._accounts:
                self._release_if_due(self._accounts[id_])

    def release_all_due(self) -> int:
        """Send back a portion of what is parked for shapes that are not dry any more; return how many requests.

        If there is nothing, send back one request of each shape that is dry, to be fetched all the same.
        """
        if self._lot is None or not self.is_open:
            return 0
        for account in self._waited_for:
            account.under_way.clear()
        self._waited_for.clear()
        waiting = self._waiting()
        due = sum(self._release(id_) for id_ in waiting if not self._is_dry(id_))
        if due:
            return due
        left = [id_ for id_ in waiting if self._tried_last[id_] < LAST_TRIES][:PORTION]
        self._tried_last.update(left)
        return self._try(left)

    def _waiting(self) -> list[int]:
        return [id_ for id_, count in self._lot.waiting.items() if count > 0] if self._lot is not None else []

    def _try(self, accounts: Iterable[int]) -> int:
        return sum(self._release(id_, are_tried=True) for id_ in accounts)

    # -- verdicts ------------------------------------------------------------------------------------------------

    def _waits_longer(
        self, request: Request, steps: int, rank: int, send_back: Callable[[Request], None] | None
    ) -> bool:
        """Send *request* back to the queue if its kind has grown since it was queued, or park it, if either is due."""
        self._came_back(request)  # a redirect is fetched in place of what led to it
        own, fewer, others = known_accounts(request.url, self._shapes, self._accounts)
        accounts = [*own, *others]
        if TRIED_FOR in request.meta:
            self._count_under_way(request, accounts)
            return False
        later = steps_later(self._candidate(request, rank, accounts), steps) if rank and accounts else 0
        if later and send_back is not None:
            again = request.copy()
            again.meta[QUEUED] = (steps + later, rank, True)
            again.priority -= steps + later
            again.dont_filter = True  # the filter knows it; out_of_queue() takes it back
            send_back(again)
            self._stats.inc_value("bloom/loop/postponed")
            return True
        judge = None if self._is_allowed(request.url) else judge_among(own, fewer, others, self._accounts)
        if judge is not None and self._park(judge, request):
            return True
        self._count_under_way(request, accounts)
        return False

    def _count_under_way(self, request: Request, accounts: Iterable[Account]) -> None:
        """Count *request*, which is fetched now, for those of *accounts* that must wait for it.

        Where a kind of its own brings something, it says nothing about the folder around it.
        """
        counted = []
        for account in accounts:
            if account.must_wait:
                account.under_way.append(self._pages + LOST)
                self._waited_for.add(account)
                counted.append(account.id)
            elif account.is_rich:
                break
        if counted:
            request.meta[UNDER_WAY] = tuple(counted)

    def _came_back(self, request: Request) -> list[Account]:
        """Return the shapes that *request* was under way for; it is no more."""
        accounts = [self._accounts[id_] for id_ in request.meta.pop(UNDER_WAY, ()) if id_ in self._accounts]
        for account in accounts:
            del account.under_way[:1]
        return accounts

    def _give_up_lost(self) -> None:
        """Wait no longer for what was handed out LOST pages ago."""
        for account in list(self._waited_for):
            account.under_way = [end for end in account.under_way if end > self._pages]
            if not account.under_way:
                self._waited_for.discard(account)
            self._release_if_due(account)

    def _candidate(self, request: Request, rank: int, accounts: Sequence[Account]) -> Candidate:
        own = accounts[0]
        folder = folder_of(own, self._accounts) if own.is_of_query else None
        return Candidate(request.url, rank, accounts, folder, request.meta.get(BARREN, 0))

    def _count_link(self, source: Sequence[int], accounts: Sequence[Account]) -> None:
        """Count a new URL, whose shapes are *accounts*, for the shapes of the page that links to it."""
        if not source:
            return
        unread = self._skimming.leads_on(tuple(source))
        if unread is not None and self._news is not None:
            self._news.read(*unread)
        same = {account.id for account in accounts}
        if source[-2] == accounts[-1].id:
            judge = with_evidence(accounts)
            leads_somewhere = judge is None or not judge.is_barren
            for number in source[::2]:
                account = self._accounts.get(number)
                if account is not None:
                    account.bred += leads_somewhere
                    account.loops += number in same
                    self._changed.add(number)

    def _park(self, judge: Account, request: Request) -> bool:
        """Park *request*, unless *judge* has run dry and it is one to try."""
        if self._lot is None:
            return False
        if not judge.has_run_dry:
            judge.has_run_dry = True
            self._skimming.end()
            judge.example = request.url
            self._stats.inc_value("bloom/loop/verdicts")
            logger.info(
                "Loop guard: %s has run dry and is parked. Of %d pages the last %d brought nothing new, nor did what "
                "they link to; %d URLs were queued. Example: %s",
                judge.shape,
                judge.fetched,
                judge.dry,
                judge.queued,
                request.url,
            )
        judge.has_bred |= judge.breeds
        if judge.dry >= judge.limit and self._is_one_to_try(judge, request):
            request.meta[TRIED_FOR] = judge.id
            self._stats.inc_value("bloom/loop/tried")
            return False
        if not self._lot.park(judge.id, request):
            self._stats.inc_value("bloom/loop/not_parked")
            self._warn_once("park", "%s cannot be parked, and is fetched", request)
            return False
        self._stats.inc_value("bloom/loop/parked")
        return True

    def _is_one_to_try(self, judge: Account, request: Request) -> bool:
        """Whether *request* is the 1st, 2nd, 4th, 8th, ... that comes up, or one of these of an unknown kind."""
        judge.tried += 1
        self._changed.add(judge.id)
        is_one = judge.tried.bit_count() == 1
        own = self._accounts.get(number_of(self._shapes.of(request.url)[0]))
        if own is None or not own.fetched:  # a kind that nothing is known of is tried by its own count
            judge.strangers += 1
            is_one |= judge.strangers.bit_count() == 1
        return is_one

    def _note(
        self, url: str, accounts: list[Account], request: Request, *, is_news: bool | None, is_in_doubt: bool = False
    ) -> None:
        """Count a page for *accounts*, those of its *url*; None: it says nothing about other pages of its kind.

        If that *is_in_doubt*, it counts as news for the list that led to it, and for a verdict that it is to try.
        """
        self._last_page = url, tuple(accounts)
        if is_news is not None:
            self._skimming.note(is_news=is_news)
            request.meta[BARREN] = 0 if is_news else request.meta.get(BARREN, 0) + 1
            for account in accounts:
                account.note(is_news=is_news)
                self._changed.add(account.id)
        due = self._came_back(request)
        tried_for = request.meta.pop(TRIED_FOR, None)
        if is_news or is_in_doubt:
            self._credit(request.meta.get(LINKED_FROM, ()))
            judge = self._accounts.get(tried_for) if tried_for is not None else None
            if judge is not None:
                judge.dry = 0
                accounts.append(judge)
            due += accounts
        for account in dict.fromkeys(due):
            self._release_if_due(account)
        self._pages += 1
        if self._pages >= self._next_tries:
            self._next_tries *= 4
            waiting = self._waiting()
            self._try(random.sample(waiting, min(PORTION, len(waiting))))
        if monotonic() >= self._next_save:
            self._checkpoint()

    def _credit(self, source: Sequence[int]) -> None:
        """Count news for the page that led to it, however long ago: only pages after that one are still dry."""
        for number, position in zip(source[::2], source[1::2], strict=True):
            account = self._accounts.get(number)
            if account is None:
                continue
            account.brought += 1
            if account.dry > account.fetched - position:
                account.dry = max(0, account.fetched - position)
                self._changed.add(number)
                self._release_if_due(account)

    def _release_if_due(self, account: Account) -> None:
        if self._lot is not None and not account.is_dry and self._lot.waiting[account.id]:
            self._tried_last.pop(account.id, None)
            self._release(account.id, max(1, account.patience) if account.under_way else FOR_NEWS)

    def _release(self, id_: int, most: int = PORTION, *, are_tried: bool = False) -> int:
        if self._lot is None or self._send_back is None:
            return 0
        try:
            # What is tried is drawn: the oldest may all be of a maze that something better was parked with.
            released = self._lot.release_any(id_) if are_tried else self._lot.release(id_, most)
        except Exception:  # a full disk: they stay parked, for the next news or the next run
            self._warn_once("release", "What is parked in %s cannot be released", self._lot, exc_info=True)
            return 0
        if self._lot.unreadable:
            self._warn_once(
                "unreadable",
                "A parked request in %s cannot be read. Has its callback or a class in its meta been renamed? It stays "
                "there for a later run",
                self._lot,
            )
        for number, request in released:
            request.dont_filter = True  # the filter knows it; out_of_queue() takes it back
            request.meta[RELEASED] = number
            if are_tried:
                request.meta[TRIED_FOR] = id_
            own, _, others = known_accounts(request.url, self._shapes, self._accounts)
            accounts = [*own, *others]
            rank = rank_of(accounts) if accounts else 0
            steps = steps_of(self._candidate(request, rank, accounts), is_due=True) if accounts else 0
            request.meta[QUEUED] = (steps, rank, True)
            request.priority -= steps
            self._send_back(request)
        if are_tried:
            self._stats.inc_value("bloom/loop/tried", len(released))
        else:
            self._stats.inc_value("bloom/loop/released", len(released))
        return len(released)

    def _is_dry(self, id_: int) -> bool:
        """Whether a verdict stands; no for an account that a kill has taken before it was saved."""
        account = self._accounts.get(id_)
        return account is not None and account.is_dry

    def _is_allowed(self, url: str) -> bool:
        return any(search(url) for search in self._allowed)

    # -- accounts ------------------------------------------------------------------------------------------------

    def _accounts_of(self, shapes: Sequence[str]) -> list[Account]:
        accounts = []
        for shape in shapes:
            id_ = number_of(shape)
            account = self._accounts.get(id_)
            if account is None:
                account = self._accounts[id_] = Account(id_, shape)
            accounts.append(account)
        if len(self._accounts) > ACCOUNTS:
            self._forget_some(keep={account.id for account in accounts})
        return accounts

    def _forget_some(self, keep: set[int]) -> None:
        waiting: Counter[int] = self._lot.waiting if self._lot is not None else Counter()
        spare = [a for a in self._accounts.values() if not a.has_run_dry and not a.pardoned and a.id not in keep]
        spare.sort(key=lambda account: (account.fetched, account.queued))
        for account in spare[: ACCOUNTS // 10]:
            if not waiting[account.id]:
                del self._accounts[account.id]
                self._forgotten.append(account.id)

    def _load(self, lot: ParkedFile) -> None:
        self._accounts.update(accounts_in(lot.accounts()))
        if any(account.has_run_dry for account in self._accounts.values()):
            self._skimming.end()
        self._shapes.load(lot.folders())

    def _checkpoint(self) -> None:
        self._next_save = monotonic() + SAVE_INTERVAL
        if self._seen is not None and monotonic() >= self._next_news:
            self._begin_news(self._seen)
        self._give_up_lost()
        self._set_stats()
        if isinstance(self._lot, ParkedFile):
            self._save(self._lot)

    def _save(self, lot: ParkedFile) -> None:
        rows = [self._accounts[id_].row() for id_ in self._changed if id_ in self._accounts]
        try:
            lot.save(rows, self._shapes.changed(), forgotten_accounts=self._forgotten)
        except Exception:  # a full disk: what is not written is relearned
            self._warn_once("save", "What the loop guard knows cannot be saved in %s", lot, exc_info=True)
            return
        self._changed.clear()
        self._forgotten.clear()

    def _set_stats(self) -> None:
        if self._lot is not None:
            self._stats.set_value("bloom/loop/waiting", self._lot.waiting.total())
        if self._seen is not None:
            self._stats.set_value("bloom/loop/news_bytes", self._seen.nbytes)

    def _warn_once(self, kind: str, message: str, *args: object, exc_info: bool = False) -> None:
        if kind not in self._has_warned:
            self._has_warned.add(kind)
            logger.warning(message + ". Further ones are not shown", *args, exc_info=exc_info)


def _asked_for(request: Request) -> str:
    redirected: Iterable[str] = request.meta.get("redirect_urls", ())
    return next(iter(redirected), request.url)
