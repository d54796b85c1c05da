"""Items of every type, in files of every kind: each holds what Scrapy would have written."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import io
from typing import Any

import attrs
import scrapy
from itemadapter import ItemAdapter
from scrapy import signals
from scrapy.exceptions import DropItem
from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter

from tests.zoo.spiders import ZooSpider, path_of

HERE = "tests.zoo.spiders.feeds"


class _Priced(ZooSpider):
    def item(self, response: Any) -> Any:
        note = 'a;b "quoted",\ta tab and\ntwo lines'
        return {
            "page": path_of(response),
            "price": "1,50",
            "note": note,
            "empty": None,
            "tags": ["a", "b"],
            "ratio": 0.1,
        }


def csv(encoding: str | None = None, fields: Any = None, **options: Any) -> dict[str, Any]:
    return {"format": "csv", "encoding": encoding, "fields": fields, "item_export_kwargs": options}


class CsvDialects(_Priced):
    """CSV in each dialect, all at a time: none of them disturbs the others."""

    name = "csv-dialects"
    feeds = {
        "comma.csv": csv(),
        "semicolon.csv": csv(delimiter=";", join_multivalued="|"),
        "tab.csv": csv(delimiter="\t", quotechar="'", quoting=1, lineterminator="\n"),
        "escaped.csv": csv(quoting=3, escapechar="\\"),
        "headless.csv": csv(include_headers_line=False),
        "fields.csv": csv(fields=["note", "missing", "page"]),
        "renamed.csv": csv(fields={"note": "Bemerkung", "missing": "Fehlt", "page": "Seite, genau"}),
    }


class CsvEncodings(_Priced):
    """CSV in each encoding: a byte-order mark stands once, at the beginning of a file."""

    name = "csv-encodings"
    feeds = {
        "bom.csv": csv("utf-8-sig"),
        "utf16.csv": csv("utf-16", delimiter="\t"),
        "utf16le.csv": csv("utf-16-le"),
        "utf32.csv": csv("utf-32"),
        "latin1.csv": csv("latin-1", errors="replace"),
        "cp1252.csv": csv("cp1252"),
    }

    def item(self, response: Any) -> Any:
        return {**super().item(response), "name": "Café 1 €"}


class TwoKindsInCsv(ZooSpider):
    """Items of two kinds with one CSV: the first item decides its columns."""

    name = "two-kinds"
    feed = csv()

    def parse(self, response: Any) -> Any:
        yield {"page": "first", "price": 1}
        yield from self.follow_items(response)

    def parse_item(self, response: Any) -> Any:
        yield {"page": path_of(response), "other": 1} if response.url[-1] in "13579" else {"price": 2, "more": "x"}


class JsonArrays(_Priced):
    """Feeds in JSON, for machines and for reading: one valid array each, also after an interruption."""

    name = "json"
    feeds = {
        "items.json": {"format": "json"},
        "indented.json": {"format": "json", "indent": 4},
        "utf8.json": {"format": "json", "encoding": "utf-8"},
        "lines.jl": {"format": "jsonlines", "encoding": "latin-1", "fields": ["note", "page", "name"]},
    }

    def item(self, response: Any) -> Any:
        return {**super().item(response), "name": "Café"}


def _compressed(plugin: str, **options: Any) -> dict[str, Any]:
    place = f"scrapy.extensions.postprocessing.{plugin}"
    return {"format": "jsonlines", "postprocessing": [place], **options}


class Compressed(_Priced):
    """Lines through Scrapy's plugins."""

    name = "compressed"
    feeds = {
        "items.jl.gz": _compressed("GzipPlugin", gzip_compresslevel=5),
        "items.jl.bz2": _compressed("Bz2Plugin"),
        "items.jl.xz": _compressed("LZMAPlugin", lzma_preset=1),
        "items.csv.gz": {**_compressed("GzipPlugin"), "format": "csv"},
        "items.jl": {"format": "jsonlines"},
    }


class Pounds(CsvItemExporter):
    """An exporter of the user's: values in pounds, columns of its own."""

    def __init__(self, file: Any, **kwargs: Any) -> None:
        super().__init__(file, **{**kwargs, "fields_to_export": ["page", "price"], "delimiter": "|"})

    def serialize_field(self, field: Any, name: str, value: Any) -> Any:
        return f"£ {value}" if name == "price" else super().serialize_field(field, name, value)


class OwnExporter(_Priced):
    """A subclass of Scrapy's CSV exporter under a format of its own."""

    name = "own-exporter"
    feed = {"file": "items.pounds", "format": "pounds"}
    custom_settings = {"FEED_EXPORTERS": {"pounds": f"{HERE}.Pounds"}}


class Wrapped(JsonLinesItemExporter):
    """An exporter of the user's that buffers what it writes, and counts."""

    def __init__(self, file: Any, **kwargs: Any) -> None:
        super().__init__(io.BytesIO(), **kwargs)
        self.target = file

    def export_item(self, item: Any) -> None:
        super().export_item({**ItemAdapter(item).asdict(), "wrapped": True})
        self.target.write(self.file.getvalue())
        self.file.seek(0)
        self.file.truncate()


class OwnLines(_Priced):
    """An exporter that changes items on their way into the file."""

    name = "own-lines"
    feed = {"format": "jl"}
    custom_settings = {"FEED_EXPORTERS": {"jl": f"{HERE}.Wrapped"}}


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


class Batched(_Priced):
    """Files of seven items each: nothing is overwritten when the crawl goes on."""

    name = "batched"
    feeds = {"part-%(batch_id)d.jl": {"format": "jsonlines", "batch_item_count": 7}}


class Work:
    """Item pipeline: awaits, drops, replaces and changes items."""

    async def process_item(self, item: Any, spider: Any = None) -> Any:
        await asyncio.sleep(0.01)
        number = int(item["page"].rpartition("/")[2])
        if number % 5 == 0:
            raise DropItem("every fifth")
        item["seen_by"] = "pipeline"
        return Pen(item["page"]) if number % 3 == 0 else item


class Piped(ZooSpider):
    """Pipelines have the last word."""

    name = "piped"
    custom_settings = {"ITEM_PIPELINES": {f"{HERE}.Work": 300}}


class Afterthought:
    """Item pipeline: goes on changing each item when all have been told that it is scraped."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> Any:
        pipeline = cls()
        crawler.signals.connect(pipeline.change, signals.item_scraped)
        return pipeline

    def process_item(self, item: Any, spider: Any = None) -> Any:
        return item

    def change(self, item: Any) -> None:
        asyncio.get_running_loop().call_soon(item.update, {"page": "changed afterwards"})


class ChangedLater(ZooSpider):
    """A pipeline that goes on changing items which it has let through: the file has what they were."""

    name = "changed-later"
    custom_settings = {"ITEM_PIPELINES": {f"{HERE}.Afterthought": 300}}


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
