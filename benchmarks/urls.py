"""URLs to measure with: composed ones like those of real pages, the links of HTML files, lists of URLs."""

from __future__ import annotations

import gzip
import random
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin

from scrapy import Request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SECTIONS = ("news", "world", "about", "product", "category", "article", "review", "index", "list", "view", "help")
_THINGS = ("forum", "thread", "user", "profile", "image", "download", "archive", "2024", "summer", "large", "garden")
WORDS = _SECTIONS + _THINGS


def composed_urls(count: int, seed: int) -> list[str]:
    """Compose links as pages have them: about 9 in 10 plain, the others with queries, escapes, fragments and `;`."""
    rng = random.Random(seed)

    def words(fewest: int, most: int, glue: str) -> str:
        return glue.join(rng.choices(WORDS, k=rng.randint(fewest, most)))

    def query(most: int, glue: str = "&") -> str:
        values = (rng.choice((rng.randint(1, 99999), words(1, 3, "+"))) for _ in range(rng.randint(1, most)))
        return glue.join(f"{rng.choice(WORDS)}={value}" for value in values)

    def url() -> str:
        host = rng.choice(("www.", "www.", "shop.", "")) + words(1, 2, "-") + rng.choice((".com", ".org", ".co.uk"))
        leaf = rng.choice(("", "/", ".html", f"-{rng.randint(1, 999999)}", f"/{words(2, 5, '-')}"))
        return f"https://{host}/{words(0, 4, '/')}{leaf}"

    kinds: list[tuple[int, Callable[[], str]]] = [
        (760, url),
        (30, lambda: url() + "#" + words(1, 2, "-")),
        (90, lambda: url() + "?" + query(1)),
        (70, lambda: url() + "?" + query(4)),
        (12, lambda: f"{url()}?url={quote(url(), safe='')}&{query(2)}"),
        (4, lambda: url() + "?" + query(3, "&amp;")),
        (20, lambda: f"{url()}/{quote(rng.choice(('München', 'Straße', '東京', 'two words', 'Москва')))}"),
        (6, lambda: f"{url()}_%28{rng.choice(WORDS)}%29"),
        (3, lambda: f"{url()};jsessionid={rng.getrandbits(64):X}"),
        (2, lambda: f"{url()}/../{rng.choice(WORDS)}"),
        (2, lambda: f"{url()}?q=é"),
        (1, lambda: f"{url()}/50%25"),
    ]
    chosen = rng.choices([kind for _, kind in kinds], weights=[weight for weight, _ in kinds], k=count)
    return [kind() for kind in chosen]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value]


def html_urls(directory: Path, base: str) -> list[str]:
    """Return every web link of the HTML files below *directory*, as a crawl that starts at *base* would see it."""
    urls = []
    for page in sorted(directory.rglob("*.html")):
        parser = _Links()
        parser.feed(page.read_text(encoding="utf-8", errors="replace"))
        page_url = urljoin(base, quote(page.relative_to(directory).as_posix()))
        urls += [urljoin(page_url, href) for href in parser.hrefs]
    return [url for url in urls if url.startswith(("http://", "https://"))]


def file_urls(path: Path) -> list[str]:
    """Return the URLs of a text file, one a line, gzipped or not."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", errors="replace") as lines:
        return [line for line in map(str.strip, lines) if line]


def accepted(urls: list[str]) -> list[str]:
    """Return those of *urls* that Scrapy makes requests of."""
    kept = []
    for url in urls:
        try:
            Request(url)
        except ValueError:
            continue
        kept.append(url)
    return kept
