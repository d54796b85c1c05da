"""What is parked is tried: as it comes up, as the crawl grows, and before it ends."""

from __future__ import annotations

from scrapy import Request
from scrapy.http import HtmlResponse

from scrapy_bloom.loops.account import DRY, DRY_SOON, Account
from scrapy_bloom.loops.guard import FIRST_TRIES, FOR_NEWS, LAST_TRIES, TRIED_FOR, LoopGuard
from tests.support.guarding import fetch, opened_guard
from tests.support.loopsite import prose

LIST = "http://example.com/list"


def guard_with_parked(count: int) -> tuple[LoopGuard, list[Request]]:
    """Return a guard under which ``/list/N`` has run dry and *count* requests are parked, and the list of those that
    it sends back."""
    guard = opened_guard()
    sent_back: list[Request] = []
    guard.sends_back_by(sent_back.append)
    for number in range(DRY):
        fetch(guard, f"{LIST}/{number}", "Nothing here.", [])
    number = DRY
    while guard._lot is not None and guard._lot.waiting.total() < count:
        request = Request(f"{LIST}/{number}")
        guard.queued(request)
        guard.out_of_queue(request)
        number += 1
    return guard, sent_back


def test_before_the_crawl_ends_some_are_tried_and_then_no_more() -> None:
    """With nothing else left, one parked request of the shape is fetched, then another, and then the crawl ends."""
    guard, sent_back = guard_with_parked(10)
    for _ in range(LAST_TRIES):
        assert guard.release_all_due() == 1
        assert not guard.out_of_queue(sent_back[-1])
        guard.saw(HtmlResponse(sent_back[-1].url, body=b"<p>Nothing here.</p>"), sent_back[-1])
    assert guard.release_all_due() == 0
    guard.close()


def test_news_of_the_last_try_release_the_others() -> None:
    """If what is tried at the end brings something, the others of its shape come back."""
    guard, sent_back = guard_with_parked(10)
    assert guard.release_all_due() == 1
    (tried,) = sent_back
    assert not guard.out_of_queue(tried)
    guard.saw(HtmlResponse(tried.url, body=f"<p>{prose(1)}</p>".encode()), tried)
    assert len(sent_back) == 10
    guard.close()


def test_each_page_with_news_releases_a_few() -> None:
    """A page with news brings FOR_NEWS of its shape back to the queue, and each of these that brings news as many
    again; those that bring nothing release no more."""
    guard, sent_back = guard_with_parked(100)
    before = 0
    for number, has_news in enumerate((True, False, True)):
        page = Request(f"{LIST}/{1000 + number}")
        body = prose(number) if has_news else "Nothing here."
        guard.saw(HtmlResponse(page.url, body=f"<p>{body}</p>".encode()), page)
        assert len(sent_back) - before == (FOR_NEWS if has_news else 0)
        before = len(sent_back)
    guard.close()


def test_a_crawl_that_goes_on_tries_now_and_then() -> None:
    """In a crawl that always has better things to do, what is parked is still tried, ever more seldom."""
    guard, sent_back = guard_with_parked(20)
    tries = []
    for number in range(DRY + 1, 4 * FIRST_TRIES + 2):
        page = Request(f"http://example.com/news/{number}")
        guard.saw(HtmlResponse(page.url, body=f"<p>{prose(number)}</p>".encode()), page)
        if len(sent_back) > len(tries):
            tries.append(number)
            assert TRIED_FOR in sent_back[-1].meta
    assert tries == [FIRST_TRIES, 4 * FIRST_TRIES]
    guard.close()


def test_a_shape_that_has_run_dry_before_needs_fewer_pages() -> None:
    """After a verdict and then news, DRY_SOON pages without any are enough."""
    account = Account(1, "example.com/list/N")
    for _ in range(DRY):
        assert not account.is_dry
        account.note(is_news=False)
    assert account.is_dry
    account.has_run_dry = True
    account.note(is_news=True)
    for _ in range(DRY_SOON):
        assert not account.is_dry
        account.note(is_news=False)
    assert account.is_dry
