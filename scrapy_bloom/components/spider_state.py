"""``spider.state`` as part of the commit: Scrapy alone writes it at a clean stop only."""

from __future__ import annotations

import logging
import pickle
from typing import TYPE_CHECKING, Any

from scrapy import signals

from scrapy_bloom.frontier.stored import PICKLE_PROTOCOL

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_bloom.job.store import JobStore

logger = logging.getLogger(__name__)

NOTE = "spider.state"


class SpiderState:
    """The state of the spider of *crawler*, as the job in *store* has it."""

    def __init__(self, crawler: Crawler, store: JobStore) -> None:
        self._spider: Any = crawler.spider
        self._noted, self._was_clean = store.database.notes("state").get(NOTE), store.before.clean
        self._written: bytes | None = b""  # last; None: it cannot be
        if getattr(self._spider, "state", None):
            logger.warning("spider.state is replaced by the state that the job keeps: give -a state another name")
        crawler.signals.connect(self._restore, signal=signals.spider_opened)

    def _restore(self) -> None:
        """Give the spider the state of the last commit, unless Scrapy has read one that it wrote at a clean stop."""
        if self._noted is not None and not (self._was_clean and hasattr(self._spider, "state")):
            self._spider.state = pickle.loads(self._noted)  # noqa: S301 - as Scrapy does both
        elif not hasattr(self._spider, "state"):  # a crawl that was refused has left an empty file
            self._spider.state = {}

    def changed(self) -> dict[str, bytes]:
        """Return the note of the state that a commit must hold, if the state has changed since the last."""
        state = getattr(self._spider, "state", None)
        if state is None or self._written is None:
            return {}
        try:
            pickled = pickle.dumps(state, PICKLE_PROTOCOL)
        except Exception as error:  # whatever the spider keeps there; Scrapy will fail on it, too
            logger.warning("spider.state cannot be written (%r): a kill loses it", error)
            self._written = None
            return {}
        if pickled == self._written:
            return {}
        self._written = pickled
        return {NOTE: pickled}
