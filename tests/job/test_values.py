"""Requests with odd values: what would not come back from a file as it was stays in memory, and nothing is lost."""

import pickle
import pickletools
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import JsonRequest
from twisted.python.failure import Failure

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.commands.terminal import OK
from scrapy_bloom.job.verify import fix_job
from tests.support.damage import verify_job
from tests.support.engine import Engine, PlainSpider, opened, snapshot

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
    urls = [f"http://a.example/{number}" for number in range(len(requests))]
    with tempfile.TemporaryDirectory() as directory:
        jobs = [Path(directory, name) for name in ("job", "killed", "damaged")]
        with opened(jobs[0]) as engine:
            page = engine.fetch(Request("http://a.example/page"))
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
        for start in (
            Request("http://a.example/a", callback=callback),
            Request("http://a.example/b", meta={"depth": 1}),
        ):
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


# -- what is durable ---------------------------------------------------------------------------------------------------

URL = "http://a.example/1"


class ApiError(Exception):
    """Its pickle has one argument."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Delegating:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)


class Forgetful:
    """Its pickle lacks its value."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return Forgetful, ()


class Lock:
    """Raises when it is pickled, as those of multiprocessing do."""

    def __reduce__(self) -> Any:
        raise RuntimeError("to be shared by inheritance only")


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Nested:
    def __init__(self, value: Any) -> None:
        self.value = [value, {"deep": (Slotted(value),)}]


@dataclass
class Record:
    value: int


class Color(Enum):
    RED = 1


class PageRequest(Request):
    def __init__(self, base: str, page: int, **others: Any) -> None:
        super().__init__(f"{base}/{page}", **others)


class Tagged(Request):
    """Has an attribute that Scrapy does not store."""

    def __init__(self, *args: Any, tag: str | None = None, **others: Any) -> None:
        super().__init__(*args, **others)
        self.tag = tag


class Section(PlainSpider):
    """Shares its callback with the spider."""


IN_MEMORY: dict[str, Callable[[Spider], Request]] = {
    "cannot be unpickled": lambda _: Request(URL, meta={"error": ApiError(1, "x")}),
    "raises anything": lambda _: Request(URL, meta={"lock": Lock()}),
    "delegates": lambda _: Request(URL, cb_kwargs={"item": Delegating({})}),
    "unpickles as another": lambda _: Request(URL, meta={"deep": [Nested(Forgetful(3))]}),
    "has an __init__ of its own": lambda _: PageRequest("http://a.example", 1),
    "has an attribute of its own": lambda _: Tagged(URL, tag="a"),
    "has a callback of another object": lambda _: Request(URL, Section().parse_other),
}
DURABLE: dict[str, Callable[[Spider], Request]] = {
    "values": lambda _: Request(
        URL, meta={"when": datetime(2026, 1, 1, tzinfo=timezone.utc), "price": Decimal("1.5"), "color": Color.RED}
    ),
    "records": lambda _: Request(URL, meta={"records": [Record(1), Nested(2), Slotted(3), ValueError("x"), Record]}),
    "tagged with the default": lambda _: Tagged(URL),
    "form": lambda _: FormRequest(URL, formdata={"a": "b"}),
    "json": lambda _: JsonRequest(URL, data={"a": 1}, dumps_kwargs={"indent": 1}),
    "callback": lambda spider: Request(URL, spider.parse_other),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("make", IN_MEMORY.values(), ids=list(IN_MEMORY))
def test_what_a_file_would_change_stays_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Spider], Request]
) -> None:
    """Each time, also in a second run; one WARNING says why."""
    for _ in range(2):
        caplog.clear()
        with opened(tmp_path / "job") as engine:
            request = make(engine.spider)
            assert engine.push(request) == [True]
            assert engine.start() is request
            assert engine.stat("scheduler/enqueued/memory") == 1
            engine.end(request)
            engine.scheduler.df.forget(request)
        assert len([record for record in caplog.records if "is in memory only" in record.getMessage()]) == 1


def test_undeclared_attributes_are_looked_at_in_each_request(tmp_path: Path) -> None:
    """The first request of a class may have none."""
    with opened(tmp_path / "job") as engine:
        engine.push(Tagged(URL), Tagged(URL + "/a", tag="a"), Tagged(URL + "/b"))
        assert engine.stat("scheduler/enqueued/disk") == 2
        assert {getattr(engine.start(), "tag", "") for _ in range(3)} == {None, "a"}


def as_text(request: Request, engine: Engine) -> str:
    """Return all that *request* has, but for the places of objects in memory."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(request.to_dict(spider=engine.spider)))


@pytest.mark.parametrize("make", DURABLE.values(), ids=list(DURABLE))
def test_what_comes_back_as_it_was_is_durable(tmp_path: Path, make: Callable[[Spider], Request]) -> None:
    """It is handed out with everything that it had."""
    with opened(tmp_path / "job") as engine:
        request = make(engine.spider)
        engine.push(request)
        engine.commit()
        assert engine.stat("scheduler/enqueued/disk") == 1
        found = engine.fetch()
        found_as, was = (
            re.sub(" at 0x[0-9a-f]+", "", repr(each.to_dict(spider=engine.spider))) for each in (found, request)
        )
        assert type(found) is type(request)
        assert found_as == was
