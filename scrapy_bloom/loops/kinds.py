"""Kinds of URLs: a tree for each host of its folders, names and queries, with what differs inside a kind masked.

    https://example.com/shop/shoes/4711?colour=red&page=3
        example.com                     the host
        example.com/shop/               its folders, from the outside in
        example.com/shop/shoes/
        example.com/shop/shoes/N?       the last name, with any query
        example.com/shop/shoes/N??2     two parameters
        example.com/shop/shoes/N??2colour&page

Without a query, the last name is a kind if it has digits (``N``, ``topic-N.html``); names in letters alone are one kind,
``*``, in each folder. A node with more than CHILDREN children is *wide*: those that had few URLs are merged into one
child, ``*``, and new ones go there at once.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CHILDREN = 40
"""Children of one node, folders, names and queries each for themselves, before they count as one kind."""

DEEPEST = 8
"""Folders of a path that are kinds of their own. What is deeper belongs to the deepest."""

MOST_KINDS = 4_000
"""Kinds of one host, 4 MB. After that, new URLs belong to the nearest kind that there is."""

BEGIN = 4  # pages that a new kind's expectation counts for
FIRST = 6  # first pages of each kind, from which its parent learns what to expect of new ones
LATELY = 64  # pages after which older ones count half
PLAIN = 0.25  # weight for each parameter of a query, among the kinds of a folder
STEP = 1.5  # how much dearer each dry page on the way to it makes a kind
COPY = 4  # a kind that showed plainer pages once more in 1 / COPY of its pages is taken for a copy as a whole
SECTION = 20
ROOT = 150
OPT = 1.0
PLACE = lambda name: _words('a', name)
PLACE2 = lambda name: name if name[:1] in "?*" else "/" if name[-1:] == "/" else "?" if name[-1:] == "?" else "leaf"

LONGEST_KEY = 200
"""Bytes of a kind's key."""

_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE).fullmatch
_HASH = re.compile(r"(?=.*\d)[0-9a-f]{8,}", re.IGNORECASE).fullmatch
_TOKEN = re.compile(r"(?=.*\d)(?=.*[a-z])[\w~=+-]{16,}", re.IGNORECASE).fullmatch
_SESSION = re.compile(r"\((?:[A-Z]\([^()]*\))+\)", re.IGNORECASE).fullmatch
"""As ASP.NET writes it without cookies: ``/(S(lit3py55t21z5v55vlm25s55))/orders.aspx``."""
_SLUG = re.compile(r"[a-z]{2,}[-_+]").search
_mixed = re.compile(r"(?<![^\W_])(?=[^\W_]*[a-z]\d+[a-z])[^\W_]{9,}", re.IGNORECASE).sub
_words = re.compile(r"[A-Za-z]+(?:[-_+%][A-Za-z]+)*").sub
_mask_digits = re.compile(r"\d+").sub
_split = re.compile(r"(?:[a-z][\w+.-]*:)?(?://)?([^/?#]*)([^?#]*)\??([^#]*)", re.IGNORECASE).match


@lru_cache(4_096)
def mask(segment: str) -> str:
    """Return *segment* of a path with what looks drawn or counted replaced: ``N``, ``HASH``, ``UUID``, ``TOKEN``."""
    if segment.isalpha():
        return segment
    if segment.isdigit():
        return "N"
    segment = _mixed("H", segment)
    if _UUID(segment):
        return "UUID"
    if _HASH(segment):
        return "HASH"
    if _TOKEN(segment) and not _SLUG(segment):
        return "TOKEN"
    return _mask_digits("N", segment)


def names_of(url: str) -> tuple[str, list[str], list[str]]:
    """Return the host of *url*, the names of its kinds below that from the outside in, and its parameters."""
    match = _split(url)
    assert match is not None  # noqa: S101 -- every part of the pattern may be empty
    host, path, query = match.groups()
    segments, sessions = [], []
    for raw in path.split("/")[1:]:
        if raw.startswith("(") and _SESSION(raw):
            sessions.append(";")
            continue
        if ";" in raw:
            raw, _, parameter = raw.partition(";")
            sessions.append(";" + parameter.partition("=")[0][:20])
        segments.append(mask(raw))
    names = sessions[:1]
    names += [f"{segment[:60]}/" for segment in segments[:-1][:DEEPEST]]
    leaf = segments[-1][:60] if segments else ""
    keys = sorted({_mask_digits("N", pair.partition("=")[0])[:30] for pair in query.split("&") if pair})
    if keys:
        names += [f"{leaf}?", f"?{len(keys)}", "&".join(keys)[:90]]
    else:
        names.append(leaf if "N" in leaf or leaf in ("", "HASH", "UUID", "TOKEN") else "*")
    return host.lower(), names, keys


class Evidence:
    """What pages brought: of a kind, or of all URLs of a host that have one part in common."""

    __slots__ = ("begin", "news", "pages")

    def __init__(self, begin: float) -> None:
        self.begin = begin
        """The rate that is expected before there are pages."""
        self.pages = 0.0
        self.news = 0.0

    def note(self, is_news: bool) -> None:
        """Count a page. Older ones count half every LATELY pages."""
        self.pages += 1
        self.news += is_news
        if self.pages > LATELY:
            self.pages /= 2
            self.news /= 2

    def rate(self) -> float:
        """Return the share of pages that bring something, lately; the expectation counts for BEGIN pages."""
        return min(1.0, (self.news + BEGIN * self.begin) / (self.pages + BEGIN))


class Kind(Evidence):
    """A node of the tree: what was handed out of it, and what its pages brought."""

    __slots__ = (
        "alike", "children", "copied", "first_news", "first_pages", "given", "is_changed", "judged", "key", "level",
        "name", "nodes", "parent", "since", "size", "weight", "wide",
    )  # fmt: skip

    def __init__(self, name: str, key: str, parent: Kind | None, begin: float) -> None:
        super().__init__(begin)
        self.name, self.key, self.parent = name, key, parent
        self.children: dict[str, Kind] = {}
        self.alike: tuple[Evidence, ...] = ()
        self.nodes: list[Node] = []  # one for each group that it waits in
        self.wide: set[str] = set()
        self.weight = 1.0
        self.level = -1  # dry pages on the way, if that is what tells it from its siblings
        self.size = self.given = self.judged = self.since = self.copied = 0
        self.first_pages = self.first_news = 0.0  # of its children
        self.is_changed = True

    def path(self) -> Iterator[Kind]:
        """Yield this kind and those above it."""
        kind: Kind | None = self
        while kind is not None:
            yield kind
            kind = kind.parent

    def expects(self) -> float:
        """Return the rate at which the first pages of a new child bring something."""
        return (self.first_news + BEGIN * self.rate()) / (self.first_pages + BEGIN)

    def rate(self) -> float:
        """Return the share of its pages that bring something; copies of other kinds count against it."""
        if self.level > 0 and self.parent is not None:
            begin = self.parent.rate() * STEP**-self.level
        elif self.alike:
            begin = min(evidence.rate() for evidence in self.alike)
        else:
            begin = self.begin
        own = max(0.02, 1 - COPY * self.copied / (self.judged + BEGIN))
        return own * min(1.0, (self.news + BEGIN * begin) / (self.pages + BEGIN))

    def note(self, is_news: bool) -> None:
        super().note(is_news)
        self.judged += 1
        self.since = 0 if is_news else self.since + 1
        self.is_changed = True
        if self.parent is not None and self.judged <= FIRST:
            self.parent.first_pages += 1
            self.parent.first_news += is_news

    def credit(self) -> None:
        """Count what its links brought as its own: a list's news are its items."""
        self.since = 0
        if self.news + 1 <= self.pages:
            self.news += 1
            if self.parent is not None and self.judged <= FIRST and self.parent.first_news + 1 <= self.parent.first_pages:
                self.parent.first_news += 1


class Tree:
    """All kinds of a crawl, by host and by key."""

    def __init__(self) -> None:
        self.root = Kind("", "", None, 1.0)
        self.by_key: dict[str, Kind] = {}
        self.evidence: dict[str, dict[str, Evidence]] = {}
        self.counts: dict[str, int] = {}
        self.names: dict[str, dict[str, tuple[int, int]]] = {}
        self.merged: list[Kind] = []

    def kind_of(self, url: str, level: int) -> Kind:
        """Return the kind of *url* with *level* dry pages on the way to it, and count it."""
        host, names, keys = names_of(url)
        kind = self._child(self.root, host, host)
        kind.size += 1
        section = names[0]
        for depth, name in enumerate(names):
            kind = self._child(kind, name, host, (section, depth, keys if depth == len(names) - 1 else ()))
            kind.size += 1
        lane = kind.children.get(f"^{level}")
        if lane is None:
            lane = self._new(kind, f"^{level}", host)
            lane.level = level
        return lane

    def find(self, url: str) -> Kind | None:
        """Return the nearest known kind of *url*, without its level."""
        host, names, _ = names_of(url)
        kind = self.root.children.get(host)
        for name in names if kind is not None else ():
            sort = "/" if name[-1:] == "/" else "?" if name[-1:] == "?" else "&" if kind.name[:1] == "?" else ""
            child = kind.children.get(name) or kind.children.get("*" + sort)
            if child is None:
                return kind
            kind = child
        return kind

    def _child(self, parent: Kind, name: str, host: str, place: tuple | None = None) -> Kind:
        child = parent.children.get(name)
        if child is not None:
            return child
        if parent is not self.root:
            sort = "/" if name[-1:] == "/" else "?" if name[-1:] == "?" else "&" if parent.name[:1] == "?" else ""
            star = "*" + sort
            if name != star and name[:1] not in (";", "?") and name:
                if sort not in parent.wide:
                    alike = [c for c in parent.children.values() if _sort(c) == sort]
                    if len(alike) >= (CHILDREN if parent.parent is not self.root else ROOT):
                        parent.wide.add(sort)
                        into = parent.children.get(star) or self._new(parent, star, host, place)
                        for other in alike:
                            if other.size < SECTION and other is not into:
                                self._merge(other, into, host)
                if sort in parent.wide:
                    into = parent.children[star]
                    if not self._is_section(into, name):
                        return into
        return self._new(parent, name, host, place)

    def _is_section(self, star: Kind, name: str) -> bool:
        """Whether so many URLs were under *name* since its folder is wide that it is a kind by itself."""
        names = self.names.setdefault(star.key, {})
        found = names.pop(name, None)
        if found is None and len(names) >= CHILDREN:
            least = min(names, key=lambda other: names[other][0])
            found = (names.pop(least)[0],) * 2
        times, excess = found or (0, 0)
        names[name] = (times + 1, excess)
        return times + 1 - excess >= SECTION

    def _new(self, parent: Kind, name: str, host: str, place: tuple | None = None) -> Kind:
        kind = Kind(name, key_of(parent.key, name), parent, parent.expects())
        if kind.key in self.by_key:  # it was merged, and is a section by now: what waits in its lane is its own again
            self.merged.append(kind)
        parent.children[name] = self.by_key[kind.key] = kind
        self.counts[host] = self.counts.get(host, 0) + 1
        if place:
            section, depth, keys = place
            own = self.evidence.setdefault(host, {})
            kind.weight = PLAIN ** len(keys)
            found = [f"?{key}" for key in keys]
            if depth > 0:
                found.append(f"{section} {depth} {PLACE(name)}")
            begin = kind.begin if not OPT else self.root.children[host].expects() * OPT
            kind.alike = tuple(own.setdefault(key, Evidence(begin)) for key in found)
        return kind

    def _merge(self, kind: Kind, into: Kind, host: str) -> None:
        """Add what is known of *kind* to *into*; what waits in its lanes belongs there now."""
        for name in ("size", "given", "judged", "copied", "pages", "news", "first_pages", "first_news"):
            setattr(into, name, getattr(into, name) + getattr(kind, name))
        while into.pages > LATELY:
            into.pages /= 2
            into.news /= 2
        for name, child in list(kind.children.items()):
            target = into.children.get(name)
            if target is None:
                target = self._new(into, name, host)
                target.level, target.weight, target.alike = child.level, child.weight, child.alike
            self._merge(child, target, host)
        if kind.parent is not None:
            kind.parent.children.pop(kind.name, None)
        self.by_key[kind.key] = into
        self.merged.append(kind)


def _sort(kind: Kind) -> str:
    name, parent = kind.name, kind.parent
    if name[:1] in ("^", ";", "?") or not name:
        return "^"
    return "/" if name[-1:] == "/" else "?" if name[-1:] == "?" else "&" if parent and parent.name[:1] == "?" else ""


def key_of(parent: str, name: str) -> str:
    """Return the key of the kind *name* below *parent*: readable, and at most LONGEST_KEY bytes."""
    key = parent + name
    encoded = key.encode()
    if len(encoded) <= LONGEST_KEY:
        return key
    return encoded[: LONGEST_KEY - 40].decode(errors="ignore") + "#" + blake2b(encoded, digest_size=12).hexdigest()
