"""Feed files that others write to, move or remove: no byte of others is lost, and no item of ours."""

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from scrapy_bloom.job.database import NAME, Database
from scrapy_bloom.job.feedfile import AppendLog
from scrapy_bloom.job.feeds import NotedFeeds
from scrapy_bloom.job.inspect import inspect_job
from scrapy_bloom.job.records import Batch, FeedLength
from scrapy_bloom.job.verify import fix_job
from tests.support.feeds import FEED, LINES, FeedRun, numbered

HOW = ("kill", "stop")


def interrupt(run: FeedRun, how: str) -> None:
    if how == "kill":
        run.commit()
        run.drop()
    else:
        run.end("shutdown")


@pytest.mark.parametrize(("format_", "others"), [("jl", '{"n": -1}\n'), ("csv", "-1\r\n")])
@pytest.mark.parametrize("how", HOW)
def test_what_a_program_appends_between_two_runs_stays(how: str, format_: str, others: str, ram: Path) -> None:
    """Whole lines and one without an end, after a kill and after Ctrl-C: all are there, and no line of ours is torn."""
    path = ram / f"items.{format_}"
    run = FeedRun(ram, {path.name: {"format": format_}})
    for number, appended in enumerate([others * 3, others.rstrip()]):
        run.give({"n": number})
        interrupt(run, how)
        with path.open("a", newline="") as file:
            file.write(appended)
        run = run.next_run()
    run.give({"n": 2})
    run.end()
    lines = path.read_text().splitlines()
    assert [line.removeprefix('{"n": ').removesuffix("}") for line in lines if line != "n"] == [
        *("0", "-1", "-1", "-1", "1", "-1", "2")
    ]


@pytest.mark.parametrize("how", HOW)
def test_a_program_that_rewrites_the_file_loses_nothing(how: str, ram: Path) -> None:
    """It puts the lines in order, say: what it wrote stays, and no item is missing or comes twice."""
    run = FeedRun(ram, FEED)
    run.give(*numbered(0, 1))
    interrupt(run, how)
    (ram / "items.jl").write_text('{"n": 1}\n{"n": 0}\n{"n": -1}\n')
    run = run.next_run()
    run.give(*numbered(2))
    run.end()
    assert run.items() == numbered(1, 0, -1, 2)


def test_several_jobs_with_one_file_stopped_and_killed_in_turn(ram: Path) -> None:
    """Each item of all is in the file once, whatever the jobs are doing when another one is killed."""
    feed = {str(ram / "items.jl"): LINES}
    runs = [FeedRun(ram / name, feed) for name in "abc"]
    for turn in range(5):
        for place, run in enumerate(runs):
            run.give({"n": 10 * place + turn})
            run.commit(whole=turn % 2 == 0)
        runs = [run.kill() if turn % 3 else run.end("shutdown").next_run() for run in runs]
    for run in runs:
        run.end()
    lines = (ram / "items.jl").read_text().splitlines()
    assert sorted(json.loads(line)["n"] for line in lines) == [*range(5), *range(10, 15), *range(20, 25)]


@pytest.mark.parametrize("format_", ["json", "xml"])
def test_an_array_that_others_wrote_behind_is_begun_anew(
    format_: str, ram: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As by a new run of Scrapy: what was appended stays, and a WARNING says so."""
    path = ram / "items"
    run = FeedRun(ram, {"items": {"format": format_}})
    run.give(*numbered(0))
    run.end("shutdown")
    first = path.read_text()
    path.write_text(first + "\n" + first)  # as by a crawl of somebody else
    run = run.next_run()
    run.give(*numbered(1))
    run.end()
    whole = path.read_text()
    assert whole.startswith(first + "\n" + first)
    assert "written to by others" in caplog.text
    if format_ == "json":
        assert json.loads(whole.removeprefix(first + "\n" + first)) == numbered(1)


def test_an_array_without_items_goes_on(ram: Path) -> None:
    """Stopped before its first item, it is one array in the end."""
    path = ram / "items.json"
    path.write_text("before\n")
    run = FeedRun(ram, {"items.json": {"format": "json", "indent": 2}}).end("shutdown")
    assert path.read_text() == "before\n[\n\n]"
    run = run.next_run()
    run.give(*numbered(0))
    run = run.end("shutdown").next_run()
    run.give(*numbered(1))
    run.end()
    assert json.loads(path.read_text().removeprefix("before\n")) == numbered(0, 1)


# -- what a kill leaves in the middle of a commit ----------------------------------------------------------------------


@pytest.mark.parametrize("is_logged", [False, True])
@pytest.mark.parametrize("written", ["nothing", "one byte", "half", "all", "all, and more by others", "others only"])
def test_a_commit_that_a_kill_left_half_appended_is_completed(
    written: str, is_logged: bool, ram: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The transaction has the bytes: whatever part of them the file has, each item is there once."""
    path, directory, data, others = ram / "items.jl", ram / "job" / "requests.bloom", b'{"n": 2}\n' * 3, b'{"n": 3}\n'
    directory.mkdir(parents=True)
    parts = {
        "nothing": b"",
        "one byte": data[:1],
        "half": data[: len(data) // 2],
        "all": data,
        "all, and more by others": data + others,
        "others only": others,
    }
    path.write_bytes(b'{"n": 1}\n' + parts[written])
    with closing(Database(directory / NAME)) as job:
        feed = FeedLength(str(path), "../items.jl", 9, 1, data=data)
        job.write(Batch(feeds=[feed], state=replace(job.state, clean=False)))
        if is_logged:
            log = AppendLog(directory / "appended")
            log.note(feed, is_done=False)
        NotedFeeds(job, directory / "appended").repair()
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(
        [b'{"n": 1}\n', *[b'{"n": 2}\n'] * 3, *[others] * ("others" in written)]
    )
    assert ("written to by others" in caplog.text) == (written == "others only")


@pytest.mark.parametrize("is_noted", [False, True])
def test_an_append_that_a_kill_came_behind_is_not_repeated(
    is_noted: bool, ram: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bytes are in the file. If it is noted that they are, they do not come again when somebody takes them away."""
    note = AppendLog.note

    def kill(log: AppendLog, feed: FeedLength, *, is_done: bool) -> None:
        if is_noted:
            note(log, feed, is_done=is_done)
        if is_done:
            shutil.copytree(ram / "run", ram / "killed", dirs_exist_ok=True)
        note(log, feed, is_done=is_done)

    monkeypatch.setattr(AppendLog, "note", kill)
    run = FeedRun(ram / "run", FEED)
    for number in range(2):
        run.give(*numbered(number))
        run.commit()
    run.end()
    monkeypatch.undo()
    if is_noted:
        (ram / "killed" / "items.jl").write_text('{"n": 0}\n')
    run = FeedRun(ram / "killed", FEED).end()
    assert run.items() == numbered(0, 1)[: 2 - is_noted]


def test_a_line_that_somebody_cut_is_ended_once(ram: Path) -> None:
    """The transaction has the line feed already, and a kill came before the append."""
    path, directory = ram / "items.jl", ram / "job" / "requests.bloom"
    path.write_bytes(b'{"n": 1}\n{"n')
    directory.mkdir(parents=True)
    with closing(Database(directory / NAME)) as job:
        feed = FeedLength(str(path), "", path.stat().st_size, 1, data=b'\n{"n": 3}\n')
        job.write(Batch(feeds=[feed], state=replace(job.state, clean=False)))
        NotedFeeds(job, directory / "appended").repair()
    assert path.read_bytes() == b'{"n": 1}\n{"n\n{"n": 3}\n'


def test_an_older_database_cuts_nothing(ram: Path) -> None:
    """A backup of the job is put back: items that came since stay, and come again with their pages."""
    run = FeedRun(ram, FEED)
    run.give(*numbered(0))
    run.end("shutdown")
    (feed,) = inspect_job(ram / "job").feeds
    run = run.next_run()
    run.give(*numbered(1, 2))
    run.end()
    with closing(Database(ram / "job" / "requests.bloom" / NAME)) as now:  # for the feed, this is the older database
        now.write(Batch(feeds=[feed], state=replace(now.state, clean=False)))
    run.next_run().end()
    assert run.items() == numbered(0, 1, 2)


def test_a_fixed_job_cuts_nothing(ram: Path) -> None:
    """``verify --fix`` keeps what is known of feeds; the resumed job loses no item."""
    run = FeedRun(ram, FEED)
    run.give(*numbered(0))
    run.commit()
    run.drop()
    fix_job(ram / "job")
    run = run.next_run()
    run.give(*numbered(1))
    run.end()
    assert run.items() == numbered(0, 1)


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_a_project_that_was_moved_goes_on_with_its_files(
    how: str, batched: bool, ram: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Absolute paths in it are computed from where it is; the job finds its files in the new place."""
    name = "out/%(batch_id)d.jl" if batched else "out/items.jl"
    feeds = {name: {**LINES, "batch_item_count": 3 if batched else 0}}
    run = FeedRun(ram / "old", feeds)
    run.give(*numbered(0, 1, 2, 3))
    interrupt(run, how)
    (ram / "old").rename(ram / "new")
    run = FeedRun(ram / "new", feeds)
    run.give(*numbered(4, 5))
    run.end()
    assert run.items("out/*.jl") == numbered(0, 1, 2, 3, 4, 5)
    assert len(list((ram / "new" / "out").iterdir())) == 1 + batched
    assert not (ram / "old").exists()
    assert "fewer" not in caplog.text


def test_a_feed_that_cannot_be_written_is_reported_and_costs_no_other(
    ram: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its path is a directory: one ERROR; the other feed is whole, and the commits go on."""
    (ram / "folder.jl").mkdir()
    run = FeedRun(ram, {"folder.jl": LINES, "items.jl": LINES})
    run.give(*numbered(0))
    run.commit()
    run = run.kill()
    run.give(*numbered(1))
    run.end()
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2, "one in each run"
    assert all("folder.jl" in line for line in errors)
    assert run.items("items.jl") == numbered(0, 1)


# -- overwrite ---------------------------------------------------------------------------------------------------------


def test_an_empty_file_is_not_kept(ram: Path) -> None:
    """A job that has ended, started again: its file is kept under another name if it has items."""
    run = FeedRun(ram, {"items.jl": {**LINES, "overwrite": True}})
    run.give(*numbered(0))
    for _ in range(2):
        run = run.end().next_run()
    run.end()
    assert run.items("items.1.jl") == numbered(0)
    assert not (ram / "items.2.jl").exists()
