"""Keeps the figures of a crawl in its job directory, for ``scrapy bloom report`` and ``info --watch``.

Reads Scrapy's stats. Never stops the crawl: a row that cannot be written is left out, which is logged once. Does not
know who reads the figures.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.crawl.regular_call import create_looping_call
from scrapy_bloom.old.files.figures import Figures, FiguresFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two rows. A row is one write of some 70 bytes, and a kill loses the figures since the last one."""

_STATUS = "downloader/response_status_count/"
_FIRST_ERROR_STATUS = 400
_NOT_SENT = "downloader/exception_type_count/scrapy.exceptions.IgnoreRequest"
"""Requests that a middleware kept from the network: parked by the loop guard, forbidden by robots.txt."""


class CrawlFigures:
    """The rows of one run, from :meth:`begin` to :meth:`end`; *refresh* updates the stats of the filter."""

    def __init__(self, crawler: Crawler, path: Path, refresh: Callable[[], None]) -> None:
        self._crawler = crawler
        self._path = path
        self._refresh = refresh
        self._file: FiguresFile | None = None
        self._before: Figures | None = None
        self._run = 1
        self._has_warned = False
        self._timer: Any = None

    def begin(self) -> None:
        """Read what earlier runs have counted, add the first row of this one, and then one every few seconds."""
        self._file = FiguresFile(self._path)
        self._before = self._file.last
        self._run = 1 if self._before is None else self._before.run + 1
        self._note()
        with suppress(RuntimeError):  # a filter used on its own may have neither reactor nor event loop
            self._timer = create_looping_call(self._tick)
            self._timer.start(INTERVAL, now=False)

    def end(self) -> None:
        """Add the last row."""
        if self._timer is not None and self._timer.running:
            self._timer.stop()
        self._note()

    def _tick(self) -> None:
        with suppress(Exception):  # the line once a minute logs the error; go on counting
            self._refresh()
        self._note()

    def _note(self) -> None:
        """Add a row, unless nothing has changed since the last one."""
        file = self._file
        if file is None:
            return
        try:
            row = self._row()
            if file.last is None or row[1:] != file.last[1:]:
                file.append(row)
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "The figures of this crawl cannot be kept in %s: %s. The crawl goes on; scrapy bloom report and "
                    "info --watch will lack them.",
                    self._path,
                    error,
                )

    def _row(self) -> Figures:
        stats = self._crawler.stats
        values = {} if stats is None else stats.get_stats()
        before = self._before
        row = Figures(
            time=int(time.time()),
            run=self._run,
            urls=int(values.get("bloom/urls", 0)),
            duplicates=int(values.get("dupefilter/filtered", 0)),
            pages=int(values.get("response_received_count", 0)),
            failures=int(values.get("downloader/exception_count", 0)) - int(values.get(_NOT_SENT, 0)),
            http_errors=sum(count for name, count in list(values.items()) if _is_error_status(name)),
            spider_errors=int(values.get("spider_exceptions/count", 0)),
            pending=self._pending(values),
            parked=int(values.get("bloom/loop/waiting", 0)),
            nbytes=int(values.get("bloom/bytes", 0)),
            expected_lost=float(values.get("bloom/expected_lost", 0)),
        )
        if before is None:
            return row
        return row._replace(
            duplicates=before.duplicates + row.duplicates,
            pages=before.pages + row.pages,
            failures=before.failures + row.failures,
            http_errors=before.http_errors + row.http_errors,
            spider_errors=before.spider_errors + row.spider_errors,
        )

    def _pending(self, values: dict[str, Any]) -> int:
        if "bloom/frontier/pending" in values:  # the scheduler is closed
            return int(values["bloom/frontier/pending"])
        try:
            # Scrapy 2.19 has engine.scheduler; before, there is only the private way.
            return len(self._crawler.engine._slot.scheduler)  # type: ignore[union-attr, arg-type] # or it raises
        except Exception:  # there is none yet, or it cannot say
            return -1


def _is_error_status(name: str) -> bool:
    status = name.removeprefix(_STATUS)
    return status != name and status.isdecimal() and int(status) >= _FIRST_ERROR_STATUS
