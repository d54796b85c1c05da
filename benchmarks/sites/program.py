"""Sites in the manner of real programs: what they share. Their URLs have the forms that these programs make."""

from __future__ import annotations

import random
from urllib.parse import parse_qsl, urlencode

from benchmarks.sites.draw import Answer
from benchmarks.sites.pages import Layout, Links, Page, Wording


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
        if page is None:
            return Answer(404, {"Content-Type": "text/html"}, self.layout.render(Page("Not found", "none", ""), url))
        if page.location:
            return Answer(302, {"Location": page.location}, b"")
        return Answer(200, {"Content-Type": "text/html"}, self.layout.render(page, url))

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


def shown(title: str, html: str, links: Links) -> Page:
    return Page(title, "raw", html, links=links)


def link(path: str, text: str = "", **query: object) -> tuple[str, str]:
    mark = "&" if "?" in path else "?"
    return (f"{path}{mark}{urlencode(query)}" if query else path, text or path.rsplit("/", 1)[-1])
