"""``export``, ``requeue``, ``forget`` and ``verify``: requests change places, and none is lost on the way."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from scrapy import Request
from twisted.python.failure import Failure

from scrapy_bloom.commands.terminal import OK, USAGE, WRONG
from scrapy_bloom.crawl import crawl
from tests.commands.conftest import Answer, Scrapy, Site, reopened
from tests.support.engine import opened


def test_an_export_crawls_nothing(scrapy: Scrapy, site: Site, tmp_path: Path) -> None:
    """Also with a spider that asks for pages whenever it is idle."""
    job = tmp_path / "polling"
    scrapy("crawl", "polling", "-s", f"JOBDIR={job}", "-s", "CLOSESPIDER_PAGECOUNT=5")
    site.hits.clear()
    exported = scrapy("bloom", "export", "polling", "-s", f"JOBDIR={job}")
    assert exported.returncode == OK, exported.stderr
    assert not site.hits


def test_an_export_that_cannot_be_is_one_line(job: Path, scrapy: Scrapy, answer: Answer, tmp_path: Path) -> None:
    """No JOBDIR, no job, no such spider: each is told without a traceback."""
    for arguments, named in (([], "JOBDIR"), (["-s", f"JOBDIR={tmp_path}/nowhere"], "nowhere")):
        code, error = answer("export", "books", *arguments)
        assert (code, named in error) == (USAGE, True)
    ran = scrapy("bloom", "export", "what", "-s", f"JOBDIR={job}")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (USAGE, "", 1)
    assert "books" in ran.stderr


def test_what_has_failed_is_pending_again(job: Path, answer: Answer, site: Site) -> None:
    """`info --failed` lists it; put back, it comes once in the next run, however often it had failed."""
    code, listed = answer("info", job, "--failed")
    pending = answer("info", job)[1]["pending"]
    host = site.url.split("/")[2].partition(":")[0]
    assert (code, [group["host"] for group in listed["failed_by_host"]]) == (OK, [host])
    assert {(row["url"], row["reason"]) for row in listed["requests"]} == {(f"{site.url}/broken", "status 500")}
    assert answer("requeue", job, "--failed", "--host", "elsewhere.example")[1]["requeued"] == 0
    assert answer("requeue", job, "--failed", "--host", host)[1]["requeued"] == 1
    summary = answer("info", job)[1]
    assert (summary["pending"], summary["failed"]) == (pending + 1, 0)
    assert answer("verify", job)[0] == OK
    with reopened(job) as engine:
        assert engine.drain().count(f"{site.url}/broken") == 1
    assert answer("requeue", job, "--failed")[1] == {"directory": str(job), "requeued": 0}


def test_unfiltered_requests_that_differ_are_all_put_back(tmp_path: Path, answer: Answer) -> None:
    """Whatever they differ in; each once, however often it has failed."""
    for number in range(4):
        with opened(tmp_path) as engine:
            for name in ("cb_kwargs", "headers", "cookies", "meta"):
                request = Request("http://a.example/", dont_filter=True, **{name: {"task": str(number % 2)}})  # type: ignore[arg-type]
                request.meta.update({"retry_times": number, "download_latency": 0.1 * number})
                engine.end(engine.fetch(request), Failure(TimeoutError()))
    assert answer("requeue", tmp_path, "--failed")[1]["requeued"] == 8


def test_so_many_failed_requests_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    """No more, over all runs, until some are put back; the others are counted."""
    monkeypatch.setattr(crawl, "MOST_LISTED", 3)
    for run, (pushed, failed, listed) in enumerate([(2, 2, 2), (2, 2, 3), (0, 3, 3)]):
        with opened(tmp_path, {"BLOOM_PAGES_PER_HOST": 4}) as engine:  # what is put back counts once
            engine.push(*(Request(f"http://a.example/{run}/{number}") for number in range(pushed)))
            while (request := engine.start()) is not None:
                engine.end(request, 500)
            assert engine.stat("bloom/failed") == failed
            assert engine.stat("bloom/failed/unlisted") == (1 if run == 1 else 0)
        assert answer("info", tmp_path, "--failed")[1]["failed"] == listed
        if run == 1:
            assert answer("requeue", tmp_path, "--failed")[1]["requeued"] == 3


def test_a_url_that_was_taken_back_is_new_again(job: Path, answer: Answer, site: Site) -> None:
    """To a later link; one that was never seen is told apart, and what is not a URL is one line."""
    urls = [f"{site.url}/0", f"{site.url}/none"]
    assert answer("forget", job, *urls) == (
        OK,
        {"urls": [{"url": urls[0], "was_seen": True}, {"url": urls[1], "was_seen": False}]},
    )
    assert [row["seen"] for row in answer("check", job, *urls)[1]["urls"]] == [False, False]
    with reopened(job) as engine:
        assert engine.push(*map(Request, urls)) == [True, True]
    assert answer("forget", job, "nonsense://[")[0] == USAGE


# -- verify: everything that is wrong is told at once, and --fix saves what is whole -----------------------------------


def change(job: Path, statement: str) -> None:
    with closing(sqlite3.connect(job / "requests.bloom" / "job.sqlite")) as database, database:
        database.execute(statement)


def cut_in_two(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def test_a_sound_job_is_said_to_be_sound(job: Path, answer: Answer) -> None:
    """With --fix, nothing is done to it."""
    for options in ([], ["--fix"]):
        code, found = answer("verify", job, *options)
        assert (code, found) == (OK, {"directory": str(job), "sound": True, "done": [], "findings": []})


DAMAGES = {
    "a request": lambda job: change(job, "UPDATE request SET body = x'00' WHERE id = (SELECT max(id) FROM request)"),
    "a queue": lambda job: change(job, "DELETE FROM request WHERE id = (SELECT max(id) FROM request)"),
    "the name of a queue": lambda job: change(job, "UPDATE lane SET slot = 'elsewhere.example'"),
    "the state": lambda job: change(job, "UPDATE note SET body = x'00' WHERE key = 'job'"),
    "an older database": lambda job: change(job, "DELETE FROM note WHERE key = 'job'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_pending_requests_is_found_and_repaired(job: Path, answer: Answer, damage: str) -> None:
    """Each is a finding that says what to do; --fix keeps the damaged file, and makes a job that is sound."""
    DAMAGES[damage](job)
    code, found = answer("verify", job)
    assert (code, found["sound"]) == (WRONG, False)
    assert "--fix" in found["findings"][-1]
    code, found = answer("verify", job, "--fix")
    assert (code, found["sound"], found["findings"]) == (OK, True, [])
    assert (job / "requests.bloom" / "job.sqlite.damaged").exists()
    assert answer("info", job)[0] == OK


def test_a_database_that_cannot_be_read_is_not_repaired(job: Path, answer: Answer) -> None:
    """It is named with advice, and left as it is."""
    path = job / "requests.bloom" / "job.sqlite"
    cut_in_two(path)
    before = path.read_bytes()
    code, error = answer("verify", job, "--fix")
    assert (code, str(path) in error, path.read_bytes() == before) == (USAGE, True, True)


def test_a_damaged_filter_is_for_people_to_repair(job: Path, answer: Answer) -> None:
    """All layers that are damaged are named, with what to do; --fix is not advised, and does not touch them."""
    layers = [job / "requests.bloom" / f"layer-00{number}.bloom" for number in range(2)]
    for path in layers:
        path.write_bytes(path.read_bytes()[:9000] + b"\xff" * 300 + path.read_bytes()[9300:])
    code, found = answer("verify", job)
    assert code == WRONG
    assert all(any(str(path) in finding for finding in found["findings"]) for path in layers)
    assert not any("--fix" in finding for finding in found["findings"])
    assert answer("verify", job, "--fix") == (WRONG, found)
