"""Small honest sites without traps, each of a kind that a judge of content may misread."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from benchmarks.sites.draw import Answer
from benchmarks.sites.pages import Links, Wording, anchors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PAGES = 700
PER_LIST = 50


class PlainSite:
    """Pages by URL: ``page(url)`` answers as :class:`benchmarks.sites.Site` does."""

    host, start = "http://plain.example", "http://plain.example/"

    def __init__(self, name: str, pages: int) -> None:
        self.size = pages
        self.rng = random.Random(f"plain {name}")
        self.wording = Wording(self.rng)
        self.bodies: dict[str, tuple[str, bytes]] = {}
        KINDS[name](self)
        self.honest = {self.host + path: name for path in self.bodies}
        self.traps: list[object] = []

    def content_of(self, url: str) -> str:
        """Return what stands for the content of *url*."""
        return url

    def part_of(self, url: str) -> str:
        """Return the name of the site for its pages, and ``nothing`` for others."""
        return self.honest.get(url, "nothing")

    def page(self, url: str) -> Answer:
        """Answer for *url*."""
        content_type, body = self.bodies.get(url.removeprefix(self.host), ("text/html", b""))
        return Answer(200 if body else 404, {"Content-Type": content_type}, body or b"<p>Not found</p>")

    # -- what sites are made of ------------------------------------------------------------------------------------

    def add(self, path: str, content: str, links: Links = (), head: str = "") -> None:  # type: ignore[assignment]
        nav = "<nav><a href=/>Home</a> <a href=/about>About</a></nav>"
        listed = "\n".join(f"<li>{anchor}</li>" for anchor in anchors(links))
        html = (
            f"<!doctype html><html><head><title>The site</title>{head}</head>\n"
            f"<body>{nav}\n{content}\n<ul>{listed}</ul>"
            "\n<footer><p>All rights reserved by the owner of the site</p></footer></body></html>"
        )
        self.bodies[path] = ("text/html", html.encode())

    def lists(self, items: Sequence[tuple[str, str]], root: str = "/list", heading: str = "<h1>All</h1>") -> None:
        """Add lists of *items*, each linked to the next; the start page links to the first."""
        parts = [items[at : at + PER_LIST] for at in range(0, len(items), PER_LIST)]
        for number, part in enumerate(parts):
            more = [(f"{root}?page={number + 1}", "next")] if number + 1 < len(parts) else []
            self.add(root if not number else f"{root}?page={number}", heading, [*part, *more])
        self.add("/", "<h1>Welcome to the site</h1>", [(root, "All")])
        self.add("/about", "<p>We are a small company that has a site with many pages.</p>")

    def items(self, path: str, content: Callable[[int], str], **kwargs: str) -> None:
        """Add as many items as there are to be, and the lists that lead to them."""
        numbers = range(self.size - self.size // PER_LIST - 3)
        paths = [path.format(n=n, id=4000 + 7 * n) for n in numbers]
        for n, each in zip(numbers, paths, strict=True):
            self.add(each, content(n))
        self.lists([(each, f"no. {n}") for n, each in enumerate(paths)], **kwargs)


def parts(s: PlainSite) -> None:
    """Spare parts that differ in digits."""
    s.items(
        "/part/{id}",
        lambda n: (
            f"<h1>Hex bolt M{4 + n % 9} x {10 + n // 9}</h1>\n<p>Art. no. {81_000 + 13 * n}</p>\n"
            f"<p>{n % 97 + 1}.{n * 7 % 100:02} EUR</p>"
        ),
    )


def parts_by_query(s: PlainSite) -> None:
    """Spare parts again, whose number is a parameter."""
    s.items(
        "/part.php?id={id}",
        lambda n: (
            f"<h1>Ball bearing</h1>\n<p>Inner {3 + n % 31} mm, outer {40 + n // 31} mm</p>\n<p>{n % 97}.50 EUR</p>"
        ),
    )


def phone_book(s: PlainSite) -> None:
    """Numbers of people; the names are few."""
    first, last = s.wording.words[:20], s.wording.words[20:60]
    s.items(
        "/entry/{id}",
        lambda n: f"<h1>{first[n % 20].title()} {last[n // 20 % 40].title()}</h1>\n<p>Tel. 030 {700_000 + 37 * n}</p>",
    )


def sensors(s: PlainSite) -> None:
    """Readings of a day each."""
    s.items(
        "/reading/{n}",
        lambda n: f"<h1>Station</h1>\n<p>Temperature: {n * 37 % 400 / 10} C</p>\n<p>Pressure: {9500 + n * 7} Pa</p>",
    )


def timetables(s: PlainSite) -> None:
    """Departures: only the times differ."""
    rows = [
        [f"{(n * 7 + k * 11) % 24:02}:{(n * 13 + k * 17 + n // 60) % 60:02}" for k in range(9)] for n in range(s.size)
    ]
    s.items(
        "/stop/{id}",
        lambda n: "<h1>Departures</h1>\n<table>" + "\n".join(f"<tr><td>{t}</td></tr>" for t in rows[n]) + "</table>",
    )


def exchange_rates(s: PlainSite) -> None:
    """Rates of a day each, in one sentence."""
    s.items(
        "/rates?day={n}",
        lambda n: f"<p>1 EUR is {1 + n * 37 % 1999 / 10_000:.4f} USD and {150 + n * 91 % 7919 / 1000:.3f} JPY</p>",
    )


def sudoku(s: PlainSite) -> None:
    """Puzzles: nine rows of nine digits."""

    def grid(n: int) -> str:
        rng = random.Random(n)
        rows = ("".join(f"<td>{rng.choice(['', '', *'123456789'])}</td>" for _ in range(9)) for _ in range(9))
        return "<h1>Sudoku</h1>\n<table>" + "\n".join(f"<tr>{row}</tr>" for row in rows) + "</table>"

    s.items("/sudoku/{n}", grid)


def chess(s: PlainSite) -> None:
    """Games in notation."""

    def game(n: int) -> str:
        rng = random.Random(n)
        moves = [f"{at}. {rng.choice('NBRQ')}{rng.choice('abcdefgh')}{rng.randint(1, 8)}" for at in range(1, 30)]
        return f"<h1>Game</h1>\n<p>{' '.join(moves)}</p>"

    s.items("/game/{id}", game)


def galleries(s: PlainSite) -> None:
    """Pictures without text."""
    s.items("/photo/{n}", lambda n: f'<img src="/media/dsc{n:05}.jpg" alt="">')


def backgrounds(s: PlainSite) -> None:
    """Pictures that a style shows, and a picture element."""
    s.items(
        "/view/{n}",
        lambda n: (
            f'<div class=pic style="background-image:url(/media/bg-{n}.webp)"></div>'
            if n % 2
            else f'<picture><source srcset="/m/{n}.avif"><img srcset="/m/{n}.png 2x" alt=""></picture>'
        ),
    )


def inline_script(s: PlainSite) -> None:
    """The page's data is in a script."""
    s.items(
        "/product/{id}",
        lambda n: (
            "<div id=app></div><script>window.__DATA__ = "
            + json.dumps({"name": s.wording.name(n, 3), "text": s.wording.sentences(n, 2), "price": n % 89 + 0.5})
            + ";</script>"
        ),
    )


def inline_numbers(s: PlainSite) -> None:
    """The page's data is in a script, and only numbers."""
    s.items(
        "/chart/{n}",
        lambda n: f"<div id=chart></div>\n<script>draw({[(n * k * 31 + k) % 997 for k in range(2, 14)]});</script>",
    )


def shells(s: PlainSite) -> None:
    """A single-page application: all pages are alike."""
    s.items("/app/{id}", lambda n: "<div id=root>Loading the application</div><script src=/bundle.js></script>")


def doorways(s: PlainSite) -> None:
    """Only the town in the URL differs, and where the page says it."""
    towns = list(dict.fromkeys(s.wording.slug(n, 3) for n in range(3 * s.size)))[: s.size - 20]
    for town in towns:
        name = town.replace("-", " ").title()
        s.add(f"/plumber/{town}", f"<h1>Plumber in {name}</h1><p>We are your plumber in {name}, day and night.</p>")
    s.lists([(f"/plumber/{town}", town) for town in towns])


def profiles(s: PlainSite) -> None:
    """Members of a forum: a name, which the URL has, and counts."""
    s.items(
        "/member.php?u={id}",
        lambda n: (
            f"<h1>{s.wording.words[n % 1000]}{n}</h1>\n<p>Joined: 20{n % 20:02}-0{n % 9 + 1}-11</p>\n"
            f"<p>Posts: {n * 3}</p>"
        ),
    )


def hex_codes(s: PlainSite) -> None:
    """Colours: everything follows from the URL."""
    codes = [f"{n * 104_729 % 16_777_216:06x}" for n in range(s.size - 20)]
    for code in codes:
        red, green, blue = bytes.fromhex(code)
        s.add(f"/colour/{code}", f"<h1>#{code}</h1>\n<p>RGB: {red}, {green}, {blue}</p>")
    s.lists([(f"/colour/{code}", code) for code in codes])


def dictionary(s: PlainSite) -> None:
    """A word, and one or two that it means."""
    for n in range(s.size - 20):
        rng = random.Random(n)
        s.add(f"/word/w{n}", f"<h1>w{n}</h1>\n<p>{' '.join(rng.sample(s.wording.words, 2))}</p>")
    s.lists([(f"/word/w{n}", f"w{n}") for n in range(s.size - 20)])


def events(s: PlainSite) -> None:
    """The same concerts in the same places, on other dates."""
    s.items(
        "/event/{id}",
        lambda n: (
            f"<h1>{s.wording.name(n % 12).title()}</h1>\n<p>{n % 28 + 1}.{n // 28 % 12 + 1}.20{n // 336 + 20} at "
            f"{17 + n % 5}:{n % 4 * 15:02}, hall {n % 7 + 1}</p>\n<p>Tickets from {20 + n % 50} EUR</p>"
        ),
    )


def files(s: PlainSite) -> None:
    """Binary files that begin alike."""
    paths = [f"/files/{n:05}.bin" for n in range(s.size - 20)]
    for n, path in enumerate(paths):
        s.bodies[path] = ("application/octet-stream", b"\x89FORMAT" + bytes(5000) + n.to_bytes(4, "big"))
    s.lists([(path, path) for path in paths])


def deep(s: PlainSite) -> None:
    """Nothing until four folders down: names of folders alone."""
    s.add("/", "<h1>Welcome</h1>", [("/archive/", "Archive")])
    s.add("/about", "<p>We are a small company that has a site with many pages.</p>")
    paths = ["/archive/"]
    for depth, width in enumerate((6, 5, 4, s.size // 130)):
        below = []
        for path in paths:
            children = [f"{path}{s.wording.words[17 * n + depth]}{'/' if depth < 3 else '.html'}" for n in range(width)]
            s.add(path, "<h1>Index</h1>", [(child, "folder") for child in children])
            below += children
        paths = below
    for path in paths:
        s.add(path, f"<p>{s.wording.sentences(path, 2)[0]}</p>")


def facets(s: PlainSite) -> None:
    """Two real sub-lists among twenty folders of facets on one level, which show a few known things each."""
    things = [f"/shop/item-{n}" for n in range(s.size - 30)]
    for n, path in enumerate(things):
        s.add(path, f"<p>{s.wording.sentences((n, 'thing'), 1)[0]}</p>")
    names = [f"/shop/{word}/" for word in s.wording.words[:22]]
    rng = random.Random("facets")
    for at, name in enumerate(names):
        own = things[30:][at // 20 :: 2] if at in (7, 20) else rng.sample(things[:30], 5)
        if at == 7:
            own = things[30:][::2]
        if at == 20:
            own = things[30:][1::2]
        s.add(name, "<h1>Choice</h1>", [(path, "a thing") for path in own])
    s.add("/", "<h1>Welcome</h1>", [*((name, "facet") for name in names), *((path, "new") for path in things[:30])])
    s.add("/about", "<p>We are a small company that has a site with many pages.</p>")


def chain(s: PlainSite) -> None:
    """A chain of items, one on each page."""
    for n in range(s.size):
        link = [(f"/item/{n + 1}", "next")] if n + 1 < s.size else []
        s.add(f"/item/{n}" if n else "/", f"<p>{s.wording.sentences(n, 1)[0]}</p>", link)
    s.add("/about", "<p>We are a small company that has a site with many pages.</p>")


def shell_chain(s: PlainSite) -> None:
    """A chain of pages that differ in nothing."""
    for n in range(s.size):
        link = [(f"/step?n={n + 1}", "next")] if n + 1 < s.size else []
        s.add(f"/step?n={n}" if n else "/", "<h1>Step</h1>", link)
    s.add("/about", "<p>We are a small company that has a site with many pages.</p>")


def api(s: PlainSite) -> None:
    """Records in JSON that differ in numbers."""
    numbers = range(s.size - 1)
    for n in numbers:
        record = {
            "id": n,
            "lat": n * 7 % 90 + 0.25,
            "lon": n * 11 % 180 + 0.75,
            "links": [f"/api/{n + 1}"][: s.size - 2 - n],
        }
        s.bodies[f"/api/{n}"] = ("application/json", json.dumps(record).encode())
    s.add("/", "<h1>Records</h1>", [("/api/0", "first")])
    s.add("/about", "<p>We are a small company that has a site with many pages.</p>")


KINDS: dict[str, Callable[[PlainSite], None]] = {
    kind.__name__: kind
    for kind in (
        parts, parts_by_query, phone_book, sensors, timetables, exchange_rates, sudoku, chess, galleries, backgrounds,
        inline_script, inline_numbers, shells, doorways, profiles, hex_codes, dictionary, events, files, deep, facets,
        chain, shell_chain, api,
    )
}  # fmt: skip


def plain_site(name: str, pages: int = PAGES) -> PlainSite:
    """Return the site called *name*, of about so many *pages*."""
    return PlainSite(name, pages)
