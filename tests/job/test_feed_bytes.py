"""What stands in feeds is what plain Scrapy writes, byte for byte: killed, stopped, and appended."""

import bz2
import csv
import gzip
import json
import lzma
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import attrs
import pytest
import scrapy
from scrapy.exporters import BaseItemExporter, CsvItemExporter, JsonItemExporter, JsonLinesItemExporter

from tests.support.feeds import FeedRun, write_plainly

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


class Total(BaseItemExporter):
    """Writes how many items there were."""

    def __init__(self, file: Any, **kwargs: Any) -> None:
        super().__init__(dont_fail=True, **kwargs)
        self.file, self.count = file, 0

    def start_exporting(self) -> None:
        self.file.write(b'{"items": [')

    def export_item(self, item: Any) -> None:
        self.file.write((b", " if self.count else b"") + json.dumps(dict(item)).encode())
        self.count += 1

    def finish_exporting(self) -> None:
        self.file.write(b'], "count": %d}' % self.count)


class Even(JsonItemExporter):
    """Leaves out items."""

    def export_item(self, item: Any) -> None:
        if item["page"] % 2:
            super().export_item(item)


class Inner(BaseItemExporter):
    """Has another exporter do it."""

    def __init__(self, file: BytesIO, **kwargs: Any) -> None:
        super().__init__(dont_fail=True)
        self.inner = CsvItemExporter(file)

    def export_item(self, item: Any) -> None:
        self.inner.export_item(item)

    def finish_exporting(self) -> None:
        self.inner.finish_exporting()


class NotCopied(dict[str, Any]):
    """An item."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("it has a lock")


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


def content(directory: Path, name: str) -> bytes:
    data = (directory / name).read_bytes()
    plugin = COMPRESSED.get(name.rpartition(".")[2])
    return data if plugin is None else plugin[1](data)


def different(one: Path, other: Path, feeds: Iterable[str] = FEEDS) -> list[str]:
    """Return the feeds in two directories that differ."""
    return [name for name in feeds if content(one, name) != content(other, name)]


MAKERS = (as_dict, as_item, as_dataclass, as_attrs)
ITEMS = [make(page, item) for page in range(5) for make in MAKERS for item in range(2)]
BUILT_IN = {"FEED_EXPORTERS": EXPORTERS}


def test_a_job_writes_the_same_bytes(ram: Path) -> None:
    """Each format, encoding and option, and exporters of the user's; killed and stopped, and no byte tells that."""
    write_plainly(ram / "plain", FEEDS, ITEMS, **BUILT_IN)
    run = FeedRun(ram / "ours", FEEDS, **BUILT_IN)
    run.give(*ITEMS[:7])
    run.commit()
    run.give(*ITEMS[7:9])
    run = run.kill()
    run.give(*ITEMS[7:12])
    run = run.end("shutdown").next_run()
    run.give(*ITEMS[12:14])
    run.commit()
    run = run.kill()
    run.give(*ITEMS[14:])
    run.end()
    assert different(ram / "ours", ram / "plain") == []


def test_a_new_job_appends_as_scrapy_does(ram: Path) -> None:
    """Without a second byte-order mark, with a second header, with a second array."""
    for _ in range(2):
        write_plainly(ram / "plain", FEEDS, ITEMS[:4], **BUILT_IN)
        run = FeedRun(ram / "ours", FEEDS, **BUILT_IN)
        run.give(*ITEMS[:4])
        run.end()
    assert different(ram / "ours", ram / "plain") == []


def test_exporters_that_keep_a_state_keep_it_over_a_kill(ram: Path) -> None:
    """A sum for the end, items that are left out, an exporter inside another one; also in batches, and compressed."""
    feeds = {
        "total.json": {"format": "total"},
        "total.json.gz": {"format": "total", "postprocessing": [f"{PLUGINS}GzipPlugin"]},
        "even.json": {"format": "even"},
        "inner.csv": {"format": "inner"},
        **{f"%(batch_id)d.{name}": {"format": name, "batch_item_count": 3} for name in ("csv", "json", "total")},
    }
    exporters = {"FEED_EXPORTERS": {name.lower(): f"{HERE}.{name}" for name in ("Total", "Even", "Inner")}}
    items = [{"page": number, "abc"[number % 3]: number} for number in range(11)]
    write_plainly(ram / "plain", feeds, items, **exporters)
    run = FeedRun(ram / "ours", feeds, **exporters)
    for start in range(0, len(items), 2):
        run.give(*items[start : start + 2])
        run.commit()
        run = run.kill()
    run.end()
    names = sorted(path.name for path in (ram / "plain").iterdir())
    assert different(ram / "ours", ram / "plain", names) == []


def test_an_item_is_what_it_was_when_it_was_scraped(ram: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its callback changes it while the page is in progress; one that cannot be copied is written, with a WARNING."""
    run = FeedRun(ram / "ours", {"items.jl": {"format": "jsonlines"}, "items.csv": {"format": "csv"}})
    item = {"tags": ["a"]}
    with run.page() as give:
        give(item)
        item["tags"].append("b")
        give(item)
        give(NotCopied(tags=["c"]))
    run.end()
    assert (ram / "ours" / "items.jl").read_text().split() == [
        '{"tags":',
        '["a"]}',
        '{"tags":',
        '["a",',
        '"b"]}',
        '{"tags":',
        '["c"]}',
    ]
    assert [record.levelname for record in caplog.records if "cannot be copied" in record.message] == ["WARNING"]
