"""URL -> the shapes it belongs to: its own, and those of the folders it is in. Knows no page and no verdict.

A shape is a URL with what differs between URLs of a kind masked:

    https://example.com/shop/shoes/4711?colour=red&page=3
        example.com/shop/shoes/N?colour&page        the URL's own shape
        example.com/shop/shoes/*?colour&page        the same parameters in any page of the folder
        example.com/shop/shoes/*?(2)                any query of two parameters in any page of the folder
        example.com/shop/shoes/N?*                  its path under any query
        example.com/shop/shoes/N/**                 its folders, from the inside out
        example.com/shop/shoes/**
        example.com/shop/**

Masks see digits, hashes and tokens. Word mazes and shops have none of these, so a folder with many different children
has its children masked, too (``*``), except those that are large themselves: the sections of a site.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable

CHILDREN = 40
"""Different children that a folder may have before they count as one kind."""

SECTIONS = 150
"""The same for the root of a host: a site may have more than 40 sections, and no two of them are one kind."""

SECTION = 20
"""URLs that must have been seen under a child for it to keep its name in a folder of many children."""

FOLDERS = 10_000
"""Folders whose children are counted, up to 40 MB. Past that, those unused for longest are forgotten."""

URLS = 2_000
"""URLs whose shapes are kept until they are fetched, some 2 MB: a URL is asked for three times or more."""

DEEPEST = 8
"""Folders of a path that are shapes of their own. What is deeper belongs to the deepest."""

MOST_KEYS = 8
"""Most parameters of a query whose pairs are looked at; past that, each only by itself."""

_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE).fullmatch
_HASH = re.compile(r"(?=.*\d)[0-9a-f]{8,}", re.IGNORECASE).fullmatch
_TOKEN = re.compile(r"(?=.*\d)(?=.*[a-z])[\w~=+-]{16,}", re.IGNORECASE).fullmatch
_SESSION = re.compile(r"\((?:[A-Z]\([^()]*\))+\)", re.IGNORECASE).fullmatch
"""As ASP.NET writes it without cookies: ``/(S(lit3py55t21z5v55vlm25s55))/orders.aspx``."""

_Names = tuple[str, ...]

_SLUG = re.compile(r"[a-z]{2,}[-_+]").search
_MASK_DIGITS = re.compile(r"\d+").sub


class Shapes:
    """Learns which folders have many children from the URLs of a crawl.

    The children of a folder are counted by Space-Saving (Metwally, Agrawal, El Abbadi, "Efficient Computation of
    Frequent and Top-k Elements in Data Streams", ICDT 2005) with CHILDREN counters: after n URLs in a folder a count
    is too high by at most n / CHILDREN, and each counter knows by how much. Only the certain part counts here, so a
    child is never taken for a section wrongly; one that is new among many may be missed for a while.
    """

    def __init__(self) -> None:
        self._folders: dict[str, _Folder] = {}
        # Of the last URLs; empty when a kind changes. Garbage collection passes over tuples of strings; lists of them
        # were 3 % of all that it visits.
        self._found: dict[str, tuple[_Names, int, _Names]] = {}

    def learn(self, url: str) -> _Names:
        """Return the shapes of *url*, and count it among the children of its folders."""
        return self._shapes(url, learn=True)[0]

    def of(self, url: str) -> _Names:
        """Return the shapes of *url*, the most specific first."""
        return self._shapes(url, learn=False)[0]

    def judges_of(self, url: str) -> tuple[_Names, _Names, _Names]:
        """Return the shapes of *url* for its query, those of queries with some of its parameters, and the others.

        A page with two filters shows a part of what either filter shows: where one brings nothing, both bring nothing.
        """
        shapes, queries, keys = self._shapes(url, learn=False)
        if not keys:
            return shapes[:queries], (), shapes[queries:]
        fewer: list[tuple[str, ...]] = [(key,) for key in keys] if len(keys) > 1 else []
        if 2 < len(keys) <= MOST_KEYS:
            fewer += combinations(keys, 2)
        bases = [shape.partition("?")[0] for shape in shapes[:queries]]
        return (
            shapes[:queries],
            (
                *[f"{path}?{'&'.join(some)}" for some in fewer for path in bases],
                *[f"{bases[-1]}?({count})" for count in range(2, len(keys))],
            ),
            shapes[queries:],
        )

    def _shapes(self, url: str, *, learn: bool) -> tuple[_Names, int, _Names]:
        """Return the shapes of *url*, how many of them are for its very query, and the parameters of that."""
        found = None if learn else self._found.get(url)
        if found is None:
            if len(self._found) >= URLS:
                self._found.clear()
            found = self._found[url] = self._shapes_anew(url, learn=learn)
        return found

    def _shapes_anew(self, url: str, *, learn: bool) -> tuple[_Names, int, _Names]:
        parts = urlsplit(url)
        host = path = parent = sibling = parts.netloc.lower()
        folders: list[str] = []
        session = ""
        for raw in parts.path.split("/")[1:]:
            if raw.startswith("(") and _SESSION(raw):
                session = ";"
                continue
            segment = mask(raw)
            if segment:
                folder = self._folders.pop(parent, None)
                if folder is None:
                    folder = _Folder(SECTIONS if parent == host else CHILDREN)
                    if len(self._folders) >= FOLDERS:
                        del self._folders[next(iter(self._folders))]
                self._folders[parent] = folder
                if learn and folder.count(segment):
                    self._found.clear()
                if not folder.knows(segment):
                    segment = "*"
                if len(folders) < DEEPEST:
                    folders.append(f"{path}/{segment}/**")
                sibling = f"{path}/*"
            else:
                sibling += "/"
            path = f"{path}/{segment}"
            parent = path
        path = path.removesuffix(session) + session
        folders.reverse()
        if not parts.query:
            return (path, *folders), 1, ()
        keys = sorted({_MASK_DIGITS("N", pair.partition("=")[0])[:40] for pair in parts.query.split("&") if pair})
        query = "&".join(keys)
        if len(folders) < 2:  # what is beside it are other sections
            sibling = path
        exact = [f"{path}?{query}", f"{sibling}?{query}"] if sibling != path else [f"{path}?{query}"]
        # Facets make a shape of every combination, and of these there are more than pages to judge each by.
        some = [f"{sibling}?({len(keys)})"] if len(keys) > 1 else []
        return (*exact, *some, f"{path}?*", *[f"{folder}?*" for folder in folders]), len(exact), tuple(keys)

    def changed(self) -> list[tuple[str, int, str]]:
        """Return what was learned since this was last asked, for :meth:`load`: a row for each folder."""
        changed = [(name, folder) for name, folder in self._folders.items() if folder.has_changed]
        for _, folder in changed:
            folder.has_changed = False
        return [(name, int(folder.is_wide), json.dumps(folder.children)) for name, folder in changed]

    def load(self, rows: Iterable[tuple[str, int, str]]) -> None:
        """Go on with what :meth:`changed` returned in earlier runs."""
        for name, is_wide, children in rows:
            folder = self._folders[name] = _Folder(CHILDREN if "/" in name else SECTIONS)
            folder.is_wide = bool(is_wide)
            folder.children = {child: (count, excess) for child, (count, excess) in json.loads(children).items()}
        self._found.clear()


class _Folder:
    """The children of one folder, with the URLs seen under each and by how many that may be too high."""

    __slots__ = ("children", "has_changed", "is_wide", "least", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.children: dict[str, tuple[int, int]] = {}
        self.is_wide = False
        self.least = 0  # no child has fewer URLs
        self.has_changed = False

    def count(self, child: str) -> bool:
        """Count a URL under *child*. Return whether :meth:`knows` has another answer for one of the children now."""
        self.has_changed = True
        counts = self.children.get(child)
        if counts is not None:
            self.children[child] = (counts[0] + 1, counts[1])
            return self.is_wide and counts[0] + 1 - counts[1] == SECTION
        if len(self.children) < self.most:
            self.children[child] = (1, 0)
            return False
        was_wide, self.is_wide = self.is_wide, True
        least, excess = self.children.pop(self._smallest())
        self.children[child] = (least + 1, least)
        return not was_wide or least - excess >= SECTION

    def _smallest(self) -> str:
        """Return the first child with the fewest URLs: in most cases the one that was let in longest ago."""
        for name, (count, _) in self.children.items():
            if count == self.least:
                return name
        self.least = min(self.children.values())[0]
        return self._smallest()

    def knows(self, child: str) -> bool:
        """Whether *child* is a kind by itself."""
        if not self.is_wide:
            return True
        count, excess = self.children.get(child, (0, 0))
        return count - excess >= SECTION


@lru_cache(4_096)
def mask(segment: str) -> str:
    """Return *segment* of a path with what looks drawn or counted replaced: ``N``, ``HASH``, ``UUID``, ``TOKEN``.

    A parameter of the path (``;jsessionid=...``) counts by being there: its page has a shape of its own.
    """
    segment, semicolon, _ = segment.partition(";")
    if segment.isalpha():
        pass
    elif _UUID(segment):
        segment = "UUID"
    elif segment.isdigit():
        segment = "N"
    elif _HASH(segment):
        segment = "HASH"
    elif _TOKEN(segment) and not _SLUG(segment):
        segment = "TOKEN"
    else:
        segment = _MASK_DIGITS("N", segment)
    return segment + semicolon
