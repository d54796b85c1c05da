"""Endless traps beside honest sections of thousands of pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from urllib.parse import urlencode

from benchmarks.sites.pages import Links, Page, content_of, shown
from benchmarks.sites.program import Program, link

PER_LIST = 50
LINES = {"text": 4, "numbers": 24, "line": 1, "media": 1}
"""What an honest page shows: so many sentences, rows of a table, or pictures."""


class Beside(Program):
    """Sections of pages in lists or in folders, and traps to which each of their pages links. The seed draws names."""

    def __init__(self, seed: int, kind: str, scale: float = 1) -> None:
        self.kind = kind
        sizes, self.shows = SITES[kind]
        self.sizes = [(content, int(size * scale)) for content, size in sizes]
        super().__init__(seed)

    def make(self) -> None:
        names = [self.slug("section", n) + str(n) for n in range(len(self.sizes))]
        if self.kind == "garbage":
            names = ["blog"]
        self.keys = self.rng.choice([("lat", "lon", "z"), ("x", "y", "zoom"), ("n", "e", "level"), ("ll", "tt", "s")])
        self.folders = [f"{self.slug('trap', n)}-{n}" for n in range(len(self.shows))]
        if "among" in self.kind:
            self.folders = names[:1]
        self.lists: dict[str, list[str]] = {"/": [f"/{name}/" for name in names]}
        self.items: dict[str, str] = {}
        for name, (content, size) in zip(names, self.sizes, strict=True):
            self.add_section(name, content, size)
        self.note("list", *self.lists)
        self.paths = list(self.items)

    def add_section(self, name: str, content: str, size: int) -> None:
        """Add *size* pages, in folders or in lists of which each leads to the next."""
        form = self.rng.choice(["{slug}-{n}", "{n}", "{n}/{slug}", "{slug}-{n}.html"])
        is_tree, parts = self.rng.random() < 0.5, range(size // PER_LIST + 1)
        lists = [f"/{name}/?page={n + 1}" if n else f"/{name}/" for n in parts]
        folders = [f"/{name}/" for _ in parts]
        if is_tree:
            lists = folders = [f"/{name}/{self.slug(name, 'folder', n)}-{n}/" for n in parts]
        items = [folders[n // PER_LIST] + form.format(n=n * 7 + 1000, slug=self.slug(name, n)) for n in range(size)]
        for n, path in enumerate(lists):
            self.lists[path] = items[n * PER_LIST : (n + 1) * PER_LIST] + ([] if is_tree else lists[n + 1 : n + 2])
        if is_tree:
            self.lists[f"/{name}/"] = lists
        self.items |= dict.fromkeys(items, content)
        self.note(f"{content} {size}", *items)

    def content_of(self, url: str) -> str:
        """Return *url* as it is without what its links added."""
        path = url.removeprefix(self.host)
        if self.kind == "one slash more":
            path = re.sub("/+", "/", path)
        elif self.kind == "no scheme":
            path = re.sub(r".*\.example(?=/)", "", path)
        return self.host + path

    def part_of(self, url: str) -> str:
        """Return the part of an honest URL, otherwise ``trap`` with the name of the trap."""
        folder = url.removeprefix(self.host).split("/")[1].partition("?")[0]
        number = self.folders.index(folder) if folder in self.folders else 0
        return self.honest.get(url) or f"trap {self.shows[number].__name__}"

    def show(self, path: str, query: dict[str, str]) -> Page | None:
        plain = self.content_of(self.host + path).removeprefix(self.host)
        folder = plain.split("/")[1]
        listed = self.lists.get(f"{plain}?{urlencode(query)}" if query else plain)
        if listed is not None:
            page = shown("List", "", [*map(link, listed)])
        elif plain in self.items:
            content, rng = self.items[plain], self.seeded(plain)
            html = content_of(Page("", content, f"{self.salt} {plain}", LINES[content]), self.wording)
            near = [rng.choice(self.paths) for _ in range(len(folder) % 3)]
            page = shown(self.name(plain), html, [*map(link, near), link("/"), link(f"/{folder}/")])
        else:
            at = self.folders.index(folder) if folder in self.folders else 0
            return self.shows[at](self, path, query)
        if self.kind == "one slash more":
            slashes = "/" * (1 + max(map(len, re.findall("/+", path))))
            page.links = [(re.sub("(?<=.)/(?=.)", slashes, href), text) for href, text in page.links]
            return page
        page.links += [entry for show in self.shows for entry in self.entries(path, show)]
        return page

    def entries(self, path: str, show: Show) -> Links:
        """Return the links of an honest page into the trap that *show* shows."""
        rng, folder = self.seeded(path, "entry"), self.folders[self.shows.index(show)]
        if show is map_of_tiles:
            return [self.view(folder, rng.randint(-80, 80) * 4, rng.randint(-80, 80) * 4, 9)]
        if show is random_gallery:
            return [link(f"/{folder}", "a picture", **{self.keys[2]: rng.getrandbits(32)})]
        if show is nothing:
            return [(f"www.program.example{rng.choice(self.paths[:99])}", "new"), ("partner.example/en", "ad")]
        return self.babble(path, folder)[:3]

    def babble(self, path: str, folder: str) -> Links:
        rng = self.seeded("babble", path)
        if self.kind == "garbage":
            return [link(f"/{self.slug(path, n)}{rng.randint(2, 99)}/{self.slug(path, n, 1)}") for n in range(6)]
        return [link(f"/{folder}/{self.slug(path, n)}-{self.slug(path, n, 1)}") for n in range(rng.randint(3, 9))]

    def view(self, folder: str, *place: int) -> tuple[str, str]:
        return f"/{folder}?{urlencode(dict(zip(self.keys, place, strict=True)))}", "map"


def map_of_tiles(site: Beside, path: str, query: dict[str, str]) -> Page | None:
    """A map in all directions; every view shows nine pictures that no other has."""
    x, y, z = (int(query[key]) for key in site.keys)
    views = [(x + 4, y, z), (x - 4, y, z), (x, y + 4, z), (x, y - 4, z), (x, y, z + 1), (x, y, max(z - 1, 1))]
    tiles = "".join(f'<img src="/tiles/{z}/{x + n % 3}/{y + n // 3}.png">' for n in range(9))
    return shown("Map", tiles, [*(site.view(path[1:], *view) for view in views), link("/")])


def random_gallery(site: Beside, path: str, query: dict[str, str]) -> Page | None:
    """A picture, and links to others at random."""
    rng = site.seeded("picture", number := query[site.keys[2]])
    others = [link(path, "another", **{site.keys[2]: rng.getrandbits(32)}) for _ in range(4)]
    return shown("A picture", f'<img src="/pictures/{number}.jpg">', [*others, link("/")])


def babble(site: Beside, path: str, query: dict[str, str]) -> Page | None:
    """Text of the site's own words, with links to more; in its folder, or under every path."""
    folder = path.split("/")[1]
    if site.kind != "garbage" and folder not in site.folders:
        return None
    honest = [link(site.seeded(path).choice(site.paths))] * (len(path) % 5 == 0)
    return shown(site.name(path), site.text(path, size=5), [*site.babble(path, folder), *honest, link("/")])


def calendar(site: Beside, path: str, query: dict[str, str]) -> Page | None:
    """Empty months for ever."""
    at = int(query.get("month", 0))
    links = [link(path, f"{step}", month=at + step) for step in (-1, 1, 12, -12)]
    return shown(f"Month {at}", "<p>There are no events.</p>", [*links, link("/")])


def nothing(site: Beside, path: str, query: dict[str, str]) -> Page | None:
    """A page that says nothing, with the links that all pages have."""
    return shown("Not here", "<p>We have moved this page.</p>", [link("/"), *site.entries(path, nothing)])


Show = Callable[[Beside, str, dict[str, str]], Page | None]
THOUSANDS = (("text", 2_000), ("line", 3_000))
OTHERS = (("text", 300), ("line", 300))
SITES: dict[str, tuple[tuple[tuple[str, int], ...], tuple[Show, ...]]] = {
    "map of tiles": (THOUSANDS, (map_of_tiles,)),
    "three endless": ((*THOUSANDS, ("media", 300), ("numbers", 800)), (map_of_tiles, random_gallery, babble)),
    "weather": ((("numbers", 800), ("text", 700), ("text", 200), ("line", 60)), (babble, map_of_tiles, calendar)),
    "garbage": ((("text", 500),), (babble,)),
    "tarpit": ((("text", 500),), (babble,)),
    "tarpit among posts": ((("text", 500),), (babble,)),
    "no scheme": (OTHERS, (nothing,)),
    "one slash more": (OTHERS, (nothing,)),
}
"""By their name: the content and size of each honest section, and the traps."""
BESIDE: dict[str, Callable[[int], Beside]] = {name: partial(Beside, kind=name) for name in SITES}
