"""Real crawls of a site on loopback, each in a process of its own, since a reactor starts once in a process.

with Site({"/": ["/a", "/b"], "/a": 503}) as site:
    outcome = start(site, {"JOBDIR": str(tmp_path)}).finish()
assert site.hits["/b"] == 1
"""

import asyncio
import json
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import scrapy
from scrapy import crawler as scrapys
from scrapy.exceptions import CloseSpider, ScrapyDeprecationWarning
from scrapy.http import HtmlResponse
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.misc import load_object
from typing_extensions import Self

from scrapy_bloom.fleet import lease
from scrapy_bloom.job import commits
from tests.support.crawler import OwnSettings
from tests.support.processes import PATIENCE, PROCESSES

ADDON = {"ADDONS": {"scrapy_bloom.Addon": 300}}
IMPATIENT = {"AWAY_SECONDS": 0.02, "FLUSH_SECONDS": 0.005, "IDLE_SECONDS": 0.02}
"""Constants of `scrapy_bloom.fleet.lease` for tests, which otherwise wait for most of their time."""
Pages = dict[str, "Sequence[str] | int | str | bytes | Busy"]
"""By path: the links of a page, a status without a body, the path that it redirects to, or the page as it is."""


@dataclass
class Busy:
    """A page that answers its first *times* with a *status* and ``Retry-After``, and then without links."""

    retry_after: str
    times: int = 1
    status: int = 429


@dataclass
class Reply:
    """What is sent. A status 0 hangs up."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Site:
    """A site on loopback that counts what it is asked for. ``/held...`` waits for `release`."""

    def __init__(self, pages: Mapping[str, Any]) -> None:
        self.pages: Any = pages
        self.hits: Counter[str] = Counter()
        self.order: list[str] = []
        self.moments: list[tuple[float, str, str]] = []
        """When it was asked, under which host name, for what."""
        self.release = threading.Event()
        self.asked = threading.Condition()
        site = self

        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # headers and body in one packet, or each answer takes 40 ms

            def do_GET(self) -> None:
                reply = site.take(self, self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
                if reply.status == 0:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                always = {"Content-Type": "text/html", "Content-Length": str(len(reply.body))}
                for name, value in {**always, **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # crawls are killed
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, request: BaseHTTPRequestHandler, body: str) -> Reply:
        """Count *request*, which has this *body*, and return what is sent."""
        self.count(request.path, request.headers["Host"].partition(":")[0])
        return self.reply(request.path, request.headers)

    def count(self, name: str, host: str = "") -> int:
        """Note that *name* is asked for; return how often it was."""
        with self.asked:
            self.hits[name] += 1
            self.order.append(name)
            self.moments.append((time.time(), host, name))
            self.asked.notify_all()
            return self.hits[name]

    def reply(self, path: str, headers: Mapping[str, str]) -> Reply:
        """Return what is sent for a request of *path* with *headers*."""
        page = self.answer(path)
        if isinstance(page, Busy):
            is_busy = self.hits[path] <= page.times
            return Reply(page.status, headers={"Retry-After": page.retry_after}) if is_busy else Reply()
        if isinstance(page, int):
            return Reply(page)
        if isinstance(page, str):
            return Reply(302, headers={"Location": page})
        return Reply(body=page if isinstance(page, bytes) else html(page))

    def answer(self, path: str) -> Any:
        """Return the page at *path*, when it is to be sent."""
        if path.startswith("/held"):
            self.release.wait(PATIENCE)
        return self.pages.get(path, 404)

    def wait_for(self, what: str | int) -> None:
        """Return once a path was asked for, or so many pages."""

        def is_reached() -> bool:
            return self.hits[what] > 0 if isinstance(what, str) else self.hits.total() >= what

        with self.asked:
            assert self.asked.wait_for(is_reached, PATIENCE), f"waited for {what}, was asked for {self.hits}"

    def forget_hits(self) -> None:
        self.hits.clear()
        self.order.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def html(links: Sequence[str]) -> bytes:
    return "".join(f'<a href="{link}">link</a>' for link in links).encode()


def tree(count: int) -> Pages:
    """Return ``/`` and so many more pages, of which each links to the first and to two others."""
    children = {n: [child for child in (2 * n + 1, 2 * n + 2) if child <= count] for n in range(1, count + 1)}
    return {"/": ["/1", "/2"]} | {f"/{n}": ["/1", *(f"/{child}" for child in children[n])] for n in children}


@dataclass
class Outcome:
    """What a crawl left behind."""

    code: int
    """0, or minus the number of the signal that ended it."""
    log: str
    stats: dict[str, Any]
    """The final stats; empty if the crawl did not get as far as that."""
    state: dict[str, Any]
    """``spider.state`` as it was when the crawl began."""

    def lines(self, level: str) -> list[str]:
        return [line for line in self.log.splitlines() if f" {level}: " in line]


class Running:
    """A crawl that is under way, in a process of its own."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.directory = directory
        self._process = PROCESSES.Process(target=crawl_here, args=(settings,), daemon=True)
        self._process.start()

    def signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def is_alive(self, wait: float = 0) -> bool:
        """Return whether the crawl still runs after so many seconds."""
        self._process.join(wait)
        return self._process.exitcode is None

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def finish(self) -> Outcome:
        """Wait for its end."""
        self._process.join(PATIENCE)
        code = self._process.exitcode
        self._process.kill()
        path = self.directory / "log"
        log = path.read_text(encoding="utf-8") if path.exists() else ""
        assert code is not None, f"the crawl hangs:\n{log}"
        return Outcome(code, log, self._read("stats"), self._read("state"))

    def _read(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return found


def start(site: Site, directory: Path, settings: Mapping[str, Any], *, without_reactor: bool = False) -> Running:
    """Start a crawl of *site*, with its log and stats in *directory*."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("log", "stats", "state"):
        (directory / name).unlink(missing_ok=True)
    start_at = [site.url + path for path in settings.get("START", ["/"])]
    usual = {"URLS": start_at, "LOG_FILE": str(directory / "log"), "TELNETCONSOLE_ENABLED": False}
    quick = {"RETRY_TIMES": 1, "BLOOM_CAPACITY": 1000, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}
    if without_reactor:  # its HTTP client is a package that few have installed
        usual |= {"TWISTED_REACTOR_ENABLED": False}
        usual |= {"DOWNLOADER_MIDDLEWARES": {"tests.support.crawls.FetchInThread": 1}}
        usual |= {"DOWNLOAD_HANDLERS": dict.fromkeys(["http", "https", "ftp", "s3"])}
    call = {**usual, **quick, "REMOTE_CONTROL_ENABLED": False, "CHILD": str(directory), **settings}
    return Running(directory, call)


def crawl(site: Site, directory: Path, settings: Mapping[str, Any], **others: Any) -> Outcome:
    """Crawl *site* to the end."""
    outcome = start(site, directory, settings, **others).finish()
    assert outcome.code == 0, outcome.log
    return outcome


# -- in the child ------------------------------------------------------------------------------------------------------


class FetchInThread:
    """Downloader middleware: fetches pages without Scrapy's HTTP clients."""

    async def process_request(self, request: scrapy.Request, spider: Any = None) -> HtmlResponse:
        body = await asyncio.to_thread(lambda: urlopen(request.url).read())
        return HtmlResponse(request.url, body=body, encoding="utf-8")


class FollowSpider(scrapy.Spider):
    """Follows every link, and counts the pages in its state. A page with "list" in its URL gives no item."""

    name = "site"
    state: dict[str, Any]

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.start_urls = crawler.settings["URLS"]
        crawler.signals.connect(spider.note_state, signal=scrapy.signals.engine_started)
        return spider

    def note_state(self) -> None:
        state = json.dumps(getattr(self, "state", {}))
        Path(self.settings["CHILD"], "state").write_text(state, encoding="utf-8")

    def parse(self, response: Any) -> Iterator[Any]:
        if "stops" in response.url:
            raise CloseSpider
        if hasattr(self, "state"):
            self.state["pages"] = self.state.get("pages", 0) + 1
        if "list" not in response.url:
            yield {"url": response.url}
        yield from response.follow_all(self.links(response))
        if "raises" in response.url:
            raise RuntimeError("as the test wants it")

    def links(self, response: Any) -> list[Link]:
        return LinkExtractor().extract_links(response)


class NotingSpider(FollowSpider):
    """Notes when the downloader sent each request: requests that were sent in time may arrive close together."""

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.note, signal=scrapy.signals.response_downloaded)
        return spider

    def note(self, request: Any) -> None:
        crawler: Any = self.crawler
        slot = crawler.engine.downloader.slots[request.meta["download_slot"]]
        crawler.stats.set_value("sent", [*crawler.stats.get_value("sent", []), slot.lastseen])


def crawl_here(settings: dict[str, Any]) -> None:
    if not settings.get("SCHEDULER", "").startswith("scrapy_redis."):  # whose calls into Scrapy are deprecated
        warnings.simplefilter("error", ScrapyDeprecationWarning)
    commits.COMMIT_SECONDS = 0.1  # tests wait for commits
    for name, seconds in IMPATIENT.items():
        setattr(lease, name, seconds)
    directory = Path(settings["CHILD"])
    clock: Any = time.time
    clock.days_later = settings.get("DAYS_LATER", 0)
    kind: Any = scrapys.CrawlerProcess
    if settings.get("TWISTED_REACTOR_ENABLED") is False:
        kind = scrapys.AsyncCrawlerProcess
    process = kind(OwnSettings(settings))
    crawler = process.create_crawler(load_object(settings.get("SPIDER", FollowSpider)))
    process.crawl(crawler)
    process.start()
    stats = crawler.stats.get_stats() if crawler.stats else {}
    (directory / "stats").write_text(json.dumps(stats, default=str))
