"""The order of a crawl's requests, as Scrapy's settings name it, and the lane that a request waits in."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import load_object

from scrapy_bloom.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy.settings import BaseSettings
    from typing_extensions import Self

    from scrapy_bloom.loops.share import Mark

_MOST = 2**62
"""The largest priority that is told apart, and the negative of the least: SQLite's integers have 64 bits."""


class Order(NamedTuple):
    """The order of a crawl's requests, as Scrapy's settings name it."""

    by_slot: bool
    """Whether download slots take turns; otherwise all requests count as one slot's."""
    is_lifo: tuple[bool, bool]
    """Whether the last request in is the first out; whether that is so for start requests."""
    start_apart: bool = True
    """Whether start requests have lanes of their own, behind the others of their priority."""

    @classmethod
    def of(cls, settings: BaseSettings, *, in_job: bool) -> Self:
        """Read the order from *settings*: of the queue classes only the order counts.

        Raises:
            SettingsError: ``SCHEDULER_PRIORITY_QUEUE`` is neither of Scrapy's two.

        """
        name = settings["SCHEDULER_PRIORITY_QUEUE"]
        queue = load_object(name)
        if queue not in {ScrapyPriorityQueue, DownloaderAwarePriorityQueue}:
            problem = (
                f"SCHEDULER_PRIORITY_QUEUE is {name!r}, and scrapy-bloom's scheduler has the orders of "
                "scrapy.pqueues.ScrapyPriorityQueue and DownloaderAwarePriorityQueue. Choose one of them, or "
                "SCHEDULER = 'scrapy.core.scheduler.Scheduler', whose queue a kill loses"
            )
            raise SettingsError([problem])
        where = "DISK" if in_job else "MEMORY"
        usual = settings[f"SCHEDULER_{where}_QUEUE"]
        start = settings[f"SCHEDULER_START_{where}_QUEUE"]
        is_lifo = ("Fifo" not in str(usual), "Fifo" not in str(start))
        return cls(queue is DownloaderAwarePriorityQueue, is_lifo, start_apart=bool(start))


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


def key_of(request: Request, order: Order, mark: Mark | None = None) -> LaneKey:
    """Return the lane that *request* with this *mark* waits in. A slot is named as by Scrapy's downloader."""
    slot = ""
    if order.by_slot:
        named = request.meta.get("download_slot")
        slot = urlparse_cached(request).hostname or "" if named is None else named
        if type(slot) is not str or not slot.isascii():  # SQLite takes no lone surrogates, and no lists
            slot = str(slot).encode("utf-8", "backslashreplace").decode()
    is_start = order.start_apart and bool(request.meta.get("is_start_request"))
    priority = int(request.priority)  # True is one, too, and the database knows 1 alone
    if not -_MOST < priority < _MOST:
        priority = _MOST if priority > 0 else -_MOST
    return LaneKey(slot, priority, is_start, "" if mark is None else mark.lane)


def key_from(attributes: Mapping[str, Any]) -> LaneKey:
    """Return a lane for a request with these *attributes*, as a job stores them. It suits each order."""
    request = Request(attributes["url"], meta=attributes.get("meta"), priority=attributes.get("priority", 0))
    return key_of(request, Order(by_slot=True, is_lifo=(True, True)))
