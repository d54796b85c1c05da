"""Requests with odd values in ``meta``, or odd priorities: none is lost, and none is in the way of others."""

import pickle
import pickletools
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scrapy import Request
from twisted.python.failure import Failure

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.commands.terminal import OK
from scrapy_bloom.job.inspect import fix_job
from tests.support.damage import verify_job
from tests.support.engine import Engine, opened, snapshot

URL = "http://a.example/{}"
TEXTS = st.text(st.characters(), max_size=3)  # with lone surrogates
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.binary(max_size=3), st.lists(TEXTS, max_size=2)
)
ODD = st.fixed_dictionaries({}, optional={"depth": ANYTHING, "download_slot": ANYTHING, "is_start_request": ANYTHING})


def ended(engine: Engine, result: Any) -> Iterator[str]:
    """Crawl all that is pending with *result*, and yield the URLs. The downloader has no place for some slots."""
    while (request := engine.scheduler.next_request()) is not None:
        engine.engine._slot.add_request(request)
        engine.crawl.result_came(request, result)
        engine.engine._slot.remove_request(request)
        yield request.url


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(ODD, st.integers(), st.booleans()), min_size=1, max_size=8))
@example([({"depth": depth}, 0, False) for depth in ("3", [3], -1, 10**30, None)])
@example([({"download_slot": slot}, 0, is_unfiltered) for slot in ([], "\ud800", None, 3) for is_unfiltered in (0, 1)])
@example([({}, priority, False) for priority in (2**70, -(2**70), 2**63, -(2**63), True, False)])
def test_whatever_a_request_holds_it_survives(requests: list[tuple[dict[str, Any], int, bool]]) -> None:
    """Over a kill; failed and put back; and saved from a database whose lanes are damaged. The commits go on."""
    urls = [URL.format(number) for number in range(len(requests))]
    with tempfile.TemporaryDirectory() as directory:
        jobs = [Path(directory, name) for name in ("job", "killed", "damaged")]
        with opened(jobs[0]) as engine:
            page = engine.fetch(Request(URL.format("page")))
            for url, (meta, priority, is_unfiltered) in zip(urls, requests, strict=True):
                request = Request(url, meta=meta, priority=priority, dont_filter=is_unfiltered)
                assert engine.push_from(page, request) == [True]
            engine.end(page)
            engine.commit()
            for copy in jobs[1:]:
                snapshot(jobs[0], copy)
        with opened(jobs[1]) as engine:
            assert sorted(ended(engine, Failure(TimeoutError()))) == urls
        assert main(["requeue", str(jobs[1]), "--failed"]) == OK
        assert verify_job(jobs[1]) == []
        with opened(jobs[1]) as engine:
            assert sorted(ended(engine, Failure(TimeoutError()))) == urls
        with closing(sqlite3.connect(jobs[2] / "requests.bloom" / "job.sqlite")) as database, database:
            database.execute("DELETE FROM lane")
        assert fix_job(jobs[2]) == (len(urls), 0)
        with opened(jobs[2]) as engine:
            assert sorted(ended(engine, Failure(TimeoutError()))) == urls


@pytest.mark.parametrize("guard", [{}, {"BLOOM_LOOP_GUARD": True}])
def test_what_a_job_pickles_names_no_class_of_ours(tmp_path: Path, guard: dict[str, Any]) -> None:
    """Nothing of ours has to be importable to read what is pending, and what has failed."""
    with opened(tmp_path, guard) as engine:
        callback: Any = engine.spider.parse_other  # type: ignore[attr-defined]
        for start in (Request(URL.format("a/1"), callback=callback), Request(URL.format("b/1"), meta={"depth": 1})):
            page = engine.fetch(start)
            engine.push_from(page, *(Request(f"{start.url}/{number}", callback=callback) for number in range(3)))
            engine.end(page, Failure(TimeoutError()))
        engine.commit()
        pending = engine.pending()
    with closing(sqlite3.connect(tmp_path / "requests.bloom" / "job.sqlite")) as database:
        bodies = [body[4:] for (body,) in database.execute("SELECT body FROM request")]  # behind the checksum
        bodies += [body for (body,) in database.execute("SELECT body FROM failed")]
        notes = b"".join(body for (body,) in database.execute("SELECT body FROM note"))
    assert len(bodies) == pending + 2 > 6
    for body in bodies:
        pickle.loads(body)
        assert not [argument for opcode, argument, _ in pickletools.genops(body) if opcode.name.endswith("GLOBAL")]
    assert b"scrapy_bloom" not in b"".join([*bodies, notes])
