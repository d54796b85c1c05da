"""The record of a request in progress: what became of it, and what is committed together with it.

The store makes the record when it hands the request out. The record is dropped when the page is committed.
"""

from __future__ import annotations

import enum
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from scrapy_bloom.loops.share import Mark


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

    @classmethod
    def of(cls, downloaded: object, failing_statuses: Collection[int]) -> Result:
        """Return the outcome of a request whose download, with all middlewares, gave *downloaded*.

        Args:
            downloaded: A Response, a Request or a Failure.
            failing_statuses: ``RETRY_HTTP_CODES``. A response with one of these arrives when the retries are used up.

        """
        if isinstance(downloaded, Response):
            if downloaded.status in failing_statuses:
                return cls(Outcome.FAILED, f"status {downloaded.status}", has_answer=True)
            return ANSWERED
        if isinstance(downloaded, Request):
            return cls(Outcome.REPLACED)
        exception: Any = getattr(downloaded, "value", downloaded)
        if isinstance(exception, IgnoreRequest):
            return cls(Outcome.REFUSED)
        return cls(Outcome.FAILED, type(exception).__name__)


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
    """How much of a page is committed."""

    WHOLE = "nothing, and all of it at once later"
    IN_PARTS = "what it led to so far"
    COMMITTED = "all"


@dataclass(slots=True, eq=False)
class Page:
    """A request in progress. :class:`~scrapy_bloom.job.open_pages.OpenPages` decides when it is committed."""

    request: Request
    slot: str
    """The download slot that it counts for."""
    row: Row | None = None
    """None: the request is in memory only."""
    mark: Mark | None = None
    """What the loop guard noted of the request."""
    is_judged: bool = False
    """Whether the loop guard has seen the answer."""
    fingerprint: bytes | None = None
    """Of a request in memory only: it is written with the page."""
    result: Result = UNKNOWN
    gave: list[tuple[str, Any]] = field(default_factory=list)
    """Copies of its items, each with the name of a feed in ``FEEDS``."""
    taken_back: list[bytes] = field(default_factory=list)
    """Fingerprints that are new again with the commit of the page, because it has failed."""
    failed_items: bool | None = None
    """Whether an item was lost to an error; None: it has given no item."""
    parents: tuple[Page, ...] = ()
    """The page that it came from. Of a request in memory only: the pages that wait for it."""
    held: dict[int, Any] = field(default_factory=dict)
    """Unfiltered requests that the page led to, by id, as its store writes them: together with the page."""
    deferred: list[Page] = field(default_factory=list)
    """Pages it led to that are done, and are committed with it."""
    open_parts: int = 1
    """The page itself, until the engine is done with it, and each request in memory only that it led to."""
    state: State = State.WHOLE

    def own_request(self, in_flight: Mapping[int, Page]) -> Request:
        """Return the request, which from now on belongs to this page alone among those *in_flight*.

        One request object may be queued again, or several times, while a page of it is in progress.
        """
        if id(self.request) in in_flight:
            self.request = copy(self.request)
        return self.request

    def note_item(self, *, failed: bool = False) -> None:
        """Note that the page has given an item; *failed*: one that an error lost."""
        self.failed_items = bool(self.failed_items) or failed

    def note_callback_error(self, exception: BaseException) -> None:
        """Note that the callback or the errback raised *exception*."""
        if self.result.outcome is not Outcome.FAILED:
            reason = f"{type(exception).__name__} in the callback"
            self.result = self.result._replace(outcome=Outcome.FAILED, reason=reason)
