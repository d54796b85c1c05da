"""Feed files that others write to, move or remove: no byte of others is lost, and no item of ours."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.feedfile import AppendLog
from scrapy_bloom.job.feeds import NotedFeeds
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.records import Batch, FeedLength
from scrapy_bloom.job.verify import fix_job
from tests.support.killed_crawls import CrawlOfSite, crawl_with, run, run_to_the_end

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL and no fork() there")

HOW = {"kill_page": -9, "stop_page": 0}
OTHERS = b'{"page": -1, "item": -1}\n'
LINES: dict[str, Any] = {"format": "jsonlines"}


@pytest.fixture
def crawl(tmp_path: Path) -> CrawlOfSite:
    """A crawl with one feed, in JSON lines."""
    return crawl_with(tmp_path, {"items.jl": LINES})


def database(crawl: CrawlOfSite) -> Path:
    return crawl.job / "requests.bloom" / NAME


def noted(crawl: CrawlOfSite) -> FeedLength:
    (feed,) = inspect_job(crawl.job).feeds
    return feed


def interrupted(crawl: CrawlOfSite, how: str, page: int) -> None:
    assert run([replace(crawl, **{how: page})]) == [HOW[how]]


@pytest.mark.parametrize(("format_", "others"), [("jl", OTHERS), ("csv", b"-1,-1\r\n")])
@pytest.mark.parametrize("how", HOW)
def test_what_a_program_appends_between_two_runs_stays(how: str, format_: str, others: bytes, tmp_path: Path) -> None:
    """Whole lines and one without an end, after a kill and after Ctrl-C: all are there, and no line of ours is torn."""
    name = f"items.{format_}"
    crawl = crawl_with(tmp_path, {name: {"format": format_}})
    interrupted(crawl, how, 21)
    with (tmp_path / name).open("ab") as file:
        file.write(others * 3)
    interrupted(crawl, how, 9)
    with (tmp_path / name).open("ab") as file:
        file.write(others.rstrip())
    run_to_the_end(crawl)
    assert crawl.items(name) == crawl.wanted() + Counter({(-1, -1): 4})


@pytest.mark.parametrize("how", HOW)
def test_a_program_that_rewrites_the_file_loses_nothing(how: str, crawl: CrawlOfSite) -> None:
    """It puts the lines in order, say: what it wrote stays, and no item is missing or comes twice."""
    interrupted(crawl, "stop_page", 21)
    lines = crawl.feed.read_bytes().splitlines(keepends=True)
    crawl.feed.write_bytes(b"".join(sorted(lines, reverse=True)) + OTHERS)
    interrupted(crawl, how, 9)
    run_to_the_end(crawl)
    assert crawl.items() == crawl.wanted() + Counter({(-1, -1): 1})


def test_two_jobs_with_one_file_stopped_and_killed_in_turn(tmp_path: Path) -> None:
    """Each item of both is in the file once."""
    path = tmp_path / "items.jl"
    jobs = [crawl_with(tmp_path / name, {str(path): LINES}) for name in "ab"]
    for how, page in (("kill_page", 14), ("stop_page", 8), ("kill_page", 5)):
        for job in jobs:
            interrupted(job, how, page)
    for job in jobs:
        run_to_the_end(job)
    found = CrawlOfSite(tmp_path).items()
    assert found == jobs[0].wanted() + jobs[1].wanted()


@pytest.mark.parametrize("how", HOW)
def test_three_spiders_of_one_process_with_one_feed(how: str, tmp_path: Path) -> None:
    """Each has a job of its own; each item of each is in the file once."""
    crawl = crawl_with(tmp_path, {"items.jl": LINES}, spiders=3)
    interrupted(crawl, how, 21)
    interrupted(crawl, how, 9)
    run_to_the_end(crawl)
    assert crawl.items() == crawl.wanted() + crawl.wanted() + crawl.wanted()


@pytest.mark.parametrize("format_", ["json", "xml"])
def test_an_array_that_others_wrote_behind_is_begun_anew(format_: str, tmp_path: Path) -> None:
    """As by a new run of Scrapy: what was appended stays, and a WARNING says so."""
    path = tmp_path / "items"
    crawl = crawl_with(tmp_path, {"items": {"format": format_}})
    interrupted(crawl, "stop_page", 21)
    first = path.read_bytes()
    path.write_bytes(first + b"\nothers")
    run_to_the_end(crawl)
    whole = path.read_bytes()
    assert whole.startswith(first + b"\nothers")
    (warning,) = [line for line in crawl.lines("WARNING") if str(path) in line]
    assert "written to by others" in warning
    if format_ == "json":
        rest = json.loads(whole[len(first) + len(b"\nothers") :])
        found = Counter((item["page"], item["item"]) for item in [*json.loads(first), *rest])
        assert found == crawl.wanted()


def test_an_array_without_items_goes_on(tmp_path: Path) -> None:
    """Stopped before its first item, it is one array in the end."""
    path = tmp_path / "items.json"
    path.write_bytes(b"before\n")
    crawl = crawl_with(tmp_path, {"items.json": {"format": "json", "indent": 2}})
    assert run([replace(crawl, stop_page=9, settings={**crawl.settings, "NO_ITEMS": True})]) == [0]
    assert path.read_bytes() == b"before\n[\n\n]"
    interrupted(crawl, "stop_page", 9)
    run_to_the_end(crawl)
    content = path.read_bytes()
    assert content.startswith(b"before\n")
    assert isinstance(json.loads(content.removeprefix(b"before\n")), list)


# -- what a kill leaves in the middle of a commit ----------------------------------------------------------------------


@pytest.mark.parametrize("is_logged", [False, True])
@pytest.mark.parametrize("written", ["nothing", "one byte", "half", "all", "all, and more by others", "others only"])
def test_a_commit_that_a_kill_left_half_appended_is_completed(
    written: str, is_logged: bool, crawl: CrawlOfSite
) -> None:
    """The transaction has the bytes: whatever part of them the file has, each item is there once."""
    interrupted(crawl, "kill_page", 21)
    interrupted(crawl, "stop_page", 5)
    whole = crawl.feed.read_bytes()
    data = b"".join(whole.splitlines(keepends=True)[-5:])
    feed = noted(crawl)
    feed = feed._replace(length=len(whole) - len(data), data=data, number=feed.number + 1)
    with closing(Database(database(crawl))) as job:
        job.write(Batch(feeds=[feed], state=replace(job.state, clean=False)))
    parts = {
        "nothing": b"",
        "one byte": data[:1],
        "half": data[: len(data) // 2],
        "all": data,
        "all, and more by others": data + OTHERS,
        "others only": OTHERS,
    }
    crawl.feed.write_bytes(whole[: feed.length] + parts[written])
    log = crawl.job / "requests.bloom" / "appended"
    if is_logged:
        AppendLog(log).note(feed, is_done=False)
    else:
        log.unlink()
    interrupted(crawl, "kill_page", 2)  # before its first commit, perhaps
    run_to_the_end(crawl)
    assert crawl.items() == crawl.wanted() + Counter({(-1, -1): "others" in written} if "others" in written else {})
    assert len([line for line in crawl.lines("WARNING") if "written to by others" in line]) == (
        written == "others only"
    )


def test_an_older_database_cuts_nothing(crawl: CrawlOfSite) -> None:
    """A backup of the job is put back: items that came since stay, and come again with their pages."""
    interrupted(crawl, "stop_page", 14)
    feed = noted(crawl)
    run_to_the_end(crawl)
    whole = crawl.feed.read_bytes()
    with closing(Database(database(crawl))) as now:  # as far as the feed goes, this is the older database
        now.write(Batch(feeds=[feed], state=replace(now.state, clean=False)))
    run_to_the_end(crawl)
    assert crawl.feed.read_bytes() == whole


def test_a_fixed_job_cuts_nothing(crawl: CrawlOfSite) -> None:
    """``verify --fix`` keeps what is known of feeds; the resumed job loses no item."""
    interrupted(crawl, "kill_page", 21)
    before = crawl.feed.read_bytes()
    fix_job(crawl.job)
    run_to_the_end(crawl)
    assert crawl.feed.read_bytes().startswith(before)
    assert crawl.items() == crawl.wanted()


def test_a_line_that_somebody_cut_is_ended_once(tmp_path: Path) -> None:
    """The transaction has the line feed already, and a kill came before the append."""
    path, directory = tmp_path / "items.jl", tmp_path / "job" / "requests.bloom"
    path.write_bytes(b'{"page": 1}\n{"pa')
    directory.mkdir(parents=True)
    with closing(Database(directory / NAME)) as job:
        feed = FeedLength(str(path), "", path.stat().st_size, 1, data=b'\n{"page": 3}\n')
        job.write(Batch(feeds=[feed], state=replace(job.state, clean=False)))
        NotedFeeds(job, directory / "appended").repair()
    assert path.read_bytes() == b'{"page": 1}\n{"pa\n{"page": 3}\n'


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_a_project_that_was_moved_goes_on_with_its_files(how: str, batched: bool, tmp_path: Path) -> None:
    """Absolute paths in it are computed from where it is; the job finds its files in the new place."""
    name = "batch-%(batch_id)d.jl" if batched else "items.jl"
    options = {**LINES, "batch_item_count": 7 if batched else 0}
    old, new = (crawl_with(tmp_path / place, {f"out/{name}": options}) for place in ("old", "new"))
    interrupted(old, how, 21)
    old.directory.rename(new.directory)
    run_to_the_end(new)
    pattern = "out/batch-*.jl" if batched else "out/items.jl"
    assert new.items(pattern) == new.wanted()
    if batched:
        counts = [len(path.read_text().splitlines()) for path in new.directory.glob(pattern)]
        assert sorted(counts)[1:] == [7] * (len(counts) - 1)
    assert not old.directory.exists()
    assert not [line for line in new.lines("WARNING") if "fewer" in line]


def test_a_feed_that_cannot_be_written_is_reported_and_costs_no_other(tmp_path: Path) -> None:
    """Its path is a directory: one ERROR; the other feed is whole, and the commits go on."""
    (tmp_path / "folder.jl").mkdir()
    crawl = crawl_with(tmp_path, dict.fromkeys(["folder.jl", "items.jl"], LINES))
    interrupted(crawl, "kill_page", 21)
    run_to_the_end(crawl)
    errors = crawl.lines("ERROR")
    assert len(errors) == 2, "one in each run"
    assert all("folder.jl" in line for line in errors)
    assert crawl.items("items.jl") == crawl.wanted()


# -- overwrite ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
def test_a_feed_that_overwrites_does_so_once_in_a_job(how: str, tmp_path: Path) -> None:
    """Before its first items; a resumed job goes on, also if it had given none before."""
    path = tmp_path / "items.jl"
    path.write_bytes(OTHERS)
    crawl = crawl_with(tmp_path, {"items.jl": {**LINES, "overwrite": True, "store_empty": False}})
    assert run([replace(crawl, settings={**crawl.settings, "NO_ITEMS": True}, **{how: 3})]) == [HOW[how]]
    assert path.read_bytes() == OTHERS
    without_items = len(crawl.fetched())
    interrupted(crawl, how, 14)
    run_to_the_end(crawl)
    later = set(crawl.fetched()[without_items:])
    assert crawl.items() == Counter({(page, item): 1 for page, item in crawl.wanted() if page in later})


def test_the_file_of_a_job_that_has_ended_is_kept(tmp_path: Path) -> None:
    """Started again, its filter knows all pages: overwriting the file would leave an empty one."""
    path = tmp_path / "items.jl"
    crawl = crawl_with(tmp_path, {"items.jl": {**LINES, "overwrite": True}})
    run_to_the_end(crawl)
    run_to_the_end(crawl)
    run_to_the_end(crawl)
    assert crawl.items("items.1.jl") == crawl.wanted()
    assert not (tmp_path / "items.2.jl").exists(), "an empty file is not kept"
    (warning,) = [line for line in crawl.lines("WARNING") if "items.1.jl" in line]
    assert str(path) in warning
