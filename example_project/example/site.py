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


CALENDAR = "/calendar"
"""Path of a calendar that goes on for ever: every month links to the next."""


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


def build_site(pages: int, seed: int = 1, *, calendar: bool = False) -> dict[str, Page]:
    """Return the *pages* pages of the maze by address; the same numbers give the same site, byte for byte.

    With *calendar*, the home page links to `CALENDAR`, whose months are made by `calendar_page`.

    Page n links to pages 2n + 1 and 2n + 2, so every page can be reached from the home page, and to
    `CROSS_LINKS` pages picked at random, so that nearly every link leads to a page that was seen before.
    """
    rng = random.Random(seed)  # noqa: S311 - the same site on every run is the point
    site = {}
    for number in range(pages):
        children = [child for child in (2 * number + 1, 2 * number + 2) if child < pages]
        targets = children + rng.choices(range(pages), k=CROSS_LINKS)
        rng.shuffle(targets)
        links = [_link(target, rng) for target in targets]
        if calendar and number == 0:
            links.append(f"{CALENDAR}?month=1")
        page = Page(_address(number), _html(number, links, _text(seed, number)))
        site[page.address] = page
    return site


def calendar_page(address: str) -> Page | None:
    """Return the page of a month; None if *address* is none of the calendar's."""
    path, _, month = address.partition("?month=")
    if path != CALENDAR or not month.isdecimal():
        return None
    days = "".join(f"<td>{day}</td>" for day in range(1, 31))
    following = html.escape(f"{CALENDAR}?month={int(month) + 1}")
    body = f'<h1>Events</h1>\n<table><tr>{days}</tr></table>\n<p>No events</p>\n<a href="{following}">Next month</a>\n'
    return Page(address, f"<!DOCTYPE html>\n<title>Calendar</title>\n{body}")


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


def _text(seed: int, number: int) -> str:
    """Return a paragraph that no other page has: pages that say nothing new are what a loop is made of."""
    rng = random.Random(f"{seed} {number}")  # noqa: S311 - the same site on every run is the point
    return " ".join("".join(rng.choices("aeioulmnrst", k=rng.randint(3, 9))) for _ in range(40))


def _html(number: int, links: list[str], text: str) -> str:
    items = "\n".join(f'<li><a href="{html.escape(link)}">{html.escape(link)}</a></li>' for link in links)
    return (
        f"<!DOCTYPE html>\n<title>Page {number}</title>\n<h1>Page {number}</h1>\n<p>{text}</p>\n<ul>\n{items}\n</ul>\n"
    )
