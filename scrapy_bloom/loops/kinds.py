"""Kinds of URLs: a tree for each host of its folders, names and queries, with what differs inside a kind masked.

    https://example.com/shop/shoes/4711?colour=red&page=3
        example.com/                      the host
        example.com/shop/                 its folders, from the outside in: words are one kind, ``*/``, ...
        example.com/shop/*/
        example.com/shop/*/N?             the last name, with any query
        example.com/shop/*/N??2           two parameters
        example.com/shop/*/N??2colour&page
        example.com/shop/*/N??2colour&page^1    one dry page on the way to it: what requests wait in

Sections, the first folders and names of a host, are kinds of their own. Below them, a word is one of many, ``*``, until
SECTION URLs of the host had it. So kinds never merge, and a request stays where it waits. URLs with a part (a word, a
parameter) that brought nothing anywhere on the host are one kind in each section, `` part``: they come last.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from scrapy_bloom.loops.share import Node

# What is learned, and how fast. docs/loops.md shows what halving and doubling does.
BEGIN = 4  # pages that a new kind's expectation counts for
FIRST = 6  # first pages of each kind, from which its parent learns what to expect of new ones
LATELY = 64  # pages after which older ones count half
STEP = 1.5  # how much less is expected of a URL for each dry page on the way to it
# A kind that showed plainer pages once more in 1 / COPY of its pages is a copy as a whole; for what such a page has in
# common with others, it counts COPY dry pages more
COPY = 4
SECTION = 20  # URLs under a word that make it a kind by itself
# Pages without news, of URLs that have a part in common, after which their others count as copies: they come last
DRY = 20
# Bounds of memory and of keys.
SECTIONS = 150  # children of a host at which further folders have no kinds of their own
CHILDREN = 40  # children of a kind at which further names have none
WORDS = 1_000  # words of a host's paths that are counted; past that, those not seen for longest are forgotten
DEEPEST = 8  # folders of a path that are told apart
HOSTS = 20_000  # hosts that are known; past that, the oldest of which nothing waits are forgotten
MOST_KINDS = 5_000  # kinds of one host, some 5 MB. After that, new URLs belong to the nearest kind that there is
LONGEST_KEY = 190  # bytes of a kind's key
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE).fullmatch
_HASH = re.compile(r"(?=.*\d)[0-9a-f]{8,}", re.IGNORECASE).fullmatch
_TOKEN = re.compile(r"(?=.*\d)(?=.*[a-z])[\w~=+-]{16,}", re.IGNORECASE).fullmatch
_SESSION = re.compile(r"\((?:[A-Z]\([^()]*\))+\)", re.IGNORECASE).fullmatch
"""As ASP.NET writes it without cookies: ``/(S(lit3py55t21z5v55vlm25s55))/orders.aspx``."""
_SLUG = re.compile(r"[a-z]{2,}[-_+]").search
_mixed = re.compile(r"(?<![^\W_])(?=[^\W_]*[a-z]\d+[a-z])[^\W_]{9,}", re.IGNORECASE).sub
"""Letters and digits in turn: a token with something before or behind it."""
_mask_digits = re.compile(r"\d+").sub
_has_letter = re.compile(r"[^\W\d_NH]").search
_split = re.compile(r"(?:[a-z][\w+.-]*:)?(?://)?([^/?#]*)([^?#]*)\??([^#]*)", re.IGNORECASE | re.DOTALL).match
_statistics = Struct("<8I3d")
_ending = re.compile(r"(?:\.[A-Za-z]{1,5}N?)?[/?]?$").search
_level = re.compile(r"(?:(?<=/)\$)?\^\d+$").sub
_number_of_keys = re.compile(r"\?\?\d+").sub


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
        names.append(leaf or "$")
    return host.lower()[:100] + "/", names, keys


def readable(key: str) -> str:
    """Return the kind with *key* as people write it: ``example.com/shop/*/N?colour&page``."""
    return _number_of_keys("?", _level("", key)).replace(" ", "...")


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

    def credit(self) -> None:
        """Count what its links brought as its own: a list's news are its items."""
        if self.news + 1 <= self.pages:
            self.news += 1

    def rate(self) -> float:
        """Return the share of pages that bring something, lately: (news + b n) / (pages + n) with n = BEGIN."""
        return (self.news + BEGIN * self.begin) / (self.pages + BEGIN)


class Kind(Evidence):
    """A node of the tree: what was handed out of it, and what its pages brought."""

    __slots__ = (
        "alike", "bred", "children", "copied", "example", "first_news", "first_pages", "given", "is_changed", "judged",
        "key", "level", "name", "nodes", "parent", "pushed", "since",
    )  # fmt: skip

    def __init__(self, name: str, key: str, parent: Kind | None, begin: float) -> None:
        super().__init__(begin)
        self.name, self.key, self.parent = name, key, parent
        self.level = int(name[1:]) if name[:1] == "^" else 0
        self.children: dict[str, Kind] = {}
        self.alike: tuple[Evidence, ...] = ()
        self.nodes: list[Node] = []  # one for each group that it waits in
        self.example = ""  # the last URL that was queued in this run
        self.given = self.judged = self.copied = 0
        self.since = 0  # pages of a host since the last that brought something
        self.first_pages = self.first_news = 0  # of its children
        self.pushed = self.bred = 0  # URLs of it; those that a page of the same kind linked to
        self.is_changed = True

    def is_given_up(self, least: int) -> bool:
        """Return whether the last pages of this host brought nothing: as many as it had before, *least* at least."""
        return self.since >= max(least, self.judged - self.since)

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
        """Return the share of its pages that bring something; copies of other kinds' pages count against it."""
        if self.level and self.parent is not None:
            begin = self.parent.rate() / STEP**self.level
        elif self.alike:
            begin = min([evidence.rate() for evidence in self.alike])
        else:
            begin = self.begin
        rate = (self.news + BEGIN * begin) / (self.pages + BEGIN)
        return rate * max(0.02, 1 - COPY * self.copied / (self.judged + BEGIN)) if self.copied else rate

    def note(self, is_news: bool) -> None:
        """Count a page."""
        super().note(is_news)
        self.judged += 1
        self.is_changed = True
        if self.parent is not None and self.judged <= FIRST:
            self.parent.first_pages += 1
            self.parent.first_news += is_news

    def credit(self) -> None:
        """Count what its links brought as its own, in its parent's expectation, too."""
        self.is_changed = True
        parent = self.parent
        if parent is not None and self.judged <= FIRST and self.news + 1 <= self.pages:
            parent.first_news = min(parent.first_pages, parent.first_news + 1)
        super().credit()

    def dump(self) -> bytes:
        """Return what is known of it, for :meth:`load`."""
        counts = (self.given, self.judged, self.since, self.copied, self.first_pages, self.first_news, self.pushed)
        key = f"{self.parent.key if self.parent else ''}\0{self.name}".encode()
        return _statistics.pack(*counts, self.bred, self.pages, self.news, self.begin) + key

    def load(self, row: bytes) -> None:
        """Go on with what :meth:`dump` returned."""
        values = _statistics.unpack_from(row)
        self.given, self.judged, self.since, self.copied, self.first_pages, self.first_news = values[:6]
        self.pushed, self.bred, self.pages, self.news, self.begin = values[6:]
        self.is_changed = False


class Tree:
    """All kinds of a crawl, by host and by key."""

    def __init__(self) -> None:
        self.root = Kind("", "", None, 1.0)
        self.by_key: dict[str, Kind] = {}
        self.evidence: dict[str, dict[str, Evidence]] = {}
        self.counts: dict[str, int] = {}  # kinds by host
        self.words: dict[str, dict[str, int]] = {}

    def kind_of(self, url: str, level: int) -> Kind:
        """Return the kind of *url* with *level* dry pages on the way to it, and count it."""
        host, names, keys = names_of(url)
        if host not in self.root.children and len(self.root.children) >= HOSTS:
            self._forget_hosts()
        kind = self._child(self.root, host, host)
        part = self._dry_part(host, names, keys)
        if part:  # whatever else is in it: such URLs showed nothing new anywhere on the host
            names, keys = [names[0], f" {part}"], []  # no URL has a space
        for depth, name in enumerate(names):
            kind = self._child(kind, name, host, names[0], depth, keys if depth == len(names) - 1 else ())
        lane = kind.children.get(f"^{level}") or self.new(kind, f"^{level}", host)
        lane.example = url
        return lane

    def _forget_hosts(self) -> None:
        """Forget those of the oldest hosts of which nothing waits; the others are the youngest now."""
        for host in list(islice(self.root.children, 20)):
            kinds = [self.root.children.pop(host)]
            if kinds[0].nodes:
                self.root.children[host] = kinds[0]
                continue
            for kind in kinds:
                kinds += kind.children.values()
                self.by_key.pop(kind.key, None)
            for known in (self.evidence, self.counts, self.words):
                known.pop(host, None)

    def load(self, rows: Iterable[bytes]) -> None:
        """Rebuild the tree of which :meth:`Kind.dump` was asked, kind by kind."""
        below: dict[str, list[tuple[str, bytes]]] = {}
        for row in rows:
            parent, _, name = row[_statistics.size :].decode().partition("\0")
            below.setdefault(parent, []).append((name, row))
        waiting: list[tuple[Kind, list[str]]] = [(self.root, [])]
        while waiting:
            kind, names = waiting.pop()
            for name, row in below.pop(kind.key, ()):
                section = "" if not names or name[0:1] == "^" else (names[1:] or [name])[0]
                keys = name.split("&") if kind.name[:1] == "?" else []
                child = self.new(kind, name, (names or [name])[0], section, len(names) - 1, keys)
                child.load(row)
                for part in child.alike:
                    part.pages, part.news = part.pages + child.pages, part.news + child.news
                waiting.append((child, [*names, name]))

    def _dry_part(self, host: str, names: list[str], keys: list[str]) -> str:
        """Return the first part of a URL that brought nothing wherever it was, if it has one."""
        evidence = self.evidence.get(host)
        for part in [*names[1:], *[f"?{key}" for key in keys]] if evidence else ():
            found = evidence.get(part) if evidence else None
            if found is not None and found.pages >= DRY and found.news * DRY < found.pages:
                return part
        return ""

    def find(self, url: str) -> Kind | None:
        """Return the nearest known kind of *url*, without its level, and without counting it."""
        host, names, _ = names_of(url)
        kind = self.root.children.get(host)
        for name in names:
            if kind is None:
                break
            child = kind.children.get(name) or kind.children.get("*" + _end(kind, name))
            if child is None:
                break
            kind = child
        return kind

    def _child(
        self, kind: Kind, name: str, host: str, section: str = "", depth: int = 0, keys: Sequence[str] = ()
    ) -> Kind:
        child = kind.children.get(name)
        if child is not None:
            return child
        if section:
            end = _end(kind, name)
            if name[:1] == " ":
                is_one_of_many = False
            elif depth and end != "&" and _has_letter(name):
                is_one_of_many = not self._is_frequent(host, name)
            else:
                most = SECTIONS if name[-1:] == "/" and not depth else CHILDREN
                is_one_of_many = name[:1] not in ("", "?", ";") and len(kind.children) >= most
            is_full = self.counts[host] >= MOST_KINDS
            if is_one_of_many or is_full:
                name = "*" + end
                child = kind.children.get(name)
                if child is not None:
                    return child
                if is_full:
                    return kind
        return self.new(kind, name, host, section, depth, keys)

    def _is_frequent(self, host: str, word: str) -> bool:
        """Count a URL under *word*, and return whether there were SECTION of them on *host* lately."""
        words = self.words.setdefault(host, {})
        words[word] = number = words.pop(word, 0) + 1
        if len(words) > WORDS:
            del words[next(iter(words))]
        return number >= SECTION

    def new(
        self, parent: Kind, name: str, host: str, section: str = "", depth: int = 0, keys: Sequence[str] = ()
    ) -> Kind:
        """Make a kind below *parent*; it begins as URLs alike elsewhere on the host went, or as its siblings did."""
        key = parent.key + name
        if len(key.encode()) > LONGEST_KEY:
            digest = blake2b(key.encode(), digest_size=12).hexdigest()
            key = f"{key.encode()[: LONGEST_KEY - 40].decode(errors='ignore')}#{digest}"
        kind = Kind(name, key, parent, parent.expects())
        parent.children[name] = self.by_key[key] = kind
        self.counts[host] = self.counts.get(host, 0) + 1
        if section:
            own = self.evidence.setdefault(host, {})
            # A place never seen may bring what the way to it did not: it begins as the host's sections did.
            begin = self.root.children[host].expects()
            found = [f"?{key}" for key in keys]
            if depth > 0:
                found.append(f"{section} {depth} {name}")
                if name[:1] == " ":
                    found = [name[1:]]
                elif _has_letter(name):
                    found.append(name)
            kind.alike = tuple([own.setdefault(part, Evidence(begin)) for part in found])
        return kind


def _end(parent: Kind, name: str) -> str:
    """Return what kinds that stand for many are told apart by: folder, ending, with a query, query."""
    if parent.name[:1] == "?":
        return "&"
    ending = _ending(name)
    assert ending is not None  # noqa: S101 -- it may be empty
    return ending[0]
