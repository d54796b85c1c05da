"""The order in which requests come out is that of Scrapy's own scheduler with its disk queues."""

from __future__ import annotations

import gc
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scrapy import Request

from scrapy_bloom.frontier import journal, lanes
from tests.support.schedulers import DURABLE, SCRAPY, EngineCalls

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


@pytest.mark.parametrize("order", ORDERS[:2])
def test_the_order_holds_when_lanes_are_read_back_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str | None]
) -> None:
    """With a cache of nothing and reads of two rows, thousands of steps still give Scrapy's order."""
    monkeypatch.setattr(lanes, "CACHE_BYTES", 0)
    monkeypatch.setattr(lanes, "READ_ROWS", 2)
    monkeypatch.setattr(journal, "COMMIT_ROWS", 7)
    rng = random.Random(5)
    program: list[tuple] = []
    for _ in range(1500):
        program += [(PUSH, rng.randrange(3), rng.randrange(2), rng.choice(["", "", "start"]))] * rng.randrange(3)
        program += [(START,)] * rng.randrange(2) + [(END, rng.randrange(5))] * rng.randrange(2)
        if rng.random() < 0.005:
            program.append((RESTART,))
    pqueue = PRIORITY_QUEUES[1]
    assert run(program, tmp_path / "a", DURABLE, pqueue, order) == run(program, tmp_path / "b", SCRAPY, pqueue, order)
