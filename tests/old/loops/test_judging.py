"""Which shape decides over a URL: pages with a query say nothing about those without, nor old news about a copy."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from scrapy import Request
from scrapy.http import HtmlResponse

from scrapy_bloom.old.loops.account import DRY, DRY_SOON, KNOWN
from scrapy_bloom.old.loops.judging import judge_of
from tests.old.support.guarding import come_back, fetch, opened_guard
from tests.old.support.loopsite import prose

if TYPE_CHECKING:
    from pathlib import Path

HOST = "https://example.com"


def test_sort_orders_that_run_dry_do_not_park_the_next_directory() -> None:
    """Eight orders of each directory bring nothing; the next directory is fetched all the same, but its orders are
    not."""
    guard = opened_guard()
    names = [f"{HOST}/pub/{prose(number, words=1)}{number}/" for number in range(12)]
    for query in ("", *(f"?C={order}" for order in range(8))):
        for name in names:
            fetch(guard, name + query, prose(name), [])
    assert judge_of(f"{HOST}/pub/another/", guard._shapes, guard._accounts) is None
    assert judge_of(f"{HOST}/pub/another/?C=1", guard._shapes, guard._accounts) is not None
    guard.close()


def test_news_of_an_article_do_not_protect_its_copies() -> None:
    """Thirty articles under ever new click ids: once none of them brings anything, none is fetched further, though each
    was news once."""
    guard = opened_guard()
    rng = random.Random(5)
    articles = [f"{HOST}/magazine/{prose(i, words=1)}-{i}" for i in range(30)]
    for turn in range(6):
        for number, article in enumerate(articles):
            fetch(guard, f"{article}?gclid={rng.getrandbits(99):x}", prose(number), [])
        if turn:
            url = f"{articles[0]}?gclid=1"
            assert judge_of(url, guard._shapes, guard._accounts) is not None
    guard.close()


def test_the_pages_of_a_list_do_not_protect_its_filters() -> None:
    """A category's pages bring products. Filters that have brought nothing five times are held back all the same once
    the filters of the other categories have run dry."""
    guard = opened_guard()
    for name in ("coats", "hats"):
        for number in range(3):
            fetch(guard, f"{HOST}/shop/{name}/?colour={number}", "Nothing here.", [])
    for number in range(25):
        fetch(guard, f"{HOST}/shop/hats/?by={number}", "Nothing here.", [])
    for number in range(5):
        last = Request(f"{HOST}/shop/shoes/?page={number}")
        [item] = fetch(guard, last.url, "Nothing here.", [f"{HOST}/item/{number}"])
        guard.saw(HtmlResponse(item.url, body=prose(number).encode()), item)
    for number in range(25):
        fetch(guard, f"{HOST}/shop/coats/?by={number}", "Nothing here.", [])
    assert judge_of(f"{HOST}/shop/shoes/?page=9", guard._shapes, guard._accounts) is None
    assert judge_of(f"{HOST}/shop/shoes/?colour=9", guard._shapes, guard._accounts) is not None
    guard.close()


def test_three_filters_are_held_back_where_two_have_run_dry() -> None:
    """Once 25 pairs of filters in a row have brought nothing, no three filters are tried, whichever they are, though
    other queries bring something."""
    guard = opened_guard()
    for number in range(30):
        keys = [f"{prose(number, i, words=1)}{number}{'abc'[i]}" for i in range(2)]
        fetch(guard, f"{HOST}/shop/shoes/?{keys[0]}=x&{keys[1]}=y", "Nothing here.", [])
    for number in range(5):
        fetch(guard, f"{HOST}/shop/shoes/?page={number}", prose("list", number), [])
    assert judge_of(f"{HOST}/shop/shoes/?p=1&q=2&r=3", guard._shapes, guard._accounts) is not None
    assert judge_of(f"{HOST}/shop/shoes/?p=1", guard._shapes, guard._accounts) is None
    guard.close()


def bred(folder: str, number: int, links: int = 8) -> tuple[str, list[str]]:
    """Return a page of a maze below *folder*, and where it leads to: deeper down in the same folder."""
    return f"{folder}/{number}/", [f"{folder}/{number}/{link}/" for link in range(links)]


def test_a_kind_that_breeds_runs_dry_sooner() -> None:
    """Where each page leads to eight more of its kind, DRY_SOON pages in a row are enough; elsewhere it takes DRY."""
    guard = opened_guard()
    for number in range(KNOWN + DRY_SOON):
        for url, links in (bred(f"{HOST}/maze", number), (f"{HOST}/list/{number}/", [])):
            assert judge_of(url, guard._shapes, guard._accounts) is None
            fetch(guard, url, prose(url) if number < KNOWN else "Nothing here.", links)
    assert judge_of(f"{HOST}/maze/99/", guard._shapes, guard._accounts) is not None
    assert judge_of(f"{HOST}/list/99/", guard._shapes, guard._accounts) is None
    guard.close()


def test_a_few_good_pages_do_not_protect_a_part_of_a_maze_that_has_run_dry() -> None:
    """Below a folder that breeds and has run dry, a folder goes on whose pages bring something if these are DRY, and
    not if they are a few. Below one that does not breed a few are enough."""
    guard = opened_guard()
    good = {"maze/few": 9, "maze/many": DRY, "list/few": 9}
    for folder, count in good.items():
        for number in range(count):
            name = "abcdefghijklmnopqrstuvwxyz"[number]  # each page has a shape of its own
            fetch(guard, f"{HOST}/{folder}/{name}", prose(folder, number), [])
    for number in range(DRY):
        url, links = bred(f"{HOST}/maze/other", number)
        fetch(guard, url, "Nothing here.", links)
        fetch(guard, f"{HOST}/list/other/{number}", "Nothing here.", [])
    is_parked = {one: judge_of(f"{HOST}/{one}/new", guard._shapes, guard._accounts) is not None for one in good}
    assert is_parked == {"maze/few": True, "maze/many": False, "list/few": False}
    guard.close()


@pytest.mark.parametrize("resumes", [False, True], ids=["one run", "resumed"])
def test_below_a_maze_that_has_run_dry_few_news_are_not_enough(tmp_path: Path, resumes: bool) -> None:
    """Below a folder that breeds and has run dry, a kind goes on if its pages bring something, or each leads to some
    that do. A calendar with an entry on every third day, which counts for the day before, too, goes on elsewhere
    only. The next run has not seen that it is the third, and lets it go on, too, for a start."""
    guard = opened_guard(tmp_path if resumes else None)
    for folder in (f"{HOST}/maze", f"{HOST}/list"):
        day = Request(f"{folder}/day/0")
        for number in range(30):
            come_back(guard, day, "Free." if number % 3 else prose(folder, number))
            day = Request(f"{folder}/day/{number + 1}", meta=guard.marks_of_links(day))
            fetch(guard, f"{folder}/item/{number}", prose(folder, "item", number), [])
            things = [f"{HOST}/thing/{folder[-4:]}-{number}-{one}" for one in range(3)]
            for thing in fetch(guard, f"{folder}/page/{number}", "Nothing here.", things):
                come_back(guard, thing, prose(thing.url))
    for number in range(DRY):
        url, links = bred(f"{HOST}/maze/other", number, 16)
        fetch(guard, url, "Nothing here.", links)
        fetch(guard, f"{HOST}/list/other/{number}", "Nothing here.", [])
    if resumes:
        guard.close()
        guard = opened_guard(tmp_path)
    is_parked = {
        f"{folder}/{kind}": judge_of(f"{HOST}/{folder}/{kind}/99", guard._shapes, guard._accounts) is not None
        for folder in ("maze", "list")
        for kind in ("day", "item", "page")
    }
    assert [one for one, is_so in is_parked.items() if is_so] == ([] if resumes else ["maze/day"])
    guard.close()


def test_a_list_goes_on_after_its_first_good_page() -> None:
    """Beside filters that have run dry, the list whose one page has brought something goes on; an unknown kind does
    not."""
    guard = opened_guard()
    fetch(guard, f"{HOST}/shop/page-1/", prose(1), [])
    for number in range(DRY):
        url, links = bred(f"{HOST}/shop/filter", number)
        fetch(guard, url, "Nothing here.", links)
    assert judge_of(f"{HOST}/shop/page-2/", guard._shapes, guard._accounts) is None
    assert judge_of(f"{HOST}/shop/other/", guard._shapes, guard._accounts) is not None
    guard.close()


def test_a_verdict_on_a_folder_that_is_taken_back_holds_for_its_queries() -> None:
    """Sort orders that have run dry are fetched once a person has taken back the verdict on their folder."""
    guard = opened_guard()
    for number in range(30):
        fetch(guard, f"{HOST}/list/{number}", "Nothing here.", [])
        fetch(guard, f"{HOST}/list/?{prose(number, words=1)}{number}=1", "Nothing here.", [])
    url = f"{HOST}/list/?another=1"
    assert judge_of(url, guard._shapes, guard._accounts) is not None
    folder = next(one for one in guard._accounts.values() if one.shape == "example.com/list/**")
    folder.pardoned = True
    assert judge_of(url, guard._shapes, guard._accounts) is None
    guard.close()
