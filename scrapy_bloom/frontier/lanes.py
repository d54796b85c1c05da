"""Decides which request is next.

The slot with the fewest requests in progress is served first; equal slots take turns. In a slot, the most urgent lane
comes first, and a lane is LIFO or FIFO. The order is the same as in Scrapy's priority queues. The same code serves
requests in memory and requests in a database: a lane holds what is in memory, and reads the rest through the function
that its frontier was given.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from scrapy_bloom.frontier.order import LaneKey, LaneRow

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from scrapy_bloom.frontier.order import PagesPerHost
    from scrapy_bloom.loops.kinds import Node
    from scrapy_bloom.loops.share import Share

READ_ROWS = 64
"""Rows that a lane reads at once."""
_BEYOND = 2**62


class Lane:
    """Pending requests of one slot, priority and kind.

    An entry is a pair of an id, which grows with each request, and the request, whatever stands for it.

    Attributes:
        fresh: Entries in memory, oldest first. They are in no file, or the commit that wrote them is not collected yet.
        stored: How many entries are in the file alone and were not read.
        ahead: Entries of the file that were read, the next one last.
        edge: The id of the last entry read.
        until: The largest id that the file had when entries last went from ``fresh`` to ``stored``.

    """

    __slots__ = ("ahead", "edge", "fresh", "id", "is_lifo", "key", "stored", "until")

    def __init__(self, key: LaneKey, *, is_lifo: bool, stored: int = 0) -> None:
        self.key = key
        self.id = key.id()
        self.is_lifo = is_lifo
        self.fresh: deque[tuple[int, Any]] = deque()
        self.ahead: list[tuple[int, Any]] = []
        self.stored = stored
        self.edge = _BEYOND if is_lifo else -_BEYOND
        self.until = _BEYOND

    def __len__(self) -> int:
        return len(self.fresh) + len(self.ahead) + self.stored

    def pop(self, frontier: Frontier) -> tuple[int, Any]:
        """Return the next entry of a lane that has one."""
        fresh = self.fresh
        if self.is_lifo and fresh and fresh[-1][0] > self.until:
            return fresh.pop()
        if not self.ahead and self.stored:
            self._read(frontier)
        # Requests that wait for their page's commit stay fresh, while younger ones are in the file.
        if self.is_lifo:
            return fresh.pop() if fresh and (not self.ahead or fresh[-1][0] > self.ahead[-1][0]) else self.ahead.pop()
        return fresh.popleft() if fresh and (not self.ahead or fresh[0][0] < self.ahead[-1][0]) else self.ahead.pop()

    def _read(self, frontier: Frontier) -> None:
        skipped = frontier.taken
        if self.fresh and self.fresh[0][0] <= self.until:  # some may be in the file since the last commit
            skipped = skipped | {id_ for id_, _ in takewhile(lambda entry: entry[0] <= self.until, self.fresh)}
        while self.stored and not self.ahead:
            assert frontier.read is not None
            rows = frontier.read(self, min(READ_ROWS, self.stored + len(skipped)))
            self.edge = rows[-1][0]
            self.ahead = [row for row in reversed(rows) if row[0] not in skipped]
            self.stored -= len(self.ahead)

    def unread(self) -> tuple[int, int]:
        """Return the ids between which the rows are that were not read yet.

        The file may have fresh entries, too, for the moment between the transaction and :meth:`written`.
        """
        if self.is_lifo:
            return -_BEYOND, min(self.edge, self.until + 1)
        return self.edge, self.until + 1

    def check(self) -> None:
        """Assert what always holds of a lane."""
        fresh, ahead = [id_ for id_, _ in self.fresh], [id_ for id_, _ in self.ahead]
        assert len(self) > 0
        assert self.stored >= 0
        assert fresh == sorted(fresh)
        assert ahead == sorted(ahead, reverse=not self.is_lifo)

    def written(self, last_id: int, added: Container[int]) -> None:
        """Forget the entries that a commit up to *last_id* has *added* to the file.

        Entries that the lane has read past are read again.
        """
        fresh, kept = self.fresh, []
        reads_again = False
        while fresh and fresh[0][0] <= last_id:
            entry = fresh.popleft()
            if entry[0] in added:
                self.stored += 1
                reads_again |= self.is_lifo or entry[0] <= self.edge
            else:
                kept.append(entry)
        fresh.extendleft(reversed(kept))
        self.until = last_id
        if reads_again:
            self.stored += len(self.ahead)
            self.ahead, self.edge = [], _BEYOND if self.is_lifo else -_BEYOND


Place = tuple[int, bool]
"""The negative priority of a request, and whether it is a start request: the least is next."""


class Slot:
    """The lanes of one download slot, by place and kind. The most urgent place is next."""

    __slots__ = ("groups", "next", "places")

    def __init__(self) -> None:
        self.places: dict[Place, dict[str, Lane]] = {}
        self.groups: dict[Place, Node] = {}
        """What the share knows of the kinds of a place."""
        self.next: Place | None = None


class Frontier:
    """All pending requests of a crawl, in the order in which they are handed out.

    Args:
        is_lifo: Whether the last request in is the first out: one flag for usual requests, one for start requests.
        read: Returns the next rows of a lane, at most the given number; None if all requests are in memory.
        active: How many requests of each slot were handed out and are not done; several frontiers may share it.
        share: Chooses the next kind of a place; None: each place has one lane. Requests without a kind come first.
            A slot of which the share expects nothing keeps its requests and gets no turn.
        pages: Says which slots are full. A full slot keeps its requests and gets no turn. None: no slot is full.
        paused: Slots that get no turn until :meth:`end_pause` is called. The owner adds them.

    """

    def __init__(
        self,
        *,
        is_lifo: tuple[bool, bool],
        read: Callable[[Lane, int], list[tuple[int, Any]]] | None = None,
        active: Counter[str] | None = None,
        share: Share | None = None,
        pages: PagesPerHost | None = None,
        paused: Container[str] = (),
    ) -> None:
        self._is_lifo = is_lifo
        self.read = read
        self.share = share
        self._pages = pages
        self._paused = paused
        # Slots with requests that have no turn: they are paused or full, or the share has given them up.
        self._waiting: set[str] = set()
        self._full: set[str] = set()
        self._given_up: set[str] = set()
        self._revivals = 0  # hosts that the share had revived when the given-up slots last came back
        self.active: Counter[str] = Counter() if active is None else active
        self.taken: set[int] = set()
        """Ids of rows in the file that were handed out, or are done and still to be deleted."""
        # A lane as it is stored, until it is its slot's turn, takes a quarter of the memory and half the time to open.
        self._slots: dict[str, Slot | LaneRow | list[LaneRow]] = {}
        self._turns: deque[str] = deque()
        self.size = 0
        """How many requests are pending."""

    def __len__(self) -> int:
        return self.size

    def restore(self, rows: Iterable[LaneRow]) -> None:
        """Take in the lanes that an earlier run left in the file."""
        for row in rows:
            waiting = self._slots.setdefault(row.slot, row)
            if waiting is row:
                self._turns.append(row.slot)
            elif isinstance(waiting, list):
                waiting.append(row)
            elif isinstance(waiting, LaneRow):
                self._slots[row.slot] = [waiting, row]
            self.size += row.rows

    def push(self, key: LaneKey, id_: int, request: Any) -> Lane:
        """Take in *request*, and return its lane. *id_* is larger than any before."""
        slot = self._slots.get(key.slot)
        place = (-key.priority, key.is_start)
        if not isinstance(slot, Slot) or place not in slot.places:
            slot = self._new_place(key.slot, place)
        kinds = slot.places[place]
        if key.slot in self._given_up:  # the new request may be of another host
            self._given_up.discard(key.slot)
            self._turns.append(key.slot)
        lane = kinds.get(key.kind)
        if lane is None:
            lane = kinds[key.kind] = Lane(key, is_lifo=self._is_lifo[key.is_start])
        if lane.until == _BEYOND:  # what the file has of this lane is older
            lane.until = id_ - 1
        lane.fresh.append((id_, request))
        self.size += 1
        if key.kind and self.share is not None:
            self.share.waiting(slot.groups[place], key.kind, 1)
        return lane

    def _new_place(self, name: str, place: Place) -> Slot:
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = Slot()
            self._turns.append(name)
        elif not isinstance(slot, Slot):
            slot = self._opened(name, slot)
        if place not in slot.places:
            slot.places[place] = {}
            if self.share is not None:
                slot.groups[place] = self.share.group()
            slot.next = min(slot.places)
        return slot

    def _opened(self, name: str, rows: LaneRow | list[LaneRow]) -> Slot:
        slot = self._slots[name] = Slot()
        for row in [rows] if isinstance(rows, LaneRow) else rows:
            key = LaneKey(row.slot, row.priority, bool(row.is_start), row.kind)
            place = (-key.priority, key.is_start)
            lane = Lane(key, is_lifo=self._is_lifo[key.is_start], stored=row.rows)
            self._new_place(name, place).places[place][key.kind] = lane
            if key.kind and self.share is not None:
                self.share.waiting(slot.groups[place], key.kind, row.rows)
        return slot

    def written(self, lanes: Iterable[Lane], last_id: int, added: Container[int]) -> None:
        """Note that a commit up to *last_id* has *added* requests of *lanes* to the file."""
        for lane in lanes:
            lane.written(last_id, added)
            self._rest(lane.key.slot)

    def _rest(self, name: str) -> None:
        """Replace the lane of the slot *name* by its stored row, if it is the only lane and has no request in memory.

        Slots with many lanes are few, and costly to open again. With a share, lanes stay: the share knows more than the
        file.
        """
        slot = self._slots.get(name)
        if not isinstance(slot, Slot) or self.share is not None or len(slot.places) > 1:
            return
        (kinds,) = slot.places.values()
        if len(kinds) == 1:
            (lane,) = kinds.values()
            if not lane.fresh and not lane.ahead:
                self._slots[name] = LaneRow(lane.id, *lane.key, lane.stored)

    def groups(self) -> Iterator[Node]:
        """Yield what the share knows of each place in which requests wait, except in full slots."""
        for name in (*self._turns, *self._waiting, *self._given_up):
            slot = self._slots[name]
            yield from (slot if isinstance(slot, Slot) else self._opened(name, slot)).groups.values()

    def full(self) -> dict[str, int]:
        """Return how many requests wait in each slot that is full."""
        pages = self._pages
        if pages is None:
            return {}
        return {name: self._size_of(name) for name in self._slots if pages.is_full(name, self.active.get(name, 0))}

    def _size_of(self, name: str) -> int:
        slot = self._slots[name]
        if isinstance(slot, LaneRow):
            return slot.rows
        if isinstance(slot, list):
            return sum(row.rows for row in slot)
        return sum(len(lane) for kinds in slot.places.values() for lane in kinds.values())

    def check(self) -> None:
        """Assert what always holds: each slot waits in one place, and all numbers add up."""
        assert sorted(self._slots) == sorted([*self._turns, *self._waiting, *self._full, *self._given_up])
        assert self.size == sum(map(self._size_of, self._slots))
        assert all(count > 0 for count in self.active.values())
        for slot in self._slots.values():
            if isinstance(slot, Slot):
                assert slot.next == min(slot.places)
                for kinds in slot.places.values():
                    for lane in kinds.values():
                        lane.check()

    def is_over(self) -> bool:
        """Return whether all that is pending waits in slots that are full or given up, as :meth:`pop` has found."""
        return self.size > 0 and not self._turns and not self._waiting

    def has_given_up(self) -> bool:
        """Return whether the share has given up slots in which requests wait, as :meth:`pop` has found."""
        return bool(self._given_up)

    def pop(self) -> tuple[Lane, int, Any] | None:
        """Return the next request with its lane and id; None if nothing has a turn. Its slot counts as active now."""
        while True:
            name = self._next_slot()
            if name is None:
                return None
            slot = self._slots[name]
            if not isinstance(slot, Slot):
                slot = self._opened(name, slot)
            place, kind = slot.next, ""
            if self.share is not None:
                place, kind = self._choose(self.share, slot)
            if place is not None:
                break
            self._given_up.add(self._turns.pop())
        kinds = slot.places[place]
        if kind not in kinds:  # without a share, the kinds of an earlier run come as they are
            kind = next(iter(kinds))
        lane = kinds[kind]
        id_, request = lane.pop(self)
        self.size -= 1
        self.active[name] += 1
        if kind and self.share is not None:
            self.share.handed_out(slot.groups[place], kind)
        if not (lane.fresh or lane.ahead or lane.stored):
            del kinds[kind]
            if not kinds:
                del slot.places[place]
                slot.groups.pop(place, None)
                slot.next = min(slot.places, default=None)
            if slot.next is None:
                del self._slots[name]
                self._turns.pop()
        return lane, id_, request

    @staticmethod
    def _choose(share: Share, slot: Slot) -> tuple[Place | None, str]:
        """Return the place and the kind in *slot* that are next; no place: *share* has given up all of them."""
        for place in sorted(slot.places):
            kind = "" if "" in slot.places[place] else share.choose(slot.groups[place])
            if kind is not None:
                return place, kind
        return None, ""

    def _next_slot(self) -> str | None:
        """Return the idlest slot, the next in turn of those equally idle, and make it the last in turn."""
        best, fewest = None, 0
        turns, active = self._turns, self.active
        for _ in range(len(turns)):
            name = turns[0]
            turns.rotate(-1)
            busy = active.get(name, 0)
            if name in self._paused:
                self._waiting.add(turns.pop())
                continue
            if self._pages is not None and self._pages.is_full(name, busy):
                self._full.add(turns.pop())
                self._pages.log_full(name)
                continue
            if not busy:
                return name
            if best is None or busy < fewest:
                best, fewest = name, busy
        if best is not None:  # all are busy, so they are few
            turns.remove(best)
            turns.append(best)
        return best

    def done(self, slot: str, *, is_page: bool = True) -> None:
        """Note that a request of *slot* that was handed out is done; if *is_page*, it counts among its host's."""
        self.active[slot] -= 1
        if is_page and self._pages is not None:
            self._pages.add(slot)
        if slot in self._full and self._pages is not None and not self._pages.is_full(slot, self.active[slot]):
            self._full.discard(slot)
            self._turns.append(slot)
        if not self.active[slot]:
            del self.active[slot]
        if self.share is not None and self.share.revivals != self._revivals:
            self._revivals = self.share.revivals
            self._turns += self._given_up
            self._given_up.clear()

    def end_pause(self, slot: str) -> None:
        """Let *slot*, which was paused, have its turn again."""
        if slot in self._waiting:
            self._waiting.discard(slot)
            self._turns.append(slot)
