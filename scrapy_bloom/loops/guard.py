"""Judges the shapes of a crawl by what their pages bring: demotes what grows, parks what has run dry.

Knows requests and what ``news`` says of a response. Knows no scheduler and no filter: ``crawl/base_dupefilter`` tells
it what is new, ``middleware`` shows it what comes out of the queue and what comes back, and takes what it releases.

A page that brings nothing new makes each of its shapes a little drier. A page with news makes them wet again, and also
the shapes of the page that *linked* to it: a list has no text that its items do not repeat, so its news is what it
leads to. (Counting new links instead would reward mazes.)

Of the shapes of a URL the most specific one that has brought something lately decides: then nothing is held back. One
that is dry has a say only if none below it is productive, so a good list in a dry folder goes on, and a trap that makes
a shape of every page is caught by its folder.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING

import mmh3

from scrapy_bloom.files.directory import open_filter
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.loops.news import News
from scrapy_bloom.loops.parked import TAKEN_BACK, AccountRow, ParkedFile, ParkedInMemory
from scrapy_bloom.loops.shapes import Shapes
from scrapy_bloom.loops.verdict import PASSED, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from scrapy import Request, Spider
    from scrapy.http import Response
    from scrapy.statscollectors import StatsCollector

    from scrapy_bloom.loops.options import LoopOptions

logger = logging.getLogger(__name__)

DRY = 25
"""Pages of a shape in a row that bring nothing, and link to nothing new, before it is parked. The longest such run
in one folder of 7,692 pages of documentation was 1."""

EVIDENCE = 5
"""Pages of a shape that must have been fetched before it can speak for itself."""

STEPS = 24
"""Different priorities that demotion makes of one: each is a queue in Scrapy's priority queue."""

RANK_STEPS = 16
"""Of these, the steps for how many URLs of the shape were queued before: one for each doubling, from FREE_RANK on."""

FREE_RANK = 8
"""URLs of a shape that are queued without being demoted."""

CHILDLESS = 16
"""How many URLs count as one where pages bring news and lead to no more of their section: the items of a shop."""

MOST_GROWTH = 16.0
"""How many URLs one of a breeding shape counts as, at most: a list may have a hundred links."""

LATELY = 128
"""Pages over which the rate is taken at which a shape breeds URLs of itself."""

SECTION_WEIGHT = 4
"""URLs of a whole section (its outermost folder) that demote as much as one of the shape. In a last-in-first-out queue,
what was found first, as the sections on the home page, otherwise waits for ever new small shapes of traps."""

PORTION = 64
"""Parked requests released at a time. The next ones follow as long as there is news."""

ACCOUNTS = 100_000
"""Shapes that are remembered, some 40 MB. Past that, the least fetched ones without a verdict are forgotten."""

SAVE_INTERVAL = 5.0
"""Seconds between saves of what is known about shapes. What a kill loses costs a few more fetches."""

NEWS_CAPACITY = 1_000_000
NEWS_ERROR_RATE = 1e-3

LINKED_FROM = "bloom_linked_from"
"""Key in ``request.meta``: the shapes of the page that linked to it, the number of each followed by how many of its
pages had been fetched by then."""

QUEUED = "bloom_loop_queued"
"""Key in ``request.meta`` while a request is in the queue: by how much it was demoted."""

RELEASED = "bloom_loop_released"
"""Key in ``request.meta`` while a released request is in the queue: its number among those parked."""


TRIED_FOR = "bloom_loop_tried"
"""Key in ``request.meta``: number of the shape whose verdict it is to try."""


class Account:
    """What is known about one shape."""

    __slots__ = (
        "bred",
        "brought",
        "dry",
        "example",
        "fetched",
        "id",
        "kin",
        "lately",
        "pardoned",
        "queued",
        "shape",
        "strangers",
        "told",
        "tried",
    )

    def __init__(self, id_: int, shape: str) -> None:
        self.id = id_
        self.shape = shape
        self.fetched = 0
        """Pages that have come back."""
        self.dry = 0
        """Of the last ones in a row, those that brought nothing."""
        self.queued = 0
        """URLs that were new to the filter."""
        self.tried = 0
        """URLs that came up while the shape was dry."""
        self.strangers = 0
        """Of these, the ones whose own shape had not been fetched yet."""
        self.lately = 0
        """Pages that have come back; this and the next three are halved at LATELY, to tell of the last ones."""
        self.bred = 0
        """New URLs of the same section that were found on them."""
        self.kin = 0
        """Of these, the ones whose shape breeds as well."""
        self.brought = 0
        """Pages with news, of these and of those they have led to."""
        self.told = False
        """Whether it has run dry at least once."""
        self.pardoned = False
        """Whether a person has taken its verdict back."""
        self.example = ""

    @property
    def is_dry(self) -> bool:
        """Whether to park its URLs."""
        return self.dry >= DRY and not self.pardoned

    @property
    def is_productive(self) -> bool:
        """Whether it can speak for itself, and has brought something lately."""
        return self.fetched >= EVIDENCE and self.dry < min(self.fetched, DRY)

    @property
    def breeds(self) -> bool:
        """Whether a page of this shape leads to more than one new URL of its section."""
        return self.lately >= EVIDENCE and self.bred > self.lately

    @property
    def growth(self) -> float:
        """Factor, at least 1, by which the URLs of this shape come later than their number alone says.

        The square of the number of new breeding URLs on a page of it. A list breeds items, which do not breed, and the
        next list, which makes 1. In a maze all pages breed, on its thousandth page as much as on its first. A wiki does
        so at first, until most of what its pages link to is known.
        """
        rate = self.kin / self.lately if self.lately >= EVIDENCE else 0.0
        return min(MOST_GROWTH, max(1.0, rate * rate))

    @property
    def barrenness(self) -> float:
        """Share of its last pages that brought nothing, from 0 to 1; what others bring makes up for them."""
        return max(0.0, 1.0 - self.brought / self.lately) if self.lately >= EVIDENCE else 0.0

    def row(self) -> AccountRow:
        """Return what is to be stored."""
        return AccountRow(
            self.id,
            self.shape,
            self.fetched,
            self.dry,
            self.queued,
            self.tried,
            self.strangers,
            self.lately,
            self.bred,
            self.kin,
            self.brought,
            int(self.told),
            int(self.pardoned),
            self.example,
        )


class LoopGuard:
    """One crawl's guard. Nothing it does raises: what it cannot judge is fetched."""

    def __init__(
        self,
        options: LoopOptions,
        stats: StatsCollector,
        spider: Spider | None = None,
        *,
        filter_is_shared: bool = False,
    ) -> None:
        """Guard the crawl of *spider* under *options*.

        With a filter that is shared, and so outlives this process, nothing is parked in memory: it would be lost.
        """
        self._spider = spider
        self._allowed = [re.compile(pattern).search for pattern in options.allow]
        self._stats = stats
        self._filter_is_shared = filter_is_shared
        self._shapes = Shapes()
        self._accounts: dict[int, Account] = {}
        self._changed: set[int] = set()
        self._forgotten: list[int] = []
        self._lot: ParkedInMemory | ParkedFile | None = None
        self._seen: ScalableBloomFilter | None = None
        self._news: News | None = None
        self._send_back: Callable[[Request], None] | None = None
        self._next_save = 0.0
        self._has_warned: set[str] = set()
        self.is_open = False

    # -- opening and closing -------------------------------------------------------------------------------------

    def open(self, jobdir: Path | None) -> None:
        """Begin with what an earlier run has left in *jobdir*; None: in memory only.

        Raises:
            BloomError: What is there cannot be used.

        """
        if self.is_open:
            return
        if jobdir is None:
            self._seen = ScalableBloomFilter(NEWS_CAPACITY, NEWS_ERROR_RATE)
            self._lot = None if self._filter_is_shared else ParkedInMemory()
            if self._filter_is_shared:
                logger.info(
                    "The loop guard demotes and does not park: the fleet's filter outlives this worker, and what it "
                    "parks without a JOBDIR does not. Give each worker a JOBDIR of its own to park."
                )
        else:
            self._lot = ParkedFile.open(jobdir / "requests.loops", self._spider)
            try:
                self._seen = open_filter(jobdir / "requests.news", NEWS_CAPACITY, NEWS_ERROR_RATE, sync_interval=30.0)
            except BaseException:
                self._lot.close(queue_is_kept=False)
                raise
            self._load(self._lot)
        self._news = News(self._seen)
        self._next_save = monotonic() + SAVE_INTERVAL
        self.is_open = True

    def hold_back(self) -> None:
        """From now on, keep what was released and has come out of the queue until the queue has it on disk."""
        if isinstance(self._lot, ParkedFile):
            self._lot.hold_back()

    def seal(self) -> None:
        """Tell what has come out of the queue before a commit of it from what comes later."""
        if isinstance(self._lot, ParkedFile):
            self._lot.seal()

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
        if isinstance(self._lot, ParkedFile):
            self._save(self._lot)
            self._lot.close(queue_is_kept=True)
        waiting = self._lot.waiting.total() if self._lot is not None else 0
        if waiting and isinstance(self._lot, ParkedInMemory):
            logger.info("The loop guard parked %d requests in memory; they are gone now (no JOBDIR)", waiting)
        if self._seen is not None:
            self._seen.close()

    def itself(self) -> LoopGuard:
        """Return the guard: the answer to the signal by which the parts of one crawl find it."""
        return self

    # -- what the crawl shows it ---------------------------------------------------------------------------------

    def queued(self, request: Request) -> Verdict:
        """Count *request*, which the filter has just called new, among its shapes, and lower its priority."""
        if not self.is_open or request.meta.get("is_start_request"):
            return PASSED
        accounts = self._accounts_of(self._shapes.learn(request.url))
        steps = 0
        if not self._is_allowed(request.url):
            steps = _steps(accounts)
        linked_from = request.meta.get(LINKED_FROM)
        if linked_from and linked_from[-2] == accounts[-1].id and linked_from[0] in self._accounts:
            judge = _with_evidence(accounts)
            is_kin = judge is not None and judge.breeds and judge.barrenness < 0.5
            for source in map(self._accounts.get, linked_from[::2]):
                if source is not None:
                    source.bred += 1
                    source.kin += is_kin
                    self._changed.add(source.id)
        for account in accounts:
            account.queued += 1
            self._changed.add(account.id)
        request.meta[QUEUED] = steps
        if not steps:
            return PASSED
        request.priority -= steps
        return Verdict("demoted", f"{accounts[0].shape} has {accounts[0].queued:,} URLs queued")

    def out_of_queue(self, request: Request) -> bool:
        """Undo what was done to *request* for the queue, and return whether it is parked now instead of fetched."""
        demoted = request.meta.pop(QUEUED, None)
        number = request.meta.pop(RELEASED, None)
        if demoted is None or not self.is_open:
            return False
        request.priority += demoted
        if number is not None:
            request.dont_filter = False
        judge = None if request.dont_filter else self._judge(request.url)
        is_parked = judge is not None and self._park(judge, request)
        if number is not None and self._lot is not None:
            self._lot.drop(number)  # after it was parked again: a kill in between fetches it twice
        return is_parked

    def saw(self, response: Response, request: Request) -> None:
        """Take note of what *response* brought, which *request* has led to, maybe over redirects."""
        if self._news is None or not self.is_open:
            return
        url = _asked_for(request)
        try:
            is_news = self._news.brought(response)
        except Exception:  # whatever it is, no page is parked because of it
            self._warn_once("news", "What %s brought cannot be told, and counts as news", url, exc_info=True)
            is_news = True
        self._note(url, request, is_news=is_news)

    def saw_nothing(self, request: Request) -> None:
        """Take note that *request* was redirected to a page that is known."""
        if self.is_open and request.meta.get("redirect_urls"):
            self._note(_asked_for(request), request, is_news=False)

    def source_of_links(self, request: Request) -> list[int]:
        """Return for ``LINKED_FROM`` what the links of the page of *request* come from."""
        source = []
        for number in map(_number, self._shapes.of(_asked_for(request))):
            account = self._accounts.get(number)
            source += [number, 0 if account is None else account.fetched]
        return source

    def sends_back_by(self, send_back: Callable[[Request], None]) -> None:
        """Call *send_back* with each request that is to go back to the queue, from now on.

        The first ones are those that a person has taken back since: by ``allow``, or with ``verdicts.take_back()``.
        """
        self._send_back = send_back
        if isinstance(self._lot, ParkedFile):
            allowed = self._lot.release_urls(self._is_allowed) if self._allowed else 0
            if allowed:
                logger.info("Loop guard: %d parked requests are allowed now, and go back to the queue", allowed)
            self._release(TAKEN_BACK)

    def release_all_due(self) -> int:
        """Send back a portion of what is parked for shapes that are not dry any more; return how many requests."""
        if self._lot is None or not self.is_open:
            return 0
        waiting = [account for account, count in self._lot.waiting.items() if count > 0]
        return sum(self._release(id_) for id_ in waiting if not self._is_dry(id_))

    # -- verdicts ------------------------------------------------------------------------------------------------

    def _judge(self, url: str) -> Account | None:
        """Return the account whose verdict parks *url*, or None."""
        return None if self._is_allowed(url) else judge_of(url, self._shapes, self._accounts)

    def _park(self, judge: Account, request: Request) -> bool:
        """Park *request*, unless it is one to try: the 1st, 2nd, 4th, 8th, ... that comes up."""
        if self._lot is None:
            return False
        if not judge.told:
            judge.told = True
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
        judge.tried += 1
        self._changed.add(judge.id)
        is_one_to_try = judge.tried.bit_count() == 1
        own = self._accounts.get(_number(self._shapes.of(request.url)[0]))
        if own is None or not own.fetched:  # a kind that nothing is known of is tried by its own count
            judge.strangers += 1
            is_one_to_try |= judge.strangers.bit_count() == 1
        if is_one_to_try:
            request.meta[TRIED_FOR] = judge.id
            self._stats.inc_value("bloom/loop/tried")
            return False
        if not self._lot.park(judge.id, request):
            self._stats.inc_value("bloom/loop/not_parked")
            self._warn_once("park", "%s cannot be parked, and is fetched", request)
            return False
        self._stats.inc_value("bloom/loop/parked")
        return True

    def _note(self, url: str, request: Request, *, is_news: bool) -> None:
        accounts = self._accounts_of(self._shapes.of(url))
        for account in accounts:
            account.fetched += 1
            account.lately += 1
            if account.lately >= LATELY:
                account.lately //= 2
                account.bred //= 2
                account.kin //= 2
                account.brought //= 2
            account.brought += is_news
            account.dry = 0 if is_news else account.dry + 1
            self._changed.add(account.id)
        tried_for = request.meta.pop(TRIED_FOR, None)
        if is_news:
            self._credit(request.meta.get(LINKED_FROM, ()))
            judge = self._accounts.get(tried_for) if tried_for is not None else None
            if judge is not None:
                judge.dry = 0
                accounts.append(judge)
            for account in accounts:
                self._release_if_due(account)
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
            self._release(account.id)

    def _release(self, id_: int) -> int:
        if self._lot is None or self._send_back is None:
            return 0
        released = self._lot.release(id_, PORTION)
        for number, request in released:
            request.dont_filter = True  # the filter knows it; out_of_queue() takes it back
            request.meta[RELEASED] = number
            request.meta[QUEUED] = STEPS - 1
            request.priority -= STEPS - 1
            self._send_back(request)
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
            id_ = _number(shape)
            account = self._accounts.get(id_)
            if account is None:
                account = self._accounts[id_] = Account(id_, shape)
            accounts.append(account)
        if len(self._accounts) > ACCOUNTS:
            self._forget_some(keep={account.id for account in accounts})
        return accounts

    def _forget_some(self, keep: set[int]) -> None:
        waiting: Counter[int] = self._lot.waiting if self._lot is not None else Counter()
        spare = [a for a in self._accounts.values() if not a.told and not a.pardoned and a.id not in keep]
        spare.sort(key=lambda account: (account.fetched, account.queued))
        for account in spare[: ACCOUNTS // 10]:
            if not waiting[account.id]:
                del self._accounts[account.id]
                self._forgotten.append(account.id)

    def _load(self, lot: ParkedFile) -> None:
        self._accounts.update(accounts_in(lot.accounts()))
        self._shapes.load(lot.folders())

    def _checkpoint(self) -> None:
        self._next_save = monotonic() + SAVE_INTERVAL
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


def accounts_in(rows: Iterable[AccountRow]) -> dict[int, Account]:
    """Return the accounts that were stored as *rows*, by their numbers."""
    accounts = {}
    for row in rows:
        account = accounts[row.id] = Account(row.id, row.shape)
        account.fetched, account.dry, account.queued, account.tried = row.fetched, row.dry, row.queued, row.tried
        account.strangers, account.lately, account.bred, account.kin = row.strangers, row.lately, row.bred, row.kin
        account.brought = row.brought
        account.told, account.pardoned, account.example = bool(row.told), bool(row.pardoned), row.example
    return accounts


def judge_of(url: str, shapes: Shapes, accounts: Mapping[int, Account]) -> Account | None:
    """Return which of *accounts* has run dry and parks *url*, or None."""
    own, fewer, others = (
        [accounts[number] for number in map(_number, some) if number in accounts] for some in shapes.judges_of(url)
    )
    if any(account.pardoned for account in (*own, *others)):
        return None
    for some, may_protect in ((own, True), (fewer, False), (others, True)):
        for account in some:
            if account.dry >= DRY:
                return account
            if may_protect and account.is_productive:
                return None
    return None


def _steps(accounts: Sequence[Account]) -> int:
    """Return how far the next URL of these shapes is demoted, from 0 to STEPS - 1.

    By the larger one of its shape and its subtree, two folders deep: facets make a shape of every combination. A trap
    may make such a subtree of every page, too; so its whole section counts as well, by a part, and in full where pages
    breed. Pages that bring nothing come last: a trap waits behind a large section of pages with news.
    """
    subtree = accounts[max(-2, -len(accounts))]
    judge = _with_evidence(accounts)
    growth = 1.0 if judge is None else judge.growth
    section = accounts[-1].queued if growth > 1 else accounts[-1].queued // SECTION_WEIGHT
    rank = int(max(accounts[0].queued, subtree.queued, section) * growth)
    if judge is not None and not judge.breeds and judge.barrenness < 0.5:
        rank //= CHILDLESS
    dryness = 0 if judge is None else round((STEPS - 1 - RANK_STEPS) * judge.barrenness)
    return min(RANK_STEPS, (rank // FREE_RANK).bit_length()) + dryness


def _with_evidence(accounts: Sequence[Account]) -> Account | None:
    """Return the account that says how to rank a URL: its shape's own, or the next wider one with DRY pages."""
    if accounts[0].fetched >= EVIDENCE:
        return accounts[0]
    return next((account for account in accounts if account.fetched >= DRY), None)


def _asked_for(request: Request) -> str:
    redirected: Iterable[str] = request.meta.get("redirect_urls", ())
    return next(iter(redirected), request.url)


def _number(shape: str) -> int:
    number: int = mmh3.hash64(shape)[0]
    return number
