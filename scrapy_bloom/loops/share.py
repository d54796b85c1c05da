"""Shares a crawl among the kinds of its URLs by what their pages bring: the order of requests of equal priority.

Handing out a request walks down the tree of kinds, each time to the child whose next page costs least:

    cost = had (1 + depth) / promise
    promise = own^OWN * best^(1 - OWN)          own = rate^2 * links^(1/2)

- *rate* is the share of the kind's pages that bring something (:meth:`Kind.rate`).
- *links* is how many links led to a page of the kind, or to copies of it. The links of honest pages repeat each other,
  and random URLs are linked once (Cho, Garcia-Molina, Page, "Efficient crawling through URL ordering", 1998).
- *depth* is the fewest links that lead to the kind. Real sections are found early.
- *best* is the promise of the kind's best child: a good kind among dry ones is not left behind with them.
- *had* counts the pages handed out, and at most as many of the pending URLs. It is own^((1 + OWN) / 2) *
  best^((1 - OWN) / 2), where own and best are the counts of the kind and of its best child. Pages of a kind that brings
  something count half if other kinds link to it, because an endless kind is linked mostly by its own pages.

Nothing is expected of copies
(:mod:`~scrapy_bloom.loops.aliases`), so they come after all others that bring something.

A *lane* is a queue of requests of one kind, and a *group* the lanes of one slot and priority. The frontier counts what
it queues and hands out; page_done() comes before the links of a page are pushed.

A mark is a small tuple, which travels with the request and can be pickled. Lanes are named by text of at most 200
bytes, which means the same after a restart.
"""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from scrapy_bloom.loops.address import Address
from scrapy_bloom.loops.aliases import Aliases
from scrapy_bloom.loops.kinds import COPIES, Node, Tree, readable
from scrapy_bloom.loops.links import LinkCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from scrapy_bloom.loops.kinds import Evidence, Kind
    from scrapy_bloom.loops.novelty import Brought

TRY = 4  # while pages bring nothing, each TRY-th is of the kind that was served longest ago
ENDLESS = 0.1  # share of its pages that bring something below which a kind that waits counts as endless

_ALIAS = "\0"
"""What keys of notes about aliases begin with: no key of a kind does."""


class Mark(NamedTuple):
    """What a request carries along."""

    lane: str
    source: str = ""
    """The lane of the page that linked to it."""
    fingerprint: bytes = b""
    """Of the request, whose links are counted by it."""
    depth: int = 0
    """How many links led to it from a start request."""


class Share:
    """Knows all kinds of a crawl, and chooses among the lanes of a group."""

    def __init__(self, add: Callable[[bytes], bool]) -> None:
        """Remember with *add*, which returns whether a key is new, which URLs were asked for."""
        self.aliases = Aliases(add)
        self.links = LinkCounts()
        self._tree = Tree(self.aliases.forget)
        self._sequence = count()
        self._examples: dict[str, str] = {}  # the last URL of each lane that was queued in this run
        self.revivals = 0
        """How often a host that was given up has brought something after all."""

    def mark(self, url: str, origin: Mark | None, fingerprint: bytes = b"") -> Mark:
        """Return the mark of a new request for *url*, to which the page of *origin* linked."""
        address = Address.of(url)
        source = self._tree.by_key.get(origin.lane) if origin else None
        depth = origin.depth + 1 if origin else 0
        is_copy = self.aliases.is_copy(address)
        lane = self._tree.lane_of(address, source, links_away=depth, is_copy=is_copy)
        self._examples[lane.key] = url
        return Mark(lane.key, origin.lane if origin else "", fingerprint, depth)

    def group(self) -> Node:
        """Return a group without lanes. It counts what waits in it."""
        return Node(self._tree.root, None)

    def waiting(self, group: Node, lane: str, change: int) -> None:
        """Add *change* to the number of requests that wait in *lane* of *group*."""
        node = group
        path = [node]
        for kind in reversed([*self._lane(lane).path()][:-1]):
            child = node.children.get(kind.name)
            if child is None:
                child = node.children[kind.name] = Node(kind, node)
                kind.nodes.append(child)
            path.append(child)
            node = child
        lanes = path[1].lanes
        if change < 0 or not node.waiting:
            lanes.pop(node, None)
            lanes[node] = None
        is_cheaper = change < 0 or not node.waiting  # pending requests make a kind dearer
        for node in reversed(path):
            node.waiting += change
            parent = node.parent
            if parent is None:
                continue
            if not node.waiting:
                lanes.pop(node, None)
                del parent.children[node.kind.name]
                node.kind.nodes.remove(node)
                if parent.best is node:
                    parent.best = None
            elif is_cheaper:
                cost = node.weigh()
                if node.waiting == change or cost < node.cost * 0.999:
                    self._queue(node, cost)

    def _lane(self, key: str) -> Kind:
        """Return the kind of a lane; a lane that nothing is known of, after a crash, is a kind of its own."""
        kind = self._tree.by_key.get(key)
        return self._tree.new(self._tree.root, key) if kind is None else kind

    def _queue(self, node: Node, cost: float) -> None:
        node.cost = cost
        if node.parent is not None:
            heapq.heappush(node.parent.heap, (cost, next(self._sequence), node))

    def choose(self, group: Node) -> str | None:
        """Return the lane that is next in *group*, in which requests wait, in O(log n) of its kinds.

        While the pages of a host bring nothing, each TRY-th page is of the lane that was served longest ago. Before a
        host is given up, each of its lanes is tried so. Returns None if all hosts are given up.
        """
        top = self._cheapest(group)
        host = top.kind.host
        if host.is_given_up():
            untried = [lane for node in group.children.values() if (lane := node.untried())]
            return untried[0].kind.key if untried else None
        if host.since >= TRY and host.given % TRY == 0:
            return next(iter(top.lanes)).kind.key
        node = top
        while node.children:
            node = self._cheapest(node)
        return node.kind.key

    def _cheapest(self, parent: Node) -> Node:
        heap = parent.heap
        while True:
            cost, _, node = heap[0]
            if not node.waiting or cost != node.cost:  # it has no more requests, or became cheaper since
                heapq.heappop(heap)
                continue
            now = node.weigh()
            if now <= cost * 1.0001:
                return node
            node.cost = now
            heapq.heapreplace(heap, (now, next(self._sequence), node))

    def handed_out(self, group: Node, lane: str) -> None:
        """Count that a request of *lane* is fetched."""
        kinds = [*self._lane(lane).path()]
        for kind in kinds:
            kind.given += 1
            kind.is_changed = True
        kinds[0].served = kinds[0].host.answers
        self.waiting(group, lane, -1)

    def page_done(self, mark: Mark, brought: Brought, url: str = "") -> None:
        """Learn what the page at *url* brought."""
        page_kinds = [*self._lane(mark.lane).path()]
        address = Address.of(url)
        news, links = brought.news, max(self.links.of(mark.fingerprint), self.aliases.forms(address))
        if brought.is_page:
            if self.aliases.learn(address, brought, is_copy=COPIES in mark.lane):
                news = 0.0  # such as a picture of the same product in another colour: its kind is not worth more pages
            self.revivals += page_kinds[0].host.count_answer(has_news=brought.news > 0)
        noted = _with_alike(page_kinds)
        for evidence in noted:
            evidence.note(news)
        for kind in page_kinds:
            kind.count_links(links)
        is_alone = brought.news and mark.source and links == 1  # the list that alone led to a page has the credit
        lists = [kind for kind in self._lane(mark.source).path() if kind not in noted] if is_alone else []
        for evidence in _with_alike(lists).keys() - noted.keys():
            evidence.credit()
        for node in [node for kind in (*page_kinds, *lists) for node in kind.nodes]:
            cost = node.weigh()
            if cost < node.cost * 0.999:  # dearer ones are found when it is their turn
                self._queue(node, cost)

    def report(self, groups: Iterable[Node]) -> list[tuple[str, int, str]]:
        """Return the kinds of what waits, as people read them, how many URLs wait, and one if known; most first."""
        waiting: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for node in _lanes(groups):
            kind = readable(node.kind.key)
            waiting[kind] += node.waiting
            examples[kind] = self._examples.get(node.kind.key) or examples.get(kind, "")
        return [(kind, number, examples[kind]) for kind, number in waiting.most_common()]

    def promise(self, groups: Iterable[Node]) -> tuple[float, Counter[str]]:
        """Return the share of what waits that is expected to bring something, and what waits of endless kinds.

        These bring something so rarely (ENDLESS) that nothing is expected of them.
        """
        waiting, expected = 0, 0.0
        endless: Counter[str] = Counter()
        for node in _lanes(groups):
            rate = node.kind.rate()
            waiting += node.waiting
            if rate < ENDLESS:
                endless[readable(node.kind.key)] += node.waiting
            else:
                expected += rate * node.waiting
        return expected / waiting if waiting else 1.0, endless

    def changed(self) -> dict[str, bytes]:
        """Return what was learned since this was last asked, by key; nothing for what is forgotten."""
        rows = dict.fromkeys(self._tree.take_forgotten(), b"")
        for kind in self._tree.by_key.values():
            if kind.is_changed:
                kind.is_changed = False
                rows[kind.key] = kind.dump()
        rows |= {_ALIAS + key: row for key, row in self.aliases.changed().items()}
        return rows

    def load(self, rows: Mapping[str, bytes]) -> None:
        """Go on with what :meth:`changed` returned in earlier runs."""
        self._tree.load([row for key, row in rows.items() if row and not key.startswith(_ALIAS)])
        self.aliases.load(aliases_in(rows))


def aliases_in(rows: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the rows that :meth:`Aliases.load` takes, of the *rows* that :meth:`Share.changed` returned."""
    return {key.removeprefix(_ALIAS): row for key, row in rows.items() if row and key.startswith(_ALIAS)}


def _with_alike(kinds: Iterable[Kind]) -> dict[Evidence, None]:
    """Return *kinds*, and what is known of URLs that have a part in common with them, each once."""
    return dict.fromkeys(evidence for kind in kinds for evidence in (kind, *kind.alike))


def _lanes(groups: Iterable[Node]) -> Iterator[Node]:
    return (node for group in groups for node in group.walk() if not node.children and node.parent)
