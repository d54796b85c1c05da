"""What stands in feeds is what plain Scrapy writes, byte for byte; and which items stand there."""

import bz2
import csv
import gzip
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import Any

import attrs
import pytest
import scrapy
from itemadapter import ItemAdapter
from scrapy.exporters import BaseItemExporter, CsvItemExporter, JsonItemExporter, JsonLinesItemExporter
from scrapy.extensions.postprocessing import GzipPlugin

from scrapy_bloom.job import commits
from scrapy_bloom.job.inspect import inspect_job
from tests.support.feeds import FEED, FeedRun, numbered, play, write_plainly

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


MAKERS: list[Callable[[int, int], Any]] = [
    as_dict,
    lambda page, item: ScrapyItem(values(page, item)),
    lambda page, item: DataItem(**{**values(page, item), "note": ["a", "b,c"]}),
    lambda page, item: AttrsItem(**values(page, item)),
]
ITEMS = [make(page, item) for page in range(3) for make in MAKERS for item in range(2)]

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
        self.file.write((b", " if self.count else b"") + json.dumps(ItemAdapter(item).asdict()).encode())
        self.count += 1

    def finish_exporting(self) -> None:
        self.file.write(b'], "count": %d}' % self.count)


class Even(JsonItemExporter):
    """Leaves out items."""

    def export_item(self, item: Any) -> None:
        if ItemAdapter(item)["page"] % 2:
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


NAMES = ("Shouting", "Excel", "Columns", "Wrapped", "Total", "Even", "Inner")
EXPORTERS = {"FEED_EXPORTERS": {name.lower(): f"{__name__}.{name}" for name in NAMES}}

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
        "total": [{}],
        "even": [{}],
        "inner": [{}],
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
    for format_, several in {"jsonlines": [{}], "csv": [{}, {"encoding": "utf-16"}], "total": [{}]}.items()
    for number, options in enumerate(several)
}
FEEDS |= {f"batch-%(batch_id)d.{name}": {"format": name, "batch_item_count": 3} for name in ("csv", "json", "total")}


def content(path: Path) -> bytes:
    plugin = COMPRESSED.get(path.suffix[1:])
    return path.read_bytes() if plugin is None else plugin[1](path.read_bytes())


def different(one: Path, other: Path) -> list[str]:
    """Return the names of files that only one of two directories has, or that differ."""
    ours, plain = ({path.name: content(path) for path in each.iterdir() if path.is_file()} for each in (one, other))
    return sorted(name for name in {**ours, **plain} if ours.get(name) != plain.get(name))


def test_a_job_writes_the_same_bytes(tmp_path: Path) -> None:
    """Each format, encoding and option, batches, and exporters of the user's, also some that keep a sum for the end,
    leave items out, or have another exporter do it; killed and stopped, and no byte tells that."""
    write_plainly(tmp_path / "plain", FEEDS, ITEMS, **EXPORTERS)
    script = "0-6 commit 7-8 kill 7-11 stop 12-13 commit kill 14-15 commit kill 16-23"
    play(tmp_path / "ours", FEEDS, script, item=ITEMS.__getitem__, **EXPORTERS)
    assert different(tmp_path / "ours", tmp_path / "plain") == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_appended_to_or_overwritten_as_by_scrapy(tmp_path: Path, overwrite: bool) -> None:
    """By the next cycle of a job, without a second byte-order mark, with a second header, with a second array."""
    names = [name for name in FEEDS if name.startswith("0." if overwrite else tuple("0123456789"))]
    feeds = {name: {**FEEDS[name], "overwrite": overwrite} for name in names}
    for items in (ITEMS[4:5], ITEMS[:4]):
        write_plainly(tmp_path / "plain", feeds, items, **EXPORTERS)
    if overwrite:  # somebody else's file: one of the job itself would be kept
        write_plainly(tmp_path / "ours", feeds, ITEMS[4:5], **EXPORTERS)
    before = "kill" if overwrite else "4 end"
    play(tmp_path / "ours", feeds, f"{before} 0 commit kill 1-3", item=ITEMS.__getitem__, **EXPORTERS)
    assert different(tmp_path / "ours", tmp_path / "plain") == []


def test_an_item_is_what_it_was_when_it_was_scraped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its callback changes it while the page is in progress; one that cannot be copied is written, with a WARNING."""
    run = FeedRun(tmp_path, {**FEED, "items.csv": {"format": "csv"}})
    item = {"tags": ["a"]}
    with run.page() as give:
        give(item)
        item["tags"].append("b")
        give(item)
        give(NotCopied(tags=["c"]))
    run.end()
    assert run.items() == [{"tags": ["a"]}, {"tags": ["a", "b"]}, {"tags": ["c"]}]
    assert [record.levelname for record in caplog.records if "cannot be copied" in record.message] == ["WARNING"]


class Late(JsonLinesItemExporter):
    """Writes all items at the end."""

    def __init__(self, file: Any, **kwargs: Any) -> None:
        super().__init__(BytesIO(), **kwargs)  # type: ignore[arg-type]
        self.target = file

    def finish_exporting(self) -> None:
        self.target.write(self.file.getvalue())


class Plugin(GzipPlugin):
    """A compression of the user's."""


class Patched(JsonLinesItemExporter):
    """Looks where it is in its file."""

    def export_item(self, item: Any) -> None:
        self.file.seek(0, SEEK_END)
        super().export_item(item)


def test_feeds_that_cannot_be_part_of_the_commit_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Scrapy alone writes them, an INFO line says why; the others are part of the commit all the same."""
    caplog.set_level("INFO")
    feeds = {
        **FEED,
        "other.late": {"format": "late"},
        "other.patched": {"format": "patched"},
        "other.jl.gz": {"format": "jsonlines", "postprocessing": [f"{__name__}.Plugin"]},
    }
    exporters = {name: f"{__name__}.{name.title()}" for name in ("late", "patched")}
    run = FeedRun(tmp_path, feeds, FEED_EXPORTERS=exporters)
    run.give(*numbered(0, 1))
    run.commit()
    assert run.items() == numbered(0, 1)
    run.end()
    unsafe = [line.partition(":")[0] for line in caplog.messages if "a kill may lose items" in line]
    assert sorted(unsafe) == sorted(str(tmp_path / name) for name in feeds if name.startswith("other"))
    for name in feeds:
        data = (tmp_path / name).read_bytes()
        assert (gzip.decompress(data) if name.endswith(".gz") else data).count(b'"n"') == 2


def test_items_of_a_page_that_has_too_many_are_written_as_they_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the page is in progress they are in the file. One WARNING says what a kill then costs."""
    monkeypatch.setattr(commits, "MOST_ENTRIES", 20)
    run = FeedRun(tmp_path, FEED)
    with run.page() as give:
        for item in numbered(*range(30)):
            give(item)
        run.commit()
        assert run.items() == numbered(*range(30))
        give({"n": 30})
    run.end()
    assert run.items() == numbered(*range(31))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_item_that_cannot_be_written_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its ERROR is logged, as by Scrapy; the page's other items are written, and the page is done."""
    run = FeedRun(tmp_path, FEED)
    with run.page() as give:
        for item in ({"n": 0}, {"n": object()}, {"n": 2}):
            give(item)
    run.end()
    assert run.items() == numbered(0, 2)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert inspect_job(tmp_path / "job").state.is_finished
