"""The order of a crawl's requests, the lane that a request waits in, and how many pages a host may have."""

from __future__ import annotations

import logging
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from scrapy_bloom.errors import SettingsError
from scrapy_bloom.settings import OTHERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

logger = logging.getLogger(__name__)

HOSTS_SHOWN = 10
"""Hosts that the log names."""
PICKLE_PROTOCOL = 4
"""As in Scrapy's disk queues: every supported Python reads it, whichever wrote it."""
MARK = "_bloom_mark"
"""The loop guard's mark, beside the attributes of the request: a Scrapy without scrapy-bloom passes over it."""
OF_THE_LAST_TRY = ("retry_times", "download_latency")
"""Keys of ``meta`` that a failed request loses when it is put back: with its retries used up, it would fail at once."""
_MOST = 2**62
"""The largest priority that is told apart, and the negative of the least: SQLite's integers have 64 bits."""


class Order(NamedTuple):
    """The order of a crawl's requests."""

    by_slot: bool
    """Whether download slots take turns; otherwise all requests count as one slot's."""
    is_lifo: tuple[bool, bool]
    """Whether the last request in is the first out; whether that is so for start requests."""
    start_apart: bool = True
    """Whether start requests have lanes of their own, behind the others of their priority."""


IN_ANY_ORDER = Order(by_slot=False, is_lifo=(True, True))
"""For a store that keeps no requests, because another scheduler does."""


class LaneKey(NamedTuple):
    """What the requests of a lane have in common."""

    slot: str
    priority: int
    is_start: bool = False
    kind: str = ""

    def id(self) -> int:
        """Return the id of the lane in the database: a hash, so that nobody has to look it up."""
        text = f"{self.priority} {int(self.is_start)} {len(self.kind)} {self.kind}{self.slot}"
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)


class LaneRow(NamedTuple):
    """A lane as it is stored: the requests of one slot, priority and kind."""

    id: int
    slot: str
    priority: int
    is_start: bool
    kind: str
    rows: int

    def is_sound(self) -> bool:
        """Return whether each value has the type that was stored: in a damaged row it can be any."""
        return tuple(map(type, self)) == (int, str, int, int, str, int)


def lane_of(slot: str, priority: int, *, is_start: bool, kind: str = "") -> LaneKey:
    """Return the lane of requests with these properties, as a database can keep them."""
    if type(slot) is not str or not slot.isascii():  # SQLite takes no lone surrogates, and users put lists there
        slot = str(slot).encode("utf-8", "backslashreplace").decode()
    priority = int(priority)  # True is one, too, and the database knows 1 alone
    if not -_MOST < priority < _MOST:
        priority = _MOST if priority > 0 else -_MOST
    return LaneKey(slot, priority, is_start, kind)


def lane_of_stored(attributes: Mapping[str, Any]) -> LaneKey:
    """Return a lane for a stored request with these *attributes*. The lane suits each order."""
    meta = attributes.get("meta") or {}
    named = meta.get("download_slot")
    slot = urlsplit(attributes["url"]).hostname or "" if named is None else named
    return lane_of(slot, attributes.get("priority", 0), is_start=bool(meta.get("is_start_request")))


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
