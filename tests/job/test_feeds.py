"""Feeds as part of the commit: what is in them after kills, and what happens to those that cannot be part of it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from scrapy.exporters import JsonLinesItemExporter
from scrapy.extensions.postprocessing import GzipPlugin

from scrapy_bloom.job.inspect import inspect_job
from tests.support.killed_crawls import CrawlOfSite, crawl_with, items_of, run, run_to_the_end

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL and no fork() there")


def killed_and_resumed(crawl: CrawlOfSite, pages: tuple[int, ...] = (21, 11)) -> CrawlOfSite:
    for page in pages:
        assert run([replace(crawl, kill_page=page)]) == [-9]
    return run_to_the_end(crawl)


def test_batches_named_by_time_leave_no_orphan(tmp_path: Path) -> None:
    """Each is full but the last, whatever a kill came between; no file is left that nobody goes on with."""
    name = "batch-%(batch_id)d-%(batch_time)s.jl"
    crawl = killed_and_resumed(crawl_with(tmp_path, {name: {"format": "jsonlines", "batch_item_count": 5}}))
    paths = sorted(tmp_path.glob("batch-*"), key=lambda path: int(path.name.split("-")[1]))
    counts = [len(path.read_text().splitlines()) for path in paths]
    assert [int(path.name.split("-")[1]) for path in paths] == list(range(1, 13))
    assert counts == [5] * 12
    assert crawl.items("batch-*.jl") == crawl.wanted()


def test_batches_of_a_new_cycle_begin_with_one(tmp_path: Path) -> None:
    """A finished job does not go on with its last batch, also if its first cycle was killed at its end."""
    name = "batch-%(batch_id)d-%(batch_time)s.jl"
    crawl = crawl_with(tmp_path, {name: {"format": "jsonlines", "batch_item_count": 16}})
    run_to_the_end(crawl)
    run_to_the_end(crawl)
    numbers = Counter(int(path.name.split("-")[1]) for path in tmp_path.glob("batch-*"))
    assert numbers == {1: 2, 2: 1, 3: 1, 4: 1}


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_existing_file_is_kept_or_overwritten_once(overwrite: bool, tmp_path: Path) -> None:
    """The first run appends to it or overwrites it, as the feed says; resumed runs go on with it in both cases."""
    for name in ("items.jl", "items.csv"):
        (tmp_path / name).write_text('{"page": -1, "item": -1}\n' if name == "items.jl" else "page,item\n-1,-1\n")
    options = {"overwrite": overwrite}
    feeds = {"items.jl": {"format": "jsonlines", **options}, "items.csv": {"format": "csv", **options}}
    crawl = killed_and_resumed(crawl_with(tmp_path, feeds))
    old = Counter() if overwrite else Counter([(-1, -1)])
    assert crawl.items("items.jl") == crawl.items("items.csv") == crawl.wanted() + old


def test_a_kill_before_the_first_commit_keeps_an_existing_file(tmp_path: Path) -> None:
    """What was in the file before the crawl is never cut off."""
    (tmp_path / "items.jl").write_text('{"page": -1, "item": -1}\n')
    crawl = crawl_with(tmp_path, {"items.jl": {"format": "jsonlines"}}, seconds=60)
    assert run([replace(crawl, kill_after=0.5)]) in ([-14], [0])
    run_to_the_end(replace(crawl, seconds=0.01))
    assert crawl.items()[-1, -1] == 1


@pytest.mark.parametrize("how", ["moved", "cut", "cut in a line"])
def test_a_feed_that_lacks_bytes_is_said_and_gone_on_with(how: str, tmp_path: Path) -> None:
    """A WARNING names the file and the bytes missed; new items follow in whole lines, also after a kill."""
    feeds = {"items.jl": {"format": "jsonlines"}, "items.csv": {"format": "csv"}}
    crawl = crawl_with(tmp_path, feeds)
    assert run([replace(crawl, kill_page=21)]) == [-9]
    path = tmp_path / "items.jl"
    [noted] = [feed for feed in inspect_job(crawl.job).feeds if feed.path == str(path)]
    kept = b""
    if how == "moved":
        path.rename(tmp_path / "elsewhere")
    else:
        whole = crawl.finished_lines()[: noted.length]
        kept = whole[: whole.rindex(b"\n", 0, len(whole) // 2) + (1 if how == "cut" else 9)]
        path.write_bytes(kept)
    assert run([replace(crawl, kill_page=11)]) == [-9]
    run_to_the_end(crawl)
    [warning] = [line for line in crawl.lines("WARNING") if str(path) in line]
    lacking = int(re.findall(r"has ([\d,]+) bytes fewer", warning)[0].replace(",", ""))
    lengths = {noted.size, noted.length} if how == "moved" else {noted.size}  # killed before the append, or after it
    assert lacking in {length - len(kept) for length in lengths}
    whole_lines = [line for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    found = Counter(tuple(json.loads(line).values()) for line in whole_lines)
    assert found <= crawl.wanted(), "twice"
    assert len(path.read_bytes().splitlines()) - len(whole_lines) == (how == "cut in a line")
    assert crawl.items("items.csv") == crawl.wanted()


def test_a_feed_moved_away_while_it_is_written_does_not_stop_commits(tmp_path: Path) -> None:
    """As with ``logrotate``: the crawl writes to the file that it has open, and goes on committing."""
    crawl = crawl_with(tmp_path, {"items.jl": {"format": "jsonlines"}}, settings={"MOVE_AT_PAGE": 20})
    run_to_the_end(crawl)
    assert crawl.items("*.jl") == crawl.wanted()
    assert crawl.lines("ERROR", "CRITICAL") == []


class Late(JsonLinesItemExporter):
    """Writes all items at the end."""

    def __init__(self, file: Any, **kwargs: Any) -> None:
        super().__init__(io.BytesIO(), **kwargs)  # type: ignore[arg-type]
        self.target = file

    def finish_exporting(self) -> None:
        self.target.write(self.file.getvalue())


class Plugin(GzipPlugin):
    """A compression of the user's."""


class Patched(JsonLinesItemExporter):
    """Looks where it is in its file."""

    def export_item(self, item: Any) -> None:
        self.file.seek(0, io.SEEK_END)
        super().export_item(item)


def test_feeds_that_cannot_be_part_of_the_commit_are_named(tmp_path: Path) -> None:
    """Scrapy alone writes them, an INFO line says why; the others are part of the commit all the same."""
    feeds = {
        "items.jl": {"format": "jsonlines"},
        "other.late": {"format": "late"},
        "other.patched": {"format": "patched"},
        "other.jl.gz": {"format": "jsonlines", "postprocessing": [f"{__name__}.Plugin"]},
    }
    exporters = {name: f"{__name__}.{name.title()}" for name in ("late", "patched")}
    crawl = crawl_with(tmp_path, feeds, settings={"FEED_EXPORTERS": exporters})
    assert run([replace(crawl, kill_page=21)]) == [-9]
    run_to_the_end(crawl)
    unsafe = [line for line in crawl.lines("INFO") if "a kill may lose items" in line]
    for name in feeds:
        assert sum(f"{tmp_path}/{name}:" in line for line in unsafe) == 2 * name.startswith("other")
    assert crawl.items() == crawl.wanted()
    wanted = 2 * sum(crawl.wanted().values())
    for name in feeds.keys() - {"items.jl"}:
        data = (tmp_path / name).read_bytes()
        data = gzip.decompress(data) if name.endswith(".gz") else data
        assert 0 < data.count(b'"page"') < wanted


class EvenPages:
    """An item filter."""

    def __init__(self, feed_options: object) -> None: ...

    def accepts(self, item: dict[str, int]) -> bool:
        return item["page"] % 2 == 0


def test_each_feed_has_its_own_items_and_fields(tmp_path: Path) -> None:
    """Item filters and fields of feeds work as in Scrapy, through kills too."""
    feeds = {
        "even.jl": {"format": "jl", "item_filter": f"{__name__}.EvenPages"},
        "pages.csv": {"format": "csv", "fields": ["item"]},
        "items.jl": {"format": "jsonlines"},
    }
    crawl = killed_and_resumed(crawl_with(tmp_path, feeds))
    assert crawl.items() == crawl.wanted()
    assert crawl.items("even.jl") == Counter({key: 1 for key in crawl.wanted() if key[0] % 2 == 0})
    with (tmp_path / "pages.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["item"]
    assert Counter(int(row[0]) for row in rows) == Counter(item for _, item in crawl.wanted())


def test_items_of_a_page_that_has_too_many_are_written_as_they_come(tmp_path: Path) -> None:
    """While the page is in progress they are in the file. One WARNING says what a kill then costs."""
    crawl = crawl_with(tmp_path, {"items.jl": {"format": "jsonlines"}}, settings={"MANY": {"5": 10_500}})
    run_to_the_end(crawl)
    wanted = crawl.wanted() + Counter((5, item) for item in range(items_of(5), 10_500))
    assert crawl.items() == wanted
    [warning] = crawl.lines("WARNING")
    assert "/5>" in warning


def test_an_item_that_cannot_be_written_costs_no_other(tmp_path: Path) -> None:
    """Its ERROR is logged, as by Scrapy; the page's other items are written, and the page is done."""
    crawl = crawl_with(tmp_path, {"items.jl": {"format": "jsonlines"}}, settings={"STRANGE_ITEM": True})
    run_to_the_end(crawl)
    assert crawl.items() == crawl.wanted()
    assert sorted(crawl.fetched()) == list(range(crawl.pages))
    assert len(crawl.lines("ERROR")) == sum(1 for page in range(crawl.pages) if items_of(page))
    assert crawl.is_closed


def test_items_without_a_page_of_ours_are_written_at_once(tmp_path: Path) -> None:
    """An item of ``start()`` has no response: it is in the feed, and a resumed run gives it once more."""
    crawl = crawl_with(tmp_path, {"items.jl": {"format": "jsonlines"}}, settings={"ITEM_OF_START": True})
    crawl = killed_and_resumed(crawl, (21,))
    assert crawl.items() - crawl.wanted() <= Counter({(-1, 0): 2})
    assert crawl.items()[-1, 0] >= 1
    assert not crawl.wanted() - crawl.items()


def test_a_resumed_run_without_items_closes_its_feed(tmp_path: Path) -> None:
    """A feed that an earlier run has filled is no error for a run that has nothing to add."""
    crawl = crawl_with(tmp_path, {"items.jl": {"format": "jsonlines"}, "items.csv": {"format": "csv"}})
    run_to_the_end(crawl, settings={**crawl.settings, "CLOSESPIDER_PAGECOUNT": 25})
    run_to_the_end(crawl, settings={**crawl.settings, "NO_ITEMS": True})
    assert crawl.lines("ERROR") == []
    assert crawl.items() == crawl.items("items.csv")
    assert 0 < sum(crawl.items().values()) < sum(crawl.wanted().values())
