"""The record of a request in progress, its states, and the one rule of what waits for what.

The store makes the record when it hands the request out. What the page leads to is of three sorts:

    a filtered request      written at once: when its page is fetched again, the filter drops it
    an unfiltered request   written with its page. It may be handed out before; then it is committed with the page
    one in memory only      never written. Its page is not complete before it is

So after a kill, a page is fetched again together with everything that only this page can lead to. A :class:`Sink` says
how a page is committed: as rows of a batch, or as a call to a server.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from scrapy_bloom.loops.share import Mark


class Pending(NamedTuple):
    """A request that is about to be queued, as plain data."""

    lane: Any
    """Where it waits: a :class:`~scrapy_bloom.frontier.order.LaneKey`, or what a fleet's queue has in its place."""
    fingerprint: bytes | None = None
    """What the filter knows it by; None: it is not filtered."""
    body: bytes | None = None
    """The request as the store keeps it; None: it stays in this process, as :attr:`request`."""
    request: Any = None
    """The request of the framework. No store looks into it."""
    mark: Mark | None = None
    """What the loop guard notes of it."""


class Outcome(enum.Enum):
    """What became of a request."""

    UNKNOWN = "unknown"
    """Nothing yet. A request that leaves the engine like this was refused."""
    ANSWERED = "answered"
    """A response reached the spider."""
    REPLACED = "replaced"
    """A downloader middleware returned another request: a retry, a redirect, a new proxy."""
    REFUSED = "refused"
    """A downloader middleware raised IgnoreRequest."""
    FAILED = "failed"
    """The download raised, the answer has a status of ``RETRY_HTTP_CODES``, or the callback raised."""


class Result(NamedTuple):
    """The outcome of a request as its download tells it."""

    outcome: Outcome
    reason: str = ""
    """Why it failed."""
    has_answer: bool = False
    """Whether a response came, whatever became of it."""


UNKNOWN, ANSWERED = Result(Outcome.UNKNOWN), Result(Outcome.ANSWERED, has_answer=True)


class Row(NamedTuple):
    """Where a request stands in the database."""

    lane: int
    id: int


class FailedRow(NamedTuple):
    """A request that has failed for good."""

    url: str
    host: str
    reason: str
    time: float
    """Seconds since 1970."""
    body: bytes | None = None
    """The request as bytes, as it was stored while it was pending; None if it cannot be serialized."""


class State(enum.Enum):
    """Where a page stands on its way from the hand-out of its request to its commit."""

    OPEN = "open"
    """The engine works on it."""
    WAITING = "waiting"
    """The engine is done with it. A request in memory that it led to is not complete."""
    COMPLETE = "complete"
    """So are all requests in memory that it led to."""
    DEFERRED = "deferred"
    """It is complete, and is committed together with the page that led to it."""
    COMMITTED = "committed"
    """Its row, its items and what it led to are part of a commit."""


class Event(enum.Enum):
    """What moves a page from one state to another."""

    DONE_BEFORE_OTHERS = "done before others"
    """The engine is done with the page, and a request in memory that it led to is not complete."""
    DONE = "done"
    """The engine is done with the page."""
    READY = "ready"
    """The last request in memory that the page led to is complete."""
    HELD = "held"
    """The page that led to it is not committed: if that is fetched again, it leads here again."""
    FREE = "free"
    """No page led to it, or that one is committed or does not wait for it."""


TRANSITIONS = {
    (State.OPEN, Event.DONE_BEFORE_OTHERS): State.WAITING,
    (State.OPEN, Event.DONE): State.COMPLETE,
    (State.WAITING, Event.READY): State.COMPLETE,
    (State.COMPLETE, Event.HELD): State.DEFERRED,
    (State.COMPLETE, Event.FREE): State.COMMITTED,
    (State.DEFERRED, Event.FREE): State.COMMITTED,
}
"""The next state of a page. A pair that is not here is a fault of ours."""


@dataclass(slots=True, eq=False, kw_only=True)
class Transaction:
    """What a page is committed with, and after what."""

    parent: Page | None = None
    """The page that led to it, if that is committed before it or together with it."""
    in_memory: int = 0
    """How many requests in memory only it led to that are not complete."""
    held: dict[int, Any] = field(default_factory=dict)
    """Unfiltered requests that the page led to, by id, as its store writes them: together with the page."""
    deferred: list[Page] = field(default_factory=list)
    """Pages it led to that are done, and are committed with it."""
    is_split: bool = False
    """Whether what it leads to is committed without it, because there is too much of it, or it takes too long."""
    state: State = State.OPEN

    def move(self, event: Event) -> None:
        """Go to the next state. KeyError if *event* cannot happen in this one."""
        self.state = TRANSITIONS[self.state, event]


@dataclass(slots=True, eq=False)
class Page(Transaction):
    """A request in progress, and what came of it."""

    slot: str
    """The download slot that it counts for."""
    request: Any = None
    """The request of the framework; None: it is in :attr:`body`, and was not read."""
    url: str = ""
    """For the loop guard: the URL that was asked for, before any redirect."""
    row: Row | None = None
    """None: the request is in memory only."""
    mark: Mark | None = None
    """What the loop guard noted of the request."""
    is_judged: bool = False
    """Whether the loop guard has seen the answer."""
    fingerprint: bytes | None = None
    """Of a request in memory only: it is written with the page."""
    body: bytes | None = None
    """The request as it was stored; None: it is in memory only, and does not survive the process."""
    changes: Any = None
    """What :mod:`scrapy_bloom.crawl.changes` knows of it; None: nothing."""
    result: Result = UNKNOWN
    gave: list[tuple[str, Any, Any]] = field(default_factory=list)
    """The name of a feed in ``FEEDS``, a copy of an item, and what the item changes; None: nothing is compared."""
    taken_back: list[bytes] = field(default_factory=list)
    """Fingerprints that are new again with the commit of the page, because it has failed."""
    failed: FailedRow | None = None
    """What a job lists of the request, which has failed for good."""
    key: bytes | None = None
    """What delta crawls know the page by; None: it may be fetched again."""
    failed_items: bool | None = None
    """Whether an item was lost to an error; None: it has given no item."""

    def note_item(self, *, failed: bool = False) -> None:
        """Note that the page has given an item; *failed*: one that an error lost."""
        self.failed_items = bool(self.failed_items) or failed

    def note_callback_error(self, exception: BaseException) -> None:
        """Note that the callback or the errback raised *exception*."""
        if self.result.outcome is not Outcome.FAILED:
            reason = f"{type(exception).__name__} in the callback"
            self.result = self.result._replace(outcome=Outcome.FAILED, reason=reason)


class Sink(Protocol):
    """Where pages are committed to."""

    def write(self, key: int, request: Any) -> None:
        """Add an unfiltered *request* that was held under *key*."""

    def commit(self, page: Page) -> None:
        """Add *page*: its items, and that its request is done."""


def lead_to_memory(parent: Page | None, page: Page) -> None:
    """Let *parent*, which is in progress, wait for *page*, whose request is in memory only."""
    if parent is not None:
        page.parent = parent
        parent.in_memory += 1


def done(page: Page, sink: Sink) -> None:
    """Note that the engine is done with *page*; commit to *sink* what is free to be committed now."""
    page.move(Event.DONE_BEFORE_OTHERS if page.in_memory else Event.DONE)
    while page.state is State.COMPLETE:
        parent = page.parent
        if parent is None or parent.is_split or parent.state is State.COMMITTED:
            _commit(page, sink)
        else:
            page.move(Event.HELD)
            parent.deferred.append(page)
        if page.row is not None or parent is None:
            return
        parent.in_memory -= 1
        if parent.in_memory or parent.state is not State.WAITING:
            return
        page = parent
        page.move(Event.READY)


def split(page: Page, sink: Sink) -> None:
    """Commit what waits for *page* without it, and what it leads to from now on."""
    page.is_split = True
    _release(page, sink)


def _commit(page: Page, sink: Sink) -> None:
    page.move(Event.FREE)
    sink.commit(page)
    _release(page, sink)


def _release(page: Page, sink: Sink) -> None:
    """Commit what waits for *page* alone, and in turn what waits for that."""
    pages = [page]
    while pages:
        page = pages.pop()
        for key, request in page.held.items():
            sink.write(key, request)
        page.held.clear()
        for child in page.deferred:
            child.move(Event.FREE)
            sink.commit(child)
        pages += reversed(page.deferred)
        page.deferred = []


def check(page: Page) -> None:
    """Assert what always holds of *page*."""
    assert page.in_memory >= 0
    assert page.state is not State.COMPLETE, "a state in passing"
    assert (page.state is State.WAITING) <= (page.in_memory > 0)
    assert (page.state in {State.DEFERRED, State.COMMITTED}) <= (not page.in_memory)
    assert (page.state is State.COMMITTED or page.is_split) <= (not page.held and not page.deferred)
    assert all(child.parent is page and child.state is State.DEFERRED for child in page.deferred)
    assert (page.state is State.DEFERRED) <= (page.parent is not None)
