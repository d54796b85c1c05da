"""Tells when requests that cannot be checked would make a crawl endless.

One odd request is let through, since dropping it could lose a page. If all are, pages that link to each other are
fetched for ever. Knows no filter, and does not end the crawl.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy import Request

MOST_IN_A_ROW = 100
"""Failures in a row after which the fingerprinter counts as broken. No page we have seen has more odd links than that;
a loop of two pages gets there within a minute."""

MOST_OF_ONE = 100
"""How often one request may fail while others do not: about as often as the pages of a small site link to it."""

_MOST_REMEMBERED = 10_000


class UncheckedRequests:
    """Counts the failures of one crawl."""

    def __init__(self) -> None:
        self.in_a_row = 0
        """Failures since the last success; whoever sees a success sets it to 0."""
        self._times: Counter[tuple[str, str]] = Counter()

    def failed(self, request: Request) -> str | None:
        """Count *request*; return what makes the crawl endless, or None if it may go on."""
        self.in_a_row += 1
        if self.in_a_row >= MOST_IN_A_ROW:
            return f"the last {self.in_a_row} requests could not be checked, {request} among them"
        try:
            what = (request.method, request.url)
        except Exception:  # not even method and URL can be read
            return None
        if what in self._times or len(self._times) < _MOST_REMEMBERED:
            self._times[what] += 1
        if self._times[what] >= MOST_OF_ONE:
            return f"{request} could not be checked, for the {self._times[what]}th time"
        return None
