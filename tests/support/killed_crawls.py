"""Crawls in processes of their own, killed at a random moment or before the n-th step of what they write."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import resource
import signal
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import HtmlResponse

from scrapy_bloom.crawl import crawl as owner
from scrapy_bloom.crawl.crawl import Crawl
from scrapy_bloom.errors import BloomError
from scrapy_bloom.job import commits
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.store import JobStore
from tests.support import forks
from tests.support.crawls import html

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from scrapy import Request
    from scrapy.http import Response
    from typing_extensions import Self

BATCH = 7
STARTS = 3
LIMIT = 30_000
"""Largest file in bytes on a full disk without a file system of its own: more than any but SQLite's log has."""


@dataclass(frozen=True)
class CrawlOfSite:
    """A crawl of so many pages in *directory*, and the process that runs it."""

    directory: Path
    pages: int = 40
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.01
    """Between two commits."""
    kill_at: int = 0
    """Before which step the process kills itself; 0: never."""
    kill_page: int = 0
    """The process is killed instead of fetching its page of this number; 0: never."""
    patience: int = 2_000
    """Times 2 ms that a page waits for a commit."""
    counts: bool = False
    """Whether it notes how many steps it took."""
    full: tuple[int, int] = (0, 0)
    """Before which page the disk gets full, and before which there is room again; 0: never."""
    disk: str = ""
    """Directory of job and feeds; "": the same as for the log and what the test notes."""

    @property
    def files(self) -> Path:
        return Path(self.disk or self.directory)

    @property
    def job(self) -> Path:
        return self.files / "job"

    @property
    def feed(self) -> Path:
        return self.files / "items.jl"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def is_closed(self) -> bool:
        """Whether a run has closed the job, with nothing pending."""
        try:
            state = inspect_job(self.job).state
        except BloomError:  # not even begun
            return False
        return state.is_finished and state.runs > 0

    def fetched(self) -> list[int]:
        """Return the pages that the middleware was asked for, in all runs."""
        path = self.directory / "fetched"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wanted(self) -> Counter[tuple[int, int]]:
        return Counter((page, item) for page in range(self.pages) for item in range(items_of(page)))

    def items(self, name: str = "items.jl") -> Counter[tuple[int, int]]:
        """Return how often each item stands in the feeds *name*, a pattern. A torn line is an error."""
        found: Counter[tuple[int, int]] = Counter()
        for path in self.files.glob(name):
            with path.open(newline="") as file:
                if path.suffix == ".csv":
                    header, *rows = csv.reader(file) if path.stat().st_size else [["page", "item"]]
                    assert header == ["page", "item"]
                    rows = [row for row in rows if row != header]  # of jobs before, as by Scrapy
                else:
                    rows = [json.loads(line).values() for line in file]
            found.update((int(page), int(item)) for page, item in rows)
        return found

    def finished_lines(self) -> bytes:
        """Return the feed in JSON lines as far as the job knows of it."""
        if not self.feed.exists():
            return b""
        noted = [feed.size for feed in inspect_job(self.job).feeds if feed.path == str(self.feed)]
        return self.feed.read_bytes()[: noted[0]] if noted else b""

    def finished(self) -> set[int]:
        """Return the pages whose items are in the feed as far as the job knows of it."""
        return {json.loads(line)["page"] for line in self.finished_lines().splitlines()}

    def batches(self) -> list[int]:
        """Return how many items each batch has, from the first to the last."""
        paths = {int(path.stem.split("-")[1]): path for path in self.files.glob("batch-*.jl")}
        assert sorted(paths) == list(range(1, len(paths) + 1))
        return [len(paths[number].read_text().splitlines()) for number in sorted(paths)]

    def lines(self, *levels: str) -> list[str]:
        """Return the lines of the log that are of *levels*."""
        return [line for line in self.log.splitlines() if any(f" {level}: " in line for level in levels)]

    def check(self, *, may_fail: bool = False) -> None:
        """Fail unless each item of each page came once, in each feed, and no page was missed.

        *may_fail*: there may be errors in the log, as after a full disk.
        """
        for name in ("items.jl", "items.csv", "batch-*.jl"):
            found, wanted = self.items(name), self.wanted()
            assert found == wanted, f"{name}: {wanted - found} lost, {found - wanted} too often"
        *full, last = self.batches()
        assert set(full) <= {BATCH}
        assert 0 < last <= BATCH
        assert may_fail or not self.lines("ERROR", "CRITICAL")
        seen = json.loads((self.directory / "state").read_text())
        assert sorted(set(seen)) == list(range(self.pages))


def items_of(page: int) -> int:
    return (page * 5 + 3) % 4


def links_of(page: int, pages: int) -> bytes:
    """Return the links of *page*, some of which lead to start pages."""
    return html([f"/{(page * 7 + link * 13 + 1) % pages}" for link in range(4)])


def run(crawls: Sequence[CrawlOfSite]) -> list[int]:
    """Run *crawls* one after the other, and return how each ended: 0, or minus the number of a signal."""
    endings = []
    for crawl in crawls:
        forks.begin(f"{__name__}.crawl_here", {**asdict(crawl), "directory": str(crawl.directory)})
        endings.append(forks.end())
    return endings


def run_to_the_end(crawl: CrawlOfSite, **changes: Any) -> CrawlOfSite:
    crawl = replace(crawl, kill_at=0, kill_page=0, **changes)
    assert run([crawl]) == [0]
    return crawl


# -- in the child ------------------------------------------------------------------------------------------------------


class Pages:
    """Downloader middleware: has the pages of a site, and notes which were asked for."""

    def __init__(self, crawler: Any) -> None:
        self.crawl: CrawlOfSite = crawler.settings["CRAWL"]
        self._crawler, self._count, self._lock = crawler, 0, asyncio.Lock()
        self._file = os.open(self.crawl.directory / "fetched", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    @classmethod
    def from_crawler(cls, crawler: Any) -> Self:
        return cls(crawler)

    async def process_request(self, request: Request, spider: Any = None) -> Response:
        async with self._lock:
            return await self._fetch(request)

    async def _fetch(self, request: Request) -> Response:
        self._count = count = self._count + 1
        if count % 4 == 0:
            await self._next_commit(self.crawl.patience)
        fill, room = self.crawl.full
        if count == fill:
            fill_disk(self.crawl)
        if count == room:
            make_room(self.crawl)
            await self._next_commit(10_000)
        if count == self.crawl.kill_page:
            os.kill(os.getpid(), signal.SIGKILL)
        page = int(request.url.rsplit("/", 1)[1])
        os.write(self._file, b"%d\n" % page)
        return HtmlResponse(request.url, body=links_of(page, self.crawl.pages))

    async def _next_commit(self, patience: int) -> None:
        """Let a commit end, if one does in a while: a crawl in memory would be over before the second."""
        own = Crawl.of(self._crawler).store
        assert isinstance(own, JobStore)
        commits = own.commits
        for _ in range(patience):
            await asyncio.sleep(0.002)
            if own.commits > commits:
                return


def fill_disk(crawl: CrawlOfSite) -> None:
    """Fill the file system of ``crawl.disk``; without one of its own, let no file grow beyond what the log needs."""
    if not crawl.disk:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
        return
    with (crawl.files / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4096)) == 4096:
            pass


def make_room(crawl: CrawlOfSite) -> None:
    (crawl.files / "ballast").unlink(missing_ok=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class SiteSpider(scrapy.Spider):
    """Follows every link, gives the items of a page, and keeps in its state which pages it has seen."""

    name = "site"

    @property
    def crawl(self) -> CrawlOfSite:
        crawl: CrawlOfSite = self.settings["CRAWL"]
        return crawl

    async def start(self) -> AsyncIterator[Any]:
        for page in range(STARTS):
            yield scrapy.Request(f"http://site.test/{page}")  # asked for in each run, and filtered

    async def parse(self, response: Any) -> AsyncIterator[Any]:
        page = int(response.url.rsplit("/", 1)[1])
        if hasattr(self, "state"):
            self.state.setdefault("pages", []).append(page)
        for item in range(items_of(page)):
            yield {"page": page, "item": item}
            if self.settings["STRANGE_ITEM"] and not item:
                yield {"page": page, "item": object()}
        for link in response.follow_all(css="a"):
            yield link

    def closed(self, reason: str) -> None:
        (self.crawl.directory / "state").write_text(json.dumps(getattr(self, "state", {}).get("pages", [])))


def settings_of(crawl: CrawlOfSite) -> dict[str, Any]:
    directory = crawl.files
    settings = {
        "CRAWL": crawl,
        "JOBDIR": str(crawl.job),
        "ADDONS": {"scrapy_bloom.components.addon.Addon": 300},
        "DUPEFILTER_CLASS": "scrapy_bloom.components.dupefilter.BloomDupeFilter",
        "SCHEDULER": "scrapy_bloom.components.scheduler.DurableScheduler",
        "EXTENSIONS_BASE": {
            "scrapy.extensions.corestats.CoreStats": 0,
            "scrapy.extensions.spiderstate.SpiderState": 0,
            "scrapy.extensions.closespider.CloseSpider": 0,
            "scrapy_bloom.components.feeds.FeedExporter": 0,
        },
        "FEEDS": {
            f"{directory}/items.jl": {"format": "jsonlines"},
            f"{directory}/items.csv": {"format": "csv"},
            f"{directory}/batch-%(batch_id)d.jl": {"format": "jsonlines", "batch_item_count": BATCH},
        },
        "CONCURRENT_REQUESTS": 4,
        "BLOOM_CAPACITY": 20,  # the chain grows in the crawl
        "DOWNLOAD_HANDLERS": dict.fromkeys(["ftp", "s3", "data"]),
        "LOG_LEVEL": "INFO",
        "LOG_FILE": str(crawl.directory / "log"),
    }
    settings["DOWNLOADER_MIDDLEWARES"] = {Pages: 1}
    return {**settings, **crawl.settings}


class Steps:
    """Counts what a process does to its files, and kills it before or after the n-th such call."""

    IN_C = frozenset(
        {"execute", "executescript", "connect", "fsync", "flush", "truncate", "replace", "unlink", "posix_fallocate"}
    )
    IN_PYTHON = frozenset({"add", "begin", "write_state", "lengths", "close", "create"})

    def __init__(self, kill_at: int) -> None:
        self.count = 0
        self._kill_at = kill_at

    def start(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: Any, event: str, arg: Any) -> None:
        if event in {"c_call", "c_return"}:
            if getattr(arg, "__name__", "") not in self.IN_C:
                return
        elif (
            event != "call"
            or frame.f_code.co_name not in self.IN_PYTHON
            or "scrapy_bloom" not in frame.f_code.co_filename
        ):
            return
        self.count += 1
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def crawl_here(fields: dict[str, Any]) -> None:
    crawl = CrawlOfSite(**{**fields, "directory": Path(fields["directory"])})
    crawl.directory.mkdir(parents=True, exist_ok=True)
    commits.COMMIT_SECONDS = owner.TICK_SECONDS = crawl.seconds
    steps = Steps(crawl.kill_at)
    process = CrawlerProcess(settings_of(crawl))
    process.crawl(SiteSpider)
    if crawl.kill_at or crawl.counts:
        steps.start()
    process.start()
    sys.setprofile(None)
    if crawl.counts:
        (crawl.directory / "steps").write_text(str(steps.count))
