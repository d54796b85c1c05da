"""What a duplicate filter asks about endless URL spaces, and what answers under the settings of a crawl.

Knows no limit and no shape: ``loops/`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from scrapy_bloom.old.crawl.loop_guard_middleware import loop_guard_of
from scrapy_bloom.old.loops.limits import objection_by

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.old.loops.limits import Objection
    from scrapy_bloom.old.loops.verdict import Verdict
    from scrapy_bloom.old.settings import BloomSettings


class Guard(Protocol):
    """Judges requests by what the pages of their shape have brought. Open as long as the filter is."""

    def open(self, jobdir: Path | None, *, begins_anew: bool = False) -> None:
        """Begin with what an earlier run has left in *jobdir*; None: in memory only.

        The crawl *begins_anew* if the filter knows no URL.

        Raises:
            BloomError: What is there cannot be used. The crawl does not start.

        """

    def queued(self, request: Request) -> Verdict:
        """Judge *request*, which the filter has just called new, before it goes to the queue.

        May lower ``request.priority``. If the verdict says parked, the guard keeps the request, and nobody else will
        fetch it, since its fingerprint is in the filter. Under a scheduler that does not hold fingerprints back, the
        fingerprint survives the process from this moment on, and so must the request.
        """

    def saw_nothing(self, request: Request) -> None:
        """Take note that *request*, which may come from a redirect, is dropped, for whatever reason. Never raises."""

    def hold_back(self) -> None:
        """From now on, a request that was released may be forgotten only after :meth:`seal` and :meth:`checkpoint`."""

    def seal(self) -> None:
        """Tell what happened before a commit of the queue begins from what comes later."""

    def checkpoint(self) -> None:
        """Return when everything parked would survive the process.

        Called before the filter lets go of fingerprints that it held back. If this raises, it holds on to them.
        """

    def queue_was_lost(self) -> None:
        """Keep what was released, since the queue that has it could not be written."""

    def close(self) -> None:
        """Write down what a later run needs. Called before the filter closes."""


def objection_of(settings: BloomSettings) -> Callable[[str], Objection | None] | None:
    """Return the function that says what speaks against a URL under *settings*, or None if limits are off."""
    return objection_by(settings.loop_guard) if settings.loop_guard else None


def guard_of(crawler: Crawler, settings: BloomSettings) -> Guard | None:
    """Return the guard that *settings* switch on for *crawler*, or None."""
    return loop_guard_of(crawler) if settings.loop_guard else None
