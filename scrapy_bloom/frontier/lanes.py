"""The plain queues that Scrapy's priority queues are made of, as lanes of one frontier.

A *lane* is one of them: one per priority, and per download slot where the priority queue tells slots apart. It keeps
the end that is popped from in memory and reads on in the file when that is used up. It does not know which lane is
next, nor when anything is written.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_bloom.frontier.journal import Frontier

logger = logging.getLogger(__name__)


class Lane:
    """One plain queue, last-in-first-out or first-in-first-out: a "downstream queue" of Scrapy's priority queues.

    The rows at the end that is popped from are in ``_cache``, oldest first; ``_rest`` more are in the file.
    """

    def __init__(self, frontier: Frontier, key: str, *, lifo: bool) -> None:
        self.key = key
        self.lifo = lifo
        self.id, self._rest = frontier.enter(self)
        self._frontier = frontier
        self._cache: deque[tuple[int, bytes]] = deque()
        self._edge = 2**63 - 1 if lifo else -(2**63)

    def __len__(self) -> int:
        return len(self._cache) + self._rest

    def push(self, request: Request) -> None:
        """Take in *request*; ValueError if it cannot be serialized."""
        frontier = self._frontier
        if frontier.routing is not None:
            self._rest += frontier.routing(self, request)
            return
        body = frontier.serialize(request)
        row_id = frontier.add(self.id, body)
        if self.lifo or not self._rest:
            self._cache.append((row_id, body))
            frontier.cached_bytes += len(body)
        else:
            self._rest += 1
        frontier.commit_if_due()

    def pop(self) -> Request | None:
        """Hand out the next request, or None if there is none (or none that can be read)."""
        frontier = self._frontier
        while self._cache or self._refill():
            row_id, body = self._cache.pop() if self.lifo else self._cache.popleft()
            frontier.cached_bytes -= len(body)
            try:
                request = frontier.deserialize(body)
            except Exception as error:  # unpickling runs other people's code
                frontier.set_aside(row_id, error)
            else:
                frontier.hand_out(row_id, request)
                return request
        return None

    def peek(self) -> Request | None:
        """Return the next request and leave it where it is."""
        while self._cache or self._refill():
            row_id, body = self._cache[-1] if self.lifo else self._cache[0]
            try:
                return self._frontier.deserialize(body)
            except Exception as error:  # as in pop()
                self._frontier.set_aside(row_id, error)
                self._frontier.cached_bytes -= len(body)
                if self.lifo:
                    self._cache.pop()
                else:
                    self._cache.popleft()
        return None

    def close(self) -> None:
        """Forget this lane in memory; Scrapy's priority queues do so with every lane that has become empty."""
        self._frontier.leave(self)

    def evict(self) -> None:
        """Forget what the file has as well. Only right after a successful commit."""
        if not self._cache:
            return
        self._edge = 2**63 - 1 if self.lifo else self._cache[0][0] - 1
        self._rest += len(self._cache)
        self._cache.clear()

    def _refill(self) -> bool:
        if not self._rest:
            return False
        rows = self._frontier.read(self, self._edge)
        if not rows:
            logger.error(
                "%d requests that the frontier counted are not in %s", self._rest, self._frontier.database.path
            )
            self._rest = 0
            return False
        self._edge = rows[-1].id
        self._rest -= len(rows)
        for row in reversed(rows) if self.lifo else rows:
            self._cache.append((row.id, row.body))
            self._frontier.cached_bytes += len(row.body)
        return True


class LaneFactory:
    """What to give a Scrapy priority queue as its downstream queue class: makes lanes of one order in one frontier."""

    def __init__(self, frontier: Frontier, *, lifo: bool) -> None:
        self._frontier = frontier
        self._lifo = lifo

    def from_crawler(self, crawler: Crawler, key: str, *args: Any, **kwargs: Any) -> Lane:  # noqa: ARG002 - Scrapy's call
        """Return the lane that belongs to *key*, with the rows it has in the file."""
        return Lane(self._frontier, key, lifo=self._lifo)
