"""What stands in feeds is what plain Scrapy writes, byte for byte: straight through, killed, stopped, and appended."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import scrapy
import scrapy.signals
from scrapy.exporters import CsvItemExporter, JsonItemExporter, JsonLinesItemExporter

from tests.support.killed_crawls import CrawlOfSite, run, run_to_the_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL and no fork() there")

# -- items -------------------------------------------------------------------------------------------------------------


class ScrapyItem(scrapy.Item):
    page = scrapy.Field()
    item = scrapy.Field()
    name = scrapy.Field()
    note = scrapy.Field(serializer=lambda value: f"<{value}>")


@dataclass
class DataItem:
    page: int
    item: int
    name: str
    note: list[str]


@attrs.define
class AttrsItem:
    page: int
    item: int
    name: str
    note: str


def values(page: int, item: int) -> dict[str, Any]:
    return {"page": page, "item": item, "name": f'Sch\u00f6n; "{page}", \t<b>&amp;', "note": f"1,{item}\n\u20ac"}


def as_dict(page: int, item: int) -> Any:
    """Items with other fields come among them, as from several callbacks."""
    return values(page, item) if page % 3 else {**values(page, item), "price": page / 4, "note": None}


def as_item(page: int, item: int) -> Any:
    return ScrapyItem(values(page, item))


def as_dataclass(page: int, item: int) -> Any:
    return DataItem(**{**values(page, item), "note": ["a", "b,c"]})


def as_attrs(page: int, item: int) -> Any:
    return AttrsItem(**values(page, item))


# -- exporters ---------------------------------------------------------------------------------------------------------


class Shouting(JsonLinesItemExporter):
    """Changes items, and needs real ones."""

    def export_item(self, item: Any) -> None:
        fields = dict(self.get_serialized_fields(item))
        self.file.write(json.dumps({**fields, "name": fields["name"].upper(), "page": fields["page"] + 1}).encode())
        self.file.write(b"\n")

    def get_serialized_fields(self, item: Any, *args: Any, **kwargs: Any) -> Any:  # of that name from Scrapy 2.19 on
        base: Any = super()
        return getattr(base, "get_serialized_fields", getattr(base, "_get_serialized_fields", None))(item, *args)


class Excel(CsvItemExporter):
    """Begins with a line of its own."""

    def __init__(self, file: Any, **kwargs: Any) -> None:
        super().__init__(file, **{**kwargs, "delimiter": ";"})
        self.target = file

    def start_exporting(self) -> None:
        self.target.write(b"sep=;\r\n")


class Columns(CsvItemExporter):
    """Has columns and values of its own."""

    def __init__(self, file: Any, **kwargs: Any) -> None:
        super().__init__(file, **{**kwargs, "fields_to_export": ["page", "name"]})

    def serialize_field(self, field: Any, name: str, value: Any) -> Any:
        return f"\u00a3 {value}" if name == "page" else super().serialize_field(field, name, value)


class Wrapped(JsonItemExporter):
    """An object around the array."""

    def start_exporting(self) -> None:
        self.file.write(b'{"items": ')
        super().start_exporting()

    def finish_exporting(self) -> None:
        super().finish_exporting()
        self.file.write(b"}")


HERE = __name__
EXPORTERS = {name.lower(): f"{HERE}.{name}" for name in ("Shouting", "Excel", "Columns", "Wrapped")}

# -- feeds -------------------------------------------------------------------------------------------------------------

Options = dict[str, Any]
PLUGINS = "scrapy.extensions.postprocessing."
FIELDS: list[Options] = [
    {},
    {"fields": ["name", "missing", "page", "item"]},
    {"fields": {"page": "Seite, genau", "no": "N", "name": "Name"}},
]
LINES: list[Options] = [
    *FIELDS,
    {"encoding": "utf-8"},
    {"encoding": "utf-16"},
    {"encoding": "cp1252"},
    {"item_export_kwargs": {"ensure_ascii": False}, "encoding": "utf-8"},
    {"item_export_kwargs": {"export_empty_fields": True}},
]
CSV: list[Options] = [
    *FIELDS,
    *({"encoding": encoding} for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252")),
    {"encoding": "latin-1", "item_export_kwargs": {"errors": "replace"}},
    {"item_export_kwargs": {"delimiter": ";"}},
    {"item_export_kwargs": {"delimiter": "\t", "quotechar": "'", "quoting": csv.QUOTE_ALL, "lineterminator": "\n"}},
    {"item_export_kwargs": {"quoting": csv.QUOTE_NONE, "escapechar": "\\"}},
    {"item_export_kwargs": {"include_headers_line": False}},
    {"item_export_kwargs": {"include_headers_line": False}, "encoding": "utf-16", "fields": ["page", "item"]},
    {"item_export_kwargs": {"join_multivalued": "|"}},
]
ARRAYS: list[Options] = [*FIELDS, {"indent": 0}, {"indent": 2}, {"encoding": "utf-8", "indent": 1}]
FEEDS: dict[str, Options] = {
    f"{number}.{format_}": {"format": format_, **options}
    for format_, several in {
        "jsonlines": LINES,
        "csv": CSV,
        "json": ARRAYS,
        "xml": [*ARRAYS, {"encoding": "utf-16"}],
        "pickle": [{}],
        "marshal": [{}],
        "shouting": [{}],
        "excel": [{}, {"encoding": "utf-8-sig"}],
        "columns": [{}],
        "wrapped": [{}, {"indent": 2}],
    }.items()
    for number, options in enumerate(several)
}
COMPRESSED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gz": ("GzipPlugin", gzip.decompress),
    "bz2": ("Bz2Plugin", bz2.decompress),
    "xz": ("LZMAPlugin", lzma.decompress),
}
LEVELS = {"gzip_compresslevel": 5, "lzma_preset": 1}
FEEDS |= {
    f"{number}.{format_}.{suffix}": {"format": format_, **options, **LEVELS, "postprocessing": [PLUGINS + plugin]}
    for suffix, (plugin, _) in COMPRESSED.items()
    for format_, several in {"jsonlines": [{}], "csv": [{}, {"encoding": "utf-16"}]}.items()
    for number, options in enumerate(several)
}


def crawl_with(directory: Path, make: Callable[[int, int], Any], **changes: Any) -> CrawlOfSite:
    settings = {
        "FEEDS": {f"{directory}/{name}": {"store_empty": False, **options} for name, options in FEEDS.items()},
        "FEED_EXPORTERS": EXPORTERS,
        "MAKE_ITEM": f"{HERE}.{make.__name__}",
        # All crawls have the same order of pages, also where a kill leaves a page and the next one pending.
        "ONE_BY_ONE": True,
        "CONCURRENT_REQUESTS": 1,
        "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
        **changes.pop("settings", {}),
    }
    return CrawlOfSite(directory, pages=30, settings=settings, **changes)


def content(crawl: CrawlOfSite, name: str) -> bytes:
    data = (crawl.directory / name).read_bytes()
    plugin = COMPRESSED.get(name.rpartition(".")[2])
    return data if plugin is None else plugin[1](data)


def different(crawl: CrawlOfSite, plain: CrawlOfSite) -> list[str]:
    """Return the feeds of two crawls that differ."""
    return [name for name in FEEDS if content(crawl, name) != content(plain, name)]


MAKERS = (as_dict, as_item, as_dataclass, as_attrs)


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CrawlOfSite:
    """What Scrapy alone writes."""
    return run_to_the_end(crawl_with(tmp_path_factory.mktemp("plain"), request.param, is_plain=True))


def like(plain: CrawlOfSite, directory: Path) -> CrawlOfSite:
    make = plain.settings["MAKE_ITEM"].rpartition(".")[2]
    return crawl_with(directory, next(each for each in MAKERS if each.__name__ == make))


def test_a_straight_crawl_writes_the_same_bytes(plain: CrawlOfSite, tmp_path: Path) -> None:
    """Each format, encoding and option, and exporters of the user's."""
    crawl = run_to_the_end(like(plain, tmp_path))
    assert different(crawl, plain) == []
    assert " ERROR: " not in crawl.log
    assert "a kill may lose items" not in crawl.log


@pytest.mark.parametrize("how", ["kill_page", "stop_page"])
def test_an_interrupted_crawl_writes_the_same_bytes(plain: CrawlOfSite, how: str, tmp_path: Path) -> None:
    """Killed twice, or stopped twice with Ctrl-C: no byte tells that."""
    crawl = like(plain, tmp_path)
    for page in (14, 9):
        assert run([replace(crawl, **{how: page})]) == [-9 if how == "kill_page" else 0]
    run_to_the_end(crawl)
    assert different(crawl, plain) == []
    assert " ERROR: " not in crawl.log


def test_a_new_job_appends_as_scrapy_does(plain: CrawlOfSite, tmp_path: Path) -> None:
    """Without a second byte-order mark, with a second header, with a second array."""
    once, twice = like(plain, tmp_path / "a"), replace(like(plain, tmp_path / "b"), is_plain=True)
    for crawl in (once, twice):
        crawl.directory.mkdir()
        for name in FEEDS:
            (crawl.directory / name).write_bytes((plain.directory / name).read_bytes())
        run_to_the_end(crawl)
    assert different(once, twice) == []


class Later:
    """An extension that changes items after the feeds have got them."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> Later:
        self = cls()
        crawler.signals.connect(self.item_scraped, signal=scrapy.signals.item_scraped)
        return self

    def item_scraped(self, item: dict[str, Any]) -> None:
        item["page"] = item["item"] = -1


def test_an_item_is_what_it_was_when_it_was_scraped(tmp_path: Path) -> None:
    """An extension changes it afterwards, as a callback does that fills it again."""
    settings = {
        "FEEDS": {f"{tmp_path}/items.jl": {"format": "jsonlines"}, f"{tmp_path}/items.csv": {"format": "csv"}},
        "EXTENSIONS": {f"{HERE}.Later": 900},
    }
    crawl = CrawlOfSite(tmp_path, settings=settings)
    assert run([replace(crawl, kill_page=21)]) == [-9]
    run_to_the_end(crawl)
    assert crawl.items() == crawl.items("items.csv") == crawl.wanted()
