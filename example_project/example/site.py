"""Build the maze: a made-up web site, the same on every run, in which every page is linked to in many spellings.

Knows only addresses and HTML; nothing of HTTP, of ports or of Scrapy.
"""

from __future__ import annotations

import html
import random
from dataclasses import dataclass
from urllib.parse import urlsplit

HOME = "http://maze.example/"
"""Where the site lives as far as a crawl is concerned. ``.example`` names exist in no DNS (RFC 2606)."""

CROSS_LINKS = 10
"""Links per page to pages anywhere on the site, besides those to its two children in the tree."""


@dataclass(frozen=True)
class Page:
    """One page: its address and the HTML served there."""

    address: str
    body: str


def page_address(url: str) -> str:
    """Return path and sorted query of *url*: one address for all spellings of the links to a page."""
    parts = urlsplit(url)
    query = "&".join(sorted(parts.query.split("&")))
    return f"{parts.path}?{query}" if query else parts.path


def build_site(pages: int, seed: int = 1) -> dict[str, Page]:
    """Return the *pages* pages of the maze by address; the same numbers give the same site, byte for byte.

    Page n links to pages 2n + 1 and 2n + 2, so every page can be reached from the home page, and to
    `CROSS_LINKS` pages picked at random, so that nearly every link leads to a page that was seen before.
    """
    rng = random.Random(seed)  # noqa: S311 - the same site on every run is the point
    site = {}
    for number in range(pages):
        children = [child for child in (2 * number + 1, 2 * number + 2) if child < pages]
        targets = children + rng.choices(range(pages), k=CROSS_LINKS)
        rng.shuffle(targets)
        page = Page(_address(number), _html(number, [_link(target, rng) for target in targets]))
        site[page.address] = page
    return site


def _address(number: int) -> str:
    if number == 0:
        return "/"
    path, query = _path_and_query(number)
    return page_address(f"{path}?{'&'.join(query)}")


def _link(number: int, rng: random.Random) -> str:
    """Return a link to page *number* with its parameters in any order and, now and then, a fragment."""
    if number == 0:
        return "/"
    path, query = _path_and_query(number)
    rng.shuffle(query)
    fragment = rng.choice(["", "", f"#part-{rng.randrange(9)}"])
    return (f"{path}?{'&'.join(query)}" if query else path) + fragment


def _path_and_query(number: int) -> tuple[str, list[str]]:
    if number % 3 == 0:
        return f"/page/{number}", []
    if number % 3 == 1:
        return "/shop", [f"item={number}", f"size={number % 7}", f"colour={'red' if number % 2 else 'blue'}"]
    return "/forum", [f"thread={number}", f"page={number % 5}"]


def _html(number: int, links: list[str]) -> str:
    items = "\n".join(f'<li><a href="{html.escape(link)}">{html.escape(link)}</a></li>' for link in links)
    return f"<!DOCTYPE html>\n<title>Page {number}</title>\n<h1>Page {number}</h1>\n<ul>\n{items}\n</ul>\n"
