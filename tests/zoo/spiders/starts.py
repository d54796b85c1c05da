"""How crawls begin, with start requests, logins, redirects, tables of tasks; and files of items that they write."""

import asyncio
import dataclasses
import datetime
from pathlib import Path
from typing import Any

import attrs
import scrapy
from scrapy import signals
from scrapy.exceptions import DontCloseSpider
from scrapy.http import FormRequest

from tests.zoo.site import ITEMS
from tests.zoo.spiders import NO_FLEET, ZooSpider, path_of

HERE = "tests.zoo.spiders.starts"
AGAIN = "an unfiltered request of start() is asked for in each run"


class LoginThenHome(ZooSpider):
    """The start page leads to a login, and the login back to the start page, filtered, with the real callback."""

    name = "login"

    def parse(self, response: Any) -> Any:
        return FormRequest(self.base + "/login", formdata={"user": "x"}, callback=self.logged_in)

    def logged_in(self, response: Any) -> Any:
        yield scrapy.Request(self.base + "/", callback=self.follow_items)


class Relogin(ZooSpider):
    """start() logs in; after an interruption the site has forgotten the session, so it must log in again."""

    name = "relogin"
    new_session = True
    hits_vary = "a page that is asked for before the login has to be asked for again"
    skip = NO_FLEET  # each worker has its own cookies

    async def start(self) -> Any:
        yield FormRequest(self.base + "/login", formdata={"user": "x"}, callback=self.logged_in, dont_filter=True)

    def logged_in(self, response: Any) -> Any:
        yield from self.follow_items(response, "/private")

    def parse_item(self, response: Any) -> Any:
        if "please log in" not in response.text:
            yield self.item(response)
        elif response.meta.get("tries", 0) < 5:
            meta = {"tries": response.meta.get("tries", 0) + 1}
            yield scrapy.Request(response.url, self.parse_item, meta=meta, dont_filter=True, priority=-1)
        else:
            yield {"page": "not logged in"}


class Todo(ZooSpider):
    """start() yields what a table lists at that time: one URL, tasks that differ in a header, unfiltered."""

    name = "todo"
    may_repeat = AGAIN
    skip = NO_FLEET

    async def start(self) -> Any:
        table = Path(self.settings["ZOO"], "table")
        for task in [*map(str, range(ITEMS)), *(table.read_text().split() if table.exists() else [])]:
            headers = {"X-Task": task}
            yield scrapy.Request(self.base + "/task", headers=headers, meta={"task": task}, dont_filter=True)

    def parse(self, response: Any) -> Any:
        yield {"task": response.css("h1::text").get()}

    @staticmethod
    def between(directory: Path) -> None:
        with (directory / "table").open("a") as table:
            table.write(f"new{table.tell()}\n")

    @staticmethod
    def extra(runs: int) -> list[str]:
        return [f'{{"task": "new{n}"}}' for n in (0, 5)[: runs - 1]]


class Poller(ZooSpider):
    """Asks for the same page again and again, unfiltered, and counts."""

    name = "poller"

    def parse(self, response: Any, poll: int = 0) -> Any:
        yield {"poll": poll}
        if poll < ITEMS:
            yield response.follow("/poll", cb_kwargs={"poll": poll + 1}, dont_filter=True)


class StartList(ZooSpider):
    """A long list of start URLs, which a resumed crawl goes on with where it was."""

    name = "start-list"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = [f"{self.base}/item/{i}" for i in range(ITEMS)]

    def parse(self, response: Any) -> Any:
        yield self.item(response)


class ChangedStartList(StartList):
    """The list of start URLs has another first line in each run: what is new is fetched, nothing is left out."""

    name = "changed-start-list"
    may_repeat = "another list is begun from its beginning"
    skip = NO_FLEET

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        lines = Path(crawler.settings["ZOO"], "lines")
        new = lines.read_text().split() if lines.exists() else []
        spider.start_urls = [f"{spider.base}/item/{line}" for line in new] + spider.start_urls
        return spider

    @staticmethod
    def between(directory: Path) -> None:
        lines = directory / "lines"
        old = lines.read_text() if lines.exists() else ""
        lines.write_text(f"new{len(old)}\n{old}")

    @staticmethod
    def extra(runs: int) -> list[str]:
        return [f'{{"page": "/item/new{n}"}}' for n in (0, 5)[: runs - 1]]


class ItemsOfStart(ZooSpider):
    """start() yields an item, too, and waits between its filtered requests, as if it read a database."""

    name = "items-of-start"
    skip = NO_FLEET  # each worker runs start()
    may_repeat = "start() runs in each run"

    async def start(self) -> Any:
        yield {"page": "of start"}
        for i in range(ITEMS):
            yield scrapy.Request(f"{self.base}/item/{i}", self.parse_item)
            await asyncio.sleep(0.02)


class Batches(ZooSpider):
    """Whenever it is idle, it takes in further pages of a list."""

    name = "batches"
    skip = NO_FLEET

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.take_more, signals.spider_idle)
        spider.taken = 0
        return spider

    def take_more(self) -> None:
        for i in range(self.taken, min(self.taken + 10, ITEMS)):
            self.crawler.engine.crawl(scrapy.Request(f"{self.base}/item/{i}", self.parse_item))
        self.taken += 10
        if self.taken < ITEMS + 10:
            raise DontCloseSpider

    def parse(self, response: Any) -> Any:
        yield self.item(response)


class Remembers(ZooSpider):
    """Keeps in its state which pages it has scraped, and does not scrape them again."""

    name = "remembers"
    state: dict[str, Any]
    skip = (*NO_FLEET, "kill")  # the state may hold what a callback has noted whose page was not done before the kill

    def parse(self, response: Any) -> Any:
        yield from self.follow_items(response, dont_filter=True)
        yield from self.follow_items(response, dont_filter=True)

    def parse_item(self, response: Any) -> Any:
        done = getattr(self, "state", self.__dict__.setdefault("memory", {})).setdefault("done", set())
        if path_of(response) not in done:
            done.add(path_of(response))
            yield self.item(response)


# -- feeds: items of every type, in files of every kind ---------------------------------------------------------------


class Book(scrapy.Item):
    page = scrapy.Field()
    price = scrapy.Field(serializer=lambda price: f"{price} EUR")


@dataclasses.dataclass
class Pen:
    page: str
    when: datetime.datetime = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc)


@attrs.define
class Lamp:
    page: str
    watts: int = 5


class FewLamps:
    """An item filter of the user's."""

    def __init__(self, feed_options: dict[str, Any]) -> None:
        self.digit = feed_options["digit"]

    def accepts(self, item: Any) -> bool:
        return isinstance(item, Lamp) and item.page.endswith(self.digit)


class TypesAndFiles(ZooSpider):
    """Items of four types into several files, each with its own classes, filter and format."""

    name = "types"
    feeds = {
        "all.jl": {"format": "jsonlines"},
        "books.csv": {"format": "csv", "item_classes": [f"{HERE}.Book"], "item_export_kwargs": {"delimiter": ";"}},
        "pens.json": {"format": "json", "item_classes": [f"{HERE}.Pen", f"{HERE}.Book"]},
        "lamps.jl": {"format": "jsonlines", "item_filter": f"{HERE}.FewLamps", "digit": "3"},
        "none.csv": {"format": "csv", "item_classes": [f"{HERE}.FewLamps"], "store_empty": False},
    }

    def parse_item(self, response: Any) -> Any:
        page = path_of(response)
        yield from (Book(page=page, price=3), Pen(page), Lamp(page), {"page": page})


class FailingPipeline:
    """Item pipeline: raises for some items."""

    def process_item(self, item: Any, spider: Any = None) -> Any:
        if item["page"].endswith("4"):
            raise ValueError("as pipelines do")
        return item


class BrokenPipeline(ZooSpider):
    """A pipeline that raises costs that item and nothing else; the page has not failed."""

    name = "broken-pipeline"
    custom_settings = {"ITEM_PIPELINES": {f"{HERE}.FailingPipeline": 300}}

    def parse_item(self, response: Any) -> Any:
        yield self.item(response)
        yield {"page": f"beside {path_of(response)}x"}
