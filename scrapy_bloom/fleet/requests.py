"""What a fleet's store needs to know of requests, which are opaque to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from scrapy_bloom.fleet.messages import QueueLane


class Requests(Protocol):
    """Translates between requests, which the store hands on as they are, and what the server holds of them."""

    def write(self, request: Any, /) -> tuple[QueueLane, bytes]:
        """Return the lane and the entry of *request*. Raises ValueError if it cannot be written to the server."""

    def read(self, entry: bytes, /) -> Any:
        """Return the request of *entry*. Raises ValueError if it cannot be read."""

    def pushed(self, data: bytes, /) -> tuple[Any, list[tuple[Any, bytes | None]]]:
        """Return a request that stands for a pushed start URL, and the requests that it leads to, with fingerprints.

        A fingerprint of None: that request is not filtered. Raises ValueError if *data* is not a start URL.
        """

    def begin_start(self) -> Any:
        """Return a request that stands for start(), which is about to run."""

    def start_fingerprint(self, request: Any, /) -> bytes | None:
        """Return a fingerprint for an unfiltered start request; None for other requests."""
