"""Who waits for whom: the order in which the guard has URLs fetched, without a crawl around it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import HtmlResponse

from scrapy_bloom.old.loops.account import Account
from scrapy_bloom.old.loops.demotion import AT_ONCE, MOST_AT_REST, RANK_STEPS, Candidate, steps_of
from scrapy_bloom.old.loops.guard import BARREN, LINKED_FROM, QUEUED, LoopGuard
from tests.old.support.guarding import fetch, opened_guard
from tests.old.support.loopsite import prose

HOST = "https://example.com"


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


def test_categories_of_a_shop_do_not_wait_for_their_filters() -> None:
    """After twelve of 60 categories, each with ten filters that lead to further filters, the others are fetched before
    any filter is."""
    guard = opened_guard()
    categories = fetch(
        guard, f"{HOST}/shop/", "Shop", [f"{HOST}/shop/category/{prose(i, words=1)}{i}-{i}/" for i in range(60)]
    )
    filters: list[Request] = []
    for number, category in enumerate(categories[:12]):
        products = [f"{HOST}/shop/product/{number * 20 + i}" for i in range(20)]
        links = [f"{category.url}?{key}=1" for key in "abcdefghij"]
        chosen = fetch(guard, category.url, prose("category", number), products + links)[20:]
        for one in chosen[:5]:
            filters += fetch(guard, one.url, prose(one.url), [f"{one.url}&{key}=1" for key in "abcdefghij"])
        for product in products[:3]:
            fetch(guard, product, prose("item", product), [])
    late, early = [fetched_at(guard, one) for one in filters], [fetched_at(guard, one) for one in categories[12:]]
    guard.close()
    assert max(early) < min(late)


def test_articles_come_before_their_copies_with_click_ids() -> None:
    """An article that is linked with a click id waits until the plain addresses of its folder have been fetched."""
    guard = opened_guard()
    plain = fetch(
        guard, f"{HOST}/magazine/", "Articles", [f"{HOST}/magazine/{prose(i, words=1)}-{i}" for i in range(99)]
    )
    noisy: list[Request] = []
    for number, article in enumerate(plain[:9]):
        noisy += fetch(guard, article.url, prose(number), [f"{one.url}?clicked={number}" for one in plain[-3:]])
    late, early = [fetched_at(guard, one) for one in noisy], [fetched_at(guard, one) for one in plain[9:]]
    guard.close()
    assert max(early) < min(late)


def test_the_more_pages_on_the_way_have_brought_nothing_the_later_a_url_comes() -> None:
    """The second page in a row without news costs its links a step, and the fourth three; news begin anew."""
    guard = opened_guard()
    texts = ["free", "free", prose("June"), "free", "free", "free", "free", "free"]
    marks: dict[str, Any] = {}
    found = []
    for day, text in enumerate(texts, start=1):
        page = Request(f"{HOST}/rooms/2024/6/{day}/", meta=marks)
        guard.saw(HtmlResponse(page.url, body=f"<p>{text}</p>".encode()), page)
        marks = guard.marks_of_links(page)
        found.append(steps_of(Candidate(HOST, 0, [Account(0, "example.com")], None, marks[BARREN]), is_due=True))
    guard.close()
    assert found == [0, 1, 0, 0, 1, 2, 3, 3]


def test_the_pages_of_a_list_come_before_its_filters() -> None:
    """A parameter that is a number costs one step, one that is a word three, and all together six."""
    guard = opened_guard()
    for query, steps in {"": 0, "?page=2": 1, "?colour=red": 3, "?page=2&colour=red": 4, "?a=b&c=d&e=f": 6}.items():
        request = Request(f"{HOST}/shop/shoes/{query}")
        guard.queued(request)
        assert -request.priority == steps
    guard.close()


def test_a_filter_waits_for_every_page_of_the_list() -> None:
    """The first filter that is found comes after the 300th page of the list, and counts as the next of all queries."""
    guard = opened_guard()
    pages = [Request(f"{HOST}/shop/shoes/?page={number}") for number in range(2, 302)]
    filters = [Request(f"{HOST}/shop/shoes/?{name}=a") for name in ("colour", "brand", "size")]
    for request in [*pages, *filters]:
        guard.queued(request)
    guard.close()
    assert min(one.priority for one in pages) > max(one.priority for one in filters)


def shape(number: int, name: str, *, fetched: int, queued: int, loops: float) -> Account:
    """Return the account of a shape whose pages all brought news and led to *loops* new URLs of it each."""
    account = Account(number, name)
    account.fetched, account.queued = fetched, queued
    account.lately = account.brought = min(fetched, 100)
    account.loops = account.bred = int(loops * account.lately)
    return account


@pytest.mark.parametrize("rank", [10**6, 10**9])
def test_what_does_not_grow_comes_before_every_maze(rank: int) -> None:
    """The last of a million products, even found on a page behind barren ones, has fewer steps than a URL of a maze:
    among equals a LIFO queue would take the newest, which are those of the maze."""
    for loops, steps in ((1.0, MOST_AT_REST), (3.0, RANK_STEPS)):
        accounts = [shape(1, "example.com/item/N", fetched=rank, queued=2 * rank, loops=loops)]
        assert steps_of(Candidate(f"{HOST}/item/1", rank, accounts, None, 9), is_due=True) == steps


def test_a_maze_of_many_pages_waits_for_what_was_found_late_in_a_large_shop() -> None:
    """A product that was queued while the shop still grew, and was found behind four barren filters, has fewer steps
    than a URL of a maze of as many pages."""
    shop = [shape(1, "example.com/product/N", fetched=30_000, queued=50_000, loops=1.3)]
    maze = [shape(2, "example.com/maze/*", fetched=30_000, queued=300_000, loops=10)]
    late = steps_of(Candidate(f"{HOST}/product/1", 50_000, shop, None, 4), is_due=True)
    assert late < steps_of(Candidate(f"{HOST}/maze/a", 300_000, maze, None, 0), is_due=False)


def test_the_first_items_of_a_section_do_not_wait_for_what_its_lists_lead_to() -> None:
    """While nothing is known of the photos themselves, albums that lead to twenty each do not put them behind a maze of
    80,000 pages that lead to two each; once ten are known, it is how they grow that counts."""
    maze = [shape(1, "example.com/maze/*", fetched=80_000, queued=250_000, loops=2)]
    due_in_maze = steps_of(Candidate(f"{HOST}/maze/a", 250_000, maze, None, 0), is_due=True)
    section = shape(2, "example.com/photos/**", fetched=2_400, queued=3_000, loops=20)
    for known, growth, is_early in ((0, 0, True), (9, 0, True), (10, 0, True), (10, 20, False)):
        photos = [shape(3, "example.com/photos/*/N", fetched=known, queued=900, loops=growth), section]
        due = steps_of(Candidate(f"{HOST}/photos/a/1", 500, photos, None, 0), is_due=True)
        assert (due <= due_in_maze - 3) == is_early


def test_growth_that_is_sure_counts_when_a_url_is_queued() -> None:
    """A URL of a kind that goes on growing is queued where it would be sent back to; one of a kind that has only begun
    to grow, or whose pages lead to two new ones, is not, but for a very large kind."""
    for fetched, loops, counts in ((1000, 5, True), (100, 5, False), (1000, 2, False), (10_000, 2, True)):
        accounts = [shape(1, "example.com/maze/*", fetched=fetched, queued=5 * fetched, loops=loops)]
        candidate = Candidate(f"{HOST}/maze/a", 20, accounts, None, 0)
        queued, due = (steps_of(candidate, is_due=is_due) for is_due in (False, True))
        assert (queued == due) == counts


def test_what_is_released_waits_no_longer_than_its_like() -> None:
    """When a parked shape brings news, its requests go back to where a new URL of that shape would be, not behind the
    whole crawl."""
    guard = opened_guard()
    sent_back: list[Request] = []
    guard.sends_back_by(sent_back.append)
    for number in range(30):
        fetch(guard, f"{HOST}/item/{number}", "Nothing here.", [])
    waiting = [Request(f"{HOST}/item/{number}") for number in range(100, 103)]
    for request in waiting:
        guard.queued(request)
    tried = next(request for request in waiting if not guard.out_of_queue(request))
    parked = [request for request in waiting if request is not tried and guard.out_of_queue(request)]
    assert parked
    sent_back.clear()
    for number in range(200, 212):
        fetch(guard, f"{HOST}/item/{number}", prose(number), [])
    new = Request(f"{HOST}/item/300")
    guard.queued(new)
    guard.close()
    assert sent_back
    assert min(request.priority for request in sent_back) >= new.priority - AT_ONCE


def test_links_that_have_all_of_their_pages_meta_are_judged() -> None:
    """A callback that passes on its page's meta passes on that this was one of the spider's first requests."""
    guard = opened_guard()
    start = Request(HOST, meta={"is_start_request": True})
    guard.queued(start)
    assert QUEUED not in start.meta
    link = Request(f"{HOST}/1", meta={**start.meta, **guard.marks_of_links(start)})
    guard.queued(link)
    assert QUEUED in link.meta
    guard.close()


def test_a_request_whose_marks_cannot_be_read_is_fetched(caplog: pytest.LogCaptureFixture) -> None:
    """A request in whose meta somebody has overwritten the guard's marks is fetched, and the log says so."""
    guard = opened_guard()
    request = Request(HOST, meta={QUEUED: "something else"})
    assert not guard.out_of_queue(request)
    assert "cannot be judged, and is fetched" in caplog.text
    linked = Request(f"{HOST}/page", meta={LINKED_FROM: "something else", BARREN: "a lot"})
    guard.queued(linked)
    assert "cannot be judged, and is queued as it is" in caplog.text
    guard.saw(HtmlResponse(linked.url, body=f"<p>{prose(1)}</p>".encode()), linked)
    assert "cannot be counted" not in caplog.text  # news make the second one a number again
    guard.saw(HtmlResponse(HOST, body=b""), Request(HOST, meta={BARREN: "a lot"}))
    assert "cannot be counted" in caplog.text
    guard.close()
