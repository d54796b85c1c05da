"""Requests that would not come back from a file as they were stay in memory; the others are durable."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from scrapy import FormRequest, Request, Spider
from scrapy.http import JsonRequest

from tests.support.engine import PlainSpider, opened

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


@pytest.mark.parametrize("make", DURABLE.values(), ids=list(DURABLE))
def test_what_comes_back_as_it_was_is_durable(tmp_path: Path, make: Callable[[Spider], Request]) -> None:
    """It is handed out with everything that it had."""
    with opened(tmp_path / "job") as engine:
        request = make(engine.spider)
        engine.push(request)
        engine.commit()
        assert engine.stat("scheduler/enqueued/disk") == 1
        found = engine.fetch()
        assert type(found) is type(request)
        assert re.sub(" at 0x[0-9a-f]+", "", repr(found.to_dict(spider=engine.spider))) == re.sub(
            " at 0x[0-9a-f]+", "", repr(request.to_dict(spider=engine.spider))
        )
