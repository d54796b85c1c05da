"""``BLOOM_CHANGES``: cycles of a site that changes tell exactly what a model of the site does, each once."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import scrapy
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import DropItem
from scrapy.link import Link
from scrapy.spiders import CrawlSpider, Rule
from scrapy.utils.test import get_crawler

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.components.takeover import export_queue
from scrapy_bloom.crawl.changes import Changes
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.inspect import DIRECTORY
from scrapy_bloom.job.records import Batch
from scrapy_bloom.job.verify import fix_job
from scrapy_bloom.signals import item_gone
from tests.support.engine import BY_HOST, RAM, opened
from tests.support.processes import PROCESSES

PATIENCE = 180.0
SETTINGS: dict[str, Any] = {
    "ADDONS": {"scrapy_bloom.Addon": 300},
    "BLOOM_CAPACITY": 1_000,
    "BLOOM_CHANGES": {"key": ["sku"], "ignore": ["clock"], "field": "change"},
    "CONCURRENT_REQUESTS": 4,
    "LOG_FILE": "log",
    "LOG_LEVEL": "INFO",
    "RETRY_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
}


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


class Site:
    """The pages of one moment, on loopback. Counts full answers and 304s."""

    def __init__(self) -> None:
        self.pages: Pages = {}
        self.full: Counter[str] = Counter()
        self.not_modified: Counter[str] = Counter()
        self.with_cookie: set[str] = set()
        """Paths of requests that sent the cookie that each answer sets."""
        site = self

        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_GET(self) -> None:
                page = site.pages.get(self.path, Page(status=404))
                body = page.body() if page.status == 200 else b""
                tag = f'"{hashlib.sha1(body).hexdigest()}"'
                is_same = page.status == 200 and page.has_validator and self.headers["If-None-Match"] == tag
                (site.not_modified if is_same else site.full)[self.path] += 1
                if self.headers["Cookie"]:
                    site.with_cookie.add(self.path)
                self.send_response(304 if is_same else 302 if page.moved_to else page.status)
                self.send_header("Set-Cookie", "visitor=1")
                self.send_header("Content-Type", "text/html")
                if page.has_validator and page.status == 200:
                    self.send_header("ETag", tag)
                if page.moved_to:
                    self.send_header("Location", page.moved_to)
                body = b"" if is_same or page.moved_to else body
                if not is_same:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # crawls are killed
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[Site]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        yield self
        self._server.shutdown()
        self._server.server_close()
        thread.join()

    def asked(self) -> int:
        return self.full.total() + self.not_modified.total()

    def forget(self) -> None:
        self.full.clear()
        self.not_modified.clear()
        self.with_cookie.clear()


@pytest.fixture
def site() -> Iterator[Site]:
    with Site().serving() as site:
        yield site


class Shop(scrapy.Spider):
    name = "shop"
    base = ""

    async def start(self) -> Any:
        yield scrapy.Request(self.base + "/", dont_filter=True)

    def parse(self, response: Any) -> Any:
        items, links, unfiltered = json.loads(response.text)
        for sku, price in items.items():
            yield {"sku": sku, "price": price, "clock": time.time(), "change": ""}
        for link in links:
            yield response.follow(link)
        for link in unfiltered:
            yield response.follow(link, dont_filter=True)


@dataclass
class Book:
    price: int


class ByPlace(Shop):
    """Items named by their place, of two classes, with noise, and one that JSON cannot hold."""

    def parse(self, response: Any) -> Any:
        for output in super().parse(response):
            if isinstance(output, scrapy.Request):
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


class RuledShop(CrawlSpider):
    name = "shop"
    base = ""
    rules = (Rule(Links(), callback="parse_items", follow=True),)
    start = Shop.start

    def parse_items(self, response: Any) -> Any:
        return (output for output in Shop.parse(self, response) if isinstance(output, dict))  # type: ignore[arg-type]

    parse_start_url = parse_items


class Refetching(Shop):
    def parse(self, response: Any) -> Any:
        for output in super().parse(response):
            if isinstance(output, scrapy.Request):
                output.meta["bloom_refetch"] = output.url.endswith("/a")
            yield output


class Watches304:
    """A downloader middleware that lets a crawl fail if it sees a 304, or a conditional header."""

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        assert response.status != 304
        assert not request.headers.get("If-None-Match")
        return response

    def process_exception(self, request: Any, exception: Exception, spider: Any = None) -> None:
        raise AssertionError(repr(exception))


class LosesOnce:
    """A pipeline that drops sku ``dropped``, and fails on sku ``lost`` as long as there is a file named ``fail``."""

    def process_item(self, item: Any, spider: Any = None) -> Any:
        if item["sku"] == "dropped":
            raise DropItem("as users do")
        if item["sku"] == "lost" and Path("fail").exists():
            raise ValueError("an error")
        return item


def crawl(directory: Path, url: str, spider: str, settings: dict[str, Any]) -> None:
    """Run one crawl in this process; its stats and what is gone go to files."""
    os.chdir(directory)
    process = CrawlerProcess({**SETTINGS, "JOBDIR": "job", "FEEDS": {"items.jl": {"format": "jsonl"}}, **settings})
    crawler = process.create_crawler(globals()[spider])
    gone: list[Any] = []

    def note(url: str | None, label: str) -> None:
        gone.append([url, label])
        if Path("kill").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    crawler.signals.connect(note, signal=item_gone)
    process.crawl(crawler, base=url)
    process.start(install_signal_handlers=False)
    Path("gone").write_text(json.dumps(gone))
    Path("stats").write_text(json.dumps(crawler.stats.get_stats(), default=str))


@dataclass
class Job:
    """Crawls of one site in one directory, one after the other."""

    directory: Path
    site: Site
    spider: str = "Shop"
    settings: dict[str, Any] = field(default_factory=dict)
    lines: int = 0
    """Lines of the feed that earlier cycles gave."""

    def run(self, kill_at: int | None = None, **settings: Any) -> dict[str, Any]:
        """Crawl, and return the stats; kill the crawl when it has asked for *kill_at* pages, and return {}."""
        (self.directory / "stats").unlink(missing_ok=True)
        before = self.site.asked()
        arguments = (self.directory, self.site.url, self.spider, {**self.settings, **settings})
        process = PROCESSES.Process(target=crawl, args=arguments)
        process.start()
        deadline = time.monotonic() + PATIENCE
        while process.is_alive():
            assert time.monotonic() < deadline, (self.directory / "log").read_text()[-2000:]
            if kill_at is not None and self.site.asked() >= before + kill_at:
                os.kill(process.pid or 0, signal.SIGKILL)
                break
            process.join(0.005)
        process.join()
        stats = self.directory / "stats"
        found: dict[str, Any] = json.loads(stats.read_text()) if stats.exists() else {}
        assert found or kill_at is not None, (self.directory / "log").read_text()[-3000:]
        return found

    def cycle(self, pages: Pages, kills: tuple[int, ...] = ()) -> dict[str, Any]:
        """Crawl *pages* until the cycle has ended, killed after so many requests of some runs; return the stats."""
        self.site.pages = pages
        self.site.forget()
        for kill_at in kills:
            if (stats := self.run(kill_at)) and stats["finish_reason"] == "finished":
                return stats
        return self.run()

    def reported(self) -> Counter[tuple[str, int, str]]:
        """Return sku, price and change of the items that the feed got since the last call."""
        feed = self.directory / "items.jl"
        rows = list(map(json.loads, feed.read_text().splitlines() if feed.exists() else []))
        new, self.lines = rows[self.lines :], len(rows)
        return Counter((row["sku"], row["price"], row["change"]) for row in new)

    def gone(self, capsys: pytest.CaptureFixture[str]) -> set[str]:
        """Return the skus that the command says are gone; the signal says the same."""
        capsys.readouterr()
        assert main(["changes", str(self.directory / "job"), "--gone"]) == 0
        listed = [json.loads(line)["key"] for line in capsys.readouterr().out.splitlines()]
        assert sorted(listed) == sorted(label for _, label in json.loads((self.directory / "gone").read_text()))
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


def drawn_site(rng: random.Random) -> Pages:
    paths = [f"/{number}" for number in range(rng.randint(4, 14))]
    pages = {"/": Page(links=tuple(paths[:3]))}
    for number, path in enumerate(paths):
        links = tuple(rng.sample(paths, min(len(paths), rng.randint(0, 3)))) + tuple(paths[number + 1 : number + 2])
        items = {f"{number}-{place}": rng.randrange(9) for place in range(rng.randint(0, 3))}
        pages[path] = Page(items, links, has_validator=rng.random() < 0.7)
    return pages


def changed_site(pages: Pages, rng: random.Random, cycle: int) -> Pages:
    """Return the site one night later: pages and items appear, change, vanish, move and fail."""
    pages = {
        path: replace(page, status=200) if page.status in {403, 500, 503} else page for path, page in pages.items()
    }
    for _ in range(rng.randint(0, 6)):
        path = rng.choice([path for path in pages if path != "/"])
        page, other = pages[path], rng.choice(list(pages))
        action = rng.randrange(10)
        if action == 0 and page.items:
            page = replace(page, items={**page.items, rng.choice(list(page.items)): rng.randrange(9)})
        elif action == 1:
            page = replace(page, items={**page.items, f"{cycle}+{rng.randrange(10**6)}": rng.randrange(9)})
        elif action == 2 and page.items:
            page = replace(page, items={sku: price for sku, price in page.items.items() if sku != min(page.items)})
        elif action == 3 and page.items and other != path and page.status == pages[other].status == 200:
            sku = min(page.items)
            pages[other] = replace(pages[other], items={**pages[other].items, sku: page.items[sku]})
            page = replace(page, items={name: price for name, price in page.items.items() if name != sku})
        elif action == 4:
            page = replace(page, status=rng.choice([404, 410]), moved_to="")
        elif action == 5:
            page = replace(page, status=rng.choice([403, 500, 503]), moved_to="")
        elif action == 6:
            pages[other] = replace(pages[other], links=tuple(link for link in pages[other].links if link != path))
            page = pages[path]
        elif action == 7:
            new = f"/new{cycle}-{rng.randrange(10**6)}"
            pages[new] = Page({new: rng.randrange(9)})
            page = replace(page, links=(*page.links, new))
        elif action == 8:
            page = replace(page, status=200, moved_to="" if page.moved_to else "/0")
        else:
            page = replace(page, has_validator=not page.has_validator)
        pages[path] = page
    return pages


def play(job: Job, seed: int, cycles: int, capsys: pytest.CaptureFixture[str]) -> None:
    rng, model, pages = random.Random(seed), Model(), {}
    for cycle in range(cycles):
        pages = changed_site(pages, rng, cycle) if pages else drawn_site(rng)
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
    play(Job(tmp_path, site, spider, settings), seed, 4, capsys)


SHOP = {
    "/": Page(links=("/a", "/b")),
    "/a": Page({"1": 1, "2": 2}),
    "/b": Page({"3": 3}, ("/c",)),
    "/c": Page({"4": 4}),
}
MIDDLEWARE = {"DOWNLOADER_MIDDLEWARES": {f"{__name__}.Watches304": 9_999}}


def test_pages_that_are_the_same_are_not_sent_again(tmp_path: Path, site: Site) -> None:
    """The second cycle gets nothing but 304s, of which middlewares see cookies only, and reports nothing. One page that
    changed is sent in full; once the code has another name, all pages are."""
    job = Job(tmp_path, site, settings=MIDDLEWARE)
    job.cycle(SHOP)
    assert job.reported() == {(sku, int(sku), "new"): 1 for sku in "1234"}
    stats = job.cycle(SHOP)
    assert (site.full.total(), set(site.not_modified), site.with_cookie) == (0, set(SHOP), SHOP.keys() - {"/"})
    assert (stats["bloom/changes/not_modified"], stats["bloom/changes/same"], job.reported()) == (4, 4, Counter())
    assert stats["response_received_count"] == len(SHOP), "so that CLOSESPIDER_PAGECOUNT counts them"
    job.cycle({**SHOP, "/b": Page({"3": 5})})
    assert (dict(site.full), job.reported()) == ({"/b": 1}, {("3", 5, "changed"): 1})
    assert site.not_modified["/c"] == 1, "no page leads there any more, and it is there"
    job.cycle({**SHOP, "/": Page(links=("/c",)), "/b": Page({"3": 5})})
    assert (dict(site.full), site.not_modified["/c"]) == ({"/": 1}, 1), "another page leads there"
    site.forget()
    changes = {**SETTINGS["BLOOM_CHANGES"], "code": "2"}
    job.run(BLOOM_CHANGES=changes)
    assert dict(site.full) == dict.fromkeys(SHOP, 1)
    site.forget()
    job.run(BLOOM_CHANGES=changes, BLOOM_PAGES_PER_HOST=2, SCHEDULER_PRIORITY_QUEUE=BY_HOST)
    assert (site.full.total(), site.not_modified.total()) == (0, 2), "a page that is not sent again counts, too"


def test_a_page_in_parts_is_asked_for_in_full(tmp_path: Path, site: Site) -> None:
    """If it led to an unfiltered request, has no validator, or is to be refetched: so its other effects come again."""
    pages = {**SHOP, "/b": Page({"3": 3}, unfiltered=("/c",)), "/d": Page(), "/": Page(links=("/a", "/b", "/d"))}
    pages["/d"] = Page({"5": 5}, has_validator=False)
    job = Job(tmp_path, site, spider="Refetching")
    for reported in (5, 0):
        job.cycle(pages)
        assert job.reported().total() == reported
    assert set(site.full) == {"/a", "/b", "/d"}
    site.forget()
    job.run(HTTPCACHE_ENABLED=True, HTTPCACHE_IGNORE_HTTP_CODES=[200])
    assert set(site.full) == set(pages)


def test_items_without_a_key_are_named_by_their_place(tmp_path: Path, site: Site) -> None:
    """On their page, among those of their class. One that JSON cannot hold is passed on in each cycle, and noise that
    is not ignored, here a clock, is a change. All other tests ignore it."""
    job = Job(tmp_path, site, spider="ByPlace", settings={"BLOOM_CHANGES": True, "FEEDS": {}})
    for items, new, changed in (({"1": 1, "2": 2}, 5, 0), ({"1": 1, "2": 3}, 0, 3), ({"odd": 1, "1": 1}, 0, 1)):
        stats = job.cycle({"/": Page({"noise": 0, **items})})
        assert (stats["bloom/changes/new"], stats["bloom/changes/changed"]) == (new, changed)
    assert (stats["bloom/changes/not_compared"], stats["item_scraped_count"], stats["bloom/changes/gone"]) == (1, 2, 2)


@pytest.mark.parametrize(
    "how",
    ["stopped", "killed at its end", *(pytest.param(how, marks=pytest.mark.slow) for how in ("exported", "repaired"))],
)
def test_a_cycle_that_was_interrupted_goes_on(
    tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """A limit ends a run, and not the cycle: nothing is gone before every page was asked for."""
    job = Job(tmp_path, site, settings={"CONCURRENT_REQUESTS": 1})
    jobdir, is_killed, marker = str(tmp_path / "job"), how == "killed at its end", tmp_path / "kill"
    job.cycle(SHOP)
    site.pages = {path: replace(page, items={}) for path, page in SHOP.items()}
    if is_killed:
        marker.touch()
        assert job.run(kill_at=1_000) == {}
        marker.unlink()
    else:
        assert job.run(CLOSESPIDER_PAGECOUNT=2)["finish_reason"] == "closespider_pagecount"
    assert main(["changes", jobdir, "--json"]) == 0
    cycles = json.loads(capsys.readouterr().out)["cycles"]
    figures = [(cycle["number"], bool(cycle["ended"]), cycle["gone"]) for cycle in cycles]
    assert figures == [(2, is_killed, 4 * is_killed), (1, True, 0)]
    if how == "exported":
        with opened(None, spider=Shop) as engine, closing(Database(tmp_path / "job" / DIRECTORY / NAME)) as database:
            assert export_queue(tmp_path / "job", database, engine.crawler)
    elif how == "repaired":
        fix_job(jobdir)
    job.run()
    assert job.gone(capsys) == set("1234")
    assert main(["report", jobdir, "-o", str(tmp_path / "page")]) == 0
    cells = re.findall("<bdi>([^<]*)</bdi>", (tmp_path / "page").read_text().partition("<h2>Changes")[2])
    assert (cells[0], cells[10]) == ("2", "1")
    assert cells[2:10] == ["0", "0", "0", "4", "0", "4", "0", "0 bytes"]


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
    with tempfile.TemporaryDirectory(dir=RAM) as name, closing(Database(Path(name, "job.sqlite"))) as database:
        for cycle, drawn in enumerate(cycles):
            reports, pages = [], {}
            for number, (outcome, items) in drawn.items():
                changes = Changes(database, cycle, lambda _: None)
                page = changes.page(b"%d" % number, 1, b"%d" % number, is_filtered=True, is_resumed_start=False)
                page.is_not_modified = outcome == "not modified" and changes.validator(page) != ""
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
                batch = Batch()
                changes.take(page, batch, is_answered=outcome != "failed")
                database.write(batch)
            changes = Changes(database, cycle, lambda _: None)
            assert set(map(int, changes.sweep())) == model.due() - pages.keys()
            figures = changes.end()._asdict()
            expected, words = model.cycle(pages)
            assert reports == expected
            assert [figures[word] for word in WORDS] == [list(words.values()).count(word) for word in WORDS]


# -- crawls ------------------------------------------------------------------------------------------------------------


class Refuses:
    """A spider middleware that refuses /a and handles all exceptions, as long as there is a file named ``fail``."""

    def process_spider_input(self, response: Any, spider: Any = None) -> None:
        if response.url.endswith("/a") and Path("fail").exists():
            raise ValueError("a page to solve a riddle on")

    def process_spider_exception(self, response: Any, exception: Exception, spider: Any = None) -> list[Any] | None:
        return [] if Path("fail").exists() else None


class Fragile(Shop):
    """Yields None, too, and fails on /b as long as there is a file named ``fail``."""

    def parse(self, response: Any) -> Any:
        yield None
        if response.url.endswith("/b") and Path("fail").exists():
            raise ValueError("an error")
        yield from super().parse(response)


def test_what_fails_on_the_way_is_not_gone_and_is_told_in_full_later(
    tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four cycles. In the second, a spider middleware refuses /a and takes care of an exception of the callback of /b,
    a pipeline has an error, and /d, to which no page leads any more, answers 503 to its retry, too."""
    settings = {
        "ITEM_PIPELINES": {f"{__name__}.LosesOnce": 1},
        "SPIDER_MIDDLEWARES": {f"{__name__}.Refuses": 100},
        "RETRY_ENABLED": True,
        "RETRY_TIMES": 1,
    }
    job = Job(tmp_path, site, spider="Fragile", settings=settings)
    job.cycle({**SHOP, "/": Page(links=("/a", "/b", "/d")), "/d": Page({"5": 5})})
    assert job.reported() == {(sku, int(sku), "new"): 1 for sku in "12345"}

    (tmp_path / "fail").touch()
    pages = {path: replace(page, items={}) for path, page in SHOP.items()}
    pages |= {
        "/": Page({"lost": 1, "dropped": 2, "kept": 3}, ("/a", "/b")),
        "/d": Page(status=503),
    }
    job.cycle(pages)
    assert job.gone(capsys) == {"4"}
    assert site.full["/d"] == 2, "a retry is unfiltered, and the request before it is not"
    assert job.reported() == {("kept", 3, "new"): 1}, "an error loses an item, or it is dropped on purpose"

    (tmp_path / "fail").unlink()
    pages["/d"] = Page({"5": 6})
    job.cycle(pages)
    assert job.gone(capsys) == {"1", "2", "3"}
    assert site.full["/d"] == 1
    assert job.reported() == {("lost", 1, "new"): 1, ("5", 6, "changed"): 1}

    job.cycle(pages)
    assert (job.reported(), site.full.total()) == (Counter(), 0)


def test_a_start_page_that_a_second_run_asks_for_again_tells_its_items_once(tmp_path: Path, site: Site) -> None:
    """In one cycle, whatever ``start()`` yields in each run."""
    job = Job(tmp_path, site, settings={"CONCURRENT_REQUESTS": 1})
    site.pages = {**SHOP, "/": Page({"0": 0}, SHOP["/"].links)}
    job.run(CLOSESPIDER_PAGECOUNT=2)
    job.run()
    assert (site.full["/"], job.reported()) == (2, {(sku, int(sku), "new"): 1 for sku in "01234"})


def test_another_scheduler_is_an_error(tmp_path: Path) -> None:
    """Only ours knows when a page is done."""
    settings = {**SETTINGS, "JOBDIR": str(tmp_path), "SCHEDULER": "scrapy.core.scheduler.Scheduler"}
    crawler = get_crawler(Shop, settings)
    with pytest.raises(SettingsError, match=r"BLOOM_CHANGES.*SCHEDULER"):
        BloomDupeFilter.from_crawler(crawler).open()
