"""How the requests of one worker become links of the queue, and entries of the queue become requests again."""

from __future__ import annotations

from collections import Counter
from hashlib import sha1
from typing import TYPE_CHECKING

from scrapy_bloom.fleet.entry import Entries
from scrapy_bloom.fleet.messages import Link, QueueLane
from scrapy_bloom.frontier.order import key_of

if TYPE_CHECKING:
    from scrapy import Request, Spider

    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.frontier.order import Order
    from scrapy_bloom.url.fingerprint import Fingerprints


class Requests:
    """Turns requests of *spider* into links of *queue* and back; with *secret*, also those that only a pickle holds."""

    def __init__(
        self, queue: Queue, order: Order, fingerprints: Fingerprints, spider: Spider | None, secret: str | None
    ) -> None:
        self._queue, self._order, self._fingerprints = queue, order, fingerprints
        self._entries = Entries(spider, secret)
        self._starts: Counter[bytes] = Counter()

    def begin_start(self) -> None:
        """Count start requests anew: start() is run."""
        self._starts.clear()

    def start_fingerprint(self, request: Request) -> bytes:
        """Return a fingerprint for an unfiltered start request, so that the fleet fetches it once.

        start() is run again after a crash, and in each run. The n-th of several equal requests has the same fingerprint
        in every worker.
        """
        fingerprint = self._fingerprints.of_request(request)
        self._starts[fingerprint] += 1
        return sha1(b"start %d " % self._starts[fingerprint] + fingerprint, usedforsecurity=False).digest()

    def link(self, request: Request, fingerprint: bytes | None) -> Link:
        """Return the link to *request*. Raises ValueError if it cannot be written to the server."""
        entry = self._entries.write(request)
        key = key_of(request, self._order)
        push = "RPUSH" if self._order.is_lifo[key.is_start] else "LPUSH"
        lane = QueueLane(key.slot, str(-2 * key.priority + key.is_start), push)  # start requests come last
        return Link(self._queue.shard_of(fingerprint or entry), fingerprint, lane, entry)

    def read(self, entry: bytes) -> Request:
        """Return the request of *entry*. Raises ValueError if it cannot be read."""
        return self._entries.read(entry)

    def pushed(self, pushed: bytes) -> list[tuple[Request, bytes | None]]:
        """Return the requests that a pushed start URL stands for, and their fingerprints; None: it is not filtered.

        Raises:
            ValueError: It stands for none.

        """
        return [
            (request, None if request.dont_filter else self._fingerprints.of_request(request))
            for request in self._entries.requests_of(pushed)
        ]
