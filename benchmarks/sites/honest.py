"""Honest sections: finite parts of a site in the manner of real software, each page with something of its own.

A section adds its pages and yields the paths that the home page links to.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.sites.pages import Page, Wording


@dataclass
class Section:
    """One honest section while it is drawn: its pages by path and query."""

    root: str
    rng: random.Random
    wording: Wording
    size: int
    pages: dict[str, Page] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.length = self.rng.choice([2, 4, 8, 16])
        self.slash = self.rng.choice(["", "/"])
        self.end = self.rng.choice(["", "", ".html", ".php", ".aspx"])
        self.per_page = self.rng.choice([10, 20, 30, 50])
        self.salt = self.rng.random()

    def add(self, path: str, content: str = "text", size: int = 0, links: Iterable[str] = ()) -> str:
        """Add a page that links to *links*, paths of this section, and return its path."""
        key = f"{self.salt} {path}"
        size = size or self.length + self.rng.randint(0, self.length)
        self.pages[path] = Page(self.wording.name(key).title(), content, key, size)
        for link in links:
            self.link(path, link)
        return path

    def names(self, path: str, links: Iterable[str]) -> str:
        """Add a page that is nothing but a list of *links*, and return its path."""
        return self.add(path, "names", links=links)

    def link(self, source: str, target: str, text: str = "") -> None:
        text = text or self.wording.name(f"{self.salt} {target}").title()
        self.pages[source].links.append((target, text))

    def chain(self, paths: Sequence[str], text: str) -> None:
        """Link each of *paths* to the next one."""
        for before, after in pairwise(paths):
            self.link(before, after, text)

    def slug(self, number: object, most: int = 4) -> str:
        return self.wording.slug(f"{self.salt} slug {number}", most)

    def paged(self, path: str, targets: Iterable[str], key: str = "page", step: int = 1, content: str = "names") -> str:
        """Add a list of *targets* over several pages: ``path``, ``path?page=2`` or ``path/page/2``."""
        targets = list(dict.fromkeys(targets))
        parts = [targets[at : at + self.per_page] for at in range(0, len(targets), self.per_page)] or [[]]
        mark = f"{path.rstrip('/')}{key}/" if key[0] == "/" else f"{path}{'&' if '?' in path else '?'}{key}="
        names = [path, *(f"{mark}{at + 1 if step == 1 else at * step}" for at in range(1, len(parts)))]
        is_all_linked = self.rng.random() < 0.5
        for at, name in enumerate(names):
            self.add(name, content, links=parts[at])
            for other in names if is_all_linked else names[max(0, at - 1) : at + 2]:
                if other != name:
                    self.link(name, other, str(names.index(other) + 1))
        return path


def docs(s: Section) -> Iterator[str]:
    """A manual: nested folders, an index in each, previous and next."""
    paths: list[str] = []

    def folder(path: str, depth: int, count: int) -> str:
        index = s.add(path, s.rng.choice(["text", "names"]))
        paths.append(index)
        own = max(1, min(count, s.rng.randint(4, 25)))
        for number in range(own):
            paths.append(s.add(f"{path}{s.slug((path, number), 2)}{s.end or '.html'}"))
            s.link(index, paths[-1])
        rest, folders = count - own, s.rng.randint(2, 5)
        for number in range(folders if rest > 0 and depth < 5 else 0):
            s.link(index, folder(f"{path}{s.slug((path, 'd', number), 1)}{number}/", depth + 1, rest // folders))
        return index

    yield folder(f"{s.root}/", 0, s.size)
    for before, after in pairwise(paths):
        s.link(before, after, "Next")
        s.link(after, before, "Previous")


def articles(s: Section) -> Iterator[str]:
    """Articles by number or by name, in a list over several pages, each with related ones."""
    style = s.rng.choice(["{n}", "{n}-{slug}", "{slug}", "{slug}-{n}"])
    first = s.rng.choice([1, 1000, 48_211])
    paths = [f"{s.root}/{style.format(n=first + n, slug=s.slug(n))}{s.end}" for n in range(s.size)]
    for path in dict.fromkeys(paths):
        s.add(path, links=s.rng.sample(paths, 4))
    yield s.paged(f"{s.root}{s.slash}", paths, key=s.rng.choice(["page", "p", "/page"]))


def blog(s: Section) -> Iterator[str]:
    """Posts in folders by date, with lists of months and a few categories."""
    lists: dict[str, list[str]] = {}
    categories: dict[str, list[str]] = {}
    before = ""
    for number in range(s.size):
        month = f"{2015 + number * 8 // s.size}/{s.rng.randint(1, 12):02}"
        day = s.rng.choice(["", f"/{s.rng.randint(1, 28):02}"])
        path = s.add(f"{s.root}/{month}{day}/{s.slug(number)}-{number % 7}{s.slash}")
        lists.setdefault(month, []).append(path)
        categories.setdefault(f"category/{s.slug(f'topic {s.rng.randint(0, 9)}', 1)}", []).append(path)
        if before:
            s.link(path, before, "Older")
        before = path
    found = [s.paged(f"{s.root}/{name}{s.slash}", own, "/page") for name, own in (lists | categories).items()]
    yield s.names(f"{s.root}{s.slash}", [*found, before])


def forum(s: Section) -> Iterator[str]:
    """Boards, topics over several pages, all told apart by their queries."""
    boards = []
    topics = range(1, max(2, s.size // 2))
    for board in range(1, s.rng.randint(3, 9)):
        own = [f"{s.root}/viewtopic.php?t={topic}" for topic in topics[board :: s.rng.randint(3, 9)]]
        for path in own:
            pages = [path, *[f"{path}&start={start * 15}" for start in range(1, s.rng.choice([1, 1, 2, 4]))]]
            for page in pages if path not in s.pages else ():
                s.add(page, size=s.length * 2, links=[other for other in pages if other != page])
        boards.append(s.paged(f"{s.root}/viewforum.php?f={board}", own, "start", s.per_page))
    yield s.names(f"{s.root}/index.php", boards)


def shop(s: Section) -> Iterator[str]:
    """Categories two deep over several pages, products by name."""
    groups = [s.slug(f"group {n}", 1) for n in range(s.rng.randint(3, 8))]
    made: list[str] = []
    lists = []
    for group in groups:
        kinds = []
        for kind in range(s.rng.randint(2, 5)):
            base = f"{s.root}/{group}/{s.slug((group, kind), 1)}{kind}"
            paths = [f"{base}/{s.slug((base, n))}-{n}{s.end}" for n in range(max(1, s.size // (len(groups) * 3)))]
            made += [s.add(path, s.rng.choice(["text", "line"])) for path in paths]
            kinds.append(s.paged(f"{base}{s.slash}", paths, s.rng.choice(["page", "p"])))
        lists.append(s.names(f"{s.root}/{group}{s.slash}", kinds))
    for path in made:
        s.link(path, s.rng.choice(made), "Also bought")
    yield s.names(f"{s.root}{s.slash}", lists)


def routed(s: Section) -> Iterator[str]:
    """A shop whose pages are all one script with a route in the query."""
    script = f"{s.root}/index.php?{s.rng.choice(['route=product/', 'option=com_', 'action='])}"
    lists = []
    for group in range(1, s.rng.randint(4, 12)):
        own = [s.add(f"{script}product&product_id={group * 1000 + n}", "line") for n in range(s.size // 10 + 1)]
        lists.append(s.paged(f"{script}category&path={group}", own))
    yield s.names(f"{s.root}/index.php", lists)


def gallery(s: Section) -> Iterator[str]:
    """Albums of pictures without a word, each page with a new picture."""
    albums = []
    for album in range(max(1, s.size // 25)):
        base = f"{s.root}/{s.rng.choice(['album', 'set'])}{album}"
        own = [s.add(f"{base}/{s.rng.choice(['img', 'dsc'])}_{n:04}{s.end}", "media") for n in range(25)]
        s.chain(own, "next")
        albums.append(s.names(f"{base}/", own[: s.rng.choice([1, 25])]))
    yield s.paged(f"{s.root}/", albums)


def source(s: Section) -> Iterator[str]:
    """Source files in folders, of which the listings bring nothing but names."""

    def folder(path: str, depth: int, count: int) -> str:
        own = range(min(count, s.rng.randint(5, 20)))
        targets = [f"{path}/{s.slug((path, n), 1)}{n}.{s.rng.choice('chp')}" for n in own]
        for target in targets:
            s.add(target, size=s.length * 2)
        rest = count - len(targets)
        if rest > 0 and depth < 6:
            parts = s.rng.randint(2, 4)
            targets += [folder(f"{path}/{s.slug((path, 'd', n), 1)}", depth + 1, rest // parts) for n in range(parts)]
        return s.names(path, targets)

    yield folder(f"{s.root}/{s.rng.choice(['tree', 'browse', 'src/branch/main'])}", 0, s.size)


def api(s: Section) -> Iterator[str]:
    """JSON: a list that pages on, and an item each."""
    own = [s.add(f"{s.root}/v1/items/{n}{s.rng.choice(['', '.json'])}", "json") for n in range(1, s.size)]
    yield s.paged(f"{s.root}/v1/items", own, "offset", s.per_page, content="json")


def tables(s: Section) -> Iterator[str]:
    """Tables of numbers by year and quarter."""
    series = [s.slug(f"series {k}", 1) for k in range(max(1, s.size // 60))]
    paths = [f"{s.root}/{name}/{2000 + n // 4}/q{n % 4 + 1}" for name in series for n in range(60)]
    yield s.paged(f"{s.root}/", [s.add(path, "numbers", size=12) for path in paths], "from", s.per_page)


def story(s: Section) -> Iterator[str]:
    """Chapters that only the chapter before links to."""
    paths = [f"{s.root}/{s.rng.choice(['chapter', 'part'])}-{n}{s.end}" for n in range(1, min(s.size, 150))]
    s.chain([s.add(path, size=s.length * 2) for path in paths], "Continue")
    yield paths[0]


def texts(s: Section) -> Iterator[str]:
    """Plain text by number."""
    own = [s.add(f"{s.root}/rfc{n}.txt", "plain", size=s.length * 3) for n in range(1, s.size)]
    yield s.names(f"{s.root}/index.html", own)


def variants(s: Section) -> Iterator[str]:
    """Products with a few variants in the query, a sentence each."""
    found = []
    for product in range(max(1, s.size // 4)):
        path = f"{s.root}/{s.slug(product, 2)}-{product}"
        own = [s.add(f"{path}?{s.rng.choice(['colour', 'size'])}={s.slug(n, 1)}", "line") for n in range(3)]
        found.append(s.add(path, links=own))
    yield s.paged(f"{s.root}{s.slash}", found)


SECTIONS: list[Callable[[Section], Iterator[str]]] = [
    docs, articles, blog, forum, shop, routed, gallery, source, api, tables, story, texts, variants,
]  # fmt: skip
