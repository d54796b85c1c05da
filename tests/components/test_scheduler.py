"""Our scheduler and our filter, with each other's and with Scrapy's."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from scrapy import Request, Spider, signals, version_info
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider
from scrapy.http import Response
from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.utils.test import get_crawler

from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.crawl.crawl import Crawl
from scrapy_bloom.errors import InUseError, SettingsError, UnusableError
from scrapy_bloom.links.extractor import UnseenLinks
from tests.support.engine import (
    BY_PRIORITY,
    SCRAPY_LEAVES_FILES_OPEN,
    SCRAPYS_FILTER,
    SCRAPYS_SCHEDULER,
    Engine,
    PlainSpider,
    opened,
    snapshot,
)

pytestmark = SCRAPY_LEAVES_FILES_OPEN

UNDER_SCRAPYS = {"SCHEDULER": SCRAPYS_SCHEDULER, "SCHEDULER_PRIORITY_QUEUE": BY_PRIORITY}
OVER_SCRAPYS = {"DUPEFILTER_CLASS": SCRAPYS_FILTER}
ONE, TWO = Request("http://a.example/1"), Request("http://b.example/2")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


# -- what is not filtered --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_job", [True, False])
def test_what_the_user_does_not_filter_stays_untouched(tmp_path: Path, in_job: bool) -> None:
    """A login leads back to the start page; a spider asks again for that, or for a page it does not want filtered."""
    home, login = "http://a.example/", Request("http://a.example/login", method="POST", body=b"me")
    with opened(tmp_path if in_job else None) as engine:
        assert engine.push(Request(home, dont_filter=True, meta={"is_start_request": True}), login) == [True, True]
        first = {request.url: request for request in (engine.start(), engine.start()) if request is not None}
        back = login.replace(url=home, method="GET", body=b"", meta={"redirect_urls": [login.url], "redirect_times": 1})
        assert engine.push(back) == [True]
        for request in first.values():
            engine.end(request)
        inherited = {**first[home].meta, "redirect_urls": [login.url]}
        again, other = Request(home, dont_filter=True), Request("http://a.example/poll", dont_filter=True)
        assert engine.push(again, other, other, other.replace(meta=inherited)) == [True] * 4
        assert engine.push(Request(home), Request(other.url), Request(other.url)) == [False, True, False]
        assert engine.drain().count(home) == 2


# -- start requests ----------------------------------------------------------------------------------------------------

LIST = [f"http://a.example/{n}" for n in (1, 2, 2, 3)]
OTHER_LIST = [*LIST[:3], "http://a.example/4"]


class Listed(PlainSpider):
    """Uses Scrapy's own ``start()``."""

    start_urls = LIST


class Another(Listed):
    """Has another list."""

    start_urls = OTHER_LIST


class StartsItself(Listed):
    """Yields the same requests as Scrapy's own ``start()``."""

    async def start(self) -> Any:
        for url in self.start_urls:
            yield Request(url, dont_filter=True)


class StartsAsOfOld(Listed):
    """Yields them as spiders did until Scrapy 2.12."""

    def start_requests(self) -> Any:
        return [Request(url, dont_filter=True) for url in self.start_urls]


def start_request(url: str, **others: Any) -> Request:
    return Request(url, dont_filter=True, meta={"is_start_request": True, **others})


def asked_for(job: Path, requests: Sequence[Request | str], spider: type[Spider] = Listed) -> list[bool]:
    """Return which start requests a run of the job takes in; it fetches none."""
    with opened(job, spider=spider) as engine:
        return engine.push(*(start_request(each) if isinstance(each, str) else each for each in requests))


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize(
    ("then", "are_asked_for"),
    [
        (Listed, [False, False, True, True]),
        (Another, [True, True, True, True]),
        (StartsItself, [True, True, True, True]),
        (StartsAsOfOld, [True, True, True, True]),
    ],
)
def test_a_resumed_job_goes_on_in_its_list_of_start_urls(
    tmp_path: Path, is_killed: bool, then: type[Spider], are_asked_for: list[bool]
) -> None:
    """Behind those that it has taken in, of which one may stand in the list twice. Of another list, and of a spider
    with a ``start()`` of its own, every request is asked for; and so is what a middleware puts between them.
    """
    login = start_request("http://a.example/login")
    engine = Engine(tmp_path / "job", spider=Listed)
    assert engine.push(login.copy(), *map(start_request, LIST[:2])) == [True] * 3
    engine.commit()
    job = tmp_path / "copy" if is_killed else tmp_path / "job"
    engine.killed(tmp_path / "copy")
    with opened(job, spider=then) as engine:
        before = engine.pending()
        first, *others = map(start_request, then.start_urls)  # type: ignore[attr-defined]
        assert engine.push(login.copy(), first, login.copy(), *others) == [
            True,
            are_asked_for[0],
            True,
            *are_asked_for[1:],
        ]
        assert engine.pending() == before + 2 + sum(are_asked_for)


def test_a_finished_job_begins_its_list_again(tmp_path: Path) -> None:
    """So does one that was killed before the first commit."""
    for _ in range(2):
        with opened(tmp_path / "job", spider=Listed) as engine:
            assert engine.push(*map(start_request, LIST)) == [True] * 4
            engine.drain()
    copy = Engine(tmp_path / "other", spider=Listed).killed(tmp_path / "copy")
    assert asked_for(copy, LIST) == [True] * 4


def test_a_start_url_in_memory_only_is_asked_for_again(tmp_path: Path) -> None:
    """A request that cannot be serialized is lost with the process."""
    live = start_request(LIST[1], live=lambda: None)
    assert asked_for(tmp_path, [LIST[0], live, *LIST[2:]]) == [True] * 4
    assert asked_for(tmp_path, LIST) == [False, True, False, False]


class ManyListed(PlainSpider):
    start_urls: ClassVar[list[str]] = [f"http://a.example/{n}" for n in range(1_200)]


def test_a_middleware_may_leave_out_start_urls_and_add_others(tmp_path: Path) -> None:
    """A resumed job asks for those that it has not taken in, and for none behind them."""
    urls = ManyListed.start_urls
    first, then = [*urls[:2], "data:,new", *urls[5:8], urls[1007]], [*urls[:9], "data:,new", *urls[1000:1010]]
    assert asked_for(tmp_path, first, ManyListed) == [True] * len(first)
    assert asked_for(tmp_path, then, ManyListed) == [url not in first or url == "data:,new" for url in then]
    assert asked_for(tmp_path, urls, ManyListed) == [url not in {*first, *then} for url in urls]


def test_an_unfiltered_request_of_a_page_is_none_of_the_list(tmp_path: Path) -> None:
    """Though it has the URL that is next in the list, and the meta of the start request that it was made from."""
    with opened(tmp_path, spider=Listed) as engine:
        page = engine.fetch(start_request(LIST[0]))
        engine.push_from(page, start_request(LIST[1]))
        engine.end(page)
    assert asked_for(tmp_path, LIST) == [False, True, True, True]


# -- our filter under Scrapy's scheduler -------------------------------------------------------------------------------


class InMemory(Scheduler):
    """Somebody's scheduler, which looks at no job directory."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        scheduler: Any = super().from_crawler(crawler)
        scheduler.dqdir = None
        return scheduler


@pytest.mark.parametrize(("scheduler", "error"), [(InMemory, UnusableError), (Scheduler, IsADirectoryError)])
def test_no_other_scheduler_gets_to_what_only_ours_can_read(
    tmp_path: Path, scheduler: type[Scheduler], error: type[Exception]
) -> None:
    """Pending requests of ours would be seen, and in no queue. Nothing is changed; ours goes on."""
    with opened(tmp_path) as engine:
        engine.push(ONE, TWO)
    with pytest.raises(error):
        Engine(tmp_path, {**UNDER_SCRAPYS, "SCHEDULER": scheduler})
    with opened(tmp_path) as engine:
        assert sorted(engine.drain()) == [ONE.url, TWO.url]
    with opened(tmp_path, UNDER_SCRAPYS) as engine:  # nothing is pending any more
        assert engine.push(ONE) == [False]


def test_scrapys_own_pair_is_kept_from_a_job_of_ours(tmp_path: Path) -> None:
    """Without our filter nobody of ours can refuse: the error names a directory, in which a note says what to do."""
    with opened(tmp_path) as engine:
        engine.push(ONE)
    with pytest.raises(IsADirectoryError) as caught:
        Engine(tmp_path, {**UNDER_SCRAPYS, **OVER_SCRAPYS})
    (note,) = (tmp_path / "requests.queue" / "active.json").iterdir()
    assert caught.value.filename == str(note.parent)
    assert "DurableScheduler" in note.read_text(encoding="utf-8")
    with opened(tmp_path) as engine:
        assert engine.drain() == [ONE.url]
    with opened(tmp_path, {**UNDER_SCRAPYS, **OVER_SCRAPYS}):  # the finished job has given the place back
        pass


@pytest.mark.parametrize("is_killed", [True, False])
def test_under_scrapys_scheduler_a_fingerprint_is_in_the_files_at_once(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture, is_killed: bool
) -> None:
    """Its own queue may hold the request. What was pending at a kill is lost: Scrapy says nothing of it, a WARNING of
    ours does. After a clean stop there is nothing to say.
    """
    copy = tmp_path_factory.mktemp("copies") / "copy"
    with opened(tmp_path, UNDER_SCRAPYS) as engine:
        assert engine.push(ONE, ONE) == [True, False]
        snapshot(tmp_path, copy)
    caplog.clear()
    with opened(copy if is_killed else tmp_path, UNDER_SCRAPYS) as engine:
        assert [("did not stop cleanly" in line) for line in warnings_of(caplog)] == [True] * is_killed
        assert engine.push(ONE) == [False]


# -- our scheduler over other filters ----------------------------------------------------------------------------------


def test_over_scrapys_filter_the_scheduler_works_and_warns(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests survive a kill; the other filter's fingerprints may outlive requests, and the log says so."""
    copy = tmp_path_factory.mktemp("copies") / "copy"
    with opened(tmp_path, OVER_SCRAPYS) as engine:
        assert any(SCRAPYS_FILTER in line for line in warnings_of(caplog))
        assert engine.push(ONE, ONE, TWO) == [True, False, True]
        engine.commit()
        snapshot(tmp_path, copy)
    with opened(copy, OVER_SCRAPYS) as engine:
        assert sorted(engine.drain()) == [ONE.url, TWO.url]


@pytest.mark.parametrize("in_job", [True, False])
def test_another_priority_queue_is_refused(tmp_path: Path, in_job: bool) -> None:
    """Ours has the orders of Scrapy's two, and names them."""

    class Mine(ScrapyPriorityQueue):
        pass

    with pytest.raises(SettingsError, match=r"ScrapyPriorityQueue.*DownloaderAwarePriorityQueue"):
        Engine(tmp_path if in_job else None, {"SCHEDULER_PRIORITY_QUEUE": Mine})
    with opened(tmp_path):  # nothing is left open or locked
        pass


@pytest.mark.skipif(version_info < (2, 14), reason="Scrapy 2.13 itself keeps every crawler")
def test_a_crawl_that_was_refused_is_freed(tmp_path: Path) -> None:
    """Nothing in this process refers to it any more."""
    with opened(tmp_path):
        before = sum(isinstance(thing, Crawl) for thing in gc.get_objects())
        with pytest.raises(InUseError):
            Engine(tmp_path)
        gc.collect()
        assert sum(isinstance(thing, Crawl) for thing in gc.get_objects()) <= before


def test_a_request_that_cannot_be_read_stays_for_a_later_run(tmp_path: Path) -> None:
    """A callback that the spider has lost for the moment costs no request; the others are handed out. A run that could
    not read all has not "finished".
    """

    class Renamed(Spider):
        name = "site"

    with opened(tmp_path) as engine:
        callback: Any = engine.spider.parse_other  # type: ignore[attr-defined]
        engine.push(ONE.replace(callback=callback), TWO)
    for expected in ([TWO.url], []):
        with opened(tmp_path, spider=Renamed) as engine:
            assert engine.drain() == expected
            answers = engine.crawler.signals.send_catch_log(signals.spider_idle, dont_log=CloseSpider)
            assert [answer.value.reason for _, answer in answers if answer] == ["unreadable_requests"]
    with opened(tmp_path) as engine:
        request = engine.fetch()
        assert (request.url, request.callback) == (ONE.url, engine.spider.parse_other)  # type: ignore[attr-defined]


# -- subclasses of our filter ------------------------------------------------------------------------------------------


class ByPath(BloomDupeFilter):
    """Tells URLs apart by their paths alone."""

    def fingerprint(self, request: Request) -> bytes:
        return super().fingerprint(request.replace(url=request.url.partition("?")[0]))


class ByPathInHex(BloomDupeFilter):
    def request_fingerprint(self, request: Request) -> str:
        return request.url.partition("?")[0].encode().hex()


class HasTheLastWord(BloomDupeFilter):
    def request_seen(self, request: Request) -> bool:
        return "always" not in request.url and super().request_seen(request)


class Asynchronous(BloomDupeFilter):
    async def request_seen(self, request: Request) -> bool:  # type: ignore[override]
        return super().request_seen(request)


class Asking(UnseenLinks, PlainSpider):
    """Asks about links."""

    def parse(self, response: Response) -> None:
        pass


@pytest.mark.parametrize("kind", [ByPath, ByPathInHex])
def test_an_overridden_fingerprint_is_used_for_everything(tmp_path: Path, kind: type[BloomDupeFilter]) -> None:
    """Requests, links, taking back and the key space of the job go by it; another filter is refused then."""
    settings = {"DUPEFILTER_CLASS": kind}
    with opened(tmp_path, settings, spider=Asking) as engine:
        assert engine.push(Request("http://a.example/1?x"), Request("http://a.example/1?y")) == [True, False]
        links = ["http://a.example/1?z", "http://a.example/2"]
        assert list(engine.spider.unseen_links(links)) == links[1:]  # type: ignore[attr-defined]
        engine.scheduler.df.forget(Request("http://a.example/1?forget"))
        assert engine.push(Request("http://a.example/1?x")) == [True]
    with pytest.raises(UnusableError, match=kind.__name__):
        Engine(tmp_path)
    with opened(tmp_path, settings) as engine:
        assert len(engine.drain()) == 2


def test_a_filter_that_decides_by_itself_lets_all_links_pass() -> None:
    """Only it knows the answer, so that a link which it would let through is not dropped before."""
    with opened(None, {"DUPEFILTER_CLASS": HasTheLastWord}, spider=Asking) as engine:
        links = ["http://a.example/always", "http://a.example/once"]
        for _ in range(2):
            assert list(engine.spider.unseen_links(links)) == links  # type: ignore[attr-defined]
            engine.push(*map(Request, links))
        assert engine.stat("scheduler/enqueued") == 3


def test_an_asynchronous_request_seen_is_refused() -> None:
    """Scrapy would take the coroutine for True, and drop every request."""
    with pytest.raises(SettingsError, match="Asynchronous"):
        Engine(None, {"DUPEFILTER_CLASS": Asynchronous})


# -- no crawl ----------------------------------------------------------------------------------------------------------


def test_a_filter_works_without_a_crawl(tmp_path: Path) -> None:
    """Schedulers of others build it from a crawler without a spider, and may never open it."""
    for _ in range(2):
        crawler = get_crawler(settings_dict={"JOBDIR": str(tmp_path)})
        dupefilter = BloomDupeFilter.from_crawler(crawler)
        found = [dupefilter.request_seen(ONE), dupefilter.request_seen(ONE)]
        dupefilter.close("finished")
    assert found == [True, True]  # it is in the files


def test_the_telnet_console_counts_what_is_pending(tmp_path: Path) -> None:
    """Scrapy's console asks for the two queues of its own scheduler."""
    in_memory = Request("http://a.example/memory", meta={"live": lambda: None})
    for jobdir, counts in ((tmp_path, [2, 1]), (None, [0, 3])):
        with opened(jobdir) as engine:
            engine.push(ONE, TWO, in_memory)
            assert [len(engine.scheduler.dqs or []), len(engine.scheduler.mqs)] == counts
            engine.drain()
