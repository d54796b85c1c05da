"""Sections of a shop whose pages bring little, beside filters without end: all that they lead to is fetched before the
crawl ends."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from typing import TYPE_CHECKING

import pytest
from scrapy import Request

from tests.old.support.guarding import come_back, opened_guard, queue_links
from tests.old.support.loopsite import prose

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "http://example.com"
PAGES = 200
IN_FLIGHT = 32
"""Requests that are judged before the first of them has come back, as in a crawl with Scrapy's defaults."""
MOST_PAGES = 2_000
"""A crawl that has not ended by then has run into the filters, which are 4,095."""

_chance = [random.Random(number).random() for number in range(PAGES)]


def _page(text: str, *links: str) -> tuple[str, list[str]]:
    return text, list(links)


SECTIONS: dict[str, Callable[[int], tuple[str, list[str]]]] = {
    "two in three have something": lambda i: _page(prose("own", i) if _chance[i] < 0.66 else "Nothing here."),
    "the second half has something": lambda i: _page(prose("own", i) if 2 * i > PAGES else "Nothing here."),
    "two in three lead to something": lambda i: _page("A list.", *([f"/item/{i}"] if _chance[i] < 0.66 else [])),
    "each leads to the next, and every second one to something": lambda i: _page(
        "A list.", *([f"/item/{i}"] if i % 2 else []), *([f"/shop/section/{i + 1}/"] if i + 1 < PAGES else [])
    ),
}


def _answer(path: str, section: Callable[[int], tuple[str, list[str]]]) -> tuple[str, list[str]]:
    match path.strip("/").split("/"):
        case [""]:
            return _page("Welcome to the shop.", "/shop/by/", *(f"/shop/section/{i}/" for i in range(PAGES)))
        case ["shop", "by", *filters]:
            others = ({*filters, f"f{one}"} for one in range(12) if f"f{one}" not in filters)
            return _page("Our things.", *(f"/shop/by/{'/'.join(sorted(one))}/" for one in others))
        case ["shop", "section", number]:
            return section(int(number))
    return _page(prose(path))


@pytest.mark.parametrize("is_fifo", [False, True], ids=["depth first", "breadth first"])
@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_what_little_a_section_brings_is_fetched_before_the_crawl_ends(
    monkeypatch: pytest.MonkeyPatch, section: Callable[[int], tuple[str, list[str]]], is_fifo: bool
) -> None:
    """The filters run dry, and with them the folder of both, before the section has shown what it is worth."""
    monkeypatch.setattr("random.randrange", random.Random(1).randrange)
    guard = opened_guard()
    queue: list[tuple[int, int, Request]] = []
    numbers = itertools.count(step=1 if is_fifo else -1)

    def push(request: Request) -> None:
        heapq.heappush(queue, (-request.priority, next(numbers), request))

    guard.sends_back_by(push)
    push(Request(f"{HOST}/"))
    fetched, found = [], {f"{HOST}/"}
    under_way: deque[Request] = deque()
    while len(fetched) < MOST_PAGES:
        while queue and len(under_way) < IN_FLIGHT:
            request = heapq.heappop(queue)[2]
            if not guard.out_of_queue(request):
                under_way.append(request)
        if not under_way:
            if not guard.release_all_due():
                break
            continue
        page = under_way.popleft()
        fetched.append(page.url)
        text, links = _answer(page.url.removeprefix(HOST), section)
        come_back(guard, page, text)
        new = [url for link in links if (url := f"{HOST}{link}") not in found]
        found.update(new)
        for request in queue_links(guard, page, new):
            push(request)
    guard.close()
    missed = []
    for number in range(PAGES):
        text, links = section(number)
        wanted = [link for link in links if "/item/" in link]
        if text not in ("A list.", "Nothing here."):
            wanted.append(f"/shop/section/{number}/")
        missed += [one for one in wanted if f"{HOST}{one}" not in fetched]
    assert missed == []
    assert len(fetched) < MOST_PAGES
    assert sum("/shop/by/" in url for url in fetched) < 200
