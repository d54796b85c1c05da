"""The order of a crawl's requests, and the lane that a request waits in."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

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


PICKLE_PROTOCOL = 4
"""As in Scrapy's disk queues: every supported Python reads it, whichever wrote it."""
MARK = "_bloom_mark"
"""The loop guard's mark, beside the attributes of the request: a Scrapy without scrapy-bloom passes over it."""
OF_THE_LAST_TRY = ("retry_times", "download_latency")
"""Keys of ``meta`` that a failed request loses when it is put back: with its retries used up, it would fail at once."""
