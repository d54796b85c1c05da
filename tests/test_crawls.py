"""Real crawls of a site on loopback, with the add-on's one line: to the end, interrupted, killed and resumed."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from scrapy import crawler as scrapys
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider
from typing_extensions import Self

from scrapy_bloom.commands.info import info
from scrapy_bloom.job.inspect import JobInfo, inspect_job
from tests.support.crawls import ADDON, Pages, Site, crawl, start, tree
from tests.support.engine import BY_HOST, wait_for_job

PAGES = 40
ALL = {"/"} | {f"/{n}" for n in range(1, PAGES + 1)}


@pytest.mark.parametrize("in_job", [True, False])
def test_each_page_is_fetched_once(tmp_path: Path, in_job: bool) -> None:
    """With a job directory and without one, a crawl asks for each page once, and has Scrapy's stats and reasons."""
    settings: dict[str, Any] = {**ADDON, "JOBDIR": str(tmp_path / "job") if in_job else None}
    with Site(tree(PAGES)) as site:
        outcome = crawl(site, tmp_path, settings)
        assert site.hits.keys() == ALL
        assert set(site.hits.values()) == {1}
    stats = outcome.stats
    assert stats["finish_reason"] == "finished"
    assert stats["scheduler/enqueued"] == stats["scheduler/dequeued"] == len(ALL)
    assert stats[f"scheduler/enqueued/{'disk' if in_job else 'memory'}"] == len(ALL)
    assert stats["dupefilter/filtered"] == PAGES
    assert stats["bloom/urls"] >= len(ALL) - 1  # the start request is not filtered
    assert not outcome.lines("ERROR") + outcome.lines("CRITICAL")


HELD = ["/held-1", "/held-2", "/held-3"]


def held_in_the_middle() -> Pages:
    """A site of which three pages answer only when they are released."""
    return {**tree(PAGES), "/2": ["/3", *HELD, "/5", "/6"], **{each: ["/4"] for each in HELD}}


@pytest.mark.parametrize("without_reactor", [False, True], ids=["reactor", "asyncio"])
def test_a_killed_crawl_is_resumed(tmp_path: Path, without_reactor: bool) -> None:
    """After SIGKILL every page is fetched, the start page once, and ``spider.state`` is that of the last commit.

    Without a Twisted reactor, too.
    """
    if without_reactor and not hasattr(scrapys, "AsyncCrawlerProcess"):
        pytest.skip("this Scrapy has no crawls without a reactor")
    items = tmp_path / "items.jl"
    settings = {**ADDON, "JOBDIR": str(tmp_path / "job"), "FEEDS": {str(items): {"format": "jl"}}}
    with Site(held_in_the_middle()) as site:
        three = {**settings, "CONCURRENT_REQUESTS": len(HELD)}
        running = start(site, tmp_path, three, without_reactor=without_reactor)
        done = wait_for_job(tmp_path / "job", lambda info: holds_all(info, site.order)).feeds[0].items
        running.signal(signal.SIGKILL)
        assert running.finish().code == -signal.SIGKILL
        site.release.set()
        outcome = crawl(site, tmp_path, settings, without_reactor=without_reactor)
        assert site.hits == dict.fromkeys(ALL, 1) | dict.fromkeys(HELD, 2)
        urls = [json.loads(line)["url"].removeprefix(site.url) for line in items.read_text().splitlines()]
    assert sorted(urls) == sorted(ALL | set(HELD))
    assert outcome.state == {"pages": done}
    assert outcome.stats["bloom/frontier/in_flight"] == len(HELD)
    assert len(outcome.lines("WARNING")) == 1
    assert not outcome.lines("ERROR") + outcome.lines("CRITICAL")


def holds_all(info: JobInfo, asked: list[str]) -> bool:
    """Return whether a commit has the items of all pages that were *asked* for, but the three that are held."""
    return {*HELD} <= {*asked} and [feed.items for feed in info.feeds] == [len(asked) - len(HELD)]


def test_a_crawl_interrupted_with_ctrl_c_is_resumed(tmp_path: Path) -> None:
    """Ctrl-C stops cleanly: what is in flight is fetched, nothing twice, and the next run goes on with the rest."""
    settings = {**ADDON, "JOBDIR": str(tmp_path / "job")}
    with Site(held_in_the_middle()) as site:
        running = start(site, tmp_path, {**settings, "CONCURRENT_REQUESTS": 1})
        site.wait_for(HELD[-1])
        running.signal(signal.SIGINT)
        site.release.set()
        outcome = running.finish()
        assert (outcome.code, outcome.stats["finish_reason"]) == (0, "shutdown")
        assert outcome.stats["bloom/frontier/pending"] > 0
        assert inspect_job(tmp_path / "job").state.clean
        outcome = crawl(site, tmp_path, settings)
        assert site.hits == dict.fromkeys(ALL | set(HELD), 1)
    assert "bloom/frontier/recovered" not in outcome.stats
    assert not outcome.lines("WARNING")


LEADS_ASTRAY: Pages = {
    "/go": "/landing",
    "/landing": ["/go", "/landing", "/a", "/old", "/loop", "/there"],
    "/a": ["/go", "/landing", "/new"],
    "/old": "/new",
    "/new": ["/landing"],
    "/loop": "/loop",
    "/there": "/back",
    "/back": "/there",
}


def test_start_pages_and_redirects_are_fetched_as_often_as_by_scrapy(tmp_path: Path) -> None:
    """A start page is not recorded, and a link leads there once more. What it is redirected to is not recorded either.
    The target of a link's redirect is filtered, so a page that redirects to itself is not asked for again.
    """
    kinds: list[dict[str, Any]] = [
        {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"},
        {**ADDON, "JOBDIR": str(tmp_path / "job")},
        ADDON,
        {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"},
    ]
    hits = []
    for settings in kinds:
        with Site(LEADS_ASTRAY) as site:
            crawl(site, tmp_path, {**settings, "START": ["/go"], "CONCURRENT_REQUESTS": 1})
            hits.append(site.hits)
    assert hits == hits[:1] * len(kinds)
    assert (hits[0]["/go"], hits[0]["/loop"]) == (2, 1)


FAILING: Pages = {
    "/": ["/ok", "/status", "/gone", "/hang-up", "/raises", "/redirect", "/missing", "/refused"],
    "/ok": [],
    "/status": 503,
    "/gone": 404,
    "/hang-up": 0,
    "/raises": [],
    "/redirect": "/status-behind",
    "/status-behind": 503,
    "/missing": "/ok",
    "/robots.txt": "/robots-moved.txt",
    "/robots-moved.txt": b"User-agent: *\nDisallow: /refused",
}
REASONS = {"/status": "503", "/hang-up": "", "/raises": "RuntimeError", "/status-behind": "503"}


@pytest.mark.parametrize("forget", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_failed_requests_are_listed_and_may_be_tried_again(tmp_path: Path, forget: bool) -> None:
    """No response, a status of RETRY_HTTP_CODES, a callback that raised, whose items are in the feed; not a retry or
    redirect that went well, nor what robots.txt refused, nor what never was in the queue, such as that file.

    They are listed after a kill, too. With ``BLOOM_FORGET_FAILED`` a later link leads there again.
    """
    items = tmp_path / "items.jl"
    settings = {**ADDON, "JOBDIR": str(tmp_path / "job"), "BLOOM_FORGET_FAILED": forget, "ROBOTSTXT_OBEY": True}
    pages = {**FAILING, "/": [*FAILING["/"], "/held"], "/held": []}  # type: ignore[misc]
    with Site(pages) as site:
        running = start(site, tmp_path, {**settings, "FEEDS": {str(items): {"format": "jl"}}})
        failed = wait_for_job(tmp_path / "job", lambda info: len(info.failed) >= len(REASONS)).failed
        listed = {each.url: each.reason for each in failed}
        running.signal(signal.SIGKILL)
        running.finish()
        assert {url.removeprefix(site.url) for url in listed} == REASONS.keys()
        assert {
            url: reason for url, reason in listed.items() if REASONS[url.removeprefix(site.url)] not in reason
        } == {}
        assert "no response" not in listed.values()  # but the name of the exception
        assert min(site.hits["/status"], site.hits["/hang-up"]) >= 2  # they were retried
        site.release.set()
        outcome = crawl(site, tmp_path, settings)
        assert [json.loads(line)["url"] for line in items.read_text().splitlines()].count(f"{site.url}/raises") == 1
        assert outcome.stats.get("bloom/failed") is None
        site.forget_hits()
        crawl(site, tmp_path, settings)
        again = {each for each in site.hits if each != "/" and "robots" not in each}
        assert again == ({*REASONS, "/redirect"} if forget else set())


@pytest.mark.slow
def test_a_host_gets_as_many_pages_as_it_may(tmp_path: Path) -> None:
    """What it has more stays in the queue, listed, and is fetched when the limit is raised or gone. In memory, the same
    number is fetched."""
    limit = {**ADDON, "SCHEDULER_PRIORITY_QUEUE": BY_HOST, "BLOOM_PAGES_PER_HOST": 10}
    settings = {**limit, "JOBDIR": str(tmp_path / "job")}
    with Site(tree(PAGES)) as site:
        outcome = crawl(site, tmp_path, settings)
        left = outcome.stats["bloom/hosts/left"]
        assert (sum(site.hits.values()), outcome.stats["bloom/hosts/full"]) == (10, 1)
        assert outcome.stats["finish_reason"] == "finished"
        full = {"host": "127.0.0.1", "pending": left, "pages": 10, "limit": 10}
        assert info(settings["JOBDIR"])["pending_by_full_host"] == [full]
        for raised, expected in (({"*": 1, "127.0.0.1": 25}, 25), (None, len(ALL))):
            crawl(site, tmp_path, {**settings, "BLOOM_PAGES_PER_HOST": raised})
            assert sum(site.hits.values()) == expected
        assert site.hits == dict.fromkeys(ALL, 1)
        assert info(settings["JOBDIR"])["pending_by_full_host"] == []
        site.forget_hits()
        outcome = crawl(site, tmp_path, limit)
        left = outcome.stats["scheduler/enqueued"] - outcome.stats["scheduler/dequeued"]
        assert (sum(site.hits.values()), outcome.stats["bloom/hosts/left"]) == (10, left)
        assert left > 0
        site.pages = {"/": sorted(ALL), **dict.fromkeys(ALL - {"/"}, 503)}
        assert crawl(site, tmp_path, limit).log.count("has its 10 pages") == 1


def test_pages_older_than_the_maximum_age_are_fetched_again(tmp_path: Path) -> None:
    """A crawl with ``BLOOM_MAX_AGE`` fetches what it fetched longer ago, and nothing younger."""
    settings = {**ADDON, "JOBDIR": str(tmp_path / "job"), "BLOOM_MAX_AGE": "1d"}
    with Site({"/": ["/a"], "/a": []}) as site:
        for _ in range(2):
            crawl(site, tmp_path, settings)
        assert site.hits == {"/": 2, "/a": 1}
        crawl(site, tmp_path, {**settings, "DAYS_LATER": 2})
        assert site.hits == {"/": 3, "/a": 2}


def test_a_job_that_begins_anew_and_ends_at_once_loses_no_start_url(tmp_path: Path) -> None:
    """A finished job is begun again, and its crawl is closed before it has asked for anything."""
    urls = ["/0", "/1"]
    with Site({url: [] for url in urls}) as site:
        settings = {**ADDON, "JOBDIR": str(tmp_path / "job"), "START": urls}
        crawl(site, tmp_path, settings)
        crawl(site, tmp_path, {**settings, "EXTENSIONS": {f"{__name__}.ClosesAtOnce": 1}})
        site.forget_hits()
        crawl(site, tmp_path, settings)
        assert site.hits == dict.fromkeys(urls, 1)


class ClosesAtOnce:
    """Extension: closes the spider when it is opened."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        crawler.signals.connect(cls._close, signal=signals.spider_opened, weak=False)
        return cls()

    @staticmethod
    def _close() -> None:
        raise CloseSpider("shutdown")
