"""Random spiders, drawn from a seed: ``python -m tests.zoo.random_spiders 7`` shows the program of ``Random7``.

What a program gives does not depend on the order of answers: a page does the same whichever request has led to it, and
unfiltered links lead only to pages of higher numbers. So the pages and items of two crawls can be compared.
"""

import asyncio
import functools
import random
import re
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

import scrapy
from scrapy import signals
from scrapy.exceptions import DropItem, IgnoreRequest

from tests.zoo.child import Species
from tests.zoo.spiders import let_items_through

HERE = "tests.zoo.random_spiders"
FORMATS = ["jsonlines", "json", "csv", "xml"]
OWN_SETTINGS = {
    "BLOOM_CAPACITY": 5,
    "BLOOM_DELTA": True,
    "BLOOM_LOOP_GUARD": True,
    "BLOOM_PAGES_PER_HOST": 1_000,
    "BLOOM_URL_RULES": ["common"],
}
"""Settings that change nothing about what these programs give."""
MOST_PAGES = 45
"""Pages of a program, counted as often as they are fetched."""


@dataclass
class Step:
    """What a callback does next: an item, a link, a pause, an item once more, many items, a download, or an error."""

    does: str
    to: int = 0
    """The page that a link leads to."""
    is_filtered: bool = True
    lives: str = ""
    """What keeps the request in memory: a "closure", or a "lock" in its meta; "" if it can be written."""
    priority: int = 0


@dataclass
class Page:
    """*answer*: how the site behaves, see `site.behave`. *fate*: what a middleware does to the requests."""

    number: int
    answer: str
    is_post: bool
    fate: str
    handles_errors: bool
    steps: list[Step] = field(default_factory=list)

    @property
    def path(self) -> str:
        return f"/r/{self.answer}/{'form' if self.is_post else self.number}"

    @property
    def fails(self) -> bool:
        return (self.answer in {"shut", "gone", "dead"} and self.fate != "backup") or self.fate.startswith("refused")


@dataclass
class Program:
    pages: list[Page]
    starts: list[int]
    is_start_filtered: bool
    """Whether start() is the spider's own, with filtered requests and pauses, instead of a list of start URLs."""
    pipeline: str
    settings: dict[str, Any]
    own_settings: dict[str, Any] = field(default_factory=dict)
    """For the add-on."""
    feeds: dict[str, dict[str, Any]] = field(default_factory=dict)
    """As in FEEDS, by the names of their files."""

    def __str__(self) -> str:
        start = f"start {self.starts}{' filtered' * self.is_start_filtered}"
        lines = [f"{start}, {self.pipeline or 'no'} pipeline, {self.settings | self.own_settings}, {[*self.feeds]}"]
        for page in self.pages:
            post, errback = " POST" * page.is_post, " errback" * page.handles_errors
            lines.append(f"page {page.number}: {page.answer}{post} {page.fate}{errback}")
            for step in page.steps:
                link = f" {step.to}{'' if step.is_filtered else ' unfiltered'} {step.lives} {step.priority}"
                lines.append(f"    {step.does}{link if step.does == 'link' else ''}")
        return "\n".join(lines)


def draw(seed: int) -> Program:
    """Return the program of *seed*."""
    die = random.Random(seed)
    count = die.randint(8, 20)
    # Each program has a few traits, so that programs differ more than pages do.
    traits = {trait: die.random() < 0.4 for trait in ("memory", "unfiltered", "errors", "fates", "slow", "posts")}
    pages = [_draw_page(die, number, traits) for number in range(count)]
    plain = [page.number for page in pages if page.answer == "ok" and not page.is_post]
    for page in pages:
        if page.answer == "moved":
            page.answer = f"moved{die.choice(plain)}" if plain else "ok"
        page.steps = [_draw_step(die, page.number, count, traits) for _ in range(die.randint(1, 7))]
        # A page of each number is reached from one of a lower number.
    for number in range(1, count):
        pages[die.randrange(number)].steps.insert(0, _draw_link(die, number, traits, is_forward=True))
    starts = sorted({0, *(die.randrange(count) for _ in range(die.choice([0, 0, 1, 3])))})
    starts = [number for number in starts if not pages[number].is_post]
    pages[0].is_post = False
    pipeline = die.choice(["", "", "dropping", "replacing"])
    order = die.choice(["Lifo", "Lifo", "Fifo"])
    settings = {
        "CONCURRENT_REQUESTS": die.choice([1, 2, 4, 8]),
        "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.Pickle{order}DiskQueue",
        "SCHEDULER_MEMORY_QUEUE": f"scrapy.squeues.{order}MemoryQueue",
        "DEPTH_PRIORITY": die.choice([0, 0, 1, -1]),
    }
    program = Program(pages, starts or [0], die.random() < 0.4, pipeline, settings)
    unfiltered = [step for page in pages for step in page.steps if step.does == "link" and not step.is_filtered]
    die.shuffle(unfiltered)
    while fetches(program) > MOST_PAGES and unfiltered:
        unfiltered.pop().is_filtered = True
    # What follows was added later: the seeds that have found something still draw the rest as they did.
    queue = die.choice(["Scrapy", "DownloaderAware"])
    program.settings["SCHEDULER_PRIORITY_QUEUE"] = f"scrapy.pqueues.{queue}PriorityQueue"
    program.own_settings = {name: value for name, value in OWN_SETTINGS.items() if die.random() < 0.4}
    if unfiltered or not program.is_start_filtered:  # a later run skips what gave an item, also unfiltered
        program.own_settings.pop("BLOOM_DELTA", None)
    if queue == "Scrapy":  # which has no order of hosts
        program.own_settings.pop("BLOOM_PAGES_PER_HOST", None)
    formats = die.sample(FORMATS, die.choice([1, 1, 2, 3]))
    program.feeds = {f"items.{format_}": {"format": format_} for format_ in formats}
    if "BLOOM_DELTA" not in program.own_settings and die.random() < 0.5:
        program.own_settings["BLOOM_CHANGES"] = True  # in a job, whose first cycle gives what plain Scrapy gives
    return program


def _draw_page(die: random.Random, number: int, traits: dict[str, bool]) -> Page:
    answer, fate = "ok", ""
    if traits["errors"] and die.random() < 0.5:
        answer = die.choice(["busy1", "busy2", "hang1", "gone", "moved", "shut", "dead"])
    elif die.random() < 0.1:
        answer = die.choice(["busy1", "moved"])
    if traits["fates"] and die.random() < 0.6:
        fates = {"ok": ["rendered", "proxied", "elsewhere", "refused", "refused answer", "alive"], "dead": ["backup"]}
        fate = die.choice(fates.get(answer, ["alive"]))
    is_post = traits["posts"] and answer != "moved" and die.random() < 0.4
    return Page(number, answer, is_post, fate, die.random() < 0.5)


def _draw_step(die: random.Random, number: int, count: int, traits: dict[str, bool]) -> Step:
    does = die.choices(
        ["item", "link", "pause", "again", "many", "download", "error"],
        [6, 6, 2 + 3 * traits["slow"], 1, 0.5, 0.5, 0.3],
    )[0]
    if does == "link":
        to = die.randrange(count)
        return _draw_link(die, to, traits, is_forward=to > number)
    return Step(does)


def _draw_link(die: random.Random, to: int, traits: dict[str, bool], *, is_forward: bool) -> Step:
    is_filtered = not (is_forward and die.random() < (0.5 if traits["unfiltered"] else 0.05))
    lives = die.choice(["closure", "lock"]) if die.random() < (0.4 if traits["memory"] else 0.03) else ""
    return Step("link", to, is_filtered, lives, die.choice([0, 0, 0, 1, -1, 10]))


def fetches(program: Program) -> int:
    """Return how often the callbacks or errbacks of *program* are called, up to a little more than the limit."""
    seen: set[Any] = set()
    todo = [(number, program.is_start_filtered) for number in program.starts]
    done = 0
    while todo and done <= MOST_PAGES:
        number, is_filtered = todo.pop()
        page = program.pages[number]
        if is_filtered and number in seen:
            continue
        seen.update([number] if is_filtered else [])
        if page.answer.startswith("moved"):
            todo.append((int(page.answer[5:]), is_filtered))
            continue
        if page.fate == "elsewhere":
            if (number, "elsewhere") in seen:
                continue
            seen.add((number, "elsewhere"))
        done += 1
        if page.fails and not page.handles_errors:
            continue
        for step in page.steps:
            if step.does == "error":
                break
            if step.does == "link":
                todo.append((step.to, step.is_filtered))
    return done


def page_of(spider: Any, request: Any) -> Page:
    number = re.search(r"/r/\w+/(\d+)", request.url) or re.search(r"n=(\d+)", request.body.decode())
    assert number is not None
    page: Page = spider.program.pages[int(number[1])]
    return page


class Fates:
    """Downloader middleware: replaces and refuses requests."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> Any:
        fates = cls()
        fates.crawler = crawler
        return fates

    def process_request(self, request: Any, spider: Any = None) -> Any:
        fate = self._fate(request)
        if fate == "refused":
            raise IgnoreRequest
        if fate == "alive":
            request.meta["lock"] = threading.Lock()
        if fate == "rendered":
            return self._again(request)
        if fate == "elsewhere":
            return self._again(request, url=request.url + "?by=service", dont_filter=False)
        return None

    def process_response(self, request: Any, response: Any, spider: Any = None) -> Any:
        fate = self._fate(request)
        if fate == "refused answer":
            raise IgnoreRequest
        return self._again(request) if fate == "proxied" else response

    def process_exception(self, request: Any, exception: Any, spider: Any = None) -> Any:
        if self._fate(request) == "backup":
            return self._again(request, url=request.url.replace("/dead/", "/ok/"))
        return None

    def _fate(self, request: Any) -> str:
        if "/r/" not in request.url or "again" in request.meta:
            return ""
        return page_of(self.crawler.spider, request).fate

    @staticmethod
    def _again(request: Any, **changes: Any) -> Any:
        return request.replace(**{"dont_filter": True, "meta": {**request.meta, "again": True}, **changes})


class Pipeline:
    """Item pipeline: "dropping" drops some items, "replacing" has copies of some and goes on changing them."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> Any:
        pipeline = cls()
        pipeline.crawler = crawler
        crawler.signals.connect(pipeline.item_scraped, signals.item_scraped)
        return pipeline

    async def process_item(self, item: Any, spider: Any = None) -> Any:
        kind = self.crawler.spider.program.pipeline
        if kind == "dropping" and (item["page"] + item["step"]) % 4 == 0:
            raise DropItem
        if kind == "replacing":
            item = {**item, "value": f"{item['value']} of the pipeline"}
        return item

    def item_scraped(self, item: Any) -> None:
        if self.crawler.spider.program.pipeline == "replacing":
            asyncio.get_running_loop().call_soon(item.update, {"value": "changed afterwards"})


class RandomSpider(scrapy.Spider):
    """Does what its program says."""

    program: Program

    def __init__(self, base: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.base = base
        self.start_urls = [base + self.program.pages[number].path for number in self.program.starts]

    async def parse(self, response: Any) -> Any:
        page = page_of(self, response.request)
        item: dict[str, Any] = {"page": page.number, "step": -1, "value": "first"}
        for number, step in enumerate(page.steps):
            if step.does in {"item", "many"}:
                for i in range(20 if step.does == "many" else 1):
                    item = {"page": page.number, "step": number, "value": f"{i}"}
                    yield item
            elif step.does == "again":
                await let_items_through(self)
                item["value"] += " again"
                yield item
            elif step.does == "pause":
                await asyncio.sleep(0.05)
            elif step.does == "download":
                await self.crawler.engine.download_async(scrapy.Request(f"{self.base}/side/{page.number}"))
            elif step.does == "link":
                yield self._request(step)
            else:
                raise RuntimeError("as its program says")

    async def note_failure(self, failure: Any) -> Any:
        request = getattr(failure.value, "response", failure).request
        page = page_of(self, request)
        if page.handles_errors:
            yield {"page": page.number, "step": -1, "value": failure.type.__name__}
            async for output in self.parse(scrapy.http.Response(request.url, request=request)):
                yield output

    def _request(self, step: Step) -> Any:
        page = self.program.pages[step.to]
        how: dict[str, Any] = {"callback": self.parse, "errback": self.note_failure}
        if step.lives == "closure":
            how = {
                "callback": lambda response: self.parse(response),
                "errback": lambda failure: self.note_failure(failure),
            }
        if step.lives == "lock":
            how["meta"] = {"lock": threading.Lock()}
        if page.is_post:
            how |= {"method": "POST", "body": f"n={page.number}"}
        return scrapy.Request(self.base + page.path, priority=step.priority, dont_filter=not step.is_filtered, **how)


class RandomStart(RandomSpider):
    """With a start() of its own, filtered."""

    async def start(self) -> Any:
        for number in self.program.starts:
            yield self._request(Step("link", number))
            await asyncio.sleep(0.05)


@functools.cache
def __getattr__(name: str) -> type[RandomSpider]:
    """Return the spider of a seed: ``Random7``."""
    seed = re.fullmatch(r"Random(\d+)", name)
    if seed is None:
        raise AttributeError(name)
    program = draw(int(seed[1]))
    own = {
        "custom_settings": {
            "DOWNLOADER_MIDDLEWARES": {f"{HERE}.Fates": 560},
            "ITEM_PIPELINES": {f"{HERE}.Pipeline": 300},
            "LOG_LEVEL": "WARNING",
            **program.settings,
        },
        "program": program,
        "more_settings": program.own_settings,
        "feeds": program.feeds,
        "name": name.lower(),
        "__module__": HERE,
    }
    return type(name, (RandomStart if program.is_start_filtered else RandomSpider,), own)


def species(seed: int) -> Species:
    return Species(HERE, f"Random{seed}")


if __name__ == "__main__":
    print(draw(int(sys.argv[1])))  # noqa: T201
