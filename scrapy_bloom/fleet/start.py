"""The lease of start(): one worker of a fleet runs it, and another one if that worker dies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from scrapy_bloom.frontier.page import ANSWERED, Page

if TYPE_CHECKING:
    from scrapy_bloom.fleet.lease import LeaseClient
    from scrapy_bloom.fleet.messages import Ticket


class StartLease:
    """The lease of start() that *client* has, and the page that the output of start() belongs to."""

    def __init__(self, client: LeaseClient) -> None:
        self._client = client
        self._used: Ticket | None = None  # the last lease under which start() was run
        self._since = 0.0
        self.page: Page | None = None
        """None: start() does not run here."""

    @property
    def is_granted(self) -> bool:
        """Whether this worker has a lease of start() under which it has not run start() yet."""
        return self.page is None and self._client.start_ticket not in {None, self._used}

    def begin(self) -> Page:
        """Return the page that the output of start() belongs to; :meth:`end` follows when start() has ended."""
        self._used = self._client.start_ticket
        # What it leads to is acknowledged without it: start() may run for as long as the crawl.
        self.page = Page("", result=ANSWERED, is_split=True)
        self._since = time.monotonic()
        return self.page

    def page_with_old_items(self, seconds: float) -> Page | None:
        """Return the page if it has items, and *seconds* have gone by since it began, or was returned last."""
        if self.page is None or not self.page.gave or time.monotonic() < self._since + seconds:
            return None
        self._since = time.monotonic()
        return self.page

    def end(self) -> Ticket:
        """Return the lease to acknowledge. It may be of a later life than the one in which start() began."""
        self.page, self._used = None, self._client.start_ticket
        assert self._used is not None  # noqa: S101 - is_granted was true
        return self._used

    def decline(self) -> None:
        """Leave start() to other workers from now on."""
        self._client.can_start = False
