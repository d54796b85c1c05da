"""Tells which pages do not count as done yet, because a request that came from them exists only in this process.

Knows requests by identity, and no queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request


class Withheld:
    """Makes pages wait for requests that exist only in memory and may have come from them."""

    def __init__(self) -> None:
        self._pages: dict[Request, list[Request]] = {}
        self._waits_for: dict[Request, int] = {}
        self._done: set[Request] = set()

    def add(self, request: Request, in_hand: Iterable[Request]) -> None:
        """Make all pages *in_hand* wait for *request*, since nobody knows which of them it came from."""
        pages = list(in_hand)
        self._pages[request] = pages
        for page in pages:
            self._waits_for[page] = self._waits_for.get(page, 0) + 1

    def done(self, request: Request) -> list[Request]:
        """Note that *request* is done. Return what now counts as done: it and what waited for it, or nothing."""
        found = []
        finished = [request]
        while finished:
            one = finished.pop()
            if self._waits_for.get(one):
                self._done.add(one)
                continue
            found.append(one)
            for page in self._pages.pop(one, ()):
                self._waits_for[page] -= 1
                if not self._waits_for[page]:
                    del self._waits_for[page]
                    if page in self._done:
                        self._done.discard(page)
                        finished.append(page)
        return found
