"""The order in which requests come out is that of Scrapy's own scheduler with its disk queues."""

from __future__ import annotations

import gc
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scrapy import Request

from scrapy_bloom.old.frontier import journal, lanes
from scrapy_bloom.old.frontier.database import Database
from tests.old.support.schedulers import DURABLE, SCRAPY, EngineCalls, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

# Scrapy 2.13's own priority queues leave their empty disk queues unclosed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _collect_what_scrapy_left_open() -> Iterator[None]:
    yield
    gc.collect()


PRIORITY_QUEUES = ["ScrapyPriorityQueue", "DownloaderAwarePriorityQueue"]
ORDERS = [("Lifo", "Fifo"), ("Fifo", "Fifo"), ("Lifo", None), ("Fifo", "Lifo")]

PUSH, START, END, RESTART = "push", "start", "end", "restart"


def programs(*kinds: str, restarts: bool) -> st.SearchStrategy[list[tuple]]:
    steps = [
        st.tuples(st.just(PUSH), st.integers(0, 3), st.integers(-1, 2), st.sampled_from(kinds)),
        st.tuples(st.just(START)),
        st.tuples(st.just(END), st.integers(0, 5)),
    ]
    return st.lists(st.one_of(*steps, *[st.tuples(st.just(RESTART))] * restarts), max_size=60)


# Not both at once: a request that cannot be serialized leaves an empty queue in Scrapy's priority queue, which Scrapy's
# scheduler takes along into the next run, where it can shift the turns of the slots by one. Ours does not.
any_program = programs("", "start", "memory", restarts=False) | programs("", "start", restarts=True)


def run(program: list[tuple], jobdir: Path, scheduler: str, pqueue: str, order: tuple[str, str | None]) -> list[str]:
    """Do what *program* says and return the URLs in the order they came out."""
    options = {
        "SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{pqueue}",
        "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.Pickle{order[0]}DiskQueue",
        "SCHEDULER_START_DISK_QUEUE": order[1] and f"scrapy.squeues.Pickle{order[1]}DiskQueue",
    }
    calls = EngineCalls(jobdir, scheduler, **options)
    out, busy, n = [], [], 0
    for step in program:
        if step[0] == PUSH:
            n += 1
            _, host, priority, kind = step
            meta = {"is_start_request": True} if kind == "start" else {}
            if kind == "memory":
                meta["unserializable"] = lambda: None
            calls.push(Request(f"http://host-{host}.example/{n}", priority=priority, meta=meta))
        elif step[0] == START:
            request = calls.start()
            out.append(request.url if request else "nothing")
            if request:
                busy.append(request)
        elif step[0] == END and busy:
            calls.end(busy.pop(step[1] % len(busy)))
        elif step[0] == RESTART:
            calls.stop()
            busy.clear()
            calls = EngineCalls(jobdir, scheduler, **options)
    out += calls.drain()
    calls.stop()
    return out


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pqueue", PRIORITY_QUEUES)
@settings(max_examples=15, deadline=None, report_multiple_bugs=False, phases=[Phase.generate])
@given(program=any_program)
def test_requests_come_out_in_scrapys_order(pqueue: str, order: tuple[str, str | None], program: list[tuple]) -> None:
    """Any sequence of pushes, pops, ends and restarts gives the order of Scrapy's own scheduler with JOBDIR."""
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        assert run(program, Path(ours), DURABLE, pqueue, order) == run(program, Path(theirs), SCRAPY, pqueue, order)


@pytest.mark.parametrize(("hosts", "cache"), [(3, 0), pytest.param(60, 2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", ORDERS[:2])
def test_the_order_holds_when_lanes_are_read_back_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str | None], hosts: int, cache: int
) -> None:
    """With a cache of next to nothing and reads of two rows, or with many lanes read ahead, thousands of steps still
    give Scrapy's order."""
    monkeypatch.setattr(lanes, "CACHE_BYTES", cache)
    monkeypatch.setattr(lanes, "READ_ROWS", 2)
    monkeypatch.setattr(journal, "COMMIT_ROWS", 7)
    rng = random.Random(5)
    program: list[tuple] = []
    for _ in range(1500):
        program += [(PUSH, rng.randrange(hosts), rng.randrange(2), rng.choice(["", "", "start"]))] * rng.randrange(3)
        program += [(START,)] * rng.randrange(2) + [(END, rng.randrange(5))] * rng.randrange(2)
        if rng.random() < 0.005:
            program.append((RESTART,))
    pqueue = PRIORITY_QUEUES[1]
    assert run(program, tmp_path / "a", DURABLE, pqueue, order) == run(program, tmp_path / "b", SCRAPY, pqueue, order)


def test_what_is_read_ahead_stays_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read fetches the rows of many hosts; killed then, a job has all of them still, and in flight only what was
    handed out."""
    with opened(tmp_path) as calls:
        calls.push(*(Request(f"http://host-{n:02}.example/") for n in range(50)))
    calls = EngineCalls(tmp_path)
    read: list[set[int]] = []
    next_of_each = Database.next_of_each

    def noting(database: Database, wanted: dict[int, bool], *others: Any) -> Any:
        read.append(set(wanted))
        return next_of_each(database, wanted, *others)

    monkeypatch.setattr(Database, "next_of_each", noting)
    handed_out = [calls.start() for _ in range(5)]
    assert 5 < sum(map(len, read)) <= 2 + 4 + 8
    calls.end(handed_out[0])
    calls.commit()
    calls.die()
    with opened(tmp_path) as calls:
        assert calls.stats.get_value("bloom/frontier/in_flight") == 4
        assert sorted(calls.drain()) == [f"http://host-{n:02}.example/" for n in range(1, 50)]


@pytest.mark.parametrize("order", ["Lifo", "Fifo"])
def test_a_lane_that_grows_after_it_was_read_ahead_hands_out_each_request_once(
    tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows read ahead are used up first, or would come again, even if the lane is too long to be read ahead by now."""
    monkeypatch.setattr(lanes, "READ_ROWS", 2)
    options = {"SCHEDULER_DISK_QUEUE": f"scrapy.squeues.Pickle{order}DiskQueue"}

    def requests(*numbers: int) -> list[Request]:
        return [Request(f"http://host-{n % 9}.example/{n}", dont_filter=True) for n in numbers]

    with opened(tmp_path, **options) as calls:
        calls.push(*requests(*range(18)))
    with opened(tmp_path, **options) as calls:
        out = [calls.start().url for _ in range(3)]  # of the hosts 0 to 2, with those of others read ahead
        calls.push(*requests(*range(18, 90)))
        calls.commit()
        out += calls.drain()
    assert sorted(out) == sorted(request.url for request in requests(*range(90)))
