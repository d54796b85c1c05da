"""Feeds as part of the commit: what is in them after kills, and what happens to those that cannot be part of it."""

import asyncio
import gzip
import io
import itertools
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy.exceptions import CloseSpider
from scrapy.exporters import JsonLinesItemExporter
from scrapy.extensions.postprocessing import GzipPlugin
from typing_extensions import Self

from scrapy_bloom.job import open_pages
from scrapy_bloom.job.inspect import inspect_job
from tests.support.crawls import ADDON, FollowSpider, Site, crawl, start
from tests.support.feeds import FEED, LINES, FeedRun, numbered

# -- batches -----------------------------------------------------------------------------------------------------------


def test_batches_named_by_time_leave_no_orphan(ram: Path) -> None:
    """Each is full but the last, whatever a kill came between; no file is left that no run goes on with."""
    run = FeedRun(ram, {"batch-%(batch_id)d-%(batch_time)s.jl": {**LINES, "batch_item_count": 5}})
    for first in range(0, 33, 3):
        run.give(*numbered(*range(first, first + 3)))
        run.commit(whole=first % 2 == 0)
        run = run.kill()
    run.end()
    batches = sorted(ram.glob("batch-*"), key=lambda path: int(path.name.split("-")[1]))
    assert [len(path.read_text().splitlines()) for path in batches] == [5] * 6 + [3]
    assert run.items("batch-*") == numbered(*range(33))


def test_a_batch_that_is_taken_away_when_it_is_full_does_not_come_again(ram: Path) -> None:
    """Uploaded and deleted, say. The crawl is killed just after that."""
    run = FeedRun(ram, {"%(batch_id)d.jl": {**LINES, "batch_item_count": 2}})
    run.give(*numbered(0, 1))
    run.commit()
    (ram / "1.jl").unlink()
    run = run.kill()
    run.give(*numbered(2))
    run.end()
    assert run.items("*.jl") == numbered(2)


def test_batches_of_a_new_cycle_begin_with_one(ram: Path) -> None:
    """A finished job does not go on with its last batch."""
    run = FeedRun(ram, {"batch-%(batch_id)d-%(batch_time)s.jl": {**LINES, "batch_item_count": 2}})
    run.give(*numbered(0, 1, 2))
    run = run.end().next_run()
    run.give(*numbered(3))
    run.end()
    assert sorted(path.name.split("-")[1] for path in ram.glob("batch-*")) == ["1", "1", "2"]


# -- whose a file is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_existing_file_is_kept_or_overwritten_once(ram: Path, overwrite: bool) -> None:
    """The first run appends to it or overwrites it, as the feed says; resumed runs go on with it in both cases."""
    feeds = {"items.jl": LINES, "items.csv": {"format": "csv"}, "other.csv": {"format": "csv", "fields": ["m", "n"]}}
    (ram / "items.jl").write_text('{"n": -1}\n')
    for name in ("items.csv", "other.csv"):
        (ram / name).write_text("n\n-1\n")
    run = FeedRun(ram, {name: {**options, "overwrite": overwrite} for name, options in feeds.items()}).kill()
    assert run.items() == numbered(-1), "nothing was written yet"
    for number in range(3):
        run.give(*numbered(number))
        run.commit()
        run = run.kill()
    run.end()
    before, lines = ([], []) if overwrite else ([-1], ["-1", "n"])
    assert run.items() == numbered(*before, 0, 1, 2)
    assert (ram / "items.csv").read_text().split() == ["n", *lines, "0", "1", "2"]
    assert (ram / "other.csv").read_text().split() == ([] if overwrite else ["n", "-1"]) + ["m,n", ",0", ",1", ",2"]


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("name", ["items.jl", "%(batch_id)d.jl"])
def test_the_file_of_a_job_that_has_ended_is_kept(ram: Path, name: str, delta: bool) -> None:
    """Started again, its filter knows all pages: overwriting the file would leave an empty one. Who wrote a file is
    noted: this job began with pending requests, as ``seed`` leaves them, so it was never begun anew before."""
    options = {**LINES, "overwrite": True, **({"batch_item_count": 2} if "batch" in name else {})}
    settings = {"BLOOM_DELTA": str(ram / "delta")} if delta else {}
    run = FeedRun(ram, {name: options}, **settings)
    run.engine.push(scrapy.Request("http://site.test/seeded"))
    run.commit()
    run = run.kill()
    run.engine.drain()
    run.give(*numbered(0, 1, 2))
    run.end()
    for _ in range(2):  # the second one is killed at its beginning
        run = run.next_run()
        run.commit()
        run.drop()
    run = run.next_run()
    run.give(*numbered(3, 4, 5))
    run.end()
    assert sorted(item["n"] for item in run.items("*.jl")) == [0, 1, 2, 3, 4, 5]


def test_two_feeds_of_one_file_that_is_called_by_two_names(ram: Path) -> None:
    """Each has its own items in it, once, after kills before and after the append."""
    feeds = {"items.jl": {**LINES, "fields": ["n"]}, "../run/items.jl": {**LINES, "overwrite": True}, "other.jl": LINES}
    run = FeedRun(ram / "run", feeds)
    wanted = []
    for number in range(6):
        run.give({"n": number, "more": 1})
        wanted += [{"n": number}, {"n": number, "more": 1}]
        run.commit(whole=number % 2 == 0)
        run = run.kill()
    run.end()
    assert run.items() == wanted


# -- the end of a file -------------------------------------------------------------------------------------------------


RUNS = itertools.count()


def with_run(params: dict[str, Any], spider: object) -> dict[str, Any]:
    return {**params, "run": next(RUNS)}


def test_a_file_named_by_a_killed_run_gets_its_end(ram: Path) -> None:
    """As with ``%(time)s``: Scrapy begins a file with each run. The next run ends the one that has no end."""
    options = {"uri_params": f"{__name__}.with_run"}
    run = FeedRun(ram, {f"%(run)d.{name}": {"format": name, **options} for name in ("json", "xml")})
    for number in range(3):
        run.give(*numbered(number))
        run.commit(whole=number != 1)
        run = run.kill()
    run.end()
    files = sorted(ram.glob("*.json"), key=lambda path: int(path.stem))
    assert [json.loads(path.read_text()) for path in files] == [numbered(0), numbered(1), numbered(2), []]
    assert all(path.read_text().endswith("</items>") for path in ram.glob("*.xml"))


def test_a_state_that_is_changed_while_the_spider_closes_is_kept(ram: Path) -> None:
    """It is written when the engine stops, after ``closed()``."""
    run = FeedRun(ram, FEED)
    run.close("shutdown")
    run.engine.spider.state["last"] = "closed"
    run.stop()
    run = run.next_run()
    assert pickle.loads(run.engine.store.database.notes("state")["spider.state"]) == {"last": "closed"}
    run.end()


# -- files that lack bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False], ids=["appended", "not appended"])
@pytest.mark.parametrize("how", ["moved", "cut", "cut in a line"])
def test_a_feed_that_lacks_bytes_is_gone_on_with(
    ram: Path, how: str, whole: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A WARNING names the bytes missed. Items that were there before somebody took them away do not come again."""
    run = FeedRun(ram, FEED)
    run.give(*numbered(0, 1, 2, 3))
    run.commit()
    run.give(*numbered(4))
    run.commit(whole=whole)
    run.drop()
    path, elsewhere = ram / "items.jl", ram / "elsewhere"
    if how == "moved":
        path.rename(elsewhere)
    else:
        there = path.read_bytes()
        path.write_bytes(there[:20] if how == "cut" else there[:25])
        elsewhere.write_bytes(there[20:])
    run = run.next_run()
    run.give(*numbered(5))
    run = run.end("shutdown").next_run()
    run.end()
    lines = path.read_text().splitlines()
    kept = 0 if how == "moved" else 2
    late = numbered(5) if whole else numbered(4, 5)
    assert [json.loads(line) for line in lines if line.endswith("}")] == numbered(*range(kept)) + late
    assert len(re.findall(r"has \d+ bytes fewer", caplog.text)) == 1


def test_a_feed_moved_away_while_it_is_written_does_not_stop_commits(ram: Path) -> None:
    """As with ``logrotate``: the crawl writes to the file that it has open, and goes on committing."""
    run = FeedRun(ram, FEED)
    run.give(*numbered(0))
    run.commit()
    (ram / "items.jl").rename(ram / "moved.jl")
    run.give(*numbered(1))
    run.end()
    assert run.items("*.jl") == numbered(0, 1)


# -- items -------------------------------------------------------------------------------------------------------------


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


def test_feeds_that_cannot_be_part_of_the_commit_are_named(ram: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Scrapy alone writes them, an INFO line says why; the others are part of the commit all the same."""
    caplog.set_level("INFO")
    feeds = {
        "items.jl": LINES,
        "other.late": {"format": "late"},
        "other.patched": {"format": "patched"},
        "other.jl.gz": {"format": "jsonlines", "postprocessing": [f"{__name__}.Plugin"]},
    }
    exporters = {name: f"{__name__}.{name.title()}" for name in ("late", "patched")}
    run = FeedRun(ram, feeds, FEED_EXPORTERS=exporters)
    run.give(*numbered(0, 1))
    run.commit()
    assert run.items() == numbered(0, 1)
    run.end()
    unsafe = [line.partition(":")[0] for line in caplog.messages if "a kill may lose items" in line]
    assert sorted(unsafe) == sorted(str(ram / name) for name in feeds if name.startswith("other"))
    for name in feeds:
        data = (ram / name).read_bytes()
        assert (gzip.decompress(data) if name.endswith(".gz") else data).count(b'"n"') == 2


def test_items_of_a_page_that_has_too_many_are_written_as_they_come(
    ram: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the page is in progress they are in the file. One WARNING says what a kill then costs."""
    monkeypatch.setattr(open_pages, "MOST_ENTRIES", 20)
    run = FeedRun(ram, FEED)
    with run.page() as give:
        for item in numbered(*range(30)):
            give(item)
        run.commit()
        assert run.items() == numbered(*range(30))
        give({"n": 30})
    run.end()
    assert run.items() == numbered(*range(31))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_item_that_cannot_be_written_costs_no_other(ram: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its ERROR is logged, as by Scrapy; the page's other items are written, and the page is done."""
    run = FeedRun(ram, FEED)
    with run.page() as give:
        for item in ({"n": 0}, {"n": object()}, {"n": 2}):
            give(item)
    run.end()
    assert run.items() == numbered(0, 2)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert inspect_job(ram / "job").state.is_finished


def test_a_resumed_run_without_items_closes_its_feed(ram: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A feed that an earlier run has filled is no error for a run that has nothing to add."""
    run = FeedRun(ram, {"items.jl": LINES, "items.json": {"format": "json"}, "items.csv": {"format": "csv"}})
    run.give(*numbered(0))
    run.end("shutdown").next_run().end()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert (ram / "items.json").read_text() == '[\n{"n": 0}\n]'
    assert (ram / "items.csv").read_text().split() == ["n", "0"]


class StoppedWhileItEnds:
    """Item pipeline: stops the crawl while it ends, some turns of the event loop before the scheduler is closed."""

    def __init__(self, crawler: Any) -> None:
        self._crawler, self._turns = crawler, crawler.settings.getint("TURNS")

    @classmethod
    def from_crawler(cls, crawler: Any) -> Self:
        return cls(crawler)

    async def close_spider(self, spider: Any = None) -> None:
        crawler = self._crawler
        self._stop = asyncio.ensure_future(crawler.stop_async()) if hasattr(crawler, "stop_async") else crawler.stop()
        for _ in range(self._turns):
            await asyncio.sleep(0)

    def process_item(self, item: Any, spider: Any = None) -> Any:
        return item


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(10))
def test_a_crawl_that_is_stopped_while_it_ends_has_whole_feeds(tmp_path: Path, turns: int) -> None:
    """Scrapy may report then that the engine has stopped before the feeds are closed, or end the process."""
    feed = tmp_path / "items.json"
    settings = {**ADDON, "JOBDIR": str(tmp_path / "job"), "FEEDS": {str(feed): {"format": "json"}}}
    stopped = {"ITEM_PIPELINES": {f"{__name__}.StoppedWhileItEnds": 1}, "TURNS": turns}
    with Site({"/": ["/a"], "/a": []}) as site:
        crawl(site, tmp_path, {**settings, **stopped})
        if not inspect_job(tmp_path / "job").state.is_finished:
            crawl(site, tmp_path, settings)
    assert sorted(item["url"].rpartition("/")[2] for item in json.loads(feed.read_text())) == ["", "a"]


class ClosedWhileItOpens(FollowSpider):
    """Asks to be closed when it is opened: newer versions of Scrapy close it before the engine has started."""

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.close_it, signal=scrapy.signals.spider_opened)
        return spider

    def close_it(self) -> None:
        raise CloseSpider


def test_a_spider_that_is_closed_while_it_opens_has_the_feeds_of_scrapy(tmp_path: Path) -> None:
    files = {}
    with Site({"/": []}) as site:
        for name, ours in {"scrapy": {}, "ours": {**ADDON, "JOBDIR": str(tmp_path / "job")}}.items():
            feed = tmp_path / f"{name}.xml"
            settings = {"SPIDER": f"{__name__}.ClosedWhileItOpens", "FEEDS": {str(feed): {"format": "xml"}}}
            crawl(site, tmp_path, {**ours, **settings, "FEED_STORE_EMPTY": True})
            files[name] = feed.read_text()
    assert files["ours"] == files["scrapy"]


def test_a_start_that_is_refused_leaves_the_state_of_the_spider(tmp_path: Path) -> None:
    """Scrapy would empty ``spider.state`` when it closes the spider."""
    with Site({"/": ["/a"], "/a": []}) as site:
        job = {**ADDON, "JOBDIR": str(tmp_path / "job")}
        crawl(site, tmp_path, job)
        state = tmp_path / "job" / "spider.state"
        before = state.read_bytes()
        refused = start(site, tmp_path, {**job, "BLOOM_URL_RULES": ["www"]}).finish()
    assert "Nothing was changed" in refused.log
    assert state.read_bytes() == before != b""
