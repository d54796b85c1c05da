"""Logs how a crawl's filter is doing: at the start, about once a minute, with each new layer, and at the end.

Reads the stats that the filter sets. Knows no filter and no request.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.crawl.regular_call import create_looping_call

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from scrapy.statscollectors import StatsCollector

INTERVAL = 60.0
"""Seconds between two lines while crawling, as between Scrapy's own "Crawled 1234 pages"."""

_LIMITS = tuple(f"bloom/loop/{rule}" for rule in ("depth", "length", "tandem", "params"))
_LEAST_SHOWN = 0.001


class Progress:
    """The lines of one crawl, all of them INFO."""

    def __init__(
        self,
        logger: logging.Logger,
        stats: StatsCollector,
        refresh: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up the lines; *refresh* updates the stats of the filter."""
        self._logger = logger
        self._stats = stats
        self._refresh = refresh
        self._clock = clock
        self._layers = 0
        self._known_before = 0
        self._checks = 0.0
        self._at = 0.0
        self._timer: Any = None

    def opened(self, switched_on: Sequence[str], where: str, capacity: int) -> None:
        """Log what is *switched_on* and what the filter *where* holds, and start the timer."""
        urls, layers = self._number("bloom/urls"), self._number("bloom/layers")
        if urls:
            holds = f"The filter {where} knows {urls:,.0f} URLs in {_layers(layers)}, {self._size()}."
        elif layers:
            holds = (
                f"The filter {where} is empty: {self._size()} for the first {capacity:,} URLs, and it grows by itself."
            )
        else:
            holds = f"The filter is {where}."
        self._logger.info("%s. %s", ", ".join(switched_on), holds)
        self._layers = int(layers)
        self._known_before = int(urls)
        self._at = self._clock()
        with suppress(RuntimeError):  # a filter used on its own may have neither reactor nor event loop
            self._timer = create_looping_call(self.tick)
            self._timer.start(INTERVAL, now=False)

    def forgot(self, count: int, max_age: float) -> None:
        """Log that *count* URLs were dropped for their age, in seconds, and keep counting what is new."""
        what = "1 URL was" if count == 1 else f"{count:,} URLs were"
        self._logger.info("%s forgotten for their age: BLOOM_MAX_AGE is %s", what, age_text(max_age))
        self._known_before -= count

    def noted(self) -> None:
        """Log that the filter has grown, if it has."""
        layers = int(self._number("bloom/layers"))
        if 0 < self._layers < layers:
            self._logger.info(
                "The filter has grown to %s, %s, at %s URLs",
                _layers(layers),
                self._size(),
                f"{self._number('bloom/urls'):,.0f}",
            )
        self._layers = layers or self._layers

    def tick(self) -> None:
        """Log how far the crawl is, unless nothing was checked since the last line."""
        self._refresh()
        checks, now = self._checked(), self._clock()
        if checks == self._checks:
            return
        rate = (checks - self._checks) / max(now - self._at, 1e-9)
        self._logger.info(
            "Seen %s URLs and %s duplicates (%.0f checks/s). Newest layer %.0f %% full, expected loss %s pages",
            f"{self._number('bloom/urls'):,.0f}",
            f"{self._number('dupefilter/filtered'):,.0f}",
            rate,
            100 * min(-math.log2(1 - self._number("bloom/fill_ratio")), 1),  # full means half of the bits
            self._expected_lost(),
        )
        self._checks, self._at = checks, now

    def stop(self) -> None:
        """Stop the timer, without a line: nothing was crawled."""
        if self._timer is not None and self._timer.running:
            self._timer.stop()

    def closed(self, where: str) -> None:
        """Log the sums at the end of the crawl."""
        self.stop()
        urls, duplicates = self._number("bloom/urls"), self._number("dupefilter/filtered")
        new = max(urls - self._known_before, 0)
        parked, beyond = self._number("bloom/loop/parked"), sum(map(self._number, _LIMITS))
        checks = new + duplicates + beyond
        self._logger.info(
            "This run checked %s URLs: %s new, %s duplicates%s%s%s",
            f"{checks:,.0f}",
            f"{new:,.0f}",
            f"{duplicates:,.0f}",
            f" ({duplicates / checks:.0%})" if checks else "",
            f", {beyond:,.0f} beyond the limits of the loop guard" if beyond else "",
            f"; {parked:,.0f} were parked" if parked else "",
        )
        if self._layers:
            self._logger.info(
                "The filter knows %s URLs in %s, %s, %s. Pages that its error rate may have cost: %s",
                f"{urls:,.0f}",
                _layers(self._layers),
                self._size(),
                where,
                self._expected_lost(),
            )

    def _checked(self) -> float:
        return self._number("bloom/urls") - self._known_before + self._number("dupefilter/filtered")

    def _size(self) -> str:
        nbytes = self._number("bloom/bytes")
        return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} kB"

    def _expected_lost(self) -> str:
        lost = self._number("bloom/expected_lost")
        return f"{lost:.2g}" if lost >= _LEAST_SHOWN else f"under {_LEAST_SHOWN}"

    def _number(self, name: str) -> float:
        return float(self._stats.get_value(name, 0))


def age_text(seconds: float) -> str:
    """Return *seconds* in the largest unit that needs no fraction."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,g} s"


def _layers(count: float) -> str:
    return f"{count:.0f} layer" if count == 1 else f"{count:.0f} layers"
