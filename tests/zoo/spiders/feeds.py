"""Items of every type, in files of every kind: each holds what Scrapy would have written."""

import dataclasses
import datetime
from typing import Any

import attrs
import scrapy

from tests.zoo.spiders import ZooSpider, path_of

HERE = "tests.zoo.spiders.feeds"


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
