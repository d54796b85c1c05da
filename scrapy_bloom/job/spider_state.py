"""``spider.state`` as part of the commit: Scrapy alone writes it at a clean stop only."""

from __future__ import annotations

import logging
import pickle
from typing import TYPE_CHECKING

from scrapy_bloom.frontier.round_trip import PICKLE_PROTOCOL

if TYPE_CHECKING:
    from scrapy import Spider

    from scrapy_bloom.job.store import JobStore

logger = logging.getLogger(__name__)

NOTE = "spider.state"


class SpiderState:
    """The state of one crawl's spider, as the job has it."""

    def __init__(self) -> None:
        self._written: bytes | None = b""  # last; None: it cannot be

    def begin(self, store: JobStore) -> None:
        """Read what the last commit of the job in *store* noted."""
        self._noted, self._was_clean = store.database.notes("state").get(NOTE), store.before.clean

    def restore(self, spider: Spider) -> None:
        """Give *spider* the state of the last commit, unless Scrapy has read one that it wrote at a clean stop."""
        if self._noted is not None and not (self._was_clean and hasattr(spider, "state")):
            spider.state = pickle.loads(self._noted)  # type: ignore[attr-defined]  # noqa: S301 - as Scrapy does both
        elif not hasattr(spider, "state"):  # a crawl that was refused has left an empty file
            spider.state = {}  # type: ignore[attr-defined]

    def changed(self, spider: Spider | None) -> dict[str, bytes]:
        """Return the note of the state of *spider* that a commit is to hold, if it has changed since the last."""
        state = getattr(spider, "state", None)
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
