"""Honest sites without traps, each of a kind that a judge of content may misread."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from benchmarks.sites.pages import Links, Page, shown
from benchmarks.sites.program import Program

PAGES = 2_500
"""Of each site: a host that shows so many without news is given up long before its end."""
PER_LIST = 50


class PlainSite(Program):
    """A site of ITEMS in lists, or one of the SHAPES. Its pages differ in nothing but what is said there."""

    noise = ()

    def __init__(self, kind: str, seed: int = 0) -> None:
        self.kind = kind
        self.pages: dict[str, Page] = {}
        self.copies: dict[str, str] = {}
        """Which page each of them shows again."""
        super().__init__(seed)

    def make(self) -> None:
        if self.kind in ITEMS:
            path, content = ITEMS[self.kind]
            paths = [path.format(4000 + 7 * n) for n in range(PAGES)]
            for n, item in enumerate(paths):
                self.add(item, content(self, n))
            self.add_lists(paths)
        else:
            SHAPES[self.kind](self)
        self.note(self.kind, *(url for url in self.pages if url not in self.copies))

    def content_of(self, url: str) -> str:
        """Return the page of which *url* is a copy, or *url*."""
        path = url.removeprefix(self.host)
        return self.host + self.copies.get(path, path)

    def part_of(self, url: str) -> str:
        """Return the kind of the site, or that *url* is a copy."""
        return "copies" if url.removeprefix(self.host) in self.copies else self.honest.get(url, "nothing")

    def add(self, url: str, html: str = "", links: Sequence[tuple[str, str]] = ()) -> None:
        self.pages[url] = shown("The site", html, [*links])

    def add_copies(self, of: str, *urls: str, html: str = "") -> Links:
        """Add copies of the page *of*, or forms that show *html*, with a link back; return the links to them."""
        for url in urls:
            self.copies[url] = "" if html else of
            self.add(url, html or self.pages[of].key, [(of, "back")])
        return [(url, "service") for url in urls]

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


def catalogue(site: PlainSite) -> None:
    """Records by number, and services beside each with the same key: its text again, and forms."""
    key, folder = site.rng.choice(["id", "biblio", "no"]), f"/{site.slug('scripts')}"
    paths = [f"{folder}/record?{key}={n * 3 + 100}" for n in range(PAGES)]
    for n, path in enumerate(paths):
        html = f"<p>{site.name('title', n)}</p><p>ISBN {978_000_000 + n * 37}</p>{site.text(path, size=n % 3)}"
        site.add(path, html)
        links = site.add_copies(path, *(path.replace("record", view) for view in ("print", "cite")))
        forms = [path.replace("record", form) for form in ("reserve", "mail")]
        site.add(path, html, links + site.add_copies(path, *forms, html="<form>Your card number</form>"))
    site.add_lists(paths)


def dictionary(site: PlainSite) -> None:
    """Words, each with a view for printing."""
    view = site.rng.choice(["print=1", "view=print", "media=paper"])
    paths = [f"/{site.slug('words', 1)[:9]}/{site.slug(n)}-{n}" for n in range(PAGES)]
    for n, path in enumerate(paths):
        html = f"<p>{' '.join(random.Random(n).sample(site.wording.words, 3))}</p>"
        site.add(path, html)
        site.add(path, html, site.add_copies(path, f"{path}?{view}"))
    site.add_lists(paths)


def sessions(site: PlainSite) -> None:
    """Pictures behind session ids in the path: now and then a link begins another session, of three."""
    form = site.rng.choice(["/(S({}))", "/s-{}", "/{}"])
    starts = [form.format(site.token("session", k, bits=96)) for k in range(3)]
    for n in range(PAGES):
        path = f"{starts[0]}/photo/{n}"
        for k, start in enumerate(starts):
            url, on = f"{start}/photo/{n}", starts[(k + (n % 500 == 499)) % 3]
            links = [(f"{on}/photo/{n + 1}", "next")] * (n + 1 < PAGES)
            links.append((f"{start}/photo/{n * 7 % PAGES}", "like this"))
            site.add(url, f'<img src="/media/photo{n:05}.jpg" alt="">', links)
            if k:
                site.copies[url] = path
    site.add("/", links=[(f"{start}/photo/{n}", "album") for start in starts for n in range(0, PAGES, 100)])


def tiles(site: PlainSite) -> None:
    """Tables of figures, each linked from the four beside it."""
    x, y = site.rng.choice([("x", "y"), ("row", "col"), ("lat", "lon")])
    for n in range(PAGES):
        at = divmod(n, 50)
        rows = "".join(f"<tr><td>{n * 7919 % 9973 + k}</td><td>{n * 31 % 977 / 10}</td></tr>" for k in range(8))
        beside = [(at[0] + a, at[1] + b) for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))]
        links = [(f"/figures?{x}={a}&{y}={b}", "tile") for a, b in beside if 0 <= a < PAGES // 50 and 0 <= b < 50]
        site.add(f"/figures?{x}={at[0]}&{y}={at[1]}", f"<table>{rows}</table>", links)
    site.add("/", links=[(f"/figures?{x}=20&{y}=20", "figures")])


SHAPES: dict[str, Callable[[PlainSite], None]] = {
    "deep": deep, "facets": facets, "chain": chain, "catalogue": catalogue, "dictionary with prints": dictionary,
    "sessions": sessions, "tiles": tiles,
}  # fmt: skip
