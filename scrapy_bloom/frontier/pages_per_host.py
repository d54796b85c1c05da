"""How many pages each host has had, and which get no more in this run: ``BLOOM_PAGES_PER_HOST``."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from scrapy_bloom.errors import SettingsError
from scrapy_bloom.settings import OTHERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from scrapy_bloom.frontier.order import Order

logger = logging.getLogger(__name__)

HOSTS_SHOWN = 10


class PagesPerHost:
    """Counts the pages of hosts; a host is a download slot.

    Args:
        limits: The most pages by host; ``OTHERS`` stands for hosts that are not named. No value, or None: no limit.
        counts: How many pages each host has had before.

    """

    def __init__(self, limits: Mapping[str, int | None], counts: Mapping[str, int] | None = None) -> None:
        self.limits = limits
        self.counts = Counter(counts)
        self._changed: set[str] = set()
        self._logged: set[str] = set()

    @classmethod
    def of(cls, limits: Mapping[str, int | None] | None, order: Order) -> Self | None:
        """Return what counts under *limits*; None without any. SettingsError if *order* tells no hosts apart."""
        if limits is not None and not order.by_slot:
            problem = (
                "BLOOM_PAGES_PER_HOST takes a SCHEDULER of ours, which the add-on sets, and SCHEDULER_PRIORITY_QUEUE = "
                "'scrapy.pqueues.DownloaderAwarePriorityQueue', the default since Scrapy 2.14"
            )
            raise SettingsError([problem])
        return None if limits is None else cls(limits)

    def limit_of(self, host: str) -> int | None:
        """Return the most pages of *host*. What has no host, such as a ``data:`` URL, has no limit."""
        return self.limits.get(host, self.limits.get(OTHERS)) if host else None

    def is_full(self, host: str, in_flight: int) -> bool:
        """Return whether *host* gets no more pages than the *in_flight* ones."""
        limit = self.limit_of(host)
        return limit is not None and self.counts.get(host, 0) + in_flight >= limit

    def add(self, host: str) -> None:
        """Count a page of *host*."""
        self.counts[host] += 1
        self._changed.add(host)

    def changed(self) -> dict[str, int]:
        """Return the counts that have changed since the last call, for the next commit."""
        changed, self._changed = {host: self.counts[host] for host in self._changed}, set()
        return changed

    def log_full(self, host: str) -> None:
        """Log, for the first few hosts, that *host* is full while requests of it wait."""
        if host not in self._logged and len(self._logged) < HOSTS_SHOWN:
            self._logged.add(host)
            more = ". No more hosts are shown" if len(self._logged) == HOSTS_SHOWN else ""
            limit = f"{self.limit_of(host):,}"
            logger.info("%s has its %s pages (BLOOM_PAGES_PER_HOST): its other requests wait%s", host, limit, more)
