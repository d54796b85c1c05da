"""Who waits for whom: the order in which the guard has URLs fetched, without a crawl around it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.http import HtmlResponse
from scrapy.utils.test import get_crawler

from scrapy_bloom.loops.guard import LINKED_FROM, QUEUED, LoopGuard
from scrapy_bloom.loops.options import parse_loop_guard
from tests.support.loopsite import prose

if TYPE_CHECKING:
    import pytest

HOST = "https://example.com"


def opened_guard() -> LoopGuard:
    crawler = get_crawler()
    crawler._apply_settings()
    assert crawler.stats is not None
    options = parse_loop_guard(True)
    assert options
    guard = LoopGuard(options, crawler.stats)
    guard.open(None)
    return guard


def fetch(guard: LoopGuard, url: str, text: str, links: list[str]) -> list[Request]:
    """Fetch *url*, queue *links* from it, and return their requests."""
    page = Request(url)
    guard.saw(HtmlResponse(url, body=f"<html><body><p>{text}</p></body></html>".encode()), page)
    source = guard.source_of_links(page)
    requests = [Request(link, meta={LINKED_FROM: source}) for link in links]
    for request in requests:
        guard.queued(request)
    return requests


def fetched_at(guard: LoopGuard, request: Request) -> int:
    """Take *request* out of the queue until it is not sent back, and return by how much it was demoted then."""
    sent_back: list[Request] = []
    guard.sends_back_by(sent_back.append)
    demoted = -request.priority
    while guard.out_of_queue(request) and sent_back:
        request = sent_back.pop()
        assert -request.priority > demoted
        demoted = -request.priority
    assert request.priority == 0
    assert not request.dont_filter
    return demoted


def test_a_maze_that_opens_new_folders_waits_for_the_last_items_of_a_large_section() -> None:
    """After a maze has opened a new folder with each of 105 pages of prose, its next pages are fetched after the
    3,000th item of a shop."""
    guard = opened_guard()
    rng = random.Random(3)
    path = HOST + "/notes/"
    maze: list[Request] = []
    for number in range(105):
        path = path if path.count("/") < 15 else HOST + "/notes/"
        links = [f"{path}{prose(number, i, words=1)}-{i}/" for i in range(4)]
        maze = fetch(guard, path, prose("maze", number), links)
        path = rng.choice(links)
    items: list[Request] = []
    for number in range(150):
        products = [f"{HOST}/shop/product/{number * 20 + i}" for i in range(20)]
        items = fetch(guard, f"{HOST}/shop/list/{number}", prose("list", number), products)
        fetch(guard, products[0], prose("item", number), [])
    late, early = [fetched_at(guard, one) for one in maze], [fetched_at(guard, one) for one in items]
    guard.close()
    assert max(early) < min(late)


def test_pages_that_bring_nothing_wait_for_a_large_section_that_brings_news() -> None:
    """After twenty calendar months without events, the next months are fetched after the 3,000th item of a shop."""
    guard = opened_guard()
    months: list[Request] = []
    for number in range(20):
        months = fetch(guard, f"{HOST}/calendar/{number}", "No events.", [f"{HOST}/calendar/{number + 1}"])
    items: list[Request] = []
    for number in range(150):
        products = [f"{HOST}/shop/product/{number * 20 + i}" for i in range(20)]
        items = fetch(guard, f"{HOST}/shop/list/{number}", prose("list", number), products)
        fetch(guard, products[0], prose("item", number), [])
    late, early = [fetched_at(guard, one) for one in months], [fetched_at(guard, one) for one in items]
    guard.close()
    assert max(early) < min(late)


def test_a_request_whose_marks_cannot_be_read_is_fetched(caplog: pytest.LogCaptureFixture) -> None:
    """A request in whose meta somebody has overwritten the guard's marks is fetched, and the log says so."""
    guard = opened_guard()
    request = Request(HOST, meta={QUEUED: "something else"})
    assert not guard.out_of_queue(request)
    assert "cannot be judged, and is fetched" in caplog.text
    guard.close()
