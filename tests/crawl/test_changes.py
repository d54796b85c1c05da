"""``BLOOM_CHANGES``: cycles of a site that changes tell exactly what a model of the site does, each once."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import scrapy
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy.exceptions import DropItem
from scrapy.link import Link
from scrapy.spiders import CrawlSpider, Rule
from typing_extensions import Self

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.components.takeover import export_queue
from scrapy_bloom.crawl.changes import Changes
from scrapy_bloom.frontier.page import ANSWERED
from scrapy_bloom.frontier.page import Page as PageInProgress
from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.inspect import DIRECTORY
from scrapy_bloom.job.records import Batch
from scrapy_bloom.job.verify import fix_job
from scrapy_bloom.signals import item_gone
from tests.support import crawls
from tests.support.crawls import ADDON, Reply
from tests.support.engine import BY_HOST, opened

CHANGES = {"key": ["sku"], "ignore": ["clock"], "field": "change"}


@dataclass(frozen=True)
class Page:
    """A page of the site: what it gives, where it leads, and how it answers."""

    items: dict[str, int] = field(default_factory=dict)
    """Prices by sku."""
    links: tuple[str, ...] = ()
    status: int = 200
    moved_to: str = ""
    has_validator: bool = True
    unfiltered: tuple[str, ...] = ()
    """Links that the spider follows with dont_filter."""

    def body(self) -> bytes:
        return json.dumps([self.items, self.links, self.unfiltered]).encode()


Pages = dict[str, Page]


class Site(crawls.Site):
    """The pages of one moment. Counts full answers and 304s."""

    def __init__(self) -> None:
        super().__init__({})
        self.full: Counter[str] = Counter()
        self.not_modified: Counter[str] = Counter()
        self.with_cookie: set[str] = set()
        """Paths of requests that sent the cookie that each answer sets."""

    def reply(self, path: str, headers: Mapping[str, str]) -> Reply:
        page = self.pages.get(path, Page(status=404))
        body, sent = page.body(), {"Set-Cookie": "visitor=1"}
        if headers["Cookie"]:
            self.with_cookie.add(path)
        tag = f'"{hashlib.sha1(body).hexdigest()}"'
        is_same = page.status == 200 and page.has_validator and headers["If-None-Match"] == tag
        (self.not_modified if is_same else self.full)[path] += 1
        if page.has_validator and page.status == 200:
            sent["ETag"] = tag
        if page.moved_to:
            return Reply(302, headers={**sent, "Location": page.moved_to})
        return Reply(304, b"", sent) if is_same else Reply(page.status, body if page.status == 200 else b"", sent)

    def forget_hits(self) -> None:
        super().forget_hits()
        self.full.clear()
        self.not_modified.clear()
        self.with_cookie.clear()


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


class Noting(scrapy.Spider):
    """Asks for its start page in each run, and notes in the stats what is gone. With KILL, that is the last it does."""

    name = "shop"

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.start_urls = crawler.settings["URLS"]
        crawler.signals.connect(spider.note, signal=item_gone)
        return spider

    async def start(self) -> Any:
        yield scrapy.Request(self.start_urls[0], dont_filter=True)

    def note(self, url: str | None, label: str) -> None:
        stats: Any = self.crawler.stats
        stats.set_value("gone", [*stats.get_value("gone", []), label])
        if self.settings.getbool("KILL"):
            os.kill(os.getpid(), signal.SIGKILL)


class Shop(Noting):
    """Yields None, too. With FAILS, the page /b has an error."""

    def parse(self, response: Any) -> Any:
        yield None
        if response.url.endswith("/b") and self.settings.getbool("FAILS"):
            raise ValueError("an error")
        items, links, unfiltered = json.loads(response.text)
        for sku, price in items.items():
            yield {"sku": sku, "price": price, "clock": time.time(), "change": ""}
        for link in links:
            yield response.follow(link, meta={"bloom_refetch": True} if link == "/refetched" else None)
        for link in unfiltered:
            yield response.follow(link, dont_filter=True)


@dataclass
class Book:
    price: int


class ByPlace(Shop):
    """Items named by their place, of two classes, with noise, and one that JSON cannot hold."""

    def parse(self, response: Any) -> Any:
        for output in super().parse(response):
            if not isinstance(output, dict):
                yield output
            elif output["sku"] == "noise":
                yield {"clock": output["clock"]}
            elif output["sku"] == "odd":
                yield {"odd": object}
            else:
                yield {"price": output["price"]}
                yield Book(output["price"])


class Links:
    def extract_links(self, response: Any) -> list[Link]:
        return [Link(response.urljoin(link)) for link in json.loads(response.text)[1]]


class RuledShop(Noting, CrawlSpider):
    rules = (Rule(Links(), callback="parse_items", follow=True),)

    def parse_items(self, response: Any) -> Any:
        return (output for output in Shop.parse(self, response) if isinstance(output, dict))  # type: ignore[arg-type]

    parse_start_url = parse_items


class Watches304:
    """A downloader middleware that lets a crawl fail if it sees a 304, or a conditional header."""

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        assert response.status != 304
        assert not request.headers.get("If-None-Match")
        return response

    def process_exception(self, request: Any, exception: Exception, spider: Any = None) -> None:
        raise AssertionError(repr(exception))


class Fails:
    """An item pipeline that drops sku ``dropped``, and, with FAILS, fails on sku ``lost``. A spider middleware, too,
    that refuses /a then, and handles all exceptions."""

    def __init__(self, crawler: Any) -> None:
        self.fails = crawler.settings.getbool("FAILS")

    @classmethod
    def from_crawler(cls, crawler: Any) -> Self:
        return cls(crawler)

    def process_item(self, item: Any, spider: Any = None) -> Any:
        if item["sku"] == "dropped":
            raise DropItem("as users do")
        if item["sku"] == "lost" and self.fails:
            raise ValueError("an error")
        return item

    def process_spider_input(self, response: Any, spider: Any = None) -> None:
        if response.url.endswith("/a") and self.fails:
            raise ValueError("a page to solve a riddle on")

    def process_spider_exception(self, response: Any, exception: Exception, spider: Any = None) -> list[Any] | None:
        return [] if self.fails else None


SETTINGS: dict[str, Any] = {
    **ADDON,
    "BLOOM_CHANGES": CHANGES,
    "CONCURRENT_REQUESTS": 4,
    "DOWNLOADER_MIDDLEWARES": {f"{__name__}.Watches304": 9_999},
    "RETRY_ENABLED": False,
}


class Job:
    """Crawls of one site in one directory, one after the other."""

    def __init__(self, directory: Path, site: Site, spider: str = "Shop", **settings: Any) -> None:
        self.directory, self.site, self.jobdir = directory, site, str(directory / "job")
        self.feed = directory / "items.jl"
        feeds = {str(self.feed): {"format": "jsonlines"}}
        own = {"SPIDER": f"{__name__}.{spider}", "JOBDIR": self.jobdir, "FEEDS": feeds}
        self.settings = {**SETTINGS, **own, **settings}
        self.stats: dict[str, Any] = {}
        """Of the last run; empty if it was killed."""
        self.lines = 0
        """Lines of the feed that earlier cycles gave."""

    def run(self, kill_at: float = math.inf, **settings: Any) -> dict[str, Any]:
        """Crawl, and return the stats; kill the crawl when it has asked for *kill_at* pages, and return {}."""
        kill_at += self.site.hits.total()
        running = crawls.start(self.site, self.directory, {**self.settings, **settings})
        while running.is_alive(0.005) and self.site.hits.total() < kill_at:
            pass
        if running.is_alive():
            running.signal(signal.SIGKILL)
        outcome = running.finish()
        assert outcome.code in {0, -signal.SIGKILL}, outcome.log
        self.stats = outcome.stats
        return self.stats

    def cycle(self, pages: Pages, kills: tuple[int, ...] = (), **settings: Any) -> dict[str, Any]:
        """Crawl *pages* until the cycle has ended, killed after so many requests of some runs; return the stats."""
        self.site.pages = pages
        self.site.forget_hits()
        for kill_at in kills:
            if (stats := self.run(kill_at)) and stats["finish_reason"] == "finished":
                return stats
        return self.run(**settings)

    def reported(self) -> Counter[tuple[str, int, str]]:
        """Return sku, price and change of the items that the feed got since the last call."""
        rows = list(map(json.loads, self.feed.read_text().splitlines() if self.feed.exists() else []))
        new, self.lines = rows[self.lines :], len(rows)
        return Counter((row["sku"], row["price"], row["change"]) for row in new)

    def gone(self, capsys: pytest.CaptureFixture[str]) -> set[str]:
        """Return the skus that the command says are gone; the signal says the same."""
        capsys.readouterr()
        assert main(["changes", self.jobdir, "--gone"]) == 0
        listed = [json.loads(line)["key"] for line in capsys.readouterr().out.splitlines()]
        assert sorted(listed) == sorted(self.stats.get("gone", []))
        return {json.loads(key)[0] for key in listed}


# -- the model ---------------------------------------------------------------------------------------------------------


Outcomes: TypeAlias = "Mapping[Any, tuple[str, Sequence[tuple[Any, int, bool]]]]"
"""The outcome of each page that is asked for, and its items: key, price, and whether an error loses the item."""


class Model:
    """What each cycle reports of items. Several pages may give one item."""

    def __init__(self) -> None:
        self.number = 0
        self.prices: dict[Any, dict[Any, set[int]]] = {}
        """Of each page the keys that it may have, and their prices if these are the last that are known."""
        self.gone_since: dict[Any, int] = {}
        """The first cycle in which a page was gone, of pages that were so last."""

    def due(self) -> set[Any]:
        """Return the pages that the next cycle asks for by itself: gone ones after 1, 2, 4, ... cycles."""
        age = {page: self.number - self.gone_since.get(page, self.number - 1) for page in self.prices}
        return {page for page in age if age[page].bit_count() == 1}

    def cycle(self, pages: Outcomes) -> tuple[list[tuple[Any, int, str]], dict[Any, str]]:
        """Return what is reported of each item in turn, and which word is true of each key."""
        before: dict[Any, set[int]] = {}
        for prices in self.prices.values():
            for key in prices:
                before[key] = before.get(key, set()) | prices[key]
        reports, words, lost, fresh = [], {}, set(), set()
        given: dict[Any, dict[Any, set[int]]] = {page: {} for page in pages}
        for page, (outcome, items) in pages.items():
            for key, price, is_lost in items if outcome in {"answered", "failed"} else ():
                report = "same" if price in before.get(key, ()) else "changed" if key in before else "new"
                reports.append((key, price, report))
                if is_lost and report != "same":
                    lost.add(key)
                    continue
                given[page].setdefault(key, set()).add(price)
                if report != "same":
                    words[key] = report
        for page, (outcome, _) in pages.items():
            old = self.prices.get(page, {})
            kept = {key: old[key] for key in old if key in lost or outcome not in {"answered", "gone"}}
            self.prices[page] = kept | given[page]
            for key in lost & old.keys() & given[page].keys():
                self.prices[page][key] = old[key] | given[page][key]
            fresh |= {(page, key) for key in (*given[page], *(old if outcome == "not modified" else ()))}
            since = self.gone_since.pop(page, self.number)
            self.gone_since |= {page: since} if outcome == "gone" else {}
        fresh |= {(page, key) for page, prices in self.prices.items() for key in lost & prices.keys()}
        known = {key for _, key in fresh}
        for page, prices in self.prices.items():
            for key in prices:
                words.setdefault(key, "same" if key in known else "unknown")
                if key in known and (page, key) not in fresh:
                    prices[key] = set()
        self.number += 1
        return reports, {**dict.fromkeys(before, "gone"), **words}


def outcomes_of(pages: Pages, due: set[str]) -> Outcomes:
    """Return the outcomes of a crawl of *pages* that also asks for those that are *due*."""
    outcomes: dict[str, tuple[str, list[tuple[str, int, bool]]]] = {}
    waiting = ["/", *due]
    while waiting:
        if (path := waiting.pop()) in outcomes:
            continue
        page = pages.get(path, Page(status=404))
        outcomes[path] = ("gone" if page.status in {404, 410} else "failed", [])
        if page.moved_to:
            waiting.append(page.moved_to)
        elif page.status == 200:
            outcomes[path] = ("answered", [(sku, price, False) for sku, price in page.items.items()])
            waiting += page.links
    return outcomes


def drawn_page(rng: random.Random, paths: list[str]) -> Page:
    """Return a page with some of the items that any page may have."""
    items = {str(sku): rng.randrange(5) for sku in rng.sample(range(12), rng.choice([0, 1, 1, 2, 3]))}
    status = rng.choice([*[200] * 12, 404, 410, 403, 500, 503])
    moved_to = "/0" if status == 200 and rng.random() < 0.2 else ""
    return Page(items, tuple(rng.sample(paths, rng.randint(0, 3))), status, moved_to, rng.random() < 0.7)


def drawn_site(rng: random.Random, before: Pages) -> Pages:
    """Return a site, or what has become of it one night later: pages and items appear, change, vanish, move and
    fail."""
    paths = [f"/{number}" for number in range(len(before) + rng.randint(0, 2) if before else rng.randint(4, 14))]
    kept = {path: before[path] for path in paths if path in before and rng.random() < 0.7}
    pages = {path: kept.get(path) or drawn_page(rng, paths) for path in paths}
    return {**pages, "/": Page(links=tuple(rng.sample(paths, len(paths) // 2)))}


def play(job: Job, seed: int, cycles: int, capsys: pytest.CaptureFixture[str]) -> None:
    rng, model, pages = random.Random(seed), Model(), {}
    for cycle in range(cycles):
        pages = drawn_site(rng, pages)
        kills = tuple(rng.randint(1, 8) for _ in range(rng.choice([0, 0, 1, 2])))
        stats = job.cycle(pages, kills)
        reports, words = model.cycle(outcomes_of(pages, model.due()))
        reported = Counter(report for report in reports if report[2] != "same")
        gone = {key for key, word in words.items() if word == "gone"}
        context = (seed, cycle, kills)
        assert (context, job.reported()) == (context, reported)
        assert (context, job.gone(capsys)) == (context, gone)
        assert stats["bloom/changes/gone"] == len(gone)


GUARDED = {"BLOOM_LOOP_GUARD": True, "BLOOM_PAGES_PER_HOST": 1_000}


@pytest.mark.parametrize(
    ("seed", "spider", "settings"),
    [
        (1, "Shop", {}),
        *(pytest.param(seed, "Shop", {}, marks=pytest.mark.slow) for seed in range(2, 10)),
        *(pytest.param(seed, "RuledShop", {}, marks=pytest.mark.slow) for seed in range(10, 12)),
        *(pytest.param(seed, "Shop", GUARDED, marks=pytest.mark.slow) for seed in range(12, 14)),
    ],
)
def test_cycles_report_what_a_model_reports(
    tmp_path: Path, site: Site, seed: int, spider: str, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever changes on the site, and wherever its crawls are killed: each change once, and nothing that failed is
    called gone."""
    play(Job(tmp_path, site, spider, **settings), seed, 4, capsys)


SHOP = {
    "/": Page(links=("/a", "/b")),
    "/a": Page({"1": 1, "2": 2}),
    "/b": Page({"3": 3}, ("/c",)),
    "/c": Page({"4": 4}),
}
IN_FULL = {"/unfiltered": 1, "/refetched": 1, "/no-validator": 1}


def test_pages_that_are_the_same_are_not_sent_again(tmp_path: Path, site: Site) -> None:
    """Cycles but the first get 304s, of which middlewares see cookies only. A page comes in full that has changed, that
    led to an unfiltered request, has no validator, or is to be refetched; and all do if the code has another name, or
    the cache of Scrapy is on."""
    pages = {
        **SHOP,
        "/": Page(links=(*IN_FULL, *SHOP["/"].links)),
        "/b": Page({"3": 3}, ("/c", "/d")),
        "/d": Page({"5": 5}),
        "/unfiltered": Page({"6": 6}, unfiltered=("/echo",)),
        "/echo": Page({"9": 9}),
        "/refetched": Page({"7": 7}),
        "/no-validator": Page({"8": 8}, has_validator=False),
    }
    job = Job(tmp_path, site)
    job.cycle(pages)
    assert job.reported() == {(sku, int(sku), "new"): 1 for sku in "123456789"}
    stats = job.cycle(pages)
    assert (site.full, site.with_cookie) == (IN_FULL, pages.keys() - {"/"})
    assert site.not_modified == dict.fromkeys(pages.keys() - IN_FULL.keys(), 1)
    assert (stats["bloom/changes/not_modified"], stats["bloom/changes/same"], job.reported()) == (6, 9, Counter())
    assert stats["response_received_count"] == len(pages), "so that CLOSESPIDER_PAGECOUNT counts them"
    job.cycle({**pages, "/": Page(links=("/d", *pages["/"].links)), "/b": Page({"3": 5})})
    assert (site.full, job.reported()) == ({**IN_FULL, "/": 1, "/b": 1}, {("3", 5, "changed"): 1})
    assert (site.not_modified["/c"], site.not_modified["/d"]) == (1, 1), "no page leads there, and another page"
    renamed = {"BLOOM_CHANGES": {**CHANGES, "code": "2"}}
    for settings in (renamed, {**renamed, "HTTPCACHE_ENABLED": True, "HTTPCACHE_IGNORE_HTTP_CODES": [200]}):
        job.cycle(site.pages, **settings)
        assert (site.full, job.reported()) == (dict.fromkeys(pages, 1), Counter())
    job.cycle(site.pages, **renamed, BLOOM_PAGES_PER_HOST=2, SCHEDULER_PRIORITY_QUEUE=BY_HOST)
    assert (site.hits.total(), site.not_modified["/"]) == (2, 1), "a page that is not sent again counts, too"


def test_items_without_a_key_are_named_by_their_place(tmp_path: Path, site: Site) -> None:
    """On their page, among those of their class. One that JSON cannot hold is passed on in each cycle, and noise that
    is not ignored, here a clock, is a change. All other tests ignore it."""
    job = Job(tmp_path, site, "ByPlace", BLOOM_CHANGES=True, FEEDS={})
    stats = job.cycle({"/": Page({"noise": 0, "odd": 0, "1": 1, "2": 2, "3": 3})})
    figures = ("new", "changed", "gone", "not_compared")
    assert [stats.get(f"bloom/changes/{name}", 0) for name in figures] == [7, 0, 0, 1]
    stats = job.cycle({"/": Page({"noise": 0, "odd": 0, "1": 1, "2": 3})})
    assert [stats.get(f"bloom/changes/{name}", 0) for name in figures] == [0, 3, 2, 1]
    assert stats["item_scraped_count"] == 4


@pytest.mark.parametrize(
    "how",
    ["stopped", "killed at its end", *(pytest.param(how, marks=pytest.mark.slow) for how in ("exported", "repaired"))],
)
def test_a_cycle_that_was_interrupted_goes_on(
    tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """A limit ends a run, and not the cycle: nothing is gone before every page was asked for, and the start page, which
    each run asks for, tells its items once."""
    job, is_killed = Job(tmp_path, site, CONCURRENT_REQUESTS=1), how == "killed at its end"
    site.pages = {**SHOP, "/": Page({"0": 0}, SHOP["/"].links)}
    if not is_killed:
        assert job.run(CLOSESPIDER_PAGECOUNT=2)["finish_reason"] == "closespider_pagecount"
    job.run()
    assert (site.full["/"], job.reported()) == (2 - is_killed, {(sku, int(sku), "new"): 1 for sku in "01234"})
    site.pages = {path: replace(page, items={}) for path, page in SHOP.items()}
    if is_killed:
        assert job.run(KILL=True) == {}
    else:
        assert job.run(CLOSESPIDER_PAGECOUNT=2)["finish_reason"] == "closespider_pagecount"
    assert main(["changes", job.jobdir, "--json"]) == 0
    cycles = json.loads(capsys.readouterr().out)["cycles"]
    figures = [(cycle["number"], bool(cycle["ended"]), cycle["gone"]) for cycle in cycles]
    assert figures == [(2, is_killed, 5 * is_killed), (1, True, 0)]
    if how == "exported":
        with opened(None, spider=Shop) as engine, closing(Database(tmp_path / "job" / DIRECTORY / NAME)) as database:
            assert export_queue(tmp_path / "job", database, engine.crawler)
    elif how == "repaired":
        fix_job(job.jobdir)
    job.run()
    assert job.gone(capsys) == set("01234")
    assert main(["report", job.jobdir, "-o", str(tmp_path / "page")]) == 0
    cells = re.findall("<bdi>([^<]*)</bdi>", (tmp_path / "page").read_text().partition("<h2>Changes")[2])
    assert (cells[0], cells[10]) == ("2", "1")
    assert cells[2:10] == ["0", "0", "0", "5", "0", "4", "0", "0 bytes"]


def test_what_fails_on_the_way_is_not_gone_and_is_told_in_full_later(
    tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four cycles. In the second, a spider middleware refuses /a and takes care of an exception of the callback of /b,
    a pipeline has an error, and /d, to which no page leads any more, answers 503 to its retry, too."""
    fails = {f"{__name__}.Fails": 100}
    job = Job(tmp_path, site, ITEM_PIPELINES=fails, SPIDER_MIDDLEWARES=fails, RETRY_ENABLED=True)
    job.cycle({**SHOP, "/": Page(links=("/a", "/b", "/d")), "/d": Page({"5": 5})})
    assert job.reported() == {(sku, int(sku), "new"): 1 for sku in "12345"}

    pages = {path: replace(page, items={}) for path, page in SHOP.items()}
    pages |= {"/": Page({"lost": 1, "dropped": 2, "kept": 3}, ("/a", "/b")), "/d": Page(status=503)}
    job.cycle(pages, FAILS=True)
    assert job.gone(capsys) == {"4"}
    assert site.full["/d"] == 2, "a retry is unfiltered, and the request before it is not"
    assert job.reported() == {("kept", 3, "new"): 1}, "an error loses an item, or it is dropped on purpose"

    pages["/d"] = Page({"5": 6})
    job.cycle(pages)
    assert job.gone(capsys) == {"1", "2", "3"}
    assert site.full["/d"] == 1
    assert job.reported() == {("lost", 1, "new"): 1, ("5", 6, "changed"): 1}

    job.cycle(pages)
    assert (job.reported(), site.full.total()) == (Counter(), 0)


# -- items that several pages give, without crawls ---------------------------------------------------------------------

PAGES, KEYS, PRICES, IS_LOST = range(2), range(2), range(1, 3), (False, False, False, True)
WORDS = ("new", "changed", "same", "gone", "unknown")
OUTCOMES = st.sampled_from(["answered", "answered", "not modified", "failed", "gone", "left"])
ITEMS = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(PRICES), st.sampled_from(IS_LOST)), max_size=3)
CYCLES = st.lists(st.fixed_dictionaries(dict.fromkeys(PAGES, st.tuples(OUTCOMES, ITEMS))), min_size=3, max_size=6)


@example(cycles=[{0: ("gone", [])}, {}, {}, {}, {}])  # asked for again in the second, the third and the fifth
@given(cycles=CYCLES)
def test_items_of_several_pages(cycles: list[dict[int, tuple[str, list[tuple[int, int, bool]]]]]) -> None:
    """An item is gone when no page has it, and is compared with what the pages gave last, in any order."""
    model = Model()
    with tempfile.TemporaryDirectory() as name, closing(Database(Path(name, "job.sqlite"))) as database:
        for cycle, drawn in enumerate(cycles):
            reports, pages = [], {}
            for number, (outcome, items) in drawn.items():
                changes = Changes(database, cycle, lambda _: None)
                page = changes.page(b"%d" % number, 1, b"%d" % number, is_filtered=True, is_asked_again=False)
                in_progress = PageInProgress("", changes=page, result=ANSWERED)
                page.is_not_modified = outcome == "not modified" and page.validator != ""
                if outcome == "left" or (outcome == "not modified" and not page.is_not_modified):
                    continue
                pages[number] = outcome, items
                page.status, page.callback = 404 if outcome == "gone" else 200, "ended"
                page.row = page.row._replace(validator="E1")
                for key, price, is_lost in items if outcome in {"answered", "failed"} else ():
                    item = changes.compare(page, "", price, str(key))
                    reports.append((key, price, "same" if item is None else item.change.name.lower()))
                    if item is not None:
                        item.is_lost = is_lost
                if outcome == "failed":
                    in_progress.note_callback_error(ValueError())
                batch = Batch()
                changes.take(in_progress, batch)
                database.write(batch)
            changes = Changes(database, cycle, lambda _: None)
            assert set(map(int, changes.unmade())) == model.due() - pages.keys()
            figures = changes.end_cycle()._asdict()
            expected, words = model.cycle(pages)
            assert reports == expected
            assert [figures[word] for word in WORDS] == [list(words.values()).count(word) for word in WORDS]
