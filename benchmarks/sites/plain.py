"""Honest sites without traps, each of a kind that a judge of content may misread."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from benchmarks.sites.program import Program, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.sites.pages import Links, Page

PAGES = 2_500
"""Of each site: a host that shows so many without news is given up long before its end."""
PER_LIST = 50


class PlainSite(Program):
    """A site of ITEMS in lists, or one of the SHAPES. Its pages differ in nothing but what is said there."""

    noise = ()

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pages: dict[str, Page] = {}
        super().__init__(0)

    def make(self) -> None:
        if self.kind in ITEMS:
            path, content = ITEMS[self.kind]
            paths = [path.format(4000 + 7 * n) for n in range(PAGES)]
            for n, item in enumerate(paths):
                self.add(item, content(self, n))
            self.add_lists(paths)
        else:
            SHAPES[self.kind](self)
        self.note(self.kind, *self.pages)

    def add(self, url: str, html: str = "", links: Sequence[tuple[str, str]] = ()) -> None:
        self.pages[url] = shown("The site", html, [*links])

    def add_lists(self, paths: list[str]) -> None:
        """Add lists of *paths*, each with a link to the next list; the start page is the first of them."""
        parts = [paths[at : at + PER_LIST] for at in range(0, len(paths), PER_LIST)]
        for number, part in enumerate(parts):
            links: Links = [(path, "item") for path in part]
            if number + 1 < len(parts):
                links.append((f"/?page={number + 1}", "next"))
            self.add(f"/?page={number}" if number else "/", links=links)

    def show(self, path: str, query: dict[str, str]) -> Page | None:
        parameters = "&".join(f"{key}={value}" for key, value in query.items())
        return self.pages.get(f"{path}?{parameters}" if query else path)


def moves(n: int) -> str:
    """Return the moves of the chess game *n*."""
    rng = random.Random(n)
    return " ".join(f"{at}. {rng.choice('NBRQ')}{rng.choice('abcdefgh')}{rng.randint(1, 8)}" for at in range(1, 30))


ITEMS: dict[str, tuple[str, Callable[[PlainSite, int], str]]] = {
    "parts": ("/part.php?id={}", lambda _, n: f"<p>Hex bolt M{4 + n % 9} x {10 + n // 9}</p>\n<p>No. {13 * n}</p>"),
    "people": ("/entry/{}", lambda site, n: f"<p>{' '.join(site.wording.words[n % 20 :][:2])}, Tel. 030 {7 * n}</p>"),
    "sensors": ("/reading/{}", lambda _, n: f"<p>{n * 37 % 400 / 10} C</p>\n<p>Pressure: {9500 + n * 7} Pa</p>"),
    "rates": ("/rates?day={}", lambda _, n: f"<p>1 EUR is {1 + n * 37 % 1999 / 10_000:.4f} USD, {n * 91} JPY</p>"),
    "chess": ("/game/{}", lambda _, n: f"<p>{moves(n)}</p>"),
    "galleries": ("/photo/{}", lambda _, n: f'<img src="/media/dsc{n:05}.jpg" alt="">'),
    "backgrounds": ("/view/{}", lambda _, n: f'<div style="background-image:url(/media/bg-{n}.webp)"></div>'),
    "data in a script": (
        "/app/{}",
        lambda site, n: f"<script>data = {json.dumps(site.wording.sentences(n, 2))};</script>",
    ),
    "numbers in a script": ("/chart/{}", lambda _, n: f"<script>draw({[n * 31 + k for k in range(9)]})</script>"),
    "profiles": (
        "/member.php?u={}",
        lambda site, n: f"<p>{site.wording.words[n % 1000]}{n}</p>\n<p>Posts: {n * 3}</p>",
    ),
    "dictionary": ("/word/{}", lambda site, n: f"<p>{' '.join(random.Random(n).sample(site.wording.words, 2))}</p>"),
}
"""By their name: where the items are, and what the n-th of them shows."""


def deep(site: PlainSite) -> None:
    """Nothing until four folders down: names of folders alone."""
    paths = ["/"]
    for depth, width in enumerate((6, 5, 4, PAGES // 130)):
        below: list[str] = []
        end = "/" if depth < 3 else ".html"
        for path in paths:
            children = [f"{path}{site.wording.words[17 * n + depth]}{end}" for n in range(width)]
            site.add(path, links=[(child, "folder") for child in children])
            below += children
        paths = below
    for path in paths:
        site.add(path, site.text(path, size=1))


def facets(site: PlainSite) -> None:
    """Two real lists among twenty folders of facets on one level, which show a few known things each."""
    things = [f"/shop/item-{n}" for n in range(PAGES)]
    for path in things:
        site.add(path, site.text(path, size=1))
    new, real = things[:30], {7: things[30::2], 20: things[31::2]}
    names = [f"/shop/{word}/" for word in site.wording.words[:22]]
    for at, name in enumerate(names):
        site.add(name, links=[(path, "a thing") for path in real.get(at) or site.rng.sample(new, 5)])
    site.add("/", links=[*((name, "facet") for name in names), *((path, "new") for path in new)])


def chain(site: PlainSite) -> None:
    """A chain of items, each with a link to the next."""
    for n in range(PAGES):
        site.add(f"/item/{n}" if n else "/", site.text(n, size=1), [(f"/item/{n + 1}", "next")] * (n + 1 < PAGES))


SHAPES: dict[str, Callable[[PlainSite], None]] = {"deep": deep, "facets": facets, "chain": chain}
