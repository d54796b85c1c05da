"""Draws a site from a seed, and answers for its pages."""

from __future__ import annotations

import random
import string
from dataclasses import replace

from benchmarks.sites.honest import SECTIONS, Section
from benchmarks.sites.pages import Answer, Layout, Page, Wording
from benchmarks.sites.traps import TRAPS, Ask, Trap


class Site:
    """The site of *seed*: ``page(url)`` answers, ``part_of(url)`` names the section or trap that a URL belongs to."""

    host, start = "http://site.example", "http://site.example/"

    def __init__(self, seed: int, *, traps: bool = True) -> None:
        rng = random.Random(f"site {seed}")
        wording = Wording(rng)
        self.layout = Layout(rng, wording)
        self.pages: dict[str, Page] = {}
        self.honest: dict[str, str] = {}
        self.traps: list[Trap] = []
        sections, entries = [], []
        for draw in rng.sample(SECTIONS, rng.randint(6, 11)):
            root, size = self._root(rng, wording), rng.choice([20, 40, 60, 120, 120, 200, 300, 500])
            section = Section(root, rng, wording, size)
            entries += draw(section)
            sections.append(section)
            self.pages |= section.pages
            self.honest |= dict.fromkeys((self.host + path for path in section.pages), draw.__name__)
        for make in rng.sample(TRAPS, rng.randint(6, 12)) if traps else ():
            hosts = rng.sample(sections, rng.choice([1, 1, 1, 2]))
            trap = Trap(make.__name__, self._root(rng, wording), rng, wording, hosts[0], self.pages)
            make(trap)
            self.traps.append(trap)
            entries += trap.entries
        rng.shuffle(entries)
        home = Page("Welcome", "text", f"home {seed}", 4, [(path, wording.name(path)) for path in entries])
        self.layout.nav = home.links[:30]
        self.pages["/"] = home
        self.honest[self.start] = "home"
        self.attached: dict[str, list[Trap]] = {}
        shares = [rng.choice([1.0, 1.0, 0.5]) for _ in self.traps]
        for trap, share in zip(self.traps, shares, strict=True):
            for path in trap.host.pages:
                if rng.random() < share:
                    self.attached.setdefault(path, []).append(trap)
        self.is_shuffled = rng.random() < 0.3

    def _root(self, rng: random.Random, wording: Wording) -> str:
        word = wording.slug(rng.random(), 1)
        root = f"/{word}{rng.choice(['', '', '-' + rng.choice(string.ascii_lowercase), str(rng.randint(2, 9))])}"
        while any(taken.startswith(root) for taken in [*self.pages, *(trap.root for trap in self.traps)]):
            root += rng.choice(string.ascii_lowercase)
        return root

    def content_of(self, url: str) -> str:
        """Return what stands for the content of *url*."""
        return url

    def part_of(self, url: str) -> str:
        """Return the name of the section or trap of *url*, or ``nothing``."""
        trap = self._trap(Ask.of(url.removeprefix(self.host)))
        return self.honest.get(url) or (f"trap {trap.name}" if trap else "nothing")

    def _trap(self, ask: Ask) -> Trap | None:
        return next((trap for trap in self.traps if trap.claims(ask)), None)

    def page(self, url: str) -> Answer:
        """Answer for *url*."""
        ask = Ask.of(url.removeprefix(self.host))
        page = self.pages.get(ask.url)
        if page:
            links = page.links + [link for trap in self.attached.get(ask.url, ()) for link in trap.on_page(ask.url)]
            if self.is_shuffled:
                random.Random(ask.url).shuffle(links)
            page = replace(page, links=links)
        elif trap := self._trap(ask):
            try:
                page = trap.serve(ask)
            except ValueError:  # of an int() that another trap's parameters broke
                page = None
        kinds = {"json": "application/json", "plain": "text/plain"}
        return self.layout.answer(page, url, kinds.get(page.content if page else "", "text/html"))


def site(seed: int, *, traps: bool = True) -> Site:
    """Return the site of *seed*: below 100 for tuning, 100 to 199 for scoring."""
    return Site(seed, traps=traps)
