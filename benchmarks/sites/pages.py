"""What a page of a drawn site is made of: words, content, links, boilerplate and noise."""

from __future__ import annotations

import html
import json
import random
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

CONSONANTS = "b br c ch d f g gr h k l m n p pl r s st t v w".split()  # noqa: SIM905 - a list is twenty lines
ENDS = ["", "", "n", "r", "l", "s", "th", "nd", "m", "ck"]
Links = list[tuple[str, str]]
"""Where each leads, and its text."""


@dataclass(slots=True)
class Page:
    """One page before it is laid out; its content is made from *key* when it is asked for."""

    title: str
    content: str
    """``text``, ``line``, ``names``, ``numbers``, ``media``, ``json``, ``plain``, ``none``, or ``raw``."""
    key: str
    size: int = 5
    links: Links = field(default_factory=list)
    location: str = ""
    """Where it redirects to."""


class Answer(NamedTuple):
    """What the site says to a request."""

    status: int
    headers: dict[str, str]
    body: bytes


def shown(title: str, html: str, links: Links) -> Page:
    return Page(title, "raw", html, links=links)


class Wording:
    """The words of one site, and its texts."""

    def __init__(self, rng: random.Random) -> None:
        vowels = rng.sample(["a", "e", "i", "o", "u", "ea", "ou", "y"], 5)
        words: dict[str, None] = {}
        while len(words) < 1500:
            parts = rng.choices([1, 2, 3], [2, 5, 2])[0]
            words["".join(rng.choice(CONSONANTS) + rng.choice(vowels) for _ in range(parts)) + rng.choice(ENDS)] = None
        self.words = [word for word in words if len(word) > 2]
        self.cumulated = list(accumulate(1 / (rank + 20) for rank in range(len(self.words))))
        self.sentence_length = rng.choice([(6, 12), (9, 18), (12, 30)])

    def name(self, key: object, most: int = 3) -> str:
        """Return a name of one to *most* words, the same for the same key."""
        rng = random.Random(f"name {key}")
        return " ".join(rng.choices(self.words, k=rng.randint(1, most)))

    def slug(self, key: object, most: int = 4) -> str:
        return self.name(key, most).replace(" ", "-")

    def sentences(self, key: object, count: int) -> list[str]:
        rng = random.Random(f"text {key}")
        found = []
        for _ in range(count):
            words = rng.choices(self.words, cum_weights=self.cumulated, k=rng.randint(*self.sentence_length))
            if rng.random() < 0.15:
                words.insert(rng.randrange(len(words)), str(rng.choice([rng.randint(2, 99), rng.randint(1900, 2030)])))
            found.append(" ".join(words).capitalize() + ".")
        return found


def content_of(page: Page, wording: Wording) -> str:
    """Return the content of *page* in HTML, without its links."""
    rng = random.Random(f"content {page.key}")
    match page.content:
        case "text":
            sentences, paragraphs = wording.sentences(page.key, page.size), []
            while sentences:
                count = rng.randint(1, 4)
                paragraphs.append(f"<p>{' '.join(sentences[:count])}</p>")
                del sentences[:count]
            return "\n".join(paragraphs)
        case "line":
            return f"<p class=desc>{wording.sentences(page.key, 1)[0]}</p>"
        case "numbers":
            cells = ["".join(f"<td>{rng.randint(0, 99_999) / 10}</td>" for _ in range(6)) for _ in range(page.size)]
            return (
                "<table>" + "\n".join(f"<tr><th>{row}</th>{each}</tr>" for row, each in enumerate(cells)) + "</table>"
            )
        case "media":
            return f'<figure><img src="/media/{rng.getrandbits(40):010x}.jpg" alt=""></figure>'
        case "raw":
            return page.key
        case _:
            return ""


def anchors(links: Links) -> list[str]:
    return [f'<a href="{html.escape(href)}">{text}</a>' for href, text in links]


class Layout:
    """How the pages of one site look: boilerplate, noise, and where links stand."""

    def __init__(self, rng: random.Random, wording: Wording) -> None:
        self.wording = wording
        self.nav: Links = []
        self.is_nav_everywhere = rng.random() < 0.6
        self.noise = rng.sample(["clock", "counter", "token", "echo", "ad", "session", "ms"], rng.randint(1, 5))
        self.heading = rng.choice(["<h1>{}</h1>", "<h2 class=title>{}</h2>", "<div id=top><b>{}</b></div>", ""])
        self.item = rng.choice(["<li>{}</li>", "<div class=row>{}</div>", "<tr><td>{}</td></tr>", "<p>{}</p>"])
        self.title = f"{{}} {rng.choice('-|:·')} {wording.name(rng.random(), 2).title()}"
        self.head = "".join(f'<link rel=stylesheet href="/css/{i}.css">\n' for i in range(rng.randint(0, 9)))
        self.foot = "".join(f"<p>{line}</p>\n" for line in wording.sentences(f"foot {rng.random()}", rng.randint(1, 9)))
        self.ads = wording.sentences(f"ads {rng.random()}", 12)
        self.are_links_first = rng.random() < 0.3
        self.visits = 0
        self.rng = random.Random(rng.random())

    def answer(self, page: Page | None, url: str, content_type: str = "text/html") -> Answer:
        """Return the answer for *url*, at which *page* is."""
        status = 404 if page is None else 302 if page.location else 200
        page = page or Page("Not found", "none", "")
        if page.location:
            return Answer(status, {"Location": page.location}, b"")
        return Answer(status, {"Content-Type": content_type}, self.render(page, url))

    def render(self, page: Page, url: str) -> bytes:
        """Return the bytes of *page* as the site shows it at *url*, with the noise of this moment."""
        if page.content == "json":
            texts = self.wording.sentences(page.key, page.size)
            links = [href for href, _ in page.links]
            return json.dumps({"title": page.title, "text": texts, "links": links}).encode()
        if page.content == "plain":
            return "\n".join([page.title, "", *self.wording.sentences(page.key, page.size)]).encode()
        self.visits += 1
        links = "\n".join(map(self.item.format, anchors(page.links)))
        parts = [content_of(page, self.wording), f"<div class=links>{links}</div>"]
        if self.are_links_first:
            parts.reverse()
        title = html.escape(page.title)
        nav = " ".join(anchors(self.nav)) if self.is_nav_everywhere else ""
        noise = "\n".join(f"<p>{self._noise(kind, url)}</p>" for kind in self.noise)
        return (
            f"<!doctype html><html><head><title>{self.title.format(title)}</title>\n{self.head}</head>\n<body>"
            f"<nav><a href=/>Home</a> {nav}</nav>\n{self.heading.format(title)}\n"
            + "\n".join(parts)
            + f"\n<footer>{self.foot}{noise}</footer></body></html>"
        ).encode()

    def _noise(self, kind: str, url: str) -> str:
        rng, minute = self.rng, self.visits // 7
        match kind:
            case "clock":
                time = f"{minute // 60 % 24:02}:{minute % 60:02}"
                return f"Page served on 2024-{minute // 1440 % 12 + 1:02}-11 at {time}"
            case "counter":
                return f"You are visitor number {self.visits:,} of this page"
            case "token":
                return f"Request id: {rng.getrandbits(64):016x}"
            case "echo":
                return f"You are here: {html.escape(url)}"
            case "ad":
                return rng.choice(self.ads)
            case "session":
                return f'<form action=/login><input type=hidden name=csrf value="{rng.getrandbits(80):x}"></form>'
            case _:
                return f"generated in {rng.random() * 300:.1f} ms with {rng.randint(3, 60)} queries"
