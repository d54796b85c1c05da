"""Sites in the manner of real programs: what they share. Their URLs have the forms that these programs make.

Most are a table of routes: which kind of page a URL asks for, of which record, with which options.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

from benchmarks.sites.pages import Answer, Layout, Links, Page, Wording

Values = Mapping[str, object]

Query = dict[str, str]
JUDGE = 100
"""The first seed of sites for judging; those below are for tuning."""
_PATTERNS = {
    "path": ".+", "n": r"\d+", "v": r"\d+", "w": r"\d+",
    "ref": "(?:(?:branch|commit)/[^/]+|(?!(?:branch|commit)/)[^/]+)",
}  # fmt: skip
"""What a value looks like; others are parts of a path without a slash."""


class Program:
    """A site of one program; a subclass fills *honest* and says what a URL shows."""

    host = "http://program.example"
    noise = ("clock", "ms")

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{type(self).__name__} {seed}")
        self.wording = Wording(self.rng)
        self.layout = Layout(self.rng, self.wording)
        self.layout.noise = list(self.noise)
        self.salt = f"{type(self).__name__} {seed}"
        self.start = f"{self.host}/"
        self.honest: dict[str, str] = {}
        self.count = 0
        self.make()

    def make(self) -> None:
        """Draw what the site has, and note its honest pages."""
        raise NotImplementedError

    def show(self, path: str, query: dict[str, str]) -> Page | None:
        """Return the page at *path* with *query*; None: not found. A method for each first folder shows its pages."""
        parts = path.strip("/").split("/")
        show = getattr(self, f"show_{parts[0] or 'home'}", None)
        return None if show is None else show(path, parts, query)

    def note(self, part: str, *urls: str) -> None:
        self.honest |= dict.fromkeys((self.host + url for url in urls), part)

    def content_of(self, url: str) -> str:
        """Return what stands for the content of *url*: copies under other URLs count as well, but once."""
        return url

    def part_of(self, url: str) -> str:
        """Return the part of an honest URL; otherwise its first folder and its parameters."""
        path, _, query = url.removeprefix(self.host).partition("?")
        keys = "&".join(sorted({key for key, _ in parse_qsl(query)}))
        return self.honest.get(self.content_of(url)) or f"trap {path.split('/')[1].split(':')[0]}?{keys}"

    def page(self, url: str) -> Answer:
        """Answer for *url*."""
        path, _, query = url.removeprefix(self.host).partition("?")
        try:
            page = self.show(path, dict(parse_qsl(query, keep_blank_values=True)))
        except (ValueError, IndexError, KeyError):
            page = None
        return self.layout.answer(page, url)

    # -- what pages are made of -------------------------------------------------------------------------------------

    def seeded(self, *key: object) -> random.Random:
        return random.Random(f"{self.salt} {key}")

    def name(self, *key: object) -> str:
        return self.wording.name(f"{self.salt} {key}", 3).title()

    def slug(self, *key: object) -> str:
        return self.wording.slug(f"{self.salt} {key}", 3)

    def text(self, *key: object, size: int = 4) -> str:
        return "\n".join(f"<p>{line}</p>" for line in self.wording.sentences(f"{self.salt} {key}", size))

    def token(self, *key: object, bits: int = 128) -> str:
        return f"{self.seeded(*key).getrandbits(bits):0{bits // 4}x}"

    def date(self, *key: object) -> str:
        rng = self.seeded("date", *key)
        day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2005, 2024)
        return f"{day}.{month}.{year} {rng.randint(0, 23)}:{rng.randint(10, 59)}"


def link(path: str, text: str = "", **query: object) -> tuple[str, str]:
    mark = "&" if "?" in path else "?"
    return (f"{path}{mark}{urlencode(query)}" if query else path, text or path.rsplit("/", 1)[-1])


def table(text: str) -> dict[str, str]:
    """Return the forms of URLs by the names before them."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


class Route:
    """One form of URLs, such as ``/show.php?action=print&id={n}``: ``{n}`` stands for a value."""

    def __init__(self, form: str) -> None:
        path, _, query = form.partition("?")
        self.path = path
        self._match_path = _pattern(path).fullmatch
        self.query = dict(parse_qsl(query, keep_blank_values=True))
        self._match_query = {key: _pattern(value, ".+?").fullmatch for key, value in self.query.items()}

    def url(self, values: Values, options: Values) -> str:
        """Return the URL of a record, with further *options* in its query."""
        path = self.path.format_map({key: quote(str(value), safe="/+:") for key, value in values.items()})
        query = {key: form.format_map(values) for key, form in self.query.items()}
        return path + ("?" + urlencode({**query, **options}) if query or options else "")

    def match(self, path: str, query: Mapping[str, str]) -> Query | None:
        """Return the values of a URL of this form."""
        found = [self._match_path(path)]
        found += [match(query[key]) if key in query else None for key, match in self._match_query.items()]
        if None in found:
            return None
        return {key: value for each in found if each for key, value in each.groupdict().items()}


def picked(q: Query, *keys: str) -> Query:
    """Return what *q* has under *keys*."""
    return {key: q[key] for key in keys if key in q}


def _pattern(form: str, usual: str = "[^/]+") -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", form)
    groups = [f"(?P<{part}>{_PATTERNS.get(part, usual)})" if n % 2 else re.escape(part) for n, part in enumerate(parts)]
    return re.compile("".join(groups))


class Routed(Program):
    """A program whose ``show_KIND(q)`` shows the pages of a kind; ``q`` has the values and options of the URL.

    The first kind of the routes is the start page, which ``/`` shows as well.

    Sites for judging have the second half of *routes*, and other *names* of options.
    """

    routes: ClassVar[tuple[dict[str, str], dict[str, str]]]
    names: ClassVar[dict[str, str]] = {}
    ignored: ClassVar[tuple[str, ...]] = ()
    """Options without which a page is the same."""
    same: ClassVar[dict[str, str]] = {}
    """Kinds of pages that show what those of another kind show."""
    size = 20
    """How many items a page of a list has."""
    first = 1
    """The number of the first page of a list."""

    def __init__(self, seed: int, scale: float = 1) -> None:
        """Draw the site of *seed*, with *scale* times as many pages as usual."""
        self.is_judge, self.scale = seed >= JUDGE, scale
        self.forms = {kind: Route(form) for kind, form in self.routes[self.is_judge].items()}
        self.given = self.names if self.is_judge else {}
        super().__init__(seed)

    def many(self, count: int) -> int:
        return max(2, int(count * self.scale))

    # -- URLs --------------------------------------------------------------------------------------------------------

    def url(self, kind: str, of: Values, **options: object) -> str:
        """Return the URL of the page of *kind* of a record, sorted *options* in its query."""
        kept = {self.given.get(key, key): value for key, value in sorted(options.items()) if value is not None}
        return self.forms[kind].url(of, kept)

    def to(self, kind: str, text: str = "", of: Values | None = None, **options: object) -> tuple[str, str]:
        return self.url(kind, of or {}, **options), text or kind

    def to_each(self, texts: Mapping[str, str], of: Values, **options: object) -> Links:
        """Return a link to each kind of page of a record, with its text."""
        return [self.to(kind, text, of, **options) for kind, text in texts.items()]

    def to_named(self, kind: str, key: str, values: Iterable[object], *noun: str) -> Links:
        """Return a link to the page of each of some records, with its name."""
        return [self.to(kind, self.name(*noun, value), {key: value}) for value in values]

    def to_choices(self, kind: str, of: Values, given: Values, choices: Mapping[str, Iterable[object]]) -> Links:
        """Return a link to a list with each of the *choices* for an option, and the options that are *given*."""
        links: Links = []
        for key, values in choices.items():
            links += [self.to(kind, str(value), of, **{**given, key: value}) for value in values]
        return links

    def known(self, kind: str, name: str, values: Iterable[object], **options: object) -> None:
        """Note a page of *kind* for each of *values*, which *name* stands for in its URL, as honest."""
        self.note(kind, *(self.url(kind, {name: value}, **options) for value in values))

    def match(self, url: str) -> tuple[str, Query, Query]:
        """Return the kind, the values and the options of *url*; the kind is "" if there is none."""
        path, _, text = url.removeprefix(self.host).partition("?")
        query = dict(parse_qsl(text, keep_blank_values=True))
        fitting = []
        for kind, route in self.forms.items():
            if (values := route.match(unquote(path), query)) is not None:
                fitting.append((len(route.query), -len(values), kind, values))
        _, _, kind, values = max(fitting, key=itemgetter(0, 1), default=(0, 0, "", Query()))
        back = {there: here for here, there in self.given.items()}
        fixed = self.forms[kind].query if kind else {}
        return kind, values, {back.get(key, key): value for key, value in query.items() if key not in fixed}

    def content_of(self, url: str) -> str:
        """Return the plain URL of what *url* shows."""
        kind, values, options = self.match(url)
        if not kind:
            return url
        kept = {key: value for key, value in options.items() if key not in self.ignored}
        try:
            return self.host + self.url(self.same.get(kind, kind), self.plain(values), **kept)
        except (IndexError, KeyError, ValueError):  # of no record
            return url

    def plain(self, values: Query) -> dict[str, object]:
        """Return *values* without what makes no difference."""
        return {**values}

    def part_of(self, url: str) -> str:
        """Return the part of an honest URL; of another its kind and options."""
        kind, _, options = self.match(url)
        return self.honest.get(url) or f"trap {'&'.join([kind or 'nothing', *sorted(options)])}"

    def show(self, path: str, query: Query) -> Page | None:
        url = f"{path}?{urlencode(query)}"
        kind, values, options = self.match(url)
        if not kind and path == "/":
            kind = next(iter(self.forms))
        if not kind:
            return None
        asked = {**values, **options, "kind": kind}
        page: Page | None = getattr(self, f"show_{self.same.get(kind, kind)}", self.show_other)(asked)
        if page is not None and not page.location:
            page.links = [*page.links, *self.frame(url, asked)]
        return page

    def show_other(self, q: Query) -> Page | None:
        """Show a form that asks for a name and a password."""
        return Page("Log in", "raw", "<form>You have to log in to do this.</form>")

    def frame(self, url: str, q: Query) -> Links:
        """Return the links around every page."""
        return []

    # -- what pages are made of --------------------------------------------------------------------------------------

    def part(self, items: list[Any], q: Query) -> list[Any]:
        """Return the part of *items* that the page *q* of a list shows."""
        at = (int(q.get("page", self.first)) - self.first) * self.size
        return items[at : at + self.size]

    def pager(self, items: list[Any], q: Query, of: Query | None = None) -> Links:
        """Return the links from a page of a list to its other pages, with the same options."""
        names = {"kind", "page", *(of or ())}
        options = {name: value for name, value in q.items() if name not in names}
        first, last = self.first, self.first + (len(items) - 1) // self.size
        at = int(q.get("page", first))
        steps = dict.fromkeys([at - 1, at + 1, at + 2, last, first])
        numbers = [n for n in steps if first <= n <= last and n != at]
        return [self.to(q["kind"], str(n), of, **{**options, "page": n if n > first else None}) for n in numbers]

    def pages_of(self, kind: str, items: list[Any], of: Query | None = None) -> None:
        """Note the pages of a list as honest."""
        for n in range((max(1, len(items)) - 1) // self.size + 1):
            self.note(f"{kind} list", self.url(kind, of or {}, page=n + self.first if n else None))
