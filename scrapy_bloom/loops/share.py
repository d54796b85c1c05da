"""Shares a crawl among the kinds of its URLs by what their pages bring."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count

from scrapy_bloom.loops.kinds import Kind, Tree

AHEAD = 3  # URLs waiting per page handed out that count as handed out, too: kinds that breed come later
FAR = 5
OWN = 0.5
TRIED = 100


@dataclass(slots=True)
class Mark:
    """What a request carries: its lane, the lane of the page that linked to it, and how far it is from news."""

    lane: str
    source: str = ""
    dry: int = 0


class Node:
    """A kind in one group: what waits of it there."""

    __slots__ = ("best", "children", "cost", "heap", "kind", "lanes", "parent", "pending", "promise")

    def __init__(self, kind: Kind, parent: Node | None) -> None:
        self.kind, self.parent = kind, parent
        self.children: dict[str, Node] = {}
        self.lanes: dict[str, int] = {}
        self.heap: list[tuple[float, int, Node]] = []
        self.pending = 0
        self.cost = self.promise = 0.0
        self.best: Node | None = None

    def weigh(self) -> float:
        """Return the cost of the next page, after what is known now."""
        kind = self.kind
        rate = kind.rate()
        if self.children:
            best = self.best
            if best is None or not best.pending:
                best = self.best = max((c for c in self.children.values() if c.pending), key=lambda c: c.promise)
            rate = rate**OWN * best.promise ** (1 - OWN)
        if self.parent is not None:
            self._tell(rate)
        self.promise = rate
        had = kind.given + min(self.pending, AHEAD * kind.given) + 1
        return had / (kind.weight * rate + 1e-9)

    def _tell(self, promise: float) -> None:
        parent = self.parent
        best = parent.best
        if best is self:
            if promise < self.promise:
                self.promise = promise
                parent.best = None
        elif best is None or promise > best.promise:
            parent.best = self


class Group:
    """Lanes of one slot and priority, among which pages are shared."""

    def __init__(self, root: Kind) -> None:
        self.root = Node(root, None)
        self.lanes: dict[str, int] = {}
        self.merges = 0


class Share:
    """Knows all kinds, and chooses among the lanes of a group."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.sequence = count()

    def group(self) -> Group:
        return Group(self.tree.root)

    def lane_of(self, url: str, origin: Mark | None) -> Mark:
        dry = min(origin.dry, FAR) if origin else 0
        kind = self.tree.kind_of(url, dry)
        return Mark(kind.key, origin.lane if origin else "", dry)

    # -- groups

    def waiting(self, group: Group, lane: str, change: int) -> None:
        left = group.lanes.get(lane, 0) + change
        if left:
            group.lanes[lane] = left
        else:
            del group.lanes[lane]
        if group.merges != len(self.tree.merged):
            self._regroup(group)
        else:
            self._count(group, lane, change)

    def _regroup(self, group: Group) -> None:
        for node in self._nodes(group.root):
            if node in node.kind.nodes:
                node.kind.nodes.remove(node)
        group.root = Node(self.tree.root, None)
        group.merges = len(self.tree.merged)
        for lane, waiting in group.lanes.items():
            self._count(group, lane, waiting)

    def _nodes(self, node: Node):
        yield node
        for child in node.children.values():
            yield from self._nodes(child)

    def _count(self, group: Group, lane: str, change: int) -> None:
        kinds = [*self.tree.by_key[lane].path()]
        node = group.root
        path = [node]
        for kind in reversed(kinds[:-1]):
            child = node.children.get(kind.name)
            if child is None:
                child = node.children[kind.name] = Node(kind, node)
                kind.nodes.append(child)
            path.append(child)
            node = child
        left = node.lanes.get(lane, 0) + change
        if left > 0:
            node.lanes[lane] = left
        else:
            node.lanes.pop(lane, None)
        for node in reversed(path):
            node.pending += change
            if node.parent is not None:
                if not node.pending:
                    node.parent.children.pop(node.kind.name, None)
                    node.kind.nodes.remove(node)
                    if node.parent.best is node:
                        node.parent.best = None
                elif change > 0 and node.pending == change:
                    self._push(node)

    def _push(self, node: Node) -> None:
        node.cost = node.weigh()
        heapq.heappush(node.parent.heap, (node.cost, next(self.sequence), node))

    def choose(self, group: Group) -> str:
        if group.merges != len(self.tree.merged):
            self._regroup(group)
        node = group.root
        while node.children:
            node = self._cheapest(node)
        return next(iter(node.lanes))

    def _cheapest(self, parent: Node) -> Node:
        heap = parent.heap
        while True:
            cost, _, node = heap[0]
            if not node.pending or cost != node.cost or parent.children.get(node.kind.name) is not node:
                heapq.heappop(heap)
                continue
            now = node.weigh()
            if now <= cost * 1.0001:
                return node
            node.cost = now
            heapq.heapreplace(heap, (now, next(self.sequence), node))

    def handed_out(self, group: Group, lane: str) -> None:
        for kind in self.tree.by_key[lane].path():
            kind.given += 1
        self.waiting(group, lane, -1)

    # -- pages

    def page_done(self, mark: Mark, is_news: bool, twin: str = "", url: str = "") -> Mark:
        kind = self.tree.by_key[mark.lane]
        own = list(kind.path())
        others: list[Kind] = []
        if twin and not is_news:
            other = self.tree.find(twin)
            if other is not None and other is not kind.parent:
                theirs = list(other.path())
                if plainness(url) < plainness(twin):
                    is_news = True
                    for k in theirs:
                        if k not in own:
                            k.copied += 1
                            k.news = max(0.0, k.news - 1)
                elif plainness(url) > plainness(twin):
                    for k in own:
                        if k not in theirs:
                            k.copied += 1
        own_evidence = {id(e): e for k in own for e in k.alike}
        for k in own:
            k.note(is_news)
        for e in own_evidence.values():
            e.note(is_news)
        touched = own
        if is_news and mark.source:
            source = self.tree.by_key[mark.source]
            for k in source.path():
                if k not in own:
                    k.credit()
                    touched = touched + [k]
                for e in k.alike:
                    if id(e) not in own_evidence and e.news + 1 <= e.pages:
                        e.news += 1
        for k in touched:
            self._touch(k)
        return Mark(mark.lane, mark.source, 0 if is_news else mark.dry + 1)

    def _touch(self, kind: Kind) -> None:
        for node in kind.nodes:
            if node.parent is not None and node.pending:
                cost = node.weigh()
                if cost < node.cost * 0.999:
                    node.cost = cost
                    heapq.heappush(node.parent.heap, (cost, next(self.sequence), node))

    def is_over(self, groups) -> bool:
        for group in groups:
            for host in group.root.children.values():
                for section in host.children.values():
                    if section.kind.since < TRIED:
                        return False
        return True


def plainness(url: str) -> tuple[int, int, int]:
    path, _, query = url.partition("?")
    return ((query.count("&") + 1) * bool(query) + (";" in url), path.count("/"), len(url))
