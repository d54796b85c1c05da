"""Feeds as part of the commit: over stops, kills and what others do to the files, no item is lost or comes twice."""

import asyncio
import itertools
import json
import pickle
import re
import shutil
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy.exceptions import CloseSpider
from typing_extensions import Self

from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.feedfile import AppendLog
from scrapy_bloom.job.feeds import NotedFeeds
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.records import Batch, FeedLength
from scrapy_bloom.job.verify import fix_job
from tests.support.crawls import ADDON, FollowSpider, Site, crawl, start
from tests.support.feeds import FEED, LINES, FeedRun, Step, numbered, play

# -- stories -----------------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[Any]:
    """Return the lines of a file: of an item in any format its number, and of anything else the text."""
    item = r'(-?\d+)|\{"n": (-?\d+)\},?|<item><n>(-?\d+)</n></item>'
    found = [(re.fullmatch(item, line), line) for line in path.read_text().splitlines()]
    return [int(match[match.lastindex or 0]) if match else line for match, line in found]


def files(directory: Path) -> list[list[Any]]:
    """Return the lines of all feeds in a directory."""
    return [lines_of(path) for path in sorted(directory.glob("*.*")) if path.is_file()]


@dataclass
class Story:
    """What is played, and what the files hold then, in the order of their names."""

    steps: list[Step]
    files: list[Any]
    feeds: dict[str, dict[str, Any]] = field(default_factory=lambda: FEED)
    logged: list[str] = field(default_factory=list)
    """What the warnings and errors name, each in turn."""


def writes(text: str, name: str = "items.jl", mode: str = "w") -> Step:
    def write(directory: Path) -> None:
        with (directory / name).open(mode, newline="") as file:
            file.write(text)

    return write


def cuts(size: int) -> Step:
    return lambda directory: (directory / "items.jl").write_bytes((directory / "items.jl").read_bytes()[:size])


def twice(directory: Path) -> None:
    (path,) = directory.glob("items.*")
    path.write_text(f"{path.read_text()}\n{path.read_text()}")


def holds(*expected: Any) -> Step:
    def check(directory: Path) -> None:
        assert files(directory) == [*expected]

    return check


def batches(most: int) -> dict[str, dict[str, Any]]:
    return {"batch-%(batch_id)d-%(batch_time)s.jl": {**LINES, "batch_item_count": most}}


ONE_FILE = {
    "items.jl": {**LINES, "fields": ["n"]},
    "../run/items.jl": {**LINES, "overwrite": True, "fields": {"n": "m"}},
    "other.jl": LINES,
}
ARRAYS = {name: {"format": name.rpartition(".")[2]} for name in ("items.jl", "items.json", "items.csv")}
XML = ['<?xml version="1.0" encoding="utf-8"?>', "<items>", 0, "</items>"]
HOW = ("commit kill", "stop")

STORIES = {
    "batches named by time leave no orphan": Story(
        [f"{n}-{n + 2} {'commit' if n % 2 == 0 else 'note'} kill" for n in range(0, 33, 3)] + ["end"],
        [list(range(n, min(n + 5, 33))) for n in range(0, 33, 5)],
        batches(5),
    ),
    "a batch that somebody takes away when it is full does not come again": Story(
        ["0-1 commit", lambda directory: (directory / "1.jl").unlink(), "kill 2"],
        [[2]],
        {"%(batch_id)d.jl": {**LINES, "batch_item_count": 2}},
    ),
    "batches of a new cycle begin with one": Story(["0-2 end 3"], [[0, 1], [3], [2]], batches(2)),
    "a file is overwritten by the first item, once": Story(
        [writes('{"n": -1}\n'), "kill", holds([-1]), "0 commit kill 1 commit kill 2"],
        [[0, 1, 2]],
        {"items.jl": {**LINES, "overwrite": True}},
    ),
    "two feeds of one file that is called by two names": Story(
        [f"{n} {'commit' if n % 2 == 0 else 'note'} kill" for n in range(6)] + ["end"],
        [[line for n in range(6) for line in (n, f'{{"m": {n}}}')], [*range(6)]],
        ONE_FILE,
    ),
    "moved away while it is written, as with logrotate": Story(
        ["0 commit", lambda directory: (directory / "items.jl").rename(directory / "moved.jl"), "1"], [[0, 1]]
    ),
    **{
        f"{name}, and the last commit is {'appended' if last == 'commit' else 'not appended'}": Story(
            [f"0-3 commit 4 {last} kill", change, "5 stop end"],
            [[*kept, *([] if last == "commit" else [4]), 5]],
            logged=[r"has \d+ bytes fewer"],
        )
        for name, change, kept in (
            ("removed", lambda directory: (directory / "items.jl").unlink(), []),
            ("cut", cuts(18), [0, 1]),
            ("cut in a line", cuts(25), [0, 1, '{"n": 2']),
        )
        for last in ("commit", "note")
    },
    "a resumed run without items closes its feeds": Story(["0 stop end"], [["n", 0], [0], ["[", 0, "]"]], ARRAYS),
    **{
        f"a program appends whole lines, and one without an end: {name}, {how}": Story(
            [f"0 {how}", writes(3 * other, name, "a"), f"1 {how}", writes(other.rstrip(), name, "a"), "2"],
            [[*header, 0, -1, -1, -1, 1, -1, 2]],
            {name: ARRAYS[name]},
        )
        for name, other, header in (("items.jl", '{"n": -1}\n', []), ("items.csv", "-1\r\n", ["n"]))
        for how in HOW
    },
    **{
        f"a program puts the lines in order: {how}": Story(
            [f"0-1 {how}", writes('{"n": 1}\n{"n": 0}\n{"n": -1}\n'), "2"], [[1, 0, -1, 2]]
        )
        for how in HOW
    },
    **{
        f"an array that others wrote behind is begun anew: {format_}": Story(
            ["0 stop", twice, "1"], [lines], {f"items.{format_}": {"format": format_}}, ["written to by others"]
        )
        for format_, lines in (
            ("json", ["[", 0, "]", "[", 0, "][", 1, "]"]),
            ("xml", [*XML, *XML, *XML[:2], 1, XML[3]]),
        )
    },
    "an array that was stopped before its first item goes on": Story(
        [writes("before\n", "items.json"), "stop", holds(["before", "[", "", "]"]), "0 stop 1"],
        [["before", "[", 0, 1, "]"]],
        {"items.json": ARRAYS["items.json"]},
    ),
    "verify --fix keeps what is known of feeds": Story(
        ["0 commit kill", lambda directory: fix_job(directory / "job"), "1"], [[0, 1]]
    ),
    "a feed that is a directory is an ERROR in each run, and costs no other": Story(
        [lambda directory: (directory / "folder.jl").mkdir(), "0 commit kill 1"],
        [[0, 1]],
        {"folder.jl": LINES, **FEED},
        ["folder.jl", "folder.jl"],
    ),
    "an empty file is overwritten, and one with items kept": Story(
        ["0 end end end"], [[0], []], {"items.jl": {**LINES, "overwrite": True}}, ["is of a job that has ended"]
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_stories(tmp_path: Path, story: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each is what its name says. No other WARNING or ERROR is logged."""
    told = STORIES[story]
    (tmp_path / "run").mkdir()
    play(tmp_path / "run", told.feeds, *told.steps)
    assert files(tmp_path / "run") == told.files
    messages = [text for text in caplog.messages if "was not stopped cleanly" not in text]
    assert len(messages) == len(told.logged), messages
    assert all(map(re.search, told.logged, messages)), messages


# -- files of several jobs, of jobs that have ended, and of runs -------------------------------------------------------


def test_several_jobs_with_one_file_stopped_and_killed_in_turn(tmp_path: Path) -> None:
    """Each item of all is in the file once, whatever the jobs are doing when another one is killed."""
    runs = [FeedRun(tmp_path / name, {"../items.jl": LINES}) for name in "abc"]
    for turn in range(5):
        for place, run in enumerate(runs):
            run.give({"n": 10 * place + turn})
            run.commit(whole=turn % 2 == 0)
        runs = [run.kill() if turn % 3 else run.end("shutdown").next_run() for run in runs]
    for run in runs:
        run.end()
    assert sorted(lines_of(tmp_path / "items.jl")) == [*range(5), *range(10, 15), *range(20, 25)]


@pytest.mark.parametrize(
    ("feeds", "expected"),
    [(FEED, [[*range(6)]]), ({"%(batch_id)d.jl": {**LINES, "batch_item_count": 3}}, [[0, 1, 2], [3, 4, 5]])],
)
@pytest.mark.parametrize("how", HOW)
def test_a_project_that_was_moved_goes_on_with_its_files(how: str, feeds: Any, expected: Any, tmp_path: Path) -> None:
    """Absolute paths in it are computed from where it is; the job finds its files in the new place."""
    play(tmp_path / "old", feeds, f"0-3 {how}")
    (tmp_path / "old").rename(tmp_path / "new")
    play(tmp_path / "new", feeds, "4-5")
    assert files(tmp_path / "new") == expected
    assert not (tmp_path / "old").exists()


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize(
    ("name", "expected"),
    [("items.jl", [[0, 1, 2], [3, 4, 5]]), ("%(batch_id)d.jl", [[0, 1], [3, 4], [2], [5]])],
)
def test_the_file_of_a_job_that_has_ended_is_kept(tmp_path: Path, name: str, expected: Any, delta: bool) -> None:
    """Started again, its filter knows all pages: overwriting the file would leave an empty one. Who wrote a file is
    noted: this job began with pending requests, as ``seed`` leaves them, so it was never begun anew before."""
    feeds = {name: {**LINES, "overwrite": True, **({"batch_item_count": 2} if "batch" in name else {})}}
    settings = {"BLOOM_DELTA": str(tmp_path / "delta")} if delta else {}
    run = FeedRun(tmp_path / "run", feeds, **settings)
    run.engine.push(scrapy.Request("http://site.test/seeded"))
    run.commit()
    run = run.kill()
    run.engine.drain()
    run.give(*numbered(0, 1, 2))
    run.end()
    play(tmp_path / "run", feeds, "commit kill", "commit kill", "3-5", **settings)
    assert files(tmp_path / "run") == expected


RUNS = itertools.count()


def with_run(params: dict[str, Any], spider: object) -> dict[str, Any]:
    return {**params, "run": next(RUNS)}


def test_a_file_named_by_a_killed_run_gets_its_end(tmp_path: Path) -> None:
    """As with ``%(time)s``: Scrapy begins a file with each run. The next run ends the one that has no end."""
    feeds = {f"%(run)d.{name}": {"format": name, "uri_params": f"{__name__}.with_run"} for name in ("json", "xml")}
    play(tmp_path, feeds, "0 commit kill 1 note kill 2 commit kill end")
    found = sorted(tmp_path.glob("*.json"), key=lambda path: int(path.stem))
    assert [json.loads(path.read_text()) for path in found] == [numbered(0), numbered(1), numbered(2), []]
    assert all(path.read_text().endswith("</items>") for path in tmp_path.glob("*.xml"))


# -- what a kill leaves in the middle of a commit ----------------------------------------------------------------------

FIRST, SECOND, OTHERS = (b'{"n": %d}\n' % n for n in (1, 2, 3))
LAST = 3 * SECOND


@pytest.mark.parametrize("is_logged", [False, True])
@pytest.mark.parametrize(
    ("there", "size", "data", "expected"),
    [
        *((FIRST + LAST[:size], 9, LAST, FIRST + LAST) for size in (0, 1, 13, 27)),
        pytest.param(FIRST + LAST + OTHERS, 9, LAST, FIRST + LAST + OTHERS, id="all, and more by others"),
        pytest.param(FIRST + OTHERS, 9, LAST, FIRST + OTHERS + LAST, id="others only"),
        pytest.param(FIRST + b'{"n', 12, b"\n" + SECOND, FIRST + b'{"n\n' + SECOND, id="a line that somebody cut"),
    ],
)
def test_a_commit_that_a_kill_left_half_appended_is_completed(
    there: bytes,
    size: int,
    data: bytes,
    expected: bytes,
    is_logged: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The transaction has the bytes: whatever part of them the file has, each item is there once."""
    path, directory = tmp_path / "items.jl", tmp_path / "job" / "requests.bloom"
    directory.mkdir(parents=True)
    path.write_bytes(there)
    with closing(Database(directory / NAME)) as job:
        feed = FeedLength(str(path), "../items.jl", size, 1, data=data)
        job.write(Batch(feeds=[feed], state=replace(job.state, clean=False)))
        if is_logged:
            AppendLog(directory / "appended").note(feed, is_done=False)
        NotedFeeds(job, directory / "appended").repair()
    assert path.read_bytes() == expected
    assert ("written to by others" in caplog.text) == (there == FIRST + OTHERS)


@pytest.mark.parametrize("is_noted", [False, True])
def test_an_append_that_a_kill_came_behind_is_not_repeated(
    is_noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bytes are in the file. If it is noted that they are, they do not come again when somebody takes them away."""
    note = AppendLog.note

    def kill(log: AppendLog, feed: FeedLength, *, is_done: bool) -> None:
        if is_noted:
            note(log, feed, is_done=is_done)
        if is_done:
            shutil.copytree(tmp_path / "run", tmp_path / "killed", dirs_exist_ok=True)
        note(log, feed, is_done=is_done)

    monkeypatch.setattr(AppendLog, "note", kill)
    play(tmp_path / "run", FEED, "0 commit 1 commit")
    monkeypatch.undo()
    if is_noted:
        cuts(len(FIRST))(tmp_path / "killed")
    play(tmp_path / "killed", FEED, "end")
    assert files(tmp_path / "killed") == [[0, 1][: 2 - is_noted]]


def test_an_older_database_cuts_nothing(tmp_path: Path) -> None:
    """A backup of the job is put back: items that came since stay, and come again with their pages."""
    play(tmp_path, FEED, "0 stop")
    (feed,) = inspect_job(tmp_path / "job").feeds
    play(tmp_path, FEED, "1-2")
    with closing(Database(tmp_path / "job" / "requests.bloom" / NAME)) as now:  # older for the feed
        now.write(Batch(feeds=[feed], state=replace(now.state, clean=False)))
    play(tmp_path, FEED, "end")
    assert files(tmp_path) == [[0, 1, 2]]


def test_a_state_that_is_changed_while_the_spider_closes_is_kept(tmp_path: Path) -> None:
    """It is written when the engine stops, after ``closed()``."""
    run = FeedRun(tmp_path, FEED)
    run.close("shutdown")
    run.engine.spider.state["last"] = "closed"
    run.stop()
    run = run.next_run()
    assert pickle.loads(run.engine.store.database.notes("state")["spider.state"]) == {"last": "closed"}
    run.end()


# -- crawls that are closed at odd moments ----------------------------------------------------------------------------


class StoppedWhileItEnds:
    """Item pipeline: stops the crawl while it ends, some turns of the event loop before the scheduler is closed."""

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Any) -> Self:
        return cls(crawler)

    async def close_spider(self, spider: Any = None) -> None:
        crawler = self._crawler
        self._stop = asyncio.ensure_future(crawler.stop_async()) if hasattr(crawler, "stop_async") else crawler.stop()
        for _ in range(crawler.settings.getint("TURNS")):
            await asyncio.sleep(0)


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
