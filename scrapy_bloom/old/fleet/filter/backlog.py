"""What becomes of fingerprints that one process accepts while the server is away or full: :class:`Backlog`.

Sends nothing, and does not know why the server did not take them.

A fingerprint may be remembered as seen only if its request is in a queue; otherwise the page is lost. That depends on
where the queue is. Scrapy's own queues are in this process and outlive the server. A queue on the same server does not
take the request either: its push raises, and Scrapy drops the request. The fingerprint must then be new again when
another link leads to the page.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from itertools import islice

MAX_WAITING = 200_000
"""Most fingerprints kept that were accepted without the server; about 15 MB."""

_BATCH_SIZE = 500  # per request: 15 ms


class QueuePlace(Enum):
    """Where the queue puts a request that the filter has let through."""

    HERE = "in this process"
    """Fingerprints are remembered, and written to the server when it is back."""
    ON_THE_SERVER = "on the server of the filter"
    """Fingerprints are not remembered at all: a push that succeeds means that the server is back."""
    ELSEWHERE = "on another server, or not known where"
    """Fingerprints are remembered while the server is away, so that loops end, and then forgotten, since their requests
    may be lost."""


_PROMISES = {
    QueuePlace.HERE: f"Up to {MAX_WAITING} new URLs are kept (about 15 MB) and written to it when it is back.",
    QueuePlace.ON_THE_SERVER: "Its queue may be away, too, so new URLs are let through without being remembered.",
    QueuePlace.ELSEWHERE: (
        "New URLs are forgotten when it is back, since their requests may be lost, too: some pages will be fetched "
        "again."
    ),
}


class Backlog:
    """Fingerprints that this process has accepted without the server.

    Args:
        queue: Where their requests are.

    """

    def __init__(self, queue: QueuePlace = QueuePlace.HERE) -> None:
        self.promise = _PROMISES[queue]
        """What becomes of new fingerprints, for the log."""
        self.accepted = 0
        """Fingerprints accepted so far."""
        self._queue = queue
        self._waiting: deque[bytes] = deque()
        self._until_back: set[bytes] = set()
        self._dropped = 0
        self._overflows = False

    @property
    def unwritten(self) -> int:
        """Fingerprints accepted so far that the server has not been told of."""
        return self._dropped + len(self._waiting)

    def __len__(self) -> int:
        """Return how many fingerprints wait to be written."""
        return len(self._waiting)

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether *fingerprint* was accepted and counts as seen until the server is back."""
        return fingerprint in self._until_back

    def accept(self, fingerprint: bytes) -> bool:
        """Accept *fingerprint*. Return whether this process may remember it as seen for good."""
        self.accepted += 1
        if self._queue is QueuePlace.HERE and len(self._waiting) < MAX_WAITING:
            self._waiting.append(fingerprint)
            return True
        self._dropped += 1
        if self._queue is QueuePlace.ELSEWHERE:
            if len(self._until_back) >= MAX_WAITING:
                self._until_back.clear()
            self._until_back.add(fingerprint)
        return self._queue is QueuePlace.HERE

    def begins_to_overflow(self) -> bool:
        """Return True once per outage, when there is no room left for waiting fingerprints."""
        is_new = self._queue is QueuePlace.HERE and bool(self._dropped) and not self._overflows
        self._overflows = self._overflows or is_new
        return is_new

    def waiting(self) -> list[bytes]:
        """Return all fingerprints that wait to be written."""
        return list(self._waiting)

    def batch(self) -> list[bytes]:
        """Return the fingerprints to write next, oldest first. They wait until :meth:`written` is called."""
        return list(islice(self._waiting, _BATCH_SIZE))

    def written(self, count: int) -> None:
        """Note that the server has the oldest *count* fingerprints."""
        for _ in range(count):
            self._waiting.popleft()

    def forget(self) -> None:
        """Drop everything, as if it had been written."""
        self._waiting.clear()
        self._until_back.clear()

    def server_is_back(self) -> None:
        """Note that the server takes fingerprints again."""
        self._until_back.clear()
        self._overflows = False
