"""A job's store, driven by its own words and killed between any two steps: what its pages give is there once.

A kill is what it is for files: the directory is copied as it is, the store is dropped, and the copy is opened. Pages
lead to others in every way that a store knows, and what they give is noted by the commits, as lengths of feeds are.
"""

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_bloom.frontier.order import LaneKey, Order
from scrapy_bloom.frontier.page import Page, Pending
from scrapy_bloom.frontier.store import PageEffects
from scrapy_bloom.job.records import Batch
from scrapy_bloom.job.store import JobStore, open_files
from scrapy_bloom.settings import BloomSettings
from tests.support.damage import verify_job

FILTERED, UNFILTERED, MEMORY, UNFILTERED_MEMORY = range(4)
MOST_KILLS = 12
"""Of one crawl. A page that waits for many others would be killed for ever."""
pytestmark = pytest.mark.usefixtures("commits_at_once")

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


@pytest.mark.parametrize("sites", [10, pytest.param(400, marks=pytest.mark.slow)])
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
