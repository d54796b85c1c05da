"""The site with traps: which section a URL belongs to, and what is answered there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from example.traps import archive, community, mazes, media, paths, reference, sessions, shop, stories
from example.traps.model import Answer, Section, Visit
from example.traps.text import link, listed, page

if TYPE_CHECKING:
    from collections.abc import Iterable

HOME = "http://traps.example/"
"""Where the site lives as far as a crawl is concerned. ``.example`` names exist in no DNS (RFC 2606)."""


def all_sections(factor: float = 1.0) -> list[Section]:
    """Return every section, at *factor* times the honest pages of the whole site (some 90,000)."""
    return [
        *shop.sections(factor),
        *archive.sections(factor),
        *media.sections(factor),
        *reference.sections(factor),
        *community.sections(factor),
        *stories.sections(factor),
        *sessions.sections(),
        *paths.sections(),
        *mazes.sections(),
    ]


class TrapSite:
    """The site, at a scale and with the sections that somebody wants.

    Attributes:
        sections: Those that there are, by name. Others are not linked from the home page and do not exist.
        served: Pages served so far, by the name of their section.

    """

    def __init__(self, factor: float = 1.0, *, only: Iterable[str] | None = None) -> None:
        self.home = Section("home", "", "the home page", True, True, self._home, size=1)
        wanted = None if only is None else set(only)
        there = [section for section in all_sections(factor) if wanted is None or section.name in wanted]
        self.sections = {section.name: section for section in [self.home, *there]}
        self.served: Counter[str] = Counter()
        self._folders: dict[str, list[Section]] = {}
        for section in self.sections.values():
            self._folders.setdefault(section.folder, []).append(section)

    @property
    def honest_pages(self) -> int:
        """How many honest pages there are."""
        return sum(section.size for section in self.sections.values())

    def find(self, url: str) -> tuple[Section, Answer] | None:
        """Return the section of *url* and its page, without serving it, or None if there is no such page."""
        parts = urlsplit(url)
        _, folder, *segments = unquote(parts.path or "/").split("/")
        query = parts.query
        params = dict(parse_qsl(query, keep_blank_values=True)) if query else {}
        visit = Visit(parts.path, segments, query, params, self.served.total())
        for section in self._folders.get(folder, ()):
            answer = section.answer(visit)
            if answer is not None:
                return section, answer
        return None

    def serve(self, url: str) -> tuple[Section, Answer] | None:
        """Return what :meth:`find` does, and count the page."""
        found = self.find(url)
        if found:
            self.served[found[0].name] += 1
        return found

    def _home(self, visit: Visit) -> Answer | None:
        if visit.query or visit.segments:
            return None
        starts = [link(section.start, section.imitates) for section in self.sections.values() if section.start]
        return Answer(page("The Example Company", listed(starts)))
