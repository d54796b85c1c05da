"""Goes on where the previous run left off: gives lanes their rows, imports requests, shows them to the filter.

To find the lane of a request, it pushes the request into Scrapy's priority queue while nothing is stored. Does not know
where an import comes from, nor what a filter does.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy_bloom.old.frontier.database import IMPORTED_FIRST_ID, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy import Request

    from scrapy_bloom.old.frontier.database import Database
    from scrapy_bloom.old.frontier.lanes import Lane, Lanes
    from scrapy_bloom.old.frontier.serialize import Serializer

logger = logging.getLogger(__name__)

IMPORT_PAGE = 2000
"""Rows that an import keeps in memory."""

LED_LANES = 100
"""Lanes found by pushing a request before the others are reopened by name, which saves 70 microseconds each."""

SHOW_PAGE = 10_000
"""Requests shown to the filter before it releases their fingerprints; bounds what it holds in memory."""


class Recovery:
    """Fills the *lanes* that a priority queue makes, by its *push*, with the rows of *database*."""

    def __init__(self, database: Database, serializer: Serializer) -> None:
        self._database = database
        self._serializer = serializer
        self._reached: list[Lane] = []

    def receive(self, lane: Lane, request: Request) -> None:  # noqa: ARG002 - an Intake
        """Note the lane that a pushed request has reached."""
        self._reached.append(lane)

    def restore(
        self, lanes: Lanes, push: Callable[[Request], None], reopen: Callable[[str, int], bool] | None = None
    ) -> int:
        """Make the priority queue create the lanes that the file has rows for; return the number of rows.

        Pushing one request of a lane is enough. If that reaches another lane, the rules have changed (another priority
        queue, another Scrapy), and all requests of the lane are pushed one by one.

        A priority queue that can *reopen* a lane by its name needs no request for each of very many lanes. The first
        few show whether the rules are still the same; if not, none is reopened.
        """
        rows = 0
        led = 0
        for stored in list(lanes.stored.values()):
            rows += stored.rows
            if stored.name not in lanes.stored:
                continue
            if reopen is not None and led >= LED_LANES and reopen(stored.name, stored.rows):
                continue
            if self._leads_to(stored.name, stored.id, push):
                led += 1
            else:
                reopen = None
                lanes.stored.pop(stored.name, None)
                self._reroute(lanes, stored.id, push)
        return rows

    def import_requests(self, lanes: Lanes, requests: Iterable[Request], push: Callable[[Request], None]) -> int:
        """Store *requests* durably, all or none, and return how many.

        They come in the order in which another queue would have handed them out, and will come out in that order:
        after the rows already here if lanes are last-in-first-out, before them if lanes are first-in-first-out.
        """
        up, down = self._database.import_bounds()
        count = 0

        def pages() -> Iterator[tuple[dict[str, int], list[Row]]]:
            nonlocal count, up, down
            rows: list[Row] = []
            for request in requests:
                count += 1
                for lane in self._lanes_of(request, push):
                    lane.adopt()
                    if lane.lifo:
                        row_id, down = down, down - 1
                    else:
                        row_id, up = up, up + 1
                    rows.append(Row(row_id, lane.id, self._serializer.dumps(request)))
                if len(rows) >= IMPORT_PAGE:
                    yield lanes.journal.named_lanes(), rows
                    rows.clear()
            yield lanes.journal.named_lanes(), rows

        self._database.import_rows(pages())
        assert up < IMPORTED_FIRST_ID // 2  # noqa: S101 - 2**61 requests later
        return count

    def _leads_to(self, name: str, lane_id: int, push: Callable[[Request], None]) -> bool:
        for row in self._database.oldest_after(lane_id, -(2**63)):
            try:
                request = self._serializer.loads(row.body)
            except Exception:  # noqa: S112 - logged when its turn comes
                continue
            return any(lane.name == name for lane in self._lanes_of(request, push))
        return False

    def _reroute(self, lanes: Lanes, lane_id: int, push: Callable[[Request], None]) -> None:
        for page in self._database.walk(lane_id):
            moves: list[tuple[Row, int]] = []
            for row in page:
                try:
                    request = self._serializer.loads(row.body)
                except Exception as error:  # as in Lane.pop()
                    lanes.set_aside(row.id, error)
                    continue
                for lane in self._lanes_of(request, push):
                    lane.adopt()
                    if lane.id != row.lane:
                        moves.append((row, lane.id))
            self._database.move(lanes=lanes.journal.named_lanes(), rows=moves)

    def _lanes_of(self, request: Request, push: Callable[[Request], None]) -> list[Lane]:
        self._reached.clear()
        push(request)
        return list(self._reached)


def show(
    database: Database,
    serializer: Serializer,
    remember: Callable[[Request], object],
    release: Callable[[], None],
    *,
    after: int,
) -> int:
    """Show a filter the pending requests with ids over *after*, and return how many those are."""
    shown = 0
    for page in database.walk(after=after):
        for row in page:
            with suppress(Exception):  # logged when its turn comes
                request = serializer.loads(row.body)
                if not request.dont_filter:
                    remember(request)
        shown += len(page)
        if shown % SHOW_PAGE == 0:
            release()
            if shown % (10 * SHOW_PAGE) == 0:
                logger.info("Showed %d recovered requests to the duplicate filter", shown)
    release()
    return shown
