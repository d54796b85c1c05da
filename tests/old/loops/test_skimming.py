"""Pages with titles of their own are not read while nothing in the crawl goes in circles, and no page is lost by it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from scrapy import Request
from scrapy.http import HtmlResponse

from scrapy_bloom import ScalableBloomFilter
from scrapy_bloom.old.loops.account import DRY
from scrapy_bloom.old.loops.guard import FOR_NEWS
from scrapy_bloom.old.loops.judging import number_of
from scrapy_bloom.old.loops.news import News
from scrapy_bloom.old.loops.skimming import FIRST_PAGES, KEPT, LONGEST, READ_ONE_OF, Skimming
from tests.old.support.guarding import come_back, opened_guard, queue_links
from tests.old.support.loopsite import prose

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy_bloom.old.loops.guard import LoopGuard

SITE = "http://example.com"


def name(key: object) -> str:
    """Return a title that no other *key* has, too short to be news by itself."""
    digest = hashlib.sha256(str(key).encode()).hexdigest()[:12]
    return f"About {digest.translate(str.maketrans('0123456789', 'ghijklmnop'))}"


def skimmed(guard: LoopGuard) -> int:
    count: int = guard._stats.get_value("bloom/loop/skimmed", 0)
    return count


def show(guard: LoopGuard, path: str, text: str, title: str) -> Request:
    request = Request(f"{SITE}{path}")
    guard.queued(request)
    come_back(guard, request, text, title)
    return request


def show_pages(guard: LoopGuard, count: int, folder: str = "docs") -> list[int]:
    """Show so many pages, and return the numbers of those that were skimmed."""
    unread = []
    for number in range(count):
        before = skimmed(guard)
        show(guard, f"/{folder}/{number}", prose(f"{folder} {number}"), name(number))
        if skimmed(guard) > before:
            unread.append(number)
    return unread


def page(title: str, text: str) -> HtmlResponse:
    html = f"<html><head><title>{title}</title></head><body><p>{text}</p></body></html>"
    return HtmlResponse(f"{SITE}/page", body=html.encode(), encoding="utf-8")


def test_one_page_of_four_is_read_where_titles_are_new() -> None:
    guard = opened_guard()
    show_pages(guard, FIRST_PAGES + 10 * READ_ONE_OF)
    assert skimmed(guard) == 10 * (READ_ONE_OF - 1)


@pytest.mark.parametrize(
    ("path", "title"),
    [
        pytest.param("/docs/{}", "A shop for everything", id="the same title"),
        pytest.param("/docs/{}", "Page {}", id="titles that differ by a number"),
        pytest.param("/docs/{}", "", id="no title"),
        pytest.param("/docs/?id={}", "{name}", id="with a query"),
    ],
)
def test_other_pages_are_read(path: str, title: str) -> None:
    guard = opened_guard()
    for number in range(100):
        show(guard, path.format(number), prose(number), title.format(number, name=name(number)))
    assert skimmed(guard) == 0


def test_long_pages_are_read() -> None:
    guard = opened_guard()
    for number in range(50):
        show(guard, f"/docs/{number}", prose(number) * (LONGEST // len(prose(number)) + 1), name(number))
    assert skimmed(guard) == 0


def test_a_kind_that_has_nothing_but_new_titles_runs_dry_soon() -> None:
    """It is noticed with the first of its pages that is read; from then on they all are."""
    guard = opened_guard()
    show_pages(guard, 100)
    pages = 0
    while not guard._is_dry(number_of("example.com/forms/N")):
        show(guard, f"/forms/{pages}", "Fill in this form.", name(f"form {pages}"))
        pages += 1
        assert pages <= 2 * READ_ONE_OF + DRY  # the first one that is read shows the form, which is new
    assert pages >= DRY


def test_nothing_is_skimmed_after_a_verdict(tmp_path: Path) -> None:
    """Neither in this run nor in a later one."""
    guard = opened_guard(tmp_path)
    for number in range(DRY + 1):
        show(guard, f"/forms/{number}", "Fill in this form.", "")
    show_pages(guard, 300)  # few of the last pages are barren
    before = skimmed(guard)
    assert before > 0
    next_one = Request(f"{SITE}/forms/{DRY + 1}")
    guard.queued(next_one)
    guard.out_of_queue(next_one)
    assert guard._stats.get_value("bloom/loop/verdicts") == 1
    show_pages(guard, 100, "more")
    assert skimmed(guard) == before
    guard.close()
    resumed = opened_guard(tmp_path)
    show_pages(resumed, 100, "later")
    assert skimmed(resumed) == 0
    resumed.close()


def test_nothing_is_skimmed_where_one_page_in_five_brings_nothing() -> None:
    guard = opened_guard()
    show_pages(guard, 100)
    for number in range(200):
        show(guard, f"/mixed/{number}", prose(number if number % 5 else "the same"), "")
    before = skimmed(guard)
    for number in range(20):
        show(guard, f"/good/{number}", prose(f"good {number}"), name(f"good {number}"))
    assert skimmed(guard) == before


def test_a_page_that_leads_to_new_ones_is_read_after_all() -> None:
    """Its copies are known then. Those of a page that leads to nothing new are not: of the first nothing is said."""
    guard = opened_guard()
    show_pages(guard, FIRST_PAGES + 1)  # the next ones are not read
    assert guard._news is not None
    listing = show(guard, "/docs/list", prose("list"), name("list"))
    leaf = show(guard, "/docs/leaf", prose("leaf"), name("leaf"))
    assert skimmed(guard) == 2
    queue_links(guard, listing, [f"{SITE}/docs/item"])
    queue_links(guard, leaf, [])
    assert guard._news.brought(page(name("list"), prose("list"))) is False
    assert guard._news.brought(page(name("leaf"), prose("leaf"))) is None
    assert guard._news.brought(page(name("leaf"), prose("leaf"))) is False


def test_copies_of_skimmed_pages_run_dry() -> None:
    """Sessions in the path: each page once more, with its title. Most of the originals have not been read."""
    guard = opened_guard()
    show_pages(guard, 400)
    assert skimmed(guard) > 250
    pages = 0
    while not guard._is_dry(number_of("example.com/HASH/docs/N")):
        show(guard, f"/{pages + 0xA1B2C3D4E5:x}/docs/{pages}", prose(f"docs {pages}"), name(pages))
        pages += 1
        assert pages <= READ_ONE_OF * (DRY + 1)
    assert pages >= DRY


def test_translations_with_the_same_titles_are_never_parked() -> None:
    """Another text under the title of a page that was skimmed says nothing once, and is news from then on."""
    guard = opened_guard()
    show_pages(guard, 400)
    for language in ("de", "fr"):
        for number in range(400):
            show(guard, f"/{language}/{number}", prose(f"{language} {number}"), name(number))
            request = Request(f"{SITE}/{language}/{number}0000")
            guard.queued(request)
            assert not guard.out_of_queue(request)
    french = guard._accounts[number_of("example.com/fr/N")]
    assert french.fetched == 400
    assert guard._stats.get_value("bloom/loop/verdicts", 0) == 0


def test_a_list_of_translations_goes_on() -> None:
    """It brings nothing but what it leads to, and of that it cannot be told yet whether it is news."""
    guard = opened_guard()
    unread = iter(show_pages(guard, 400))
    for number in range(2 * DRY):
        links = [f"{SITE}/de/{number}0{item}" for item in range(5)]
        listing = show(guard, f"/de/list/{number}", "A list.", "")
        for request in queue_links(guard, listing, links):
            come_back(guard, request, prose(request.url), name(next(unread)))
        assert not guard._is_dry(number_of("example.com/de/list/N"))


def test_a_try_in_doubt_releases_others() -> None:
    """Of stubs and translations, the stubs run dry; a translation that is tried then may be news."""
    guard = opened_guard()
    unread = iter(show_pages(guard, 100))
    sent_back: list[Request] = []
    guard.sends_back_by(sent_back.append)
    for number in range(DRY):
        show(guard, f"/de/{number}", "Not yet translated.", "")
    for number in range(DRY, 3 * DRY):
        request = Request(f"{SITE}/de/{number}")
        guard.queued(request)
        guard.out_of_queue(request)
    assert guard.release_all_due() == 1
    (tried,) = sent_back
    assert not guard.out_of_queue(tried)
    come_back(guard, tried, prose("de"), name(next(unread)))
    assert guard._stats.get_value("bloom/loop/released") == FOR_NEWS


def test_what_is_skimmed_may_be_fetched_again(tmp_path: Path) -> None:
    """Pages that a later run shows once more are no copies of others, read or not."""
    guard = opened_guard(tmp_path)
    assert show_pages(guard, 200)
    guard.close()
    resumed = opened_guard(tmp_path)
    show_pages(resumed, 200)
    assert resumed._accounts[number_of("example.com/docs/N")].dry == 0
    resumed.close()


def test_a_title_is_forgiven_once() -> None:
    news = News(ScalableBloomFilter(10_000, 1e-3))
    assert news.skim(page("The first of them", prose(1)))
    assert not news.skim(page("The first of them", prose(2)))
    assert news.brought(page("The first of them", prose(3))) is None
    assert news.brought(page("The first of them", prose(4))) is True
    assert news.brought(page("Another of them", prose(5))) is True
    assert not news.skim(page("Another of them", prose(6)))


def test_a_bounded_number_of_pages_is_kept() -> None:
    skimming = Skimming()
    for number in range(3 * KEPT):
        skimming.keep(f"{SITE}/{number}", b"body")
        if number % 2:
            skimming.links_begin(f"{SITE}/{number}", (number, 1))
    found = [skimming.leads_on((number, 1)) for number in range(3 * KEPT)]
    assert sum(one is not None for one in found) == KEPT
    assert len(skimming._unread) <= KEPT
    assert found[-1] == (f"{SITE}/{3 * KEPT - 1}", b"body")
