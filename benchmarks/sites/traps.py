"""Traps: endless parts of a site in the manner of real software, and finite copies of honest pages."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from benchmarks.sites.honest import Section
from benchmarks.sites.pages import Links, Page, Wording, shown


class Ask(NamedTuple):
    """What the site is asked for."""

    url: str
    path: str
    query: dict[str, str]

    @classmethod
    def of(cls, url: str) -> Ask:
        path, _, query = url.partition("?")
        return cls(url, path, dict(parse_qsl(query, keep_blank_values=True)))

    def number(self, key: str, default: int) -> int:
        return int(self.query.get(key, default))


@dataclass
class Copies:
    """How a trap copies honest pages."""

    plain: Callable[[Ask], str]
    """Which page is copied."""
    rewrite: Callable[[Ask], Callable[[str], str]] = lambda ask: str
    """What becomes of the links of a copy to the host's pages."""
    more: Callable[[Ask], Links] = lambda ask: []
    """The further links of a copy."""


@dataclass
class Trap:
    """A trap beside the honest section *host*.

    A URL is the trap's if its query has one of *params*, its path has *pattern* in it, or begins with *root*. What it
    shows is a copy of an honest page, unless ``serve`` is replaced.
    """

    name: str
    root: str
    rng: random.Random
    wording: Wording
    host: Section
    pages: dict[str, Page]
    """Of the whole site."""
    entries: list[str] = field(default_factory=list)
    on_page: Callable[[str], Links] = lambda path: []
    """The links to the trap from a page of its host."""
    params: Sequence[str] = ()
    pattern: re.Pattern[str] | None = None
    drawn: Any = None

    def __post_init__(self) -> None:
        self.salt = self.rng.random()
        self.count = 0
        """How many tokens were drawn, or might have been."""
        self.copies = Copies(lambda ask: without(ask.url, *self.params))
        self.serve: Callable[[Ask], Page | None] = self.copy

    def seeded(self, key: object) -> random.Random:
        return random.Random(f"{self.salt} {key}")

    def fresh(self) -> str:
        """Return another token each time."""
        self.count += 1
        return f"{self.seeded((self.count,)).getrandbits(48):012x}"

    def words(self, key: object, count: int) -> list[str]:
        return self.seeded(key).sample(self.wording.words[:300], count)

    def claims(self, ask: Ask) -> bool:
        if self.params:
            return any(key in ask.query for key in self.params)
        if self.pattern:
            return bool(self.pattern.search(ask.path))
        return f"{ask.path}/".startswith(f"{self.root}/")

    def copy(self, ask: Ask) -> Page | None:
        """Show a copy of an honest page."""
        rewrite, more = self.copies.rewrite(ask), self.copies.more(ask)
        page = self.pages.get(self.copies.plain(ask))
        if page is None:
            return None
        links = [(rewrite(href) if href in self.host.pages else href, text) for href, text in page.links]
        return replace(page, links=links + more)

    def to(self, **query: object) -> str:
        return f"{self.root}?{urlencode(query)}"

    def known(self, rng: random.Random, count: int) -> Links:
        """Return links to some of the host's pages."""
        targets = list(self.host.pages)
        found = rng.sample(targets, min(count, len(targets)))
        return [(href, self.wording.name(href)) for href in found]


def endless(
    draw: Callable[[Trap], Any] | None = None,
    on_page: Callable[[Trap, str], Links] | None = None,
) -> Callable[[Callable[[Trap, Ask], Page]], Callable[[Trap], None]]:
    """Make a trap of a function that answers to all that is asked for below the trap's root.

    The home page links to it, or *on_page* the pages of its host.
    """

    def trap_of(serve: Callable[[Trap, Ask], Page]) -> Callable[[Trap], None]:
        @wraps(serve)
        def make(t: Trap) -> None:
            t.serve = partial(serve, t)
            t.drawn = draw(t) if draw else None
            if on_page:
                t.on_page = partial(on_page, t)
            else:
                t.entries = [t.root]

        return make

    return trap_of


def with_query(url: str, **more: object) -> str:
    base, _, query = url.partition("?")
    return f"{base}?{urlencode(dict(parse_qsl(query)) | more)}"


def without(url: str, *keys: str) -> str:
    base, _, query = url.partition("?")
    kept = [(key, value) for key, value in parse_qsl(query) if key not in keys]
    return f"{base}?{urlencode(kept)}" if kept else base


@endless()
def calendar(t: Trap, ask: Ask) -> Page:
    """Months of an empty calendar, for ever in both directions."""
    at = ask.number("year", 2024) * 12 + ask.number("month", 5) - 1
    months = [(t.to(year=other // 12, month=other % 12 + 1), text) for other, text in ((at - 1, "<"), (at + 1, ">"))]
    days = [(t.to(year=at // 12, month=at % 12 + 1, day=day), str(day)) for day in range(1, 29)]
    return shown(f"Calendar {at % 12 + 1}/{at // 12}", "", months + days)


@endless()
def past_the_end(t: Trap, ask: Ask) -> Page:
    """A list whose pages go on past the last one."""
    at = ask.number("page", 1)
    links = [(href, t.wording.name(href)) for href in list(t.host.pages)[(at - 1) * 10 : at * 10]]
    return shown("All pages", "", links + [(t.to(page=other), str(other)) for other in (at + 1, at + 2, at + 10)])


def session_in_query(t: Trap) -> None:
    """A session in a parameter of any name, a new one on each page."""
    t.params = [key := t.rng.choice(["zx", "osCsid", "visitor", "k", "_s"])]
    t.copies.rewrite = lambda ask: partial(with_query, **{key: t.fresh()})
    t.on_page = lambda path: [(with_query(path, **{key: t.fresh()}), "view")]


def session_in_segment(t: Trap) -> None:
    """A session as the first folder; a new one begins on every n-th page."""
    root = "/" + t.rng.choice(["s-", "sid", "~", ""])
    t.pattern = pattern = re.compile(rf"^{root}([0-9a-f]{{12}})(?=/)")
    often = t.rng.choice([1, 3, 10])

    def rewrite(ask: Ask) -> Callable[[str], str]:
        token = t.fresh() if t.count % often == 0 else pattern.findall(ask.url)[0]
        t.count += 1
        return lambda href: f"{root}{token}{href}"

    t.copies.rewrite = rewrite
    t.copies.plain = lambda ask: pattern.sub("", ask.url)
    t.on_page = lambda path: [(f"{root}{t.fresh()}{path}", "permalink")]


def junk_behind(t: Trap) -> None:
    """Anything behind an item's path shows the item: /article/12/contact/about/contact."""
    words = t.words("junk", 6)
    t.pattern = pattern = re.compile(rf"(?:/(?:{'|'.join(words)}))+/?$")
    ends = ("", "/")
    t.copies.plain = lambda ask: next((url for end in ends if (url := pattern.sub(end, ask.url)) in t.pages), "")
    t.copies.more = lambda ask: [(f"{ask.url.rstrip('/')}/{word}", word) for word in words]
    t.on_page = lambda path: [] if "?" in path else t.copies.more(Ask.of(path))[:2]


def referrer(t: Trap) -> None:
    """Links that say where they were found."""
    t.params = [key := t.rng.choice(["ref", "from", "source", "via"])]
    t.copies.rewrite = lambda ask: partial(with_query, **{key: t.copies.plain(ask)})
    t.on_page = lambda path: [
        (with_query(href, **{key: path}), text) for href, text in t.pages[path].links[:5] if href in t.host.pages
    ]


@endless(on_page=lambda t, path: [(f"{t.root}?next={quote(path, safe='')}", "Log in")])
def login(t: Trap, ask: Ask) -> Page:
    """A form that remembers where one came from, also from itself."""
    came_from = f"?next={quote(ask.url, safe='')}"
    links = [(f"{t.root}{came_from}", "Log in"), (f"{t.root}/forgot{came_from}", "Forgot?")]
    return shown("Log in", "<form>Name and password, please.</form>", links)


def cart(t: Trap) -> None:
    """Buttons that are links, and lead back."""
    t.params = [key := t.rng.choice(["add", "add-to-cart", "wish"])]
    t.serve = lambda ask: Page("", "none", "", location=t.copies.plain(ask))
    t.on_page = lambda path: [(with_query(path, **{key: n}), "Add") for n in range(len(path) % 5, 9, 3)]


def list_orders(t: Trap) -> None:
    """Every order of every list."""
    t.params = [key := t.rng.choice(["sort", "orderby", "C"])]
    orders = ["name", "name_desc", "date", "date_desc", "size"]
    t.on_page = lambda path: [(with_query(path, **{key: order}), order) for order in orders]
    t.copies.more = lambda ask: t.on_page(ask.url)


def mirror(t: Trap) -> None:
    """The section again below another folder, and again below that."""
    folders, most = re.compile(f"^(?:{t.root})+(?=/)"), 12 * len(t.root)
    t.copies.plain = lambda ask: folders.sub("", ask.url)
    t.copies.rewrite = lambda ask: lambda href: folders.match(ask.url)[0][:most] + href
    t.copies.more = lambda ask: [(t.root + ask.url, "mirror")]
    t.on_page = lambda path: [(t.root + path, "mirror")]


@endless(lambda t: {key: t.words(key, 4) for key in t.words("facets", t.rng.randint(4, 7))})
def facets(t: Trap, ask: Ask) -> Page:
    """Filters in the query in any number, over a list of known things."""
    links = t.known(t.seeded(sorted(ask.query.items())), 6)
    for key, values in t.drawn.items():
        links += [(with_query(ask.url, **{key: value}), value) for value in values if key not in ask.query]
    return shown("Products " + " ".join(ask.query.values()), "", links)


@endless(lambda t: t.words("tags", t.rng.randint(12, 40)))
def tag_cloud(t: Trap, ask: Ask) -> Page:
    """Lists of what has all of some tags."""
    chosen = [tag for tag in ask.path[len(t.root) + 1 :].split("+") if tag]
    rng = t.seeded(sorted(chosen))
    links = t.known(rng, 5)
    links += [(f"{t.root}/{'+'.join([*chosen, tag])}", tag) for tag in rng.sample(t.drawn, 8) if tag not in chosen]
    return shown("Tagged " + " and ".join(chosen), "", links)


@endless()
def search(t: Trap, ask: Ask) -> Page:
    """Results for any words, and more words to search for."""
    rng, asked = t.seeded(ask.url), ask.query.get("q", "")
    words = asked.split()
    links = t.known(rng, 6)
    links += [(t.to(q=" ".join([*words[-2:], word])), word) for word in rng.sample(t.wording.words, 6)]
    links.append((t.to(q=asked, page=ask.number("page", 1) + 1), "more"))
    return shown("Results for " + " ".join(words), "", links)


@endless(lambda t: t.wording.sentences(t.salt, t.rng.choice([15, 60])))
def shuffled(t: Trap, ask: Ask) -> Page:
    """Sayings of a pool, others each time."""
    rng = t.seeded(ask.url)
    links = [(f"{t.root}/{rng.getrandbits(32)}", "another one") for _ in range(3)]
    return shown("A saying", "".join(f"<p>{line}</p>" for line in rng.sample(t.drawn, 3)), links)


def relative(t: Trap) -> None:
    """A relative link that was meant to be absolute."""
    t.entries = [f"{t.root}/"]
    links = [(f"{word}/", word) for word in t.words("relative", 3)]
    t.serve = lambda ask: Page("About us", "line", str(t.salt), 3, links)


@endless()
def soft_404(t: Trap, ask: Ask) -> Page:
    """Any address below it answers that it was not found, with links that were not either."""
    links = [(f"{t.root}/{word}-{n}", word) for n, word in enumerate(t.words(ask.url, 4))]
    return shown("Not found", f"<p>Sorry, {ask.url} could not be found.</p><p>Did you mean one of these?</p>", links)


@endless(lambda t: t.rng.random() < 0.5)
def babble(t: Trap, ask: Ask) -> Page:
    """New text on every page, without end."""
    base = ask.path.rstrip("/") if t.drawn and ask.path.count("/") < 9 else t.root
    links = [(f"{base}/{t.wording.slug((t.salt, ask.url, n))}", "more") for n in range(t.rng.choice([2, 6]))]
    return Page(t.wording.name(ask.url), "text", f"{t.salt} {ask.url}", 6, links)


TRAPS: list[Callable[[Trap], None]] = [
    calendar, past_the_end, session_in_query, session_in_segment, junk_behind, referrer, login, cart, list_orders,
    mirror, facets, tag_cloud, search, shuffled, relative, soft_404, babble,
]  # fmt: skip
