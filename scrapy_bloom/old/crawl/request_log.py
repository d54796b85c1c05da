"""Logs and counts what a duplicate filter did with a request: filtered, held back as a loop, let through unchecked.

Knows no filter, and decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.utils.request import referer_str

if TYPE_CHECKING:
    import logging

    from scrapy import Request, Spider
    from scrapy.statscollectors import StatsCollector


LONGEST_SHOWN = 500
"""Characters of a URL that are logged; a trap's URLs can be endless."""


class RequestLog:
    """Log lines and stats per request, in the words of Scrapy's own filter; each kind once unless *debug* is set."""

    def __init__(self, logger: logging.Logger, stats: StatsCollector, *, debug: bool) -> None:
        """Log every duplicate, with its referer, if *debug* (the setting ``DUPEFILTER_DEBUG``)."""
        self._logger = logger
        self._stats = stats
        self._debug = debug
        self._has_logged_duplicate = self._has_logged_unchecked = False
        self._logged_rules: set[str] = set()

    def filtered(self, request: Request, spider: Spider) -> None:
        """Log that *request* was filtered and count it in ``dupefilter/filtered``."""
        if self._debug:
            self._logger.debug(
                "Filtered duplicate request: %(request)s (referer: %(referer)s)",
                {"request": request, "referer": referer_str(request)},
                extra={"spider": spider},
            )
        elif not self._has_logged_duplicate:
            self._logger.debug(
                "Filtered duplicate request: %(request)s - no more duplicates will be shown"
                " (see DUPEFILTER_DEBUG to show all duplicates)",
                {"request": request},
                extra={"spider": spider},
            )
            self._has_logged_duplicate = True
        self._stats.inc_value("dupefilter/filtered")

    def loop(self, url: str, rule: str, reason: str, spider: Spider | None = None) -> None:
        """Log that *rule* applied to *url* because of *reason*, and count it in ``bloom/loop/<rule>``.

        It is not counted as a duplicate.
        """
        extra = {} if spider is None else {"spider": spider}
        if len(url) > LONGEST_SHOWN:
            url = f"{url[:LONGEST_SHOWN]}..."
        if self._debug:
            self._logger.debug("Loop guard, %s: %s (%s)", rule, url, reason, extra=extra)
        elif rule not in self._logged_rules:
            self._logged_rules.add(rule)
            self._logger.info(
                "Loop guard, %s: %s (%s). No more are shown (see DUPEFILTER_DEBUG); bloom/loop/%s counts them",
                rule,
                url,
                reason,
                rule,
                extra=extra,
            )
        self._stats.inc_value(f"bloom/loop/{rule}")

    def unchecked(self, request: Request) -> None:
        """Log, with the exception being handled, that *request* is let through; count it in ``bloom/unchecked``."""
        self._stats.inc_value("bloom/unchecked")
        if not self._has_logged_unchecked:
            self._has_logged_unchecked = True
            self._logger.warning(
                "%(request)s could not be checked for being a duplicate and is let through. Further ones are not shown;"
                " the stat bloom/unchecked counts them",
                {"request": request},
                exc_info=True,
            )
