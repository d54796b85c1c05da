"""One trap while it is drawn: which URLs are its own, and what it answers to them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from benchmarks.sites.pages import Links, Page, Wording

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Sequence

    from benchmarks.sites.honest import Section


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


class Draws:
    """What a trap draws: the same for the same key, however often."""

    def __init__(self, salt: float, wording: Wording) -> None:
        self.salt, self._wording = salt, wording
        self.count = 0
        """How many tokens were drawn, or might have been."""

    def seeded(self, key: object) -> random.Random:
        return random.Random(f"{self.salt} {key}")

    def fresh(self) -> str:
        """Return another token each time."""
        self.count += 1
        return self.token(self.count)

    def token(self, *parts: object) -> str:
        return f"{self.seeded(parts).getrandbits(48):012x}"

    def words(self, key: object, count: int) -> list[str]:
        return self.seeded(key).sample(self._wording.words[:300], count)


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
        self.draws = Draws(self.rng.random(), self.wording)
        self.copies = Copies(lambda ask: without(ask.url, *self.params))
        self.serve: Callable[[Ask], Page | None] = self.copy

    @property
    def targets(self) -> list[str]:
        """The pages of the host."""
        return list(self.host.pages)

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

    def first_honest(self, *paths: str) -> str:
        return next((path for path in paths if path in self.pages), "")

    def to(self, **query: object) -> str:
        return f"{self.root}?{urlencode(query)}"

    def known(self, rng: random.Random, count: int) -> Links:
        """Return links to some of the host's pages."""
        targets = self.targets
        found = rng.sample(targets, min(count, len(targets)))
        return [(href, self.wording.name(href)) for href in found]


def shown(title: str, links: Links, html: str = "") -> Page:
    return Page(title, "raw", html, links=links)


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


def setting(key: str, value: str) -> Callable[[str], str]:
    return lambda url: with_query(url, **{key: value})
