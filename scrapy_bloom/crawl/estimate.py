"""How many pages of a crawl are left, with a range, from what pages of each depth have led to so far.

Pending requests are not a random sample of a site: a depth-first crawl leaves the entry pages of sections, and a
breadth-first crawl leaves the leaves. So pages are counted by depth, the number of links from a start request. For each
depth d,

    tree(d) = 1 + pages below d that were done between two of depth d; the mean of the last ones

In a depth-first crawl, this is the size of the tree below a page (Knuth 1975; Kilby, Slaney, Thiebaux and Walsh 2006).
In a breadth-first crawl, it is little more than 1. Each pending page stands for one such tree. If the loop guard knows
kinds of URLs, a pending page counts instead as the chance that a page of its kind brings something new, and as 0 if
that chance is tiny.

The range around this is what ``benchmarks/estimate.py`` found to hold: docs/stats.md has the figures.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NamedTuple

DEEPEST = 200
"""Links from a start request that are told apart."""
LAST = 8
"""After this many trees of a depth, older ones count half: the first trees are larger, with pages that all link to."""
LEAVES = 2
"""How many trees of one page each depth begins with, before any tree was counted."""
MOST = 2.0
"""The estimate is at most this many times the known pages: the first trees of a crawl promise too much."""
BELOW, ABOVE, SPREAD, WIDEST = 0.7, 3.0, 1.5, 2.0
"""The range goes from BELOW times the estimate of all pages to ABOVE times the estimate of pages left. It reaches at
least 1 + SPREAD (pending / done)^0.5 times the known pages. Its ends differ by a factor of WIDEST at most."""
HOPED = 0.25
"""Share of the loop guard's expectation that the low end counts: the guard expects too much of the pages of a trap."""
EARLY = 3.0
"""Known pages left, per page done. Above this ratio, it is too early to give an upper end."""
NAMED = 5
"""Endless kinds that a job remembers."""


class Left(NamedTuple):
    """How many pages are left."""

    low: int
    high: int | None
    """None: it is too early to tell."""


class Estimate:
    """Counts requests by depth.

    The depth of a request is how many links led to it: ``meta["depth"]``. Anything but a whole number counts as 0.
    """

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        """Requests that were queued, by depth."""
        self.queued: list[Any] = []
        """``meta["depth"]`` of requests that were queued since :meth:`learn` was last called."""
        self.finished: list[Any] = []
        """``meta["depth"]`` of requests that are done since then."""
        self.promise: float | None = None
        """Share of pending requests that the loop guard expects to bring something new; None without a loop guard."""
        self.endless: Counter[str] = Counter()
        """How many requests are pending of each kind from which the loop guard expects nothing new."""
        self._done = [0] * (DEEPEST + 1)
        self._below = [0] * (DEEPEST + 1)  # pages done below each depth when its last page was done
        self._trees = [0.0] * (DEEPEST + 1)
        self._pages = [0.0] * (DEEPEST + 1)  # in these trees

    def learn(self) -> None:
        """Take in what was queued and finished since the last call."""
        done, trees, pages = self._done, self._trees, self._pages
        self.requests.update(_depths(self.queued))
        self.queued.clear()
        for depth in _depths(self.finished):
            below = sum(done[depth + 1 :])
            if done[depth]:
                trees[depth] += 1
                pages[depth] += 1 + below - self._below[depth]
            if trees[depth] > LAST:
                trees[depth] /= 2
                pages[depth] /= 2
            done[depth] += 1
            self._below[depth] = below
        self.finished.clear()

    def left(self, pending: int, held: int = 0) -> Left:
        """Return how many pages are left, of which *pending* are known; *held* of these are not to be fetched."""
        self.learn()
        done = sum(self._done)
        waiting = self._waiting()
        pending = max(pending, sum(waiting.values()), held)  # those of a run that did not count are a page each
        free = pending - held
        if self.promise is None:
            trees = {depth: (LEAVES + self._pages[depth]) / (LEAVES + self._trees[depth]) for depth in waiting}
            deeper = sum(number * (trees[depth] - 1) for depth, number in waiting.items()) * free / max(pending, 1)
            known = float(done + free)
            middle = min(known + deeper, MOST * known)
            low = max(known, BELOW * middle)
        else:
            known = middle = done + self.promise * free
            low = done + HOPED * self.promise * free
        if known > (1 + EARLY) * done:
            return Left(round(low - done), None)
        high = low
        if known > done:
            high = max(done + ABOVE * (middle - done), known * (1 + SPREAD * math.sqrt((known - done) / done)))
        return Left(round(low - done), round(min(high, WIDEST * low) - done))

    def dump(self) -> bytes:
        """Return all that is known, for :meth:`load`."""
        self.learn()
        end = max([*self.requests, 0]) + 1
        requests = [self.requests[depth] for depth in range(end)]
        lists = [requests, *[values[:end] for values in self._lists()]]
        return json.dumps([self.promise, self.endless.most_common(NAMED), *lists]).encode()

    def load(self, dumped: bytes) -> None:
        """Go on with what :meth:`dump` returned."""
        self.promise, endless, requests, *lists = json.loads(dumped)
        self.endless = Counter(dict(endless))
        self.requests = Counter(dict(enumerate(requests)))
        for mine, loaded in zip(self._lists(), lists, strict=True):
            mine[: len(loaded)] = loaded

    def add(self, dumped: bytes) -> None:
        """Take in what another worker of the same crawl has dumped.

        The trees are right: between two pages of a depth, each worker does its share of the pages below.
        """
        other = Estimate()
        other.load(dumped)
        self.requests += other.requests
        for mine, added in zip(self._lists(), other._lists(), strict=True):
            mine[:] = [sum(pair) for pair in zip(mine, added, strict=True)]

    def expect(self, pending: int) -> None:
        """Note that *pending* requests are pending in all depths together: two workers may have found the same link."""
        waiting = self._waiting()
        known = max(sum(waiting.values()), 1)
        self.requests = Counter({depth: self._done[depth] + n * pending // known for depth, n in waiting.items()})

    def _waiting(self) -> dict[int, int]:
        """Return how many requests of each depth are queued and not done."""
        return {depth: max(count - self._done[depth], 0) for depth, count in self.requests.items()}

    def _lists(self) -> tuple[list[Any], ...]:
        return self._done, self._below, self._trees, self._pages


def _depths(values: list[Any]) -> list[int]:
    return [min(value, DEEPEST) if type(value) is int and value >= 0 else 0 for value in values]


def in_words(pages_per_minute: float, pending: int, new: float | None, left: Left | None) -> str:
    """Return how far a crawl is, in a line for people; *new* is the share of new ones among recent links."""
    words = f"{pages_per_minute:,.0f} pages/min, {pending:,} pending"
    if new is not None:
        words += f", {100 * new:.0f} % of recent links new"
    return words if left is None else f"{words}; {', '.join(left_in_words(left, pages_per_minute))}"


def left_in_words(left: Left, pages_per_minute: float) -> list[str]:
    """Return how many pages are left, in two digits, and if that is known, how long they take at this speed."""
    low, high = (int(float(f"{number:.2g}")) for number in (left.low, left.high or 0))
    if left.high is None:
        return [f"at least {low:,} pages left"]
    pages = f"about {low:,} to {high:,} pages left" if low != high else f"about {low:,} pages left"
    if pages_per_minute <= 0 or not high:
        return [pages]
    minutes = left.high / pages_per_minute
    if minutes < 1:
        return [pages, "less than a minute"]
    size, unit = (1, "minute") if minutes < 120 else (60, "hour") if minutes < 2880 else (1440, "day")
    least, most = (round(number / pages_per_minute / size) for number in (left.low, left.high))
    span = f"{least} to {most}" if least < most else f"about {most}"
    return [pages, f"{span} {unit}{'s' if most > 1 else ''}"]
