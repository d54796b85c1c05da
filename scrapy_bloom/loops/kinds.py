"""Kinds of URLs: a tree for each host of its folders, names and queries, with what differs inside a kind masked.

    https://example.com/shop/shoes/4711?colour=red&page=3
        example.com/                      the host
        example.com/shop/                 its folders, from the outside in: words are one kind, ``*/``, ...
        example.com/shop/*/
        example.com/shop/*/N?             the last name, with any query
        example.com/shop/*/N?colour&page
        example.com/shop/*/N?colour&page^0    its lane of requests to which other pages linked
        example.com/shop/*/N?colour&page^1    its lane of requests to which its own pages linked

A ``:`` in a path separates like a ``/``. Sections, which are the first folders and names of a host, are kinds of their
own if the page at which the host begins links to them. Other words count as ``*``, one of many, until SECTION URLs,
and one in SECTION of those in the same folder, have contained them. So sections that are made up without end share the
trust of one kind.
A kind is never merged into another one, so a request stays in its lane.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from itertools import islice
from math import sqrt
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy_bloom.loops.address import Address

# What is learned, and how fast.
# The expected rate of a new kind counts as this many pages; its parent learns from as many first pages what to expect
BEGIN = 2
LATELY = 64  # pages after which older ones count half
SECTION = 20  # URLs under a word that make it a kind by itself, if they are also 1 / SECTION of the host's
GIVE_UP = 1_000  # pages in a row that bring nothing, at least, after which a host is given up
OWN = 0.25  # how much of a kind's promise is its own; the rest is its best child's
# Bounds of memory and of keys.
SECTIONS = 150  # children of a host at which further folders have no kinds of their own
CHILDREN = 40  # children of a kind at which further names have none
WORDS = 1_000  # words of a host's paths that are counted; past that, those not seen for longest are forgotten
HOSTS = 20_000  # hosts that are known; past that, the oldest of which nothing waits are forgotten
MOST_KINDS = 5_000  # kinds of one host, some 5 MB. After that, new URLs belong to the nearest kind that there is
LONGEST_KEY = 190  # bytes of a kind's key
_has_letter = re.compile(r"[^\W\d_NH]").search
_statistics = Struct("<7I4d")
COPIES = " copies/"
"""The name of the kind in which the copies of a host's pages wait. No name in a URL contains a space."""
COPY = 0.01  # the rate that is expected of copies
_LAST = 1e15  # what the pages of a host cost that is given up: more than any other
NOWHERE = 1_000  # depth of a kind to which no link is known
_ending = re.compile(r"(?:\.[A-Za-z]{1,5}N?)?[/?]?$").findall
_lane_name = re.compile(r"(?:(?<=/)\$)?\^\d+$").sub


def readable(key: str) -> str:
    """Return the kind with *key* as people write it: ``example.com/shop/*/N?colour&page``."""
    name = _lane_name("", key)
    return f"copies of pages of {name.replace(COPIES, '')}" if COPIES in name else name


class Evidence:
    """What pages brought: of a kind, or of all URLs of a host that have one part in common."""

    __slots__ = ("begin", "news", "pages")

    def __init__(self, begin: float) -> None:
        self.begin = begin
        """The rate that is expected before there are pages."""
        self.pages = 0.0
        self.news = 0.0

    def note(self, news: float) -> None:
        """Count a page. Older ones count half every LATELY pages."""
        self.pages += 1
        self.news += news
        if self.pages > LATELY:
            self.pages /= 2
            self.news /= 2

    def credit(self) -> None:
        """Count what its links brought as its own: a list's news are its items."""
        if self.news + 1 <= self.pages:
            self.news += 1

    def restore(self, pages: float, news: float) -> None:
        """Count *pages* more, which brought *news* in an earlier run."""
        self.pages += pages
        self.news += news

    def rate(self) -> float:
        """Return the share of pages that bring something, lately: (news + b n) / (pages + n) with n = BEGIN."""
        return (self.news + BEGIN * self.begin) / (self.pages + BEGIN)


class Kind(Evidence):
    """A node of the tree: what was handed out of it, and what its pages brought."""

    __slots__ = (
        "alike", "bred", "children", "depth", "first", "given", "host", "is_changed", "key", "links", "name", "nodes",
        "parent", "pushed", "served",
    )  # fmt: skip

    def __init__(self, name: str, parent: Kind | None) -> None:
        super().__init__(1.0 if parent is None else COPY if name == COPIES else parent.expects())
        self.name, self.parent = name, parent
        self.key: str = name if parent is None else _short(parent.key + name)
        self.host: Host
        """The host that it belongs to; not set for the root."""
        if parent is not None and parent.parent is not None:
            self.host = parent.host
        self.links: float = 1.0 if parent is None else parent.links
        """How many links had led to a page of it when it was fetched, on average and lately."""
        self.children: dict[str, Kind] = {}
        self.alike: tuple[Evidence, ...] = ()
        self.nodes: list[Node] = []  # one for each group that it waits in
        self.given = 0
        self.first = Evidence(0.0)  # what the first pages of its children brought
        self.pushed = self.bred = 0  # URLs of the kind; how many of them a page of the same kind linked to
        self.depth = NOWHERE
        """The fewest links that lead to a URL of it, from where its host was found."""
        self.served = -1  # pages that its host had when a page of it was last handed out in this run
        self.is_changed = True

    def path(self) -> Iterator[Kind]:
        """Yield this kind and those above it."""
        kind: Kind | None = self
        while kind is not None:
            yield kind
            kind = kind.parent

    def expects(self) -> float:
        """Return the rate at which the first pages of a new child bring something."""
        return (self.first.news + BEGIN * self.rate()) / (self.first.pages + BEGIN)

    def rate(self) -> float:
        """Return the share of its pages that bring something."""
        begin = min([evidence.rate() for evidence in self.alike]) if self.alike else self.begin
        return (self.news + BEGIN * begin) / (self.pages + BEGIN)

    def note(self, news: float) -> None:
        """Count a page."""
        super().note(news)
        self.is_changed = True
        if self.parent is not None and self.pages <= BEGIN:
            self.parent.first.pages += 1
            self.parent.first.news += news

    def count_links(self, links: int) -> None:
        """Count the *links* that had led to a page that is fetched."""
        self.links += (links - self.links) / (self.pages + BEGIN)

    def credit(self) -> None:
        """Count what its links brought as its own, in its parent's expectation, too."""
        self.is_changed = True
        if self.parent is not None and self.news + 1 <= self.pages <= BEGIN:
            first = self.parent.first
            first.news = min(first.pages, first.news + 1)
        super().credit()

    def dump(self) -> bytes:
        """Return what is known of it, for :meth:`load`."""
        counts = (self.given, 0, int(self.first.pages), self.pushed, self.bred, *self._counts())
        key = f"{self.parent.key if self.parent else ''}\0{self.name}".encode()
        return _statistics.pack(*counts, self.first.news, self.pages, self.news, self.links) + key

    def _counts(self) -> tuple[int, int]:
        """Return the depth, and a count that only hosts have."""
        return self.depth, 0

    def load(self, row: bytes) -> None:
        """Go on with what :meth:`dump` returned."""
        values = _statistics.unpack_from(row)
        self.given, _, self.first.pages, self.pushed, self.bred, self.depth, _ = values[:7]
        self.first.news, pages, news, self.links = values[7:]
        self.restore(pages, news)
        self.is_changed = False


class Host(Kind):
    """A kind right below the root, and what its kinds have in common."""

    __slots__ = ("answers", "evidence", "found", "since", "size", "words")

    def __init__(self, name: str, parent: Kind | None) -> None:
        super().__init__(name, parent)
        self.host = self
        self.depth = 0
        self.answers = self.since = 0  # its pages, and those since the last that brought something
        self.found = NOWHERE
        """The fewest links that lead to the host from a start page, in this run."""
        self.size = 0
        """How many kinds it has."""
        self.evidence: dict[str, Evidence] = {}
        self.words: dict[str, int] = {}
        """How many URLs were lately under a word."""

    def count_answer(self, *, has_news: bool) -> bool:
        """Count a page, and return whether it takes back that the host was given up."""
        is_revived = has_news and self.is_given_up()
        self.answers += 1
        self.since = 0 if has_news else self.since + 1
        return is_revived

    def is_given_up(self) -> bool:
        """Return whether the last pages of this host brought nothing: as many as it had before, GIVE_UP at least."""
        return self.since >= GIVE_UP and self.since >= self.answers - self.since

    def is_frequent(self, word: str, kind: Kind) -> bool:
        """Count a URL under *word* in *kind*, and return whether SECTION were lately, and 1 / SECTION of all there."""
        words, word = self.words, f"{kind.key}{word}"
        words[word] = number = words.pop(word, 0) + 1
        if len(words) > WORDS:
            del words[next(iter(words))]
        return number >= max(SECTION, kind.pushed / SECTION)

    def like(self, kind: Kind) -> tuple[Evidence, ...]:
        """Return what is known of the URLs of this host that have a name or a parameter in common with *kind*."""
        _, *names = [part.name for part in reversed([*kind.path()][:-1])]  # the host, its section, and so on
        if not names or names[0] == COPIES or kind.name[:1] == "^":
            return ()
        is_query = len(names) > 1 and names[-2][-1:] == "?"
        parts = [f"?{key}" for key in kind.name.split("&")] if is_query else []
        if len(names) > 1:
            parts.append(f"{names[0]} {len(names) - 1} {kind.name}")
            if _has_letter(kind.name):
                parts.append(kind.name)
        begin = self.expects()  # a new place may bring more than the pages on the way to it
        return tuple([self.evidence.setdefault(part, Evidence(begin)) for part in parts])

    def _counts(self) -> tuple[int, int]:
        return self.answers, self.since

    def load(self, row: bytes) -> None:
        """Go on with what :meth:`dump` returned."""
        super().load(row)
        self.depth = 0
        self.answers, self.since = _statistics.unpack_from(row)[5:7]


class Node:
    """A kind in one group: how many of its requests wait there, and what the next page costs."""

    __slots__ = ("best", "children", "cost", "had", "heap", "kind", "lanes", "parent", "promise", "waiting")

    def __init__(self, kind: Kind, parent: Node | None) -> None:
        self.kind, self.parent = kind, parent
        self.children: dict[str, Node] = {}
        self.heap: list[tuple[float, int, Node]] = []  # of children, by cost; an entry counts if its cost is the node's
        self.waiting = 0
        self.cost = self.promise = self.had = 0.0
        self.best: Node | None = None
        self.lanes: dict[Node, None] = {}
        """Of a host: its lanes in which requests wait. The one that was served longest ago is first."""

    def weigh(self) -> float:
        """Return what the next page costs, after what is known now."""
        kind = self.kind
        if isinstance(kind, Host) and kind.is_given_up():
            return _LAST + kind.given
        rate = kind.rate()
        promise = rate**2 * sqrt(kind.links)
        had = kind.given + min(self.waiting, kind.given) + 1
        self.had = had * (1 - rate * (1 - kind.bred / (kind.pushed + 1)) / 2)
        if self.children:
            if self.best is None:
                self.best = max(self.children.values(), key=lambda child: child.promise)
            promise = promise**OWN * self.best.promise ** (1 - OWN)
            self.had = self.had ** ((1 + OWN) / 2) * self.best.had ** ((1 - OWN) / 2)
        parent = self.parent
        if parent is not None:
            if parent.best is None or promise > parent.best.promise:
                parent.best = self
            elif parent.best is self and promise < self.promise:
                parent.best = None
        self.promise = promise
        return self.had * (1 + kind.depth) / (promise + 1e-9)

    def untried(self) -> Node | None:
        """Return a lane of this host that had no page since the last one that brought something, if there is one."""
        last_news = self.kind.host.answers - self.kind.host.since
        return next((lane for lane in self.lanes if lane.kind.served < last_news), None)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it."""
        yield self
        for child in self.children.values():
            yield from child.walk()


class Tree:
    """All kinds of a crawl, by host and by key. It tells *forget* which hosts it forgets."""

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self._forgotten: list[str] = []
        self.root = Kind("", None)
        self.by_key: dict[str, Kind] = {}

    def lane_of(self, address: Address, source: Kind | None, *, links_away: int, is_copy: bool) -> Kind:
        """Return the lane of *address*, to which a page in the lane *source* linked, and count the URL.

        A kind has a lane for URLs to which its own pages link, and a lane for all others. So the others do not wait
        behind the URLs that an endless kind generates.
        """
        kind: Kind = self._host(f"{address.host}/")
        host = kind.host
        host.found = min(host.found, links_away)
        names = address.names()
        word = names[0].rstrip("/?")
        is_far = links_away > host.found + 1 and not {word, f"{word}/", f"{word}?"} & host.children.keys()
        for name in [COPIES, names[0]] if is_copy else names:
            kind = kind.children.get(name) or self._child(kind, host, name, is_far=is_far)
        is_bred = source is not None and source.parent is kind
        lane = kind.children.get(f"^{is_bred:d}") or self.new(kind, f"^{is_bred:d}")
        for part in lane.path():
            part.pushed += 1
            part.bred += is_bred
            part.depth = min(part.depth, links_away - host.found)
        return lane

    def take_forgotten(self) -> list[str]:
        """Return the keys of kinds that were forgotten since this was last asked."""
        forgotten, self._forgotten = self._forgotten, []
        return [key for key in forgotten if key not in self.by_key]

    def _host(self, name: str) -> Kind:
        """Return the host *name*. If there are too many hosts, forget the oldest that have no pending requests."""
        known = self.root.children
        if name in known:
            return known[name]
        for host in list(islice(known, 20)) if len(known) >= HOSTS else ():
            kinds = [known.pop(host)]
            if kinds[0].nodes:
                known[host] = kinds[0]
                continue
            for kind in kinds:
                kinds += kind.children.values()
                self._forgotten.append(kind.key)
                self.by_key.pop(kind.key, None)
            self._forget(host.removesuffix("/"))
        return self.new(self.root, name)

    def load(self, rows: Iterable[bytes]) -> None:
        """Rebuild the tree of which :meth:`Kind.dump` was asked, kind by kind."""
        below: dict[str, list[tuple[str, bytes]]] = {}
        for row in rows:
            parent, _, name = row[_statistics.size :].decode().partition("\0")
            below.setdefault(parent, []).append((name, row))
        waiting = [self.root]
        while waiting:
            kind = waiting.pop()
            for name, row in below.pop(kind.key, ()):
                child = kind.children.get(name) or self.new(kind, name)
                child.load(row)
                for part in child.alike:
                    part.restore(child.pages, child.news)
                waiting.append(child)

    def _child(self, kind: Kind, host: Host, name: str, *, is_far: bool) -> Kind:
        """Return a new kind *name* below *kind*, or the kind that stands for many names there."""
        is_section, end = kind is host, _end(kind, name)
        if (is_far or not is_section) and end != "&" and _has_letter(name):
            is_one_of_many = not host.is_frequent(name, kind)
        else:
            most = SECTIONS if name[-1:] == "/" and is_section else CHILDREN
            is_one_of_many = name[:1] not in ("", ";", " ") and len(kind.children) >= most
        is_full = host.size >= MOST_KINDS
        if is_one_of_many or is_full:
            name = "*" + ("/" if is_section else end)
            if is_full or name in kind.children:
                return kind.children.get(name, kind)
        return self.new(kind, name)

    def new(self, parent: Kind, name: str) -> Kind:
        """Make a kind below *parent*. It starts with the rate of similar URLs on the host, or else of its siblings."""
        kind = (Host if parent is self.root else Kind)(name, parent)
        kind.host.size += 1
        kind.alike = kind.host.like(kind)
        parent.children[name] = self.by_key[kind.key] = kind
        return kind


def _short(key: str) -> str:
    """Return *key*, or its beginning and a digest if it is longer than LONGEST_KEY."""
    if len(key.encode()) <= LONGEST_KEY:
        return key
    digest = blake2b(key.encode(), digest_size=12).hexdigest()
    return f"{key.encode()[: LONGEST_KEY - 40].decode(errors='ignore')}#{digest}"


def _end(parent: Kind, name: str) -> str:
    """Return the suffix of a ``*`` kind: of a folder, a file name ending, a name with a query, or a query."""
    return "&" if parent.name[-1:] == "?" else str(_ending(name)[0])
