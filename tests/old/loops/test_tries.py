"""What is parked is tried: as it comes up, as the crawl grows, and before it ends."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from scrapy import Request

from scrapy_bloom.old.loops.account import DRY, DRY_SOON, RECENTLY, Account
from scrapy_bloom.old.loops.guard import FIRST_TRIES, FOR_NEWS, LAST_TRIES, LOST, TRIED_FOR, LoopGuard
from scrapy_bloom.old.loops.judging import number_of
from tests.old.support.guarding import come_back, fetch, opened_guard
from tests.old.support.loopsite import prose

if TYPE_CHECKING:
    from pathlib import Path

LIST = "http://example.com/list"


def guard_with_parked(count: int, links: int = 0, jobdir: Path | None = None) -> tuple[LoopGuard, list[Request]]:
    """Return a guard under which ``/list/N`` has run dry and *count* requests are parked, and the list of those that
    it sends back. Each of the pages had so many *links* to others of the list."""
    guard = opened_guard(jobdir)
    sent_back: list[Request] = []
    guard.sends_back_by(sent_back.append)
    for number in range(DRY):
        fetch(guard, f"{LIST}/{number}", "Nothing here.", [f"{LIST}/{number}000{link}" for link in range(links)])
    number = DRY
    while guard._lot is not None and guard._lot.waiting.total() < count:
        request = Request(f"{LIST}/{number}")
        guard.queued(request)
        if not guard.out_of_queue(request):
            come_back(guard, request, "Nothing here.")
        number += 1
    return guard, sent_back


def number_in(request: Request) -> int:
    return int(request.url.rpartition("/")[2])


def test_before_the_crawl_ends_some_are_tried_and_then_no_more() -> None:
    """With nothing else left, one parked request of the shape is fetched, then another, and then the crawl ends."""
    guard, sent_back = guard_with_parked(10)
    for _ in range(LAST_TRIES):
        assert guard.release_all_due() == 1
        assert not guard.out_of_queue(sent_back[-1])
        come_back(guard, sent_back[-1], "Nothing here.")
    assert guard.release_all_due() == 0
    guard.close()


@pytest.mark.parametrize("has_jobdir", [False, True], ids=["in memory", "with JOBDIR"])
def test_the_last_tries_are_not_those_that_were_parked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_jobdir: bool
) -> None:
    """What is tried before the end is any of what is parked: the first hundred may all be of a maze, which a better
    section was parked with. The others still come back in the order in which they were parked."""
    monkeypatch.setattr("random.randrange", random.Random(1).randrange)
    guard, sent_back = guard_with_parked(100, jobdir=tmp_path if has_jobdir else None)
    for _ in range(LAST_TRIES):
        assert guard.release_all_due() == 1
    tried = [number_in(request) for request in sent_back]
    assert tried != sorted(tried)
    assert max(tried) > DRY + 60  # beyond the first half, where one draw in 256 leaves all of them
    come_back(guard, sent_back.pop(), prose(1))
    while guard.release_all_due():
        pass
    rest = [number_in(request) for request in sent_back[LAST_TRIES - 1 :]]
    assert rest == sorted(rest)
    assert len({*tried, *rest}) == 100
    guard.close()


def test_news_of_the_last_try_release_the_others() -> None:
    """If what is tried at the end brings something, FOR_NEWS others of its shape come back, and then the rest."""
    guard, sent_back = guard_with_parked(10)
    assert guard.release_all_due() == 1
    (tried,) = sent_back
    assert not guard.out_of_queue(tried)
    come_back(guard, tried, prose(1))
    assert len(sent_back) == 1 + FOR_NEWS
    assert guard.release_all_due() == 9 - FOR_NEWS
    assert len(sent_back) == 10
    guard.close()


def test_each_page_with_news_releases_a_few() -> None:
    """A page with news brings FOR_NEWS of its shape back to the queue, and each of these that brings news as many
    again; those that bring nothing release no more."""
    guard, sent_back = guard_with_parked(100)
    before = 0
    for number, has_news in enumerate((True, False, True)):
        come_back(guard, Request(f"{LIST}/{1000 + number}"), prose(number) if has_news else "Nothing here.")
        assert len(sent_back) - before == (FOR_NEWS if has_news else 0)
        before = len(sent_back)
    guard.close()


def handed_out(guard: LoopGuard, requests: list[Request]) -> list[Request]:
    return [request for request in requests if not guard.out_of_queue(request) and TRIED_FOR not in request.meta]


def guard_with_some_under_way(
    jobdir: Path | None = None, links: int = 8
) -> tuple[LoopGuard, list[Request], list[Request]]:
    """Return a guard whose shape has run dry and then brought something, the requests that have been handed out since,
    and the list of those that it sends back: everything else is parked."""
    guard, sent_back = guard_with_parked(100, links, jobdir)
    come_back(guard, Request(f"{LIST}/1000"), prose(1))
    coming = sent_back[:]
    sent_back.clear()
    for number in range(2000, 2020):
        coming.append(Request(f"{LIST}/{number}"))
        guard.queued(coming[-1])
    return guard, handed_out(guard, coming), sent_back


def test_no_more_are_under_way_than_may_bring_nothing() -> None:
    """Of a shape that breeds, has run dry and then brought something, DRY_SOON requests are handed out before the first
    of them has come back, and none after they have all brought nothing."""
    guard, under_way, sent_back = guard_with_some_under_way()
    assert len(under_way) == DRY_SOON
    for request in under_way:
        come_back(guard, request, "Nothing here.")
    assert not sent_back
    more = [Request(f"{LIST}/{number}") for number in range(3000, 3010)]
    for request in more:
        guard.queued(request)
    assert not handed_out(guard, more)
    guard.close()


@pytest.mark.parametrize("resumes", [False, True], ids=["one run", "resumed"])
def test_a_shape_that_bred_waits_when_its_links_have_all_been_found(tmp_path: Path, resumes: bool) -> None:
    """A shape bred when it ran dry. Its next 200 pages link to nothing new, and the last of them bring something now
    and then: still no more than DRY_SOON are under way."""
    guard, _ = guard_with_parked(100, links=8, jobdir=tmp_path)
    if resumes:
        guard.close()
        guard = opened_guard(tmp_path)
    for number in range(200):
        has_news = number < 100 or number % 4 == 0
        come_back(guard, Request(f"{LIST}/{1000 + number}"), prose(number) if has_news else "Nothing here.")
    come_back(guard, Request(f"{LIST}/1500"), prose(500))
    coming = [Request(f"{LIST}/{number}") for number in range(2000, 2020)]
    for request in coming:
        guard.queued(request)
    assert len(handed_out(guard, coming)) == DRY_SOON
    guard.close()


def test_a_list_does_not_wait_for_its_pages() -> None:
    """A shape that does not breed is fetched on without waiting, though it has run dry before."""
    _, under_way, _ = guard_with_some_under_way(links=0)
    assert len(under_way) > 2 * DRY_SOON


def test_what_comes_back_with_news_makes_room() -> None:
    """Each that brings something lets in as many as keep DRY_SOON under way. Once most have, all that is parked
    follows."""
    guard, under_way, sent_back = guard_with_some_under_way()
    for turn in range(RECENTLY * 4):
        come_back(guard, under_way.pop(0), prose(turn, 2))
        under_way += handed_out(guard, sent_back)
        sent_back.clear()
        if turn < RECENTLY / 4:
            assert len(under_way) == DRY_SOON
    assert guard._lot is not None
    assert not guard._lot.waiting.total()
    guard.close()


def test_pages_of_a_good_kind_do_not_use_up_the_room_of_others() -> None:
    """In a folder that has run dry and then brought something, items whose own kind has always brought something are
    under way, as many as there are. What is unknown is fetched beside them."""
    guard = opened_guard()
    for number in range(5):
        fetch(guard, f"{LIST}/item/{number}", prose(number), [])
    for number in range(DRY + 5):
        name = f"{LIST}/{chr(97 + number % 26)}{number // 26}x"
        fetch(guard, name, "Nothing here.", [f"{name}/{link}" for link in range(8)])
    unknown = Request(f"{LIST}/unknown/")
    guard.queued(unknown)
    guard.out_of_queue(unknown)
    assert guard._accounts[number_of("example.com/list/**")].has_run_dry
    fetch(guard, f"{LIST}/item/5", prose(5), [])
    items = [Request(f"{LIST}/item/{number}") for number in range(10, 30)]
    others = [Request(f"{LIST}/other{name}/") for name in "abc"]
    for request in (*items, *others):
        guard.queued(request)
    assert handed_out(guard, items) == items
    assert handed_out(guard, others) == others
    guard.close()


def test_what_a_redirect_leads_to_takes_the_place_of_its_origin() -> None:
    """Requests that are redirected to other URLs of their shape are fetched, though all places are taken by their
    origins, and are under way no longer when they have come back."""
    guard, under_way, _ = guard_with_some_under_way()
    shape = guard._accounts[number_of("example.com/list/N")]
    redirected = [
        Request(f"{request.url}/new", meta={**request.meta, "redirect_urls": [request.url]}) for request in under_way
    ]
    for request in redirected:
        guard.queued(request)
        assert not guard.out_of_queue(request)
        assert len(shape.under_way) <= DRY_SOON
    for request in redirected:
        come_back(guard, request, "Nothing here.")
    assert not shape.under_way
    guard.close()


def test_answers_that_never_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that fail are never seen again. LOST pages later others of their shape are released."""
    monkeypatch.setattr("scrapy_bloom.old.loops.guard.SAVE_INTERVAL", 0.0)
    guard, _, sent_back = guard_with_some_under_way()
    pages = 0
    while not sent_back:
        pages += 1
        come_back(guard, Request(f"http://example.com/news/{pages}"), prose(pages))
    assert pages <= LOST
    assert len(handed_out(guard, sent_back)) == DRY_SOON
    guard.close()


def test_the_next_run_does_not_wait_for_answers_of_this_one(tmp_path: Path) -> None:
    """A run ends while pages of a shape that has brought something are under way. The next one fetches some of what is
    parked for it at once."""
    guard, _, _ = guard_with_some_under_way(tmp_path)
    guard.close()
    guard = opened_guard(tmp_path)
    sent_back: list[Request] = []
    guard.sends_back_by(sent_back.append)
    assert len(handed_out(guard, sent_back)) == DRY_SOON
    guard.close()


def test_answers_that_never_come_do_not_end_the_crawl() -> None:
    """When nothing is under way any more, what is parked for a shape with news is fetched, whatever has failed."""
    guard, _, sent_back = guard_with_some_under_way()
    assert guard.release_all_due() > DRY_SOON
    assert len(handed_out(guard, sent_back)) == DRY_SOON
    guard.close()


def test_a_crawl_that_goes_on_tries_now_and_then() -> None:
    """In a crawl that always has better things to do, what is parked is still tried, ever more seldom."""
    guard, sent_back = guard_with_parked(20)
    tries = []
    for number in range(guard._pages + 1, 4 * FIRST_TRIES + 2):
        come_back(guard, Request(f"http://example.com/news/{number}"), prose(number))
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
