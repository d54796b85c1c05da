"""What ``kill -9`` leaves of a crawl at any step: each page is fetched, each item is there once.

A kill is what it is for files: the directory is copied before or after a step, and a crawl goes on in the copy.
"""

import csv
import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom.errors import BloomError
from scrapy_bloom.frontier.order import LaneKey, Order
from scrapy_bloom.frontier.page import Page, Pending
from scrapy_bloom.frontier.store import PageEffects
from scrapy_bloom.job import commits
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.records import Batch
from scrapy_bloom.job.store import JobStore, open_files
from scrapy_bloom.settings import BloomSettings
from tests.support.damage import verify_job
from tests.support.feeds import FeedRun


class Inline:
    """In the place of the thread that writes transactions: it writes them at once, so that a seed says what happens."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def submit(self, call: Callable[..., None], *args: Any, **kwargs: Any) -> Future[None]:
        future: Future[None] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None: ...


@pytest.fixture(autouse=True)
def commits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commits begin whenever they may, and be written before the crawl goes on."""
    monkeypatch.setattr(commits, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(commits, "ThreadPoolExecutor", Inline)


# -- a crawl with feeds, killed at any step of what it writes ----------------------------------------------------------

PAGES, STARTS, AT_ONCE, BATCH = 20, 3, 3, 7
FEEDS = {
    "items.jl": {"format": "jsonlines"},
    "items.csv": {"format": "csv"},
    "items.json": {"format": "json"},
    "batch-%(batch_id)d.jl": {"format": "jsonlines", "batch_item_count": BATCH},
}
WANTED = Counter((page, item) for page in range(PAGES) for item in range((page * 5 + 3) % 4))


class Steps:
    """Calls *before* with the number of each step: a call that writes to files, before it and after it."""

    IN_C = frozenset(
        {"execute", "executescript", "connect", "fsync", "flush", "truncate", "replace", "unlink", "posix_fallocate"}
    )
    IN_PYTHON = frozenset({"add", "begin", "write_state", "lengths", "close", "create"})

    def __init__(self, before: Callable[[int], None]) -> None:
        self.count, self._before = 0, before

    def profile(self, frame: Any, event: str, arg: Any) -> None:
        if event in {"c_call", "c_return"}:
            is_step = getattr(arg, "__name__", "") in self.IN_C
        else:
            code = frame.f_code
            is_step = event == "call" and code.co_name in self.IN_PYTHON and "scrapy_bloom" in code.co_filename
        if is_step:
            self.count += 1
            self._before(self.count)


def crawl(directory: Path) -> list[int]:
    """Crawl what is left of the site to the end, and return the pages that were fetched."""
    run = FeedRun(directory, FEEDS, BLOOM_CAPACITY=8)  # the filter grows in the crawl
    engine, fetched = run.engine, list[int]()
    engine.push(*(Request(f"http://site.test/{page}") for page in range(STARTS)))
    in_progress = [engine.start() for _ in range(AT_ONCE)]
    while any(in_progress):
        if (request := in_progress.pop(0)) is not None:
            page = int(request.url.rpartition("/")[2])
            fetched.append(page)
            assert len(fetched) <= 2 * PAGES, "pages come again and again"
            engine.spider.state.setdefault("pages", []).append(page)
            with engine.within(request):
                for item in range((page * 5 + 3) % 4):
                    run.scrape({"page": page, "item": item})
                engine.push(*(Request(f"http://site.test/{(page * 7 + n * 13 + 1) % PAGES}") for n in range(4)))
            engine.end(request)
            if len(fetched) % 4 == 0:
                run.commit()
        in_progress.append(engine.start())
    assert set(engine.spider.state["pages"]) == set(range(PAGES))
    run.end()
    return fetched


def is_finished(directory: Path) -> bool:
    with suppress(BloomError):  # it is not even begun
        state = inspect_job(directory / "job").state
        return state.is_finished and state.runs > 0
    return False


def finished(directory: Path) -> set[int]:
    """Return the pages whose items are in the feed as far as the job knows of it."""
    feed = directory / "items.jl"
    with suppress(BloomError):  # it is not even begun
        for noted in inspect_job(directory / "job").feeds:
            if noted.path == str(feed) and feed.exists():
                return {json.loads(line)["page"] for line in feed.read_bytes()[: noted.size].splitlines()}
    return set()


def items(paths: list[Path]) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for path in paths:
        with path.open(newline="") as file:
            rows = {".csv": csv.DictReader, ".json": json.load, ".jl": lambda lines: map(json.loads, lines)}[
                path.suffix
            ](file)
            found.update((int(row["page"]), int(row["item"])) for row in rows)
    return found


def check(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fail unless each item is in each feed once, and the batches are full."""
    for name in ("items.jl", "items.csv", "items.json", "batch-*.jl"):
        assert items(sorted(directory.glob(name))) == WANTED, name
    batches = [len(path.read_text().splitlines()) for path in directory.glob("batch-*")]
    assert sorted(batches) == sorted([BATCH] * (len(batches) - 1) + [WANTED.total() - BATCH * (len(batches) - 1)])
    assert verify_job(directory / "job") == []
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}]


@pytest.mark.parametrize("every", [55, pytest.param(4, marks=pytest.mark.slow)])
def test_a_kill_at_any_step_loses_nothing(tmp_path: Path, every: int, caplog: pytest.LogCaptureFixture) -> None:
    """Before or after a statement, a sync, a change of bits or watermark, also while the job is begun or closed:
    resumed, the crawl has every page and item, and fetches no page again whose commit was whole."""
    directory, copies = tmp_path / "run", tmp_path / "copies"
    steps = Steps(lambda step: step % every or shutil.copytree(directory, copies / str(step)))  # type: ignore[func-returns-value]
    directory.mkdir()
    sys.setprofile(steps.profile)
    try:
        fetched = crawl(directory)
    finally:
        sys.setprofile(None)
    assert sorted(fetched) == list(range(PAGES))
    check(directory, caplog)
    killed = sorted(copies.iterdir(), key=lambda path: int(path.name))
    assert len(killed) > 10
    for copy in killed:
        shutil.rmtree(directory)
        copy.rename(directory)
        before = finished(directory)
        again = [] if is_finished(directory) else crawl(directory)
        assert not before & set(again), f"step {copy.name}: a page whose commit was whole was fetched again"
        check(directory, caplog)


# -- a store, driven by its own words and killed between any two -------------------------------------------------------
# Pages lead to others in every way that a store knows, and what they give is noted by the commits, as lengths of feeds.

FILTERED, UNFILTERED, MEMORY, UNFILTERED_MEMORY = range(4)
MOST_KILLS = 12
"""Of one crawl. A page that waits for many others would be killed for ever."""
SETTINGS = BloomSettings.from_settings(Settings({"BLOOM_CAPACITY": 20}))  # the chain grows
OWNER = "site", {"fingerprinter": "test"}
Step = tuple[str, int, int]


def site_of(rng: random.Random) -> list[list[Step]]:
    """Return what each page does: it gives items, and leads to pages with larger numbers, in one of four ways each."""
    count, pages, ways = rng.randint(1, 15), [], [*range(4), FILTERED, MEMORY]
    for number in range(count):
        steps = [("item", item, 0) for item in range(rng.randint(1, 2))]
        steps += [
            ("link", rng.randint(number + 1, min(count - 1, number + 4)), rng.choice(ways))
            for _ in range(rng.randint(0, 3) if number + 1 < count else 0)
        ]
        rng.shuffle(steps)
        pages.append(steps)
    return pages


def items_of(site: list[list[Step]]) -> Counter[str]:
    """Return how often each item comes if nothing disturbs a crawl: once, and for each unfiltered link to its page."""
    items, todo, seen = Counter[str](), [(0, FILTERED)], set()
    while todo:
        number, way = todo.pop()
        if way in (FILTERED, MEMORY):
            if number in seen:
                continue
            seen.add(number)
        items.update(f"{number}/{value}" for kind, value, _ in site[number] if kind == "item")
        todo += [(value, way) for kind, value, way in site[number] if kind == "link"]
    return items


class Crawl(PageEffects):
    """A store, and the pages that are in progress in it."""

    def __init__(self, jobdir: Path, *, is_lifo: bool) -> None:
        self.jobdir = jobdir
        order = Order(by_slot=True, is_lifo=(is_lifo, is_lifo))
        self.items: list[str] = []
        self.store = JobStore(open_files(jobdir / "requests.bloom", SETTINGS, *OWNER), order, *OWNER)
        self.items += json.loads(self.store.database.notes("state").get("items", b"[]"))
        self.store.begin(self)
        self.steps: dict[Page, list[Step]] = {}
        self.find(0, FILTERED)  # start requests are asked for in each run

    def take(self, page: Page, batch: Any = None) -> None:
        self.items += [item for _, item in page.gave]
        page.gave.clear()

    def add_to(self, batch: Batch) -> None:
        batch.note("state", {"items": json.dumps(self.items).encode()})

    def find(self, number: int, way: int, parent: Page | None = None) -> None:
        fingerprint = b"%020d" % number if way in (FILTERED, MEMORY) else None
        if fingerprint is None or self.store.add(fingerprint):
            body = None if way in (MEMORY, UNFILTERED_MEMORY) else b"%d" % number
            self.store.push(Pending(LaneKey(f"host-{number % 2}", 0), fingerprint, body, number), parent)

    def start(self, site: list[list[Step]]) -> bool:
        """Start the next page, and return whether there was one."""
        page = self.store.pop()
        if page is not None:
            self.steps[page] = list(site[number_of(page)])
        return page is not None

    def go_on(self, page: Page) -> None:
        """Do the next step of *page*, or end it."""
        number = number_of(page)
        if not self.steps[page]:
            del self.steps[page]
            self.store.done(page)
            return
        kind, value, way = self.steps[page].pop(0)
        if kind == "item":
            page.gave.append(("items.jl", f"{number}/{value}"))
        else:
            self.find(value, way, page)

    def kill(self, copy: Path) -> Path:
        """Return a copy of the files as they are now, and let go of the store."""
        shutil.copytree(self.jobdir, copy)
        self.store.abandon()
        shutil.rmtree(self.jobdir)
        return copy


def number_of(page: Page) -> int:
    return int(page.request if page.body is None else page.body)


def play(site: list[list[Step]], rng: random.Random, directory: Path) -> tuple[Counter[str], int]:
    """Crawl *site*, and kill the crawl after some steps. Return the items, and how many kills there were."""
    killed, is_lifo = 0, rng.random() < 0.5
    jobdir = directory / "0"
    while True:
        crawl = Crawl(jobdir, is_lifo=is_lifo)
        while killed == MOST_KILLS or rng.random() >= 0.15:
            action, in_progress = rng.random(), list(crawl.steps)
            if action < 0.2:
                crawl.store.commit()
            elif action < 0.5 or not in_progress:
                if not crawl.start(site) and not in_progress:
                    crawl.store.close()
                    assert verify_job(jobdir) == []
                    return Counter(crawl.items), killed
            else:
                crawl.go_on(rng.choice(in_progress))
        killed += 1
        jobdir = crawl.kill(directory / str(killed))


@pytest.mark.parametrize("sites", [10, pytest.param(250, marks=pytest.mark.slow)])
def test_kills_between_any_two_steps_change_nothing(tmp_path: Path, sites: int) -> None:
    """Whatever the site, the order of the steps and the kills: each item comes as often as without a kill."""
    kills = 0
    for seed in range(sites):
        rng = random.Random(seed)
        site = site_of(rng)
        items, killed = play(site, rng, tmp_path / str(seed))
        assert items == items_of(site), f"site {seed}"
        kills += killed
    assert kills > 4 * sites
