"""Tells when Scrapy's engine is done with a request.

The engine keeps the requests it works on in a set. A request enters the set when the scheduler hands it out. It leaves
after its callback's last output was taken (what the callback yielded is in the scheduler by then), after a redirect or
a retry was scheduled in its place, or after an error was reported. No signal or middleware is called after the last
output, so we watch the set itself, which is the same in every supported Scrapy. Knows no queue and no filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request
    from scrapy.crawler import Crawler


class WatchedSet(set["Request"]):
    """A set that reports which requests leave it, from within the engine's own call.

    A request that enters twice, because a callback passes it to ``engine.download()``, is reported only when it leaves
    for the second time: if unsure, it is still in progress.
    """

    def __init__(self, left: Callable[[Request], None]) -> None:
        super().__init__()
        self._left = left
        self._times: dict[int, int] = {}

    def add(self, request: Request) -> None:
        """Take *request* in."""
        self._times[id(request)] = self._times.get(id(request), 0) + 1
        super().add(request)

    def remove(self, request: Request) -> None:
        """Remove *request*, and report it once it has left as often as it entered; KeyError as for any set."""
        self._leave(request)
        super().remove(request)

    def _leave(self, request: Request) -> None:
        times = self._times.pop(id(request), 0)
        if times > 1:
            self._times[id(request)] = times - 1
        elif times == 1:
            self._left(request)


def watch(crawler: Crawler, left: Callable[[Request], None]) -> bool:
    """From now on, call *left* with each request that the engine of *crawler* is done with.

    Return False, and do nothing, if the engine has no such set or the set is not empty, as it is before the crawl.
    """
    slot: Any = getattr(crawler.engine, "_slot", None)
    if type(getattr(slot, "inprogress", None)) is not set or slot.inprogress:
        return False
    slot.inprogress = WatchedSet(left)
    return True
