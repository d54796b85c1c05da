"""Translates between the requests of a spider and what a store keeps of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import load_object

from scrapy_bloom.components import serialize
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.frontier.order import LaneKey, Order, lane_of
from scrapy_bloom.frontier.page import Pending

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.settings import BaseSettings

    from scrapy_bloom.loops.share import Mark

logger = logging.getLogger(__name__)


def scrapys_order(settings: BaseSettings, *, in_job: bool) -> Order:
    """Return the order that *settings* name. Of the queue classes only the order counts.

    Raises SettingsError if ``SCHEDULER_PRIORITY_QUEUE`` is neither of Scrapy's two.
    """
    name = settings["SCHEDULER_PRIORITY_QUEUE"]
    queue = load_object(name)
    if queue not in {ScrapyPriorityQueue, DownloaderAwarePriorityQueue}:
        problem = (
            f"SCHEDULER_PRIORITY_QUEUE is {name!r}, and scrapy-bloom's scheduler has the orders of "
            "scrapy.pqueues.ScrapyPriorityQueue and DownloaderAwarePriorityQueue. Choose one of them, or "
            "SCHEDULER = 'scrapy.core.scheduler.Scheduler', whose queue a kill loses"
        )
        raise SettingsError([problem])
    where = "DISK" if in_job else "MEMORY"
    usual = settings[f"SCHEDULER_{where}_QUEUE"]
    start = settings[f"SCHEDULER_START_{where}_QUEUE"]
    is_lifo = ("Fifo" not in str(usual), "Fifo" not in str(start))
    return Order(queue is DownloaderAwarePriorityQueue, is_lifo, start_apart=bool(start))


def lane_in(order: Order, request: Request, mark: Mark | None = None) -> LaneKey:
    """Return the lane that *request* with this *mark* waits in. A slot is named as by Scrapy's downloader."""
    slot, meta = "", request.meta
    if order.by_slot:
        named = meta.get("download_slot")
        slot = urlparse_cached(request).hostname or "" if named is None else named
    is_start = order.start_apart and bool(meta.get("is_start_request"))
    return lane_of(slot, request.priority, is_start=is_start, kind="" if mark is None else mark.lane)


def asked_for(request: Request) -> str:
    """Return the URL that was asked for, before any redirect."""
    redirected = request.meta.get("redirect_urls")
    return str(redirected[0]) if redirected else request.url


class Requests:
    """The requests of a crawl, in this *order*: in memory, or if they are *stored* in a job, as bytes.

    What would not come back from a job as it was stays in memory. Callbacks are methods of *spider*.
    """

    def __init__(self, order: Order, spider: Spider | None = None, *, stored: bool = False) -> None:
        self._order, self._spider, self._is_stored = order, spider, stored
        self._has_warned = False

    def pending(self, request: Request, fingerprint: bytes | None, mark: Mark | None = None) -> Pending:
        """Return *request*, which is about to be queued, as plain data; without a *fingerprint* it is not filtered."""
        lane = lane_in(self._order, request, mark)
        try:
            if self._is_stored:
                return Pending(lane, fingerprint, serialize.dumps(request, self._spider, mark))
        except ValueError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s cannot be serialized (%s): it is in memory only. If the crawl ends before it is done, the page "
                    "that led to it is fetched again",
                    request,
                    error,
                )
        return Pending(lane, fingerprint, None, request, mark)

    def restored(self, body: bytes) -> tuple[Request, Mark | None] | list[tuple[Request, bytes | None]]:
        """Return the request in *body*, and the loop guard's mark of it. May raise any exception.

        If *body* is a start URL that was pushed to a server, return a list: the requests that it leads to, each with
        its fingerprint, or None if it is not filtered.
        """
        return serialize.loads(body, self._spider)
