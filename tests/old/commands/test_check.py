"""``check``: what a job knows of a URL besides having seen it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import FormRequest, Request
from scrapy.settings import Settings

from scrapy_bloom import open_filter
from scrapy_bloom.old.commands.check import check
from scrapy_bloom.old.commands.command_line import main
from scrapy_bloom.old.commands.terminal import OK, WRONG
from scrapy_bloom.old.crawl.fingerprints import key_space
from scrapy_bloom.old.loops.parked import guard_file
from scrapy_bloom.old.loops.verdicts import parked_shapes, take_back
from scrapy_bloom.old.url.rules import resolve
from tests.old.commands.test_import import ByPath
from tests.old.support.damage import overwrite
from tests.old.support.schedulers import EngineCalls, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BLOOM = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}
LONG = "https://example.com/" + "x" * 300


def test_pending_requests_are_found_in_any_spelling(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """While the crawl runs, after a kill and after a clean stop; a form to the same URL is another request."""
    calls = EngineCalls(tmp_path, **BLOOM)
    calls.push(
        Request("https://example.com/?b=1&a=2"), Request(LONG), FormRequest("https://example.com/form", formdata={})
    )
    calls.push(FormRequest("https://example.com/post", formdata={"a": "1"}), Request("https://example.com/done"))
    calls.commit()

    def pending() -> list[bool]:
        asked = ["?a=2&b=1#top", LONG.removeprefix("https://example.com/"), "post", "other"]
        found = answer("check", tmp_path, *(f"https://example.com/{each}" for each in asked))[1]
        return [each["pending"] for each in found]

    assert pending() == [True, True, False, False]
    calls.die()
    assert pending() == [True, True, False, False]
    with opened(tmp_path, **BLOOM) as calls:
        calls.drain()
    assert pending() == [False, False, False, False]
    overwrite(tmp_path / "requests.frontier", 0, b"\0" * 100)
    assert pending() == [None] * 4


def test_limits_of_the_project_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the guard on, a URL that a limit holds back says which and why, unless it is allowed."""
    open_filter(tmp_path).close()
    url = "https://example.com/aa/bb/aa/bb/aa/bb"
    guarded = Settings({"BLOOM_LOOP_GUARD": {"allow": ["/api/"]}})
    allowed = f"{url}?from=/api/"
    found = check(str(tmp_path), [url, allowed], lambda: guarded)
    assert found[0]["limit"] == "tandem: 'aa/bb' 3 times in a row in its path"
    assert [found[1]["limit"], found[1]["guard"]] == [None, None]
    assert check(str(tmp_path), [url], Settings)[0]["limit"] is None
    assert main(["check", str(tmp_path), url], settings=guarded) == WRONG
    assert "held back by the limit tandem: 'aa/bb' 3 times in a row" in capsys.readouterr().out


def test_a_fingerprinter_of_the_project_is_asked(tmp_path: Path) -> None:
    """In its project, a job with a fingerprinter of its own is checked like any other."""
    name = f"{ByPath.__module__}.{ByPath.__qualname__}"
    with open_filter(tmp_path, key_space=key_space(name, resolve([]))) as chain:
        chain.add(b"/a")
    project = Settings({"REQUEST_FINGERPRINTER_CLASS": name})
    found = check(str(tmp_path), ["https://example.com/a", "https://example.com/b"], lambda: project)
    assert [each["seen"] for each in found] == [True, False]


@pytest.mark.slow
def test_the_verdict_of_the_guard_is_told(
    guarded_job: Path, answer: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A URL of a shape that a real crawl found dry says so, and whether it is parked already; an honest one does
    not, and neither does the first once the verdict has been taken back. `info` lists the same verdicts."""
    verdicts = [shape for shape in parked_shapes(guarded_job) if shape.waiting]
    good = verdicts[0].example.partition("/calendar/")[0] + "/good/1"
    code, found = answer("check", guarded_job, verdicts[0].example, good)
    assert code == OK
    assert "has run dry: of " in found[0]["guard"]
    assert (found[1]["guard"], found[1]["parked"]) == (None, False)
    with closing(sqlite3.connect(guard_file(guarded_job))) as connection:
        (waits,) = connection.execute("SELECT url FROM parked WHERE account <> 0 AND NOT released LIMIT 1").fetchone()
    assert main(["check", str(guarded_job), waits]) == OK
    assert "      parked by the loop guard: " in capsys.readouterr().out
    never_seen = verdicts[0].example.rpartition("/")[0] + "/2999"
    found = check(str(guarded_job), [verdicts[0].example, never_seen], Settings)
    assert [each["parked"] for each in found] == [False, False]
    main(["check", str(guarded_job), verdicts[0].example])
    assert "      would be parked by the loop guard: " in capsys.readouterr().out
    code, described = answer("info", guarded_job)
    assert code == OK
    told = {each["shape"]: (each["waiting"], each["example"]) for each in described["verdicts"]}
    assert told == {shape.shape: (shape.waiting, shape.example) for shape in parked_shapes(guarded_job)}
    for shape in verdicts:
        take_back(guarded_job, shape.shape)
    assert answer("check", guarded_job, verdicts[0].example)[1][0]["guard"] is None
