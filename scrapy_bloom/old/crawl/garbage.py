"""Keeps collections of garbage away from what a program has when its crawl starts.

A response and its selector refer to each other, so only the collector frees them and the tree of their page, and a
crawl of 4,390 pages makes 34 full collections. Each goes through the 90,000 objects of modules and settings, which live
to the end anyway, and the next one comes when there are a quarter more. Without these objects it is cheaper, and pages
are freed sooner: ``docs/links.md`` has what that saves.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING
from weakref import WeakSet

from scrapy import signals

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

_running: WeakSet[Crawler] = WeakSet()


def pass_over_startup(crawler: Crawler) -> None:
    """While *crawler* crawls, let garbage collections pass over what was there at its start.

    They are those of the whole process. So of several crawls at a time only the first does this, since what it has
    under way when the next one starts must be freed, and when the last one has ended all is as before. Does nothing
    where the program has disabled collections.
    """
    crawler.signals.connect(_opened, signal=signals.spider_opened)
    crawler.signals.connect(_closed, signal=signals.spider_closed)


def _opened(sender: Crawler) -> None:
    if gc.isenabled():
        if not _running:
            gc.collect()
            gc.freeze()
        _running.add(sender)


def _closed(sender: Crawler) -> None:
    if sender in _running:
        _running.discard(sender)
        if not _running:
            gc.unfreeze()
