"""Draws a site from a seed, and answers for its pages."""

from __future__ import annotations

import random
import string
from typing import NamedTuple
from urllib.parse import parse_qsl

from benchmarks.sites.honest import SECTIONS, Section
from benchmarks.sites.pages import Layout, Page, Wording
from benchmarks.sites.traps import TRAPS, Trap

HOST = "http://site.example"


class Answer(NamedTuple):
    """What the site says to a request."""

    status: int
    headers: dict[str, str]
    body: bytes


class Site:
    """A drawn site: ``page(url)`` answers, ``part_of(url)`` names the section or trap that a URL belongs to."""

    def __init__(self, seed: int, *, traps: bool = True, host: str = HOST) -> None:
        rng = random.Random(f"site {seed}")
        self.host, self.start = host, f"{host}/"
        wording = Wording(rng)
        self.layout = Layout(rng, wording)
        self.pages: dict[str, Page] = {}
        self.sections: dict[str, str] = {}
        self.traps: list[Trap] = []
        drawn = [self._section(make.__name__, make, rng, wording) for make in rng.sample(SECTIONS, rng.randint(7, 14))]
        entries = [path for section in drawn for path in section.entries]
        for make in rng.sample(TRAPS, rng.randint(9, 18)) if traps else ():
            hosts = rng.sample(drawn, rng.choice([1, 1, 1, 2]))
            trap = Trap(make.__name__, self._root(rng, wording), rng, wording, hosts[0], self.pages)
            make(trap)
            self.traps.append(trap)
            entries += trap.entries
        rng.shuffle(entries)
        home = Page("Welcome", "text", f"home {seed}", 4, [(path, wording.name(path)) for path in entries])
        self.layout.nav = home.links[:30]
        self.pages["/"] = home
        self.sections["/"] = "home"
        self.honest = {host + path: name for path, name in self.sections.items()}
        self.attached: dict[str, list[Trap]] = {}
        share = {trap.name: rng.choice([1.0, 1.0, 0.5]) for trap in self.traps}
        for trap in self.traps:
            for path in trap.host.pages:
                if rng.random() < share[trap.name]:
                    self.attached.setdefault(path, []).append(trap)
        self.is_shuffled = rng.random() < 0.3

    def _root(self, rng: random.Random, wording: Wording) -> str:
        word = wording.slug(rng.random(), 1)
        root = f"/{word}{rng.choice(['', '', '-' + rng.choice(string.ascii_lowercase), str(rng.randint(2, 9))])}"
        while any(path.startswith(root) for path in self.pages) or any(
            trap.root.startswith(root) for trap in self.traps
        ):
            root += rng.choice(string.ascii_lowercase)
        return root

    def _section(self, name: str, make: object, rng: random.Random, wording: Wording) -> Section:
        section = Section(
            name, self._root(rng, wording), rng, wording, rng.choice([20, 40, 60, 120, 120, 200, 300, 500])
        )
        make(section)  # type: ignore[operator]
        self.pages |= section.pages
        self.sections |= dict.fromkeys(section.pages, name)
        return section

    def part_of(self, url: str) -> str:
        """Return the name of the section or trap of *url*, or ``nothing``."""
        if url in self.honest:
            return self.honest[url]
        trap = self._trap(url.removeprefix(self.host))
        return f"trap {trap.name}" if trap else "nothing"

    def _trap(self, target: str) -> Trap | None:
        path, _, query = target.partition("?")
        pairs = dict(parse_qsl(query, keep_blank_values=True))
        return next((trap for trap in self.traps if trap.claims(path, pairs)), None)

    def page(self, url: str) -> Answer:
        """Answer for *url*."""
        target = url.removeprefix(self.host)
        page = self.pages.get(target)
        if page is None and (trap := self._trap(target)):
            path, _, query = target.partition("?")
            try:
                page = trap.serve(path, dict(parse_qsl(query, keep_blank_values=True)), target)
            except ValueError:  # of an int() that another trap's parameters broke
                page = None
        elif page is not None:
            links = list(page.links)
            for trap in self.attached.get(target, ()):
                links += trap.on_page(target)
            if self.is_shuffled:
                random.Random(target).shuffle(links)
            page = Page(page.title, page.content, page.key, page.size, links, page.is_listed)
        if page is None:
            return Answer(404, {"Content-Type": "text/html"}, self.layout.render(Page("Not found", "none", ""), url))
        if page.location:
            return Answer(page.status, {"Location": page.location}, b"")
        kind = {"json": "application/json", "plain": "text/plain"}.get(page.content, "text/html")
        return Answer(200, {"Content-Type": kind}, self.layout.render(page, url))


def site(seed: int, *, traps: bool = True, host: str = HOST) -> Site:
    """Return the site of *seed*. Seeds below 100 are for tuning, 100 to 199 for scoring."""
    return Site(seed, traps=traps, host=host)
