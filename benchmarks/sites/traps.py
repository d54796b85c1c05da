"""Traps: endless parts of a site in the manner of real software, and finite copies of honest pages."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from benchmarks.sites.pages import Page, Wording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.sites.honest import Section

Links = list[tuple[str, str]]


class Trap:
    """One trap while it is drawn.

    A URL is the trap's if its path begins with *root*, has *pattern* in it, or if its query has one of *params*.
    """

    def __init__(
        self, name: str, root: str, rng: random.Random, wording: Wording, host: Section, pages: dict[str, Page]
    ) -> None:
        self.name, self.root, self.rng, self.wording, self.host, self.pages = name, root, rng, wording, host, pages
        self.salt = rng.random()
        self.params: tuple[str, ...] = ()
        self.pattern: re.Pattern[str] | None = None
        self.entries: list[str] = []
        self.brings_something = False
        self.serve: Callable[[str, dict[str, str], str], Page | None] = lambda path, query, url: None
        self.on_page: Callable[[str], Links] = lambda path: []

    def claims(self, path: str, query: dict[str, str]) -> bool:
        if self.params:
            return any(key in query for key in self.params)
        if self.pattern:
            return bool(self.pattern.search(path))
        return path == self.root or path.startswith((self.root + "/", self.root + "?"))

    def page(self, title: str, links: Links, content: str = "names", key: str = "", size: int = 3) -> Page:
        return Page(title, content, key or f"{self.salt} {title}", size, links)

    def copy(
        self, path: str, rewrite: Callable[[str], str] | None = None, extra: Iterable[tuple[str, str]] = ()
    ) -> Page | None:
        """Return the honest page at *path*, with its links rewritten, or None."""
        page = self.pages.get(path)
        if page is None:
            return None
        links = [(rewrite(href), text) for href, text in page.links] if rewrite else page.links
        return replace(page, links=[*links, *extra])

    def token(self, *parts: object) -> str:
        return f"{random.Random(f'{self.salt} {parts}').getrandbits(48):012x}"

    def words(self, key: object, count: int) -> list[str]:
        return random.Random(f"{self.salt} {key}").sample(self.wording.words[:300], count)

    def targets(self) -> list[str]:
        return list(self.host.pages)


def with_query(path: str, **more: object) -> str:
    base, _, query = path.partition("?")
    pairs = dict(parse_qsl(query)) | {key: str(value) for key, value in more.items()}
    return f"{base}?{urlencode(pairs)}"


def without(url: str, *keys: str) -> str:
    base, _, query = url.partition("?")
    kept = [(key, value) for key, value in parse_qsl(query) if key not in keys]
    return f"{base}?{urlencode(kept)}" if kept else base


# -- calendars and archives --------------------------------------------------------------------------------------------


def calendar_by_query(t: Trap) -> None:
    """Months of an empty calendar, for ever in both directions."""

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        at = int(query.get("year", "2024")) * 12 + int(query.get("month", "5")) - 1
        links = [
            (with_query(t.root, year=other // 12, month=other % 12 + 1), text)
            for other, text in ((at - 1, "<"), (at + 1, ">"))
        ]
        links += [(with_query(t.root, year=at // 12, month=at % 12 + 1, day=day), str(day)) for day in range(1, 29)]
        return t.page(f"Calendar {at % 12 + 1}/{at // 12}", links)

    t.serve, t.entries = serve, [t.root]


def calendar_by_path(t: Trap) -> None:
    """Days, weeks and months as folders."""

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        parts = [int(part) for part in path[len(t.root) :].split("/") if part.isdigit()]
        year, month = (*parts, 2024, 5)[:2] if len(parts) < 2 else parts[:2]
        links = [
            (f"{t.root}/{year + (month + step - 1) // 12}/{(month + step - 1) % 12 + 1:02}/", "month")
            for step in (-1, 1, 12)
        ]
        links += [(f"{t.root}/{year}/{month:02}/{day:02}/", str(day)) for day in range(1, 29)]
        return t.page(f"Events for {'/'.join(map(str, parts))}", links, "raw", "<p>There are no events.</p>")

    t.serve, t.entries = serve, [t.root]


def calendar_with_events(t: Trap) -> None:
    """Months that repeat the same few events."""
    pool = t.wording.sentences(t.salt, 12)

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        at = int(query.get("m", "0"))
        rng = random.Random(f"{t.salt} {at}")
        content = "".join(f"<p>{rng.randint(1, 28)} {line}</p>" for line in rng.sample(pool, 5))
        return t.page(
            f"Month {at}", [(with_query(t.root, m=at + step), "month") for step in (-1, 1, 12)], "raw", content
        )

    t.serve, t.entries = serve, [t.root]


def archive_by_day(t: Trap) -> None:
    """A list of known stories for every day that there ever was."""
    known = t.targets()

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        parts = [part for part in path[len(t.root) :].split("/") if part]
        links: Links = [
            (other, t.wording.name(other))
            for other in random.Random(f"{t.salt} {path}").sample(known, min(4, len(known)))
        ]
        if len(parts) < 3:
            links += [
                (f"{path.rstrip('/')}/{n + (1970 if not parts else 1)}/", str(n))
                for n in range((50, 12, 28)[len(parts)])
            ]
        return t.page(f"Archive {'-'.join(parts)}", links)

    t.serve, t.entries = serve, [t.root]


def report_range(t: Trap) -> None:
    """A report between any two dates; nothing is found."""

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        first, last = int(query.get("from", "100")), int(query.get("to", "130"))
        moves = ((first - 7, last), (first, last + 7), (first + 7, last + 7), (first - 30, last - 30))
        links = [(with_query(t.root, **{"from": a, "to": b}), f"{a} to {b}") for a, b in moves]
        return t.page(f"Report {first} to {last}", links, "raw", "<p>No data for this period.</p>")

    t.serve, t.entries = serve, [t.root]


def past_the_end(t: Trap) -> None:
    """A list whose pages go on past the last one."""
    known = t.targets()

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        at = int(query.get("page", "1"))
        links = [(other, t.wording.name(other)) for other in known[(at - 1) * 10 : at * 10]]
        links += [(with_query(t.root, page=other), str(other)) for other in (at + 1, at + 2, at + 10)]
        return t.page("All pages", links)

    t.serve, t.entries = serve, [t.root]


# -- sessions and what does not matter -------------------------------------------------------------------------------


def _session(t: Trap, pattern: str, enter: Callable[[str, str], str], leave: Callable[[str], str]) -> None:
    """The host section under a session; a new one begins on every n-th page."""
    t.pattern = re.compile(pattern)
    often = t.rng.choice([1, 3, 10])
    state = {"visits": 0}

    def fresh() -> str:
        state["visits"] += 1
        return t.token(state["visits"])

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        own = t.pattern.search(url) if t.pattern else None
        token = fresh() if state["visits"] % often == 0 else (own[1] if own else fresh())
        state["visits"] += 1
        return t.copy(leave(url), lambda href: enter(href, token) if href in t.host.pages else href)

    t.serve = serve
    t.on_page = lambda path: [(enter(path, fresh()), "permalink")]


def session_in_query(t: Trap) -> None:
    """A session in a parameter of any name."""
    key = t.rng.choice(["zx", "osCsid", "visitor", "k", "_s"])
    t.params = (key,)
    token = {"n": 0}

    def fresh() -> str:
        token["n"] += 1
        return t.token(token["n"])

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        own = fresh()
        return t.copy(without(url, key), lambda href: with_query(href, **{key: own}) if href in t.host.pages else href)

    t.serve = serve
    t.on_page = lambda path: [(with_query(path, **{key: fresh()}), "view")]


def session_in_segment(t: Trap) -> None:
    """A session as the first folder."""
    mark = t.rng.choice(["s-", "sid", "~", ""])
    _session(
        t,
        rf"^/{mark}([0-9a-f]{{12}})/",
        lambda path, token: f"/{mark}{token}{path}",
        lambda url: "/" + url.split("/", 2)[2],
    )


def session_in_parameter(t: Trap) -> None:
    """A session as a parameter of the path."""
    name = t.rng.choice(["jsessionid", "sid", "v"])

    def enter(path: str, token: str) -> str:
        base, mark, query = path.partition("?")
        return f"{base};{name}={token}{mark}{query}"

    _session(t, rf";{name}=([0-9a-f]+)", enter, lambda url: re.sub(r";[^?]*", "", url))


def session_behind(t: Trap) -> None:
    """A session as the last segment: /product/7/102-1234567-1234567."""

    def enter(path: str, token: str) -> str:
        base, mark, query = path.partition("?")
        number = str(int(token, 16))
        return f"{base.rstrip('/')}/102-{number[:7]:0>7}-{number[-7:]:0>7}{mark}{query}"

    def leave(url: str) -> str:
        plain = re.sub(r"/102-\d{7}-\d{7}", "", url)
        return plain if plain in t.pages else re.sub(r"/102-\d{7}-\d{7}", "/", url)

    _session(t, r"/(102-\d{7}-\d{7})", enter, leave)


def junk_behind(t: Trap) -> None:
    """Anything behind an item's path shows the item: /article/12/contact/about/contact."""
    words = t.words("junk", 6)
    t.pattern = re.compile(rf"/(?:{'|'.join(words)})/?$")

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        plain = re.sub(rf"(?:/(?:{'|'.join(words)}))+/?$", "", url)
        plain = plain if plain in t.pages else f"{plain}/"
        return t.copy(plain, None, [(f"{url.rstrip('/')}/{word}", word) for word in words])

    t.serve = serve
    t.on_page = lambda path: [] if "?" in path else [(f"{path.rstrip('/')}/{word}", word) for word in words[:2]]


def referrer(t: Trap) -> None:
    """Links that say where they were found."""
    key = t.rng.choice(["ref", "from", "source", "via"])
    t.params = (key,)

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        plain = without(url, key)
        return t.copy(plain, lambda href: with_query(href, **{key: plain}) if href in t.host.pages else href)

    t.serve = serve
    t.on_page = lambda path: [
        (with_query(href, **{key: path}), text) for href, text in t.pages[path].links[:5] if href in t.host.pages
    ]


def login(t: Trap) -> None:
    """A form that remembers where one came from, also from itself."""

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        links = [
            (f"{t.root}?next={quote(url, safe='')}", "Log in"),
            (f"{t.root}/forgot?next={quote(url, safe='')}", "Forgot?"),
        ]
        return t.page("Log in", links, "raw", "<form>Name and password, please.</form>")

    t.serve = serve
    t.on_page = lambda path: [(f"{t.root}?next={quote(path, safe='')}", "Log in")]


def cart(t: Trap) -> None:
    """Buttons that are links, and lead back."""
    key = t.rng.choice(["add", "add-to-cart", "wish"])
    t.params = (key,)
    t.serve = lambda path, query, url: Page("", "none", "", status=302, location=without(url, key))
    t.on_page = lambda path: [(with_query(path, **{key: n}), "Add") for n in range(len(path) % 5, 9, 3)]


def visits(t: Trap) -> None:
    """A number in each link that grows with each page."""
    t.params = ("visit",)
    count = {"n": 0}

    def link(path: str) -> str:
        count["n"] += 1
        return with_query(path, visit=count["n"])

    t.serve = lambda path, query, url: t.copy(
        without(url, "visit"), lambda href: link(href) if href in t.host.pages else href
    )
    t.on_page = lambda path: [(link(path), "stay here")]


# -- other views of the same -----------------------------------------------------------------------------------------


def _views(t: Trap, key: str, values: list[str]) -> None:
    t.params = (key,)
    t.serve = lambda path, query, url: t.copy(
        without(url, key), None, [(with_query(url, **{key: value}), value) for value in values]
    )
    t.on_page = lambda path: [(with_query(path, **{key: value}), value) for value in values]


def print_version(t: Trap) -> None:
    """A page for the printer for each."""
    _views(t, t.rng.choice(["print", "format", "view"]), ["1"])


def language(t: Trap) -> None:
    """The same page under several languages that nobody translated it to."""
    _views(t, t.rng.choice(["lang", "hl", "locale"]), ["de", "fr", "it", "ja"])


def list_orders(t: Trap) -> None:
    """Every order of every list."""
    key = t.rng.choice(["sort", "orderby", "C"])
    _views(t, key, ["name", "name_desc", "date", "date_desc", "size"])


def views_by_path(t: Trap) -> None:
    """Blame, raw and log of every file."""
    views = t.rng.sample(["blame", "raw", "annotate", "edit", "log", "plain"], 3)

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        _, view, plain = url[len(t.root) :].split("/", 2) if url.count("/") > 2 else ("", "", "")
        return t.copy("/" + plain, lambda href: f"{t.root}/{view}{href}" if href in t.host.pages else href)

    t.serve = serve
    t.on_page = lambda path: [(f"{t.root}/{view}{path}", view) for view in views]


def revisions(t: Trap) -> None:
    """Every page as it was at every commit."""

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        parts = url[len(t.root) :].split("/", 2)
        if len(parts) < 3:
            return None
        parents = [(f"{t.root}/{t.token(parts[1], n)}/{parts[2]}", f"parent {n}") for n in range(2)]
        return t.copy(
            "/" + parts[2], lambda href: f"{t.root}/{parts[1]}{href}" if href in t.host.pages else href, parents
        )

    t.serve = serve
    t.on_page = lambda path: [(f"{t.root}/{t.token(path, 'head')}{path}", "at this commit")]


def history(t: Trap) -> None:
    """The versions of a wiki page, and the difference of any two."""
    t.params = ("oldid", "diff", "action")

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        plain = without(url, "oldid", "diff", "action")
        old = int(query.get("oldid", "0")) or len(plain) * 1000
        links = [(with_query(plain, oldid=old - n, diff=old), f"diff {n}") for n in range(1, 5)]
        links += [(with_query(plain, oldid=old - 1), "older"), (with_query(plain, action="edit", oldid=old), "edit")]
        return t.copy(plain, None, links)

    t.serve = serve
    t.on_page = lambda path: [(with_query(path, action=action), action) for action in ("history", "edit", "info")]


def permalinks(t: Trap) -> None:
    """A link to each post shows the topic that it is in."""
    t.params = ("p", "post")

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        return t.copy(
            without(url, "p", "post"), None, [(with_query(url, p=int(query.get("p", "1")) + n), "#") for n in (1, 2)]
        )

    t.serve = serve
    t.on_page = lambda path: [(with_query(path, p=len(path) * 100 + n), "#") for n in range(5)]


def reply(t: Trap) -> None:
    """A form for an answer to each page and post."""

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        links = [(with_query(url, quote=n), "Quote") for n in range(3)]
        return t.page("Write an answer", links, "raw", "<p>You have to be a member to answer here.</p>")

    t.serve = serve
    t.on_page = lambda path: [
        (with_query(f"{t.root}/posting", mode=mode, to=len(path) * 31 + sum(map(ord, path))), mode)
        for mode in ("reply", "quote")
    ]


def feeds(t: Trap) -> None:
    """The page again for programs, behind each path."""
    t.pattern = re.compile(r"/(?:feed|amp|trackback)/?$")
    t.serve = lambda path, query, url: t.copy(re.sub(r"/(?:feed|amp|trackback)/?$", "", path))
    t.on_page = lambda path: (
        [] if "?" in path or path.endswith("/") else [(f"{path}/{kind}", kind) for kind in ("feed", "amp")]
    )


def mirror(t: Trap) -> None:
    """The section again below another folder, and again below that."""
    rewrite = lambda href: f"{t.root}{href}"  # noqa: E731

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        depth, plain = 0, url
        while plain.startswith(t.root + "/"):
            depth, plain = depth + 1, plain[len(t.root) :]
        return t.copy(plain, lambda href: t.root * min(depth, 12) + href, [(t.root + url, "mirror")])

    t.serve = serve
    t.on_page = lambda path: [(rewrite(path), "mirror")]


# -- lists without end -----------------------------------------------------------------------------------------------


def facets(t: Trap) -> None:
    """Filters in the query in any number, over a list of known things."""
    values = {key: t.words(key, 4) for key in t.words("facets", t.rng.randint(4, 7))}
    known = t.targets()

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        links = [
            (with_query(url, **{key: value}), value) for key, own in values.items() for value in own if key not in query
        ]
        found = random.Random(f"{t.salt} {sorted(query.items())}").sample(known, min(6, len(known)))
        return t.page(
            "Products " + " ".join(query.values()), [(other, t.wording.name(other)) for other in found] + links
        )

    t.serve, t.entries = serve, [t.root]


def facets_by_path(t: Trap) -> None:
    """Filters as folders in any order."""
    values = t.words("values", t.rng.randint(8, 16))
    known = t.targets()

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        chosen = [part for part in path[len(t.root) :].split("/") if part]
        found = random.Random(f"{t.salt} {sorted(chosen)}").sample(known, min(5, len(known)))
        links = [(other, t.wording.name(other)) for other in found]
        return t.page(
            " ".join(chosen),
            links + [(f"{path.rstrip('/')}/{value}", value) for value in values if value not in chosen],
        )

    t.serve, t.entries = serve, [t.root]


def tag_cloud(t: Trap) -> None:
    """Lists of what has all of some tags."""
    tags = t.words("tags", t.rng.randint(12, 40))
    known = t.targets()

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        chosen = [tag for tag in path[len(t.root) + 1 :].split("+") if tag]
        rng = random.Random(f"{t.salt} {sorted(chosen)}")
        links = [(other, t.wording.name(other)) for other in rng.sample(known, min(5, len(known)))]
        links += [(f"{t.root}/{'+'.join([*chosen, tag])}", tag) for tag in rng.sample(tags, 8) if tag not in chosen]
        return t.page("Tagged " + " and ".join(chosen), links)

    t.serve, t.entries = serve, [t.root]


def search(t: Trap) -> None:
    """Results for any words, and more words to search for."""
    known = t.targets()

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        rng = random.Random(f"{t.salt} {url}")
        words = query.get("q", "").split()
        links = [(other, t.wording.name(other)) for other in rng.sample(known, min(6, len(known)))]
        links += [
            (with_query(t.root, q=" ".join([*words[-2:], word])), word) for word in rng.sample(t.wording.words, 6)
        ]
        links += [(with_query(t.root, q=query.get("q", ""), page=int(query.get("page", "1")) + 1), "more")]
        return t.page("Results for " + " ".join(words), links)

    t.serve, t.entries = serve, [t.root]


def compare(t: Trap) -> None:
    """Any two things beside each other."""
    known = t.targets()[:60]

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        try:
            first, second = (int(part) for part in path[len(t.root) + 1 :].split("-vs-"))
        except ValueError:
            first, second = 0, 1
        content = "".join(
            f"<p>{t.wording.sentences(t.pages[known[n % len(known)]].key, 1)[0]}</p>" for n in (first, second)
        )
        links = [(f"{t.root}/{first}-vs-{other}", f"and {other}") for other in range(second + 1, second + 6)]
        links += [(f"{t.root}/{first + 1}-vs-{second}", "next")]
        return t.page("Comparison", links, "raw", content)

    t.serve, t.entries = serve, [t.root]


def cursor(t: Trap) -> None:
    """A list in JSON whose cursor never ends."""
    texts = [t.pages[path].title for path in t.targets()[:10]]

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        href = with_query(t.root, cursor=t.token(query.get("cursor", "")))
        return t.page("Items", [(href, "next")], "raw", " ".join(f"<p>{text}</p>" for text in texts))

    t.serve, t.entries = serve, [t.root]


def shuffled(t: Trap) -> None:
    """Sayings of a pool, others each time."""
    pool = t.wording.sentences(t.salt, t.rng.choice([15, 60]))

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        rng = random.Random(f"{t.salt} {url}")
        links = [(f"{t.root}/{rng.getrandbits(32)}", "another one") for _ in range(3)]
        return t.page("A saying", links, "raw", "".join(f"<p>{line}</p>" for line in rng.sample(pool, 3)))

    t.serve, t.entries = serve, [t.root]


def online(t: Trap) -> None:
    """Who is here at a time."""
    names = t.words("names", 30)

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        rng, at = random.Random(f"{t.salt} {url}"), int(query.get("t", "1700000000"))
        links = [(with_query(t.root, t=at + rng.randint(1, 999)), "refresh") for _ in range(2)]
        return t.page("Members online", links, "raw", "<p>" + ", ".join(rng.sample(names, 8)) + "</p>")

    t.serve, t.entries = serve, [t.root]


def relative(t: Trap) -> None:
    """A relative link that was meant to be absolute."""
    words = t.words("relative", 3)

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        return t.page("About us", [(f"{word}/", word) for word in words], "line", str(t.salt))

    t.serve, t.entries = serve, [t.root + "/"]


def slideshow(t: Trap) -> None:
    """Pictures that were seen, in any size, order and speed."""

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        at = int(query.get("slide", "0"))
        media = f'<img src="/media/show{at % 20}.jpg">'
        moves = [{"slide": at + 1}, {"size": "lsm"[at % 3]}, {"speed": at % 7}, {"order": "ad"[at % 2]}]
        return t.page("Show", [(with_query(without(url, *move), **move), "go") for move in moves], "raw", media)

    t.serve, t.entries = serve, [t.root]


def soft_404(t: Trap) -> None:
    """Any address below it answers that it was not found, with links that were not either."""

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        links = [(f"{t.root}/{word}-{n}", word) for n, word in enumerate(t.words(url, 4))]
        return t.page(
            "Not found", links, "raw", f"<p>Sorry, {url} could not be found.</p><p>Did you mean one of these?</p>"
        )

    t.serve, t.entries = serve, [t.root]


# -- always something new --------------------------------------------------------------------------------------------


def babble(t: Trap) -> None:
    """New text on every page, without end."""
    t.brings_something = True
    depth = t.rng.random() < 0.5

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        links = [
            (
                f"{path.rstrip('/') if depth and path.count('/') < 9 else t.root}/{t.wording.slug((t.salt, url, n))}",
                "more",
            )
            for n in range(t.rng.choice([2, 6]))
        ]
        return t.page(t.wording.name(url), links, "text", f"{t.salt} {url}", 6)

    t.serve, t.entries = serve, [t.root]


def map_tiles(t: Trap) -> None:
    """A map that goes on in all directions, with new numbers everywhere."""
    t.brings_something = True

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        x, y, z = (int(query.get(key, "5")) for key in ("x", "y", "z"))
        moves = [(x + 1, y, z), (x - 1, y, z), (x, y + 1, z), (x, y - 1, z), (x * 2, y * 2, z + 1)]
        return t.page(
            "Map", [(with_query(t.root, x=a, y=b, z=c), "go") for a, b, c in moves], "numbers", f"{t.salt} {url}", 8
        )

    t.serve, t.entries = serve, [t.root]


def thesaurus(t: Trap) -> None:
    """Words that lead to words."""

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        links = [(f"{t.root}/{word}", f"see {word}") for word in t.words(url, 6)]
        links += [(f"{t.root}/{word}-{other}", f"{word} {other}") for word, other in [t.words((url, 2), 2)]]
        return t.page(
            path.rsplit("/", 1)[1], links, "raw", f"<p>{path.rsplit('/', 1)[1]} has {len(links)} narrower terms.</p>"
        )

    t.serve, t.entries = serve, [t.root]


def comments(t: Trap) -> None:
    """The newest comments, a sentence each, back to the beginning of time."""
    t.brings_something = True

    def serve(path: str, query: dict[str, str], url: str) -> Page | None:
        at = int(query.get("before", "900000"))
        return t.page(
            "Comments", [(with_query(t.root, before=at - n), "older") for n in (10, 20, 100)], "line", f"{t.salt} {at}"
        )

    t.serve, t.entries = serve, [t.root]


TRAPS: list[Callable[[Trap], None]] = [
    calendar_by_query, calendar_by_path, calendar_with_events, archive_by_day, report_range, past_the_end,
    session_in_query, session_in_segment, session_in_parameter, session_behind, junk_behind, referrer, login, cart,
    visits, print_version, language, list_orders, views_by_path, revisions, history, permalinks, reply, feeds, mirror,
    facets, facets_by_path, tag_cloud, search, compare, cursor, shuffled, online, relative, slideshow, soft_404,
    babble, map_tiles, thesaurus, comments,
]  # fmt: skip
