"""A job of Scrapy's own scheduler is taken over where that loses nothing, and one of ours is given back."""

import os
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.utils.request import fingerprint

from scrapy_bloom.components.takeover import export_queue, read_fingerprints
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.filter.directory import open_filter
from scrapy_bloom.job.database import NAME, Database
from tests.support.engine import (
    BY_HOST,
    BY_PRIORITY,
    OUR_FILTER,
    SCRAPY_LEAVES_FILES_OPEN,
    SCRAPYS,
    Engine,
    opened,
)

pytestmark = SCRAPY_LEAVES_FILES_OPEN


def order_of(queue: str, order: str) -> dict[str, str]:
    return {"SCHEDULER_PRIORITY_QUEUE": queue, "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.Pickle{order}DiskQueue"}


def fill(engine: Engine, count: int = 60) -> None:
    rng = random.Random(count)
    for n in range(count):
        meta = {"is_start_request": True} if rng.random() < 0.2 else {}
        url = f"http://host-{rng.randrange(3)}.example/{n}"
        engine.push(Request(url, priority=rng.randrange(2), meta=meta))
    for _ in range(10):
        request = engine.fetch()
        engine.end(request)


def slots_of(urls: list[str]) -> dict[str, list[str]]:
    """Return the URLs of each host, in order: hosts take turns, and the first turn may be another's."""
    return {host: [url for url in urls if url.split("/")[2] == host] for host in {url.split("/")[2] for url in urls}}


@pytest.mark.parametrize(
    ("queue", "order", "dupefilter"),
    [
        (BY_PRIORITY, "Lifo", SCRAPYS["DUPEFILTER_CLASS"]),
        (BY_PRIORITY, "Fifo", OUR_FILTER),
        (BY_HOST, "Lifo", OUR_FILTER),
        (BY_HOST, "Fifo", SCRAPYS["DUPEFILTER_CLASS"]),
    ],
)
def test_a_job_that_scrapy_stopped_cleanly_goes_on(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, queue: str, order: str, dupefilter: str
) -> None:
    """Its pending requests come in the order in which Scrapy would have taken them, and its pages are seen."""
    settings = order_of(queue, order)
    theirs = {**settings, **SCRAPYS, "DUPEFILTER_CLASS": dupefilter}
    with opened(tmp_path, theirs) as engine:
        fill(engine)
    copy = tmp_path_factory.mktemp("copies") / "copy"
    shutil.copytree(tmp_path, copy)
    with opened(copy, theirs) as engine:
        expected = engine.drain()
    with opened(tmp_path, settings) as engine:
        assert engine.stat("bloom/frontier/imported") == len(expected) == 50
        assert not any(engine.push(*map(Request, expected)))
        new = Request("http://host-1.example/new", priority=-5)
        assert engine.push(new) == [True]
        found = engine.drain()
    assert slots_of(found)["host-1.example"][-1] == new.url
    found.remove(new.url)
    assert slots_of(found) == slots_of(expected)
    if queue == BY_PRIORITY:
        assert found == expected
    with opened(tmp_path, settings) as engine:  # it is not taken over twice
        assert len(engine.scheduler) == 0


def test_a_queue_that_could_not_be_read_is_taken_over_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spider lacked the callback of one of its requests, when others were taken over already."""
    monkeypatch.setattr("scrapy_bloom.components.takeover.AT_ONCE", 0)
    with opened(tmp_path, SCRAPYS) as engine:
        callback: Any = engine.spider.parse_other  # type: ignore[attr-defined]
        engine.push(Request("http://host.example/1", callback=callback), *map(Request, ["http://host.example/2"]))

    class Renamed(Spider):
        name = "site"

    with pytest.raises(UnusableError, match="parse_other"):
        Engine(tmp_path, spider=Renamed)
    with opened(tmp_path) as engine:
        assert {"http://host.example/1", "http://host.example/2"} == {*engine.drain()}


@pytest.mark.parametrize("traces", ["no state", "older state", "no JSON"])
def test_a_job_that_scrapy_was_killed_in_is_refused(tmp_path: Path, traces: str) -> None:
    """Its queue lacks requests whose pages are seen, or is unreadable: going on would lose them. Nothing is changed."""
    with opened(tmp_path, {**SCRAPYS, **order_of(BY_PRIORITY, "Lifo")}) as engine:
        fill(engine)
    state = tmp_path / "requests.queue" / "active.json"
    text = state.read_text()
    if traces == "no state":
        state.unlink()
    elif traces == "no JSON":
        state.write_text(traces)
    else:
        os.utime(state, (0, 0))
    before = {path: path.read_bytes() for path in (tmp_path / "requests.queue").rglob("*") if path.is_file()}
    with pytest.raises(UnusableError, match=str(tmp_path / "requests.queue")):
        Engine(tmp_path)
    assert {path: path.read_bytes() for path in before} == before
    if traces != "no state":  # the advice works
        state.write_text(text)
        with opened(tmp_path) as engine:
            assert len(engine.drain()) == 50


KEYS = [fingerprint(Request(f"http://a.example/{n}")) for n in range(20)]
TEXT = b"".join(key.hex().encode() + b"\n" for key in KEYS)
BINARY = b"".join(len(key).to_bytes(2, "big") + key for key in KEYS)


@pytest.mark.parametrize("content", [TEXT, BINARY], ids=["text", "binary"])
def test_a_torn_tail_is_left_out(tmp_path: Path, content: bytes) -> None:
    """A killed Scrapy leaves part of a record: the others are read."""
    path = tmp_path / "requests.seen"
    size = len(content) // len(KEYS)
    for cut in range(size):
        path.write_bytes(content[: len(content) - cut])
        found = list(read_fingerprints(path))
        assert found[: len(KEYS) - 1] == KEYS[:-1]
        assert (KEYS[-1] in found) == (cut == 0 or (content is TEXT and cut == 1))


@pytest.mark.parametrize("order", ["Lifo", "Fifo"])
@pytest.mark.parametrize("queue", [BY_PRIORITY, BY_HOST])
def test_a_job_of_ours_is_given_back(tmp_path: Path, queue: str, order: str) -> None:
    """Scrapy's own scheduler and filter go on with what was pending, which names nothing of ours, also of a crawl with
    the loop guard; our job has nothing pending any more."""
    settings = {**order_of(queue, order), "BLOOM_LOOP_GUARD": True}
    with opened(tmp_path, settings) as engine:
        fill(engine)
        pending = len(engine.scheduler)
    assert _export(tmp_path, settings) == pending
    files = [path for path in (tmp_path / "requests.queue").rglob("*") if path.is_file()]
    assert not [path for path in files if b"bloom" in path.read_bytes()]
    with opened(tmp_path, {**SCRAPYS, **settings}) as engine:
        urls = engine.drain()
        assert len(set(urls)) == len(urls) == pending
        assert not any(engine.push(*map(Request, urls)))


def test_what_cannot_be_given_back_stays(tmp_path: Path) -> None:
    """There is a queue of Scrapy's already, or a request is of a spider that lacks its callback: nothing is changed."""
    with opened(tmp_path) as engine:
        fill(engine)
    queue = tmp_path / "requests.queue" / "active.json"
    shutil.rmtree(queue)
    queue.write_text("{}")
    with pytest.raises(UnusableError, match=r"requests\.queue"):
        _export(tmp_path, {})
    shutil.rmtree(queue.parent)
    with opened(tmp_path) as engine:
        assert len(engine.drain()) == 50


def _export(jobdir: Path, settings: dict[str, Any]) -> int:
    with (
        opened(None, settings) as engine,
        closing(open_filter(jobdir / "requests.bloom")),
        closing(Database(jobdir / "requests.bloom" / NAME)) as database,
    ):
        return export_queue(jobdir, database, engine.crawler)
