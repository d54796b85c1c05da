""":class:`SlotQueue`: Scrapy's choice of the next host, without a look at every host.

``DownloaderAwarePriorityQueue`` asks each of its download slots how busy it is, on every ``pop()`` and, to be counted,
on every ``len()``: 16 ms a request at 20,000 hosts. But only slots that the downloader works for can be busy, and they
are few. So the choice is the first idle one in the order of names, and names are kept in order.

Knows Scrapy's priority queues. Does not know where requests are kept, nor which scheduler asks.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from hashlib import md5
from typing import TYPE_CHECKING, Any

from scrapy.pqueues import DownloaderAwarePriorityQueue, DownloaderInterface, ScrapyPriorityQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy import Request
    from scrapy.crawler import Crawler

_match_name = re.compile(r"/([^/]+)-([0-9a-f]{32})/(?:0|-?[1-9][0-9]*)(s?)").fullmatch

_BLOCK = 128
"""Names in a new block; a block of twice as many is split. Adding, removing and stepping on take 3.8 microseconds
together at 100,000 names; with 64 or 256 within 10 % of that, with 512 a fifth more, with 2048 twice."""


class SortedNames:
    """Distinct names in order. Adding, removing or stepping on takes a microsecond or two at 100,000 names.

    A list of short lists. In a single list each change moves half the names (10 microseconds at 100,000). A heap gives
    the first name, but not the next one after another. ``sortedcontainers`` does the same and more, but has had no
    release since 2021.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        ordered = sorted(names)
        self._blocks = [ordered[at : at + _BLOCK] for at in range(0, len(ordered), _BLOCK)]
        self._firsts = [block[0] for block in self._blocks]

    def add(self, name: str) -> None:
        """Take in *name*, which is not there yet."""
        if not self._blocks:
            self._blocks, self._firsts = [[name]], [name]
            return
        at = self._block_of(name)
        block = self._blocks[at]
        insort(block, name)
        self._firsts[at] = block[0]
        if len(block) >= 2 * _BLOCK:
            self._blocks.insert(at + 1, block[_BLOCK:])
            self._firsts.insert(at + 1, block[_BLOCK])
            del block[_BLOCK:]

    def remove(self, name: str) -> None:
        """Let *name* go, which is there."""
        at = self._block_of(name)
        block = self._blocks[at]
        del block[bisect_left(block, name)]
        if block:
            self._firsts[at] = block[0]
        else:
            del self._blocks[at], self._firsts[at]

    def behind(self, name: str | None) -> Iterator[str]:
        """Yield all names once: those behind *name* in order, then the others; from the first if *name* is None."""
        if not self._blocks:
            return
        start = at = 0
        if name is not None:
            start = self._block_of(name)
            at = bisect_right(self._blocks[start], name)
        yield from self._blocks[start][at:]
        for number in range(start + 1, start + len(self._blocks)):
            yield from self._blocks[number % len(self._blocks)]
        yield from self._blocks[start][:at]

    def _block_of(self, name: str) -> int:
        return max(0, bisect_right(self._firsts, name) - 1)


class _Chooser(DownloaderInterface):
    """Tells Scrapy's class of one slot only, which is the one that it would choose among all."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self.names = SortedNames()
        self.last: str | None = None
        """The slot chosen last; none before Scrapy 2.15, where the first in order always comes first."""
        self.chosen: tuple[int, str] | None = None
        """What :meth:`stats` answers, if it is known."""

    def choose(self) -> tuple[int, str] | None:
        """Return the first slot behind the last one of those with the fewest active downloads, and their number."""
        slots = self.downloader.slots
        fewest: tuple[int, str] | None = None
        for name in self.names.behind(self.last):
            slot = slots.get(name)
            active = 0 if slot is None else len(slot.active)
            if not active:
                return 0, name
            if fewest is None or active < fewest[0]:
                fewest = active, name
        return fewest

    def stats(self, possible_slots: Iterable[str]) -> list[tuple[int, str]]:  # noqa: ARG002 - names has them in order
        """Return what Scrapy's class is to choose from."""
        chosen = self.chosen or self.choose()
        return [] if chosen is None else [chosen]


class SlotQueue(DownloaderAwarePriorityQueue):
    """For ``SCHEDULER_PRIORITY_QUEUE``: Scrapy's ``DownloaderAwarePriorityQueue`` for any number of hosts.

    Requests come out in the same order as from the class of the installed Scrapy, and each can read what the other
    leaves in a job directory. ``pop()`` takes time logarithmic in the number of hosts and linear in those with
    downloads under way; ``len()`` takes constant time.

    ``DurableScheduler`` uses it by itself in place of Scrapy's class.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dormant: dict[str, list[tuple[str, int]]] = {}
        """Names and lengths of the queues of slots not needed yet. Open, a slot takes 1.4 kB more."""
        one = self.pqfactory("a.example")
        self._can_reopen = (
            one.key == f"{self.key}/a.example-{_checksum('a.example')}" and type(one) is ScrapyPriorityQueue
        )
        self._chooser = self._downloader_interface = _Chooser(self.crawler)
        self.recount()

    def recount(self) -> None:
        """Count again, after queues have changed in other ways than by push() and pop()."""
        self._chooser.names = SortedNames([*self.pqueues, *self._dormant])
        dormant = sum(length for queues in self._dormant.values() for _, length in queues)
        self._count = sum(map(len, self.pqueues.values())) + dormant

    def reopen(self, name: str, length: int) -> bool:
        """Make the queue that is called *name*, and return whether that could be done without a request.

        The queue is opened when its slot is needed; until then it counts for *length* requests. When all are made,
        :meth:`recount` has to be called.

        Scrapy's class builds the name of a slot's queues from its own, but keeps only what suits a file name. For
        nearly all hosts that is everything; a name that has lost something is known by the checksum behind it.
        """
        found = _match_name(name.removeprefix(self.key))
        if found is None or not (self._can_reopen and name.startswith(self.key)):
            return False
        slot, checksum, start = found.groups()
        if checksum != _checksum(slot) or (start and self._start_queue_cls is None):
            return False
        if slot in self.pqueues:
            self._open(slot, name)
        else:
            self._dormant.setdefault(slot, []).append((name, length))
        return True

    def _open(self, slot: str, name: str) -> None:
        queue = self.pqueues.get(slot)
        if queue is None:
            # pqfactory() would make the same of the slot's name, in three times the time.
            queue = self.pqueues[slot] = ScrapyPriorityQueue(
                self.crawler, self.downstream_queue_cls, name.rpartition("/")[0], start_queue_cls=self._start_queue_cls
            )
        priority = _priority(name)
        if name.endswith("s"):
            queue._start_queues[priority] = queue._sqfactory(priority)
        else:
            queue.queues[priority] = queue.qfactory(priority)
        queue.curprio = priority if queue.curprio is None else min(queue.curprio, priority)

    def _wake(self, slot: str) -> None:
        for name, _ in self._dormant.pop(slot, ()):
            self._open(slot, name)

    def push(self, request: Request) -> None:
        """Take in *request*; ValueError if it cannot be serialized."""
        slot = self._chooser.get_slot_key(request)
        if slot in self._dormant:
            self._wake(slot)
        queue = self.pqueues.get(slot)
        if queue is None:  # made even if the request is refused, as by Scrapy's class
            queue = self.pqueues[slot] = self.pqfactory(slot)
            self._chooser.names.add(slot)
        queue.push(request)
        self._count += 1

    def pop(self) -> Request | None:
        """Hand out the next request of the slot that is next, or None if there is none."""
        chooser = self._chooser
        chosen = chooser.chosen = chooser.choose()
        if chosen is None:
            return None
        slot = chosen[1]
        if slot in self._dormant:
            self._wake(slot)
        queue = self.pqueues[slot]
        before = len(queue)
        try:
            return super().pop()
        finally:
            chooser.chosen = None
            chooser.last = getattr(self, "_last_selected_slot", None)
            if slot in self.pqueues:
                self._count += len(queue) - before
            else:
                self._count -= before
                chooser.names.remove(slot)

    def peek(self) -> Request | None:
        """Return the request that :meth:`pop` would hand out, and leave it where it is; None if there is none."""
        chosen = self._chooser.choose()
        if chosen is not None:
            self._wake(chosen[1])
        return super().peek()

    def upcoming(self) -> Iterator[Any]:
        """Yield the queues that come next while no slot is busy. Do not push or pop meanwhile."""
        for slot in self._chooser.names.behind(self._chooser.last):
            if slot in self._dormant:
                self._wake(slot)
            queue = self.pqueues[slot]
            if queue.curprio is not None:
                for queues in (queue.queues, queue._start_queues):
                    if queue.curprio in queues:
                        yield queues[queue.curprio]

    def close(self) -> dict[str, list[int]]:
        """Close all queues, and return what Scrapy's class would."""
        state: dict[str, list[int]] = super().close()
        for slot, queues in self._dormant.items():
            state[slot] = list({_priority(name) for name, _ in queues})
        self._dormant.clear()
        self.recount()
        return state

    def __len__(self) -> int:
        return self._count

    def __contains__(self, slot: str) -> bool:
        return slot in self._dormant or super().__contains__(slot)


def _priority(name: str) -> int:
    return int(name.rpartition("/")[2].removesuffix("s"))


def _checksum(slot: str) -> str:
    return md5(slot.encode(), usedforsecurity=False).hexdigest()
