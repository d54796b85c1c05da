"""Calls a function every so many seconds while a spider is open: :class:`RegularCall`.

Runs in the reactor's thread, and does not know what the function does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy import signals

try:
    from scrapy.utils.asyncio import create_looping_call
except ImportError:  # Scrapy before 2.14, which always has a Twisted reactor
    from twisted.internet import task

    create_looping_call = task.LoopingCall  # type: ignore[assignment] # used in the same way

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


class RegularCall:
    """Calls *function* from the opening of *crawler*'s spider to its closing. Keep a reference to it.

    An exception in *function* is logged and does not end the calls.
    """

    def __init__(self, crawler: Crawler, function: Callable[[], None], seconds: float) -> None:
        self._function = function
        self._seconds = seconds
        self._loop: Any = None
        crawler.signals.connect(self._begin, signals.spider_opened)
        crawler.signals.connect(self._end, signals.spider_closed)

    def _begin(self) -> None:
        # Not earlier: a filter used without a crawl has no reactor.
        self._loop = create_looping_call(self._call)
        self._loop.start(self._seconds, now=False)

    def _end(self) -> None:
        if self._loop is not None and self._loop.running:
            self._loop.stop()

    def _call(self) -> None:
        try:
            self._function()
        except Exception:
            logger.exception("A check that is repeated every %g s failed", self._seconds)


__all__ = ["RegularCall", "create_looping_call"]
