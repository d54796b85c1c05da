"""SlotQueue: the order of Scrapy's DownloaderAwarePriorityQueue, for any number of hosts."""

from __future__ import annotations

import gc
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.core.downloader import Slot
from scrapy.pqueues import DownloaderAwarePriorityQueue
from scrapy.squeues import FifoMemoryQueue, LifoMemoryQueue
from scrapy.utils.misc import build_from_crawler

from scrapy_bloom import SlotQueue
from scrapy_bloom.old.frontier import recovery, slots
from scrapy_bloom.old.frontier.slots import SortedNames
from tests.old.support.schedulers import DURABLE, SCRAPY, EngineCalls, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Scrapy 2.13's own priority queues leave their empty disk queues unclosed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SLOT_QUEUE = {"SCHEDULER_PRIORITY_QUEUE": "scrapy_bloom.SlotQueue"}


@pytest.fixture(autouse=True, scope="module")
def _collect_what_scrapy_left_open() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineCalls]:
    """A real engine with its downloader, whose slots both queues ask."""
    with opened(None, SCRAPY) as calls:
        yield calls


class Picky(LifoMemoryQueue):
    """A queue that refuses some requests, as those on disk refuse what cannot be serialized."""

    def push(self, request: Request) -> None:
        if request.meta.get("refused"):
            raise ValueError("refused")
        super().push(request)


# -- the order ---------------------------------------------------------------------------------------------------------

PUSH, POP, PEEK, BUSY, IDLE = "push", "pop", "peek", "busy", "idle"
SLOTS = st.integers(0, 6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just(PUSH), SLOTS, st.integers(-1, 1), st.sampled_from(["", "", "", "start", "refused"])),
        st.tuples(st.just(POP)),
        st.tuples(st.just(PEEK)),
        st.tuples(st.just(BUSY), SLOTS, st.integers(1, 3)),
        st.tuples(st.just(IDLE), SLOTS),
    ),
    max_size=60,
)


class Twins:
    """Scrapy's queue and ours over the same downloader, asked the same and expected to answer the same."""

    def __init__(self, calls: EngineCalls) -> None:
        self.downloader = calls.engine.downloader
        self.downloader.slots.clear()
        options = {"downstream_queue_cls": Picky, "key": "", "start_queue_cls": FifoMemoryQueue}
        self.theirs = build_from_crawler(DownloaderAwarePriorityQueue, calls.crawler, **options)
        self.ours = build_from_crawler(SlotQueue, calls.crawler, **options)

    def push(self, request: Request) -> None:
        for queue in (self.theirs, self.ours):
            with suppress(ValueError):  # refused
                queue.push(request)
        self.check()

    def pop(self) -> Request | None:
        request = self.theirs.pop()
        assert self.ours.pop() is request
        self.check()
        return request

    def peek(self) -> None:
        def peeked(queue: Any) -> Any:
            try:
                return queue.peek()
            except Exception as error:  # Scrapy's does on a slot whose only request was refused
                return type(error)

        assert peeked(self.ours) is peeked(self.theirs)

    def set_active(self, slot: str, active: int) -> None:
        made = self.downloader.slots.setdefault(slot, Slot(8, 0.0, 0.0))
        made.active = {Request(f"http://busy.example/{n}") for n in range(active)}

    def check(self) -> None:
        assert len(self.ours) == len(self.theirs)
        assert self.ours.pqueues.keys() == self.theirs.pqueues.keys()
        assert list(self.ours._chooser.names.behind(None)) == sorted(self.theirs.pqueues)
        assert all((f"slot-{n}" in self.ours) == (f"slot-{n}" in self.theirs) for n in range(7))


def request_of(number: int, slot: int, priority: int, kind: str) -> Request:
    meta: dict[str, Any] = {"download_slot": f"slot-{slot}"}
    if kind:
        meta["is_start_request" if kind == "start" else kind] = True
    return Request(f"http://a.example/{number}", priority=priority, meta=meta)


@pytest.mark.parametrize("examples", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_requests_come_out_in_scrapys_order(engine: EngineCalls, examples: int) -> None:
    """Whatever is pushed, refused, peeked at or popped, and however busy the slots are meanwhile."""
    hypothesis_settings(max_examples=examples)(given(steps=STEPS)(both_answer_the_same))(engine)


def both_answer_the_same(engine: EngineCalls, steps: list[tuple[Any, ...]]) -> None:
    twins = Twins(engine)
    for number, step in enumerate(steps):
        if step[0] == PUSH:
            twins.push(request_of(number, *step[1:]))
        elif step[0] == POP:
            twins.pop()
        elif step[0] == PEEK:
            twins.peek()
        elif step[0] == BUSY:
            twins.set_active(f"slot-{step[1]}", step[2])
        else:
            twins.downloader.slots.pop(f"slot-{step[1]}", None)
    while len(twins.theirs.pqueues):
        twins.pop()
    assert twins.pop() is None
    assert twins.theirs.close() == twins.ours.close()


@pytest.mark.parametrize("hosts", [80, pytest.param(400, marks=pytest.mark.slow)])
def test_the_order_holds_over_many_slots(engine: EngineCalls, monkeypatch: pytest.MonkeyPatch, hosts: int) -> None:
    """Many hosts in blocks of four names, up to sixteen of them busy: Scrapy's order, to the last request."""
    monkeypatch.setattr(slots, "_BLOCK", 4)
    twins = Twins(engine)
    rng = random.Random(3)
    busy: list[str] = []
    for number in range(6 * hosts):
        twins.push(request_of(number, rng.randrange(hosts), 0, ""))
        if rng.random() < 0.9:
            request = twins.pop()
            assert request
            busy.append(request.meta["download_slot"])
            twins.set_active(busy[-1], 1)
        if len(busy) > rng.randrange(17):
            twins.set_active(busy.pop(rng.randrange(len(busy))), 0)
    while len(twins.theirs):
        twins.pop()


@hypothesis_settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.text("ab", max_size=4)), max_size=80), st.text("ab", max_size=4))
def test_names_stay_in_order(changes: list[tuple[bool, str]], last: str) -> None:
    """After any entries and removals, the names behind a given one come first, each once."""
    names, expected = SortedNames(), set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "_BLOCK", 2)
        for is_entry, name in changes:
            if is_entry and name not in expected:
                names.add(name)
                expected.add(name)
            elif not is_entry and name in expected:
                names.remove(name)
                expected.remove(name)
    assert list(names.behind(None)) == sorted(expected)
    assert list(names.behind(last)) == sorted(expected, key=lambda name: (name <= last, name))
    assert list(SortedNames(expected).behind(last)) == list(names.behind(last))


# -- in a crawl --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", [DURABLE, SCRAPY])
def test_a_host_without_pending_requests_leaves_nothing(tmp_path: Path, scheduler: str) -> None:
    """Neither in the queue nor in the frontier, however many hosts there were."""
    with opened(tmp_path, scheduler, **SLOT_QUEUE) as calls:
        calls.push(*(request_of(n, n, 0, "") for n in range(50)))
        assert len(calls.scheduler) == 50
        calls.drain()
        queue = calls.scheduler.dqs
        assert type(queue) is SlotQueue
        assert (len(calls.scheduler), len(queue), queue.pqueues) == (0, 0, {})
        assert list(queue._chooser.names.behind(None)) == []
        if scheduler == DURABLE:
            assert len(calls.scheduler._lanes._lanes) == 0


@pytest.mark.parametrize("first", [SlotQueue, DownloaderAwarePriorityQueue])
def test_a_job_of_scrapys_scheduler_can_change_between_the_two(tmp_path: Path, first: type) -> None:
    """What either leaves in JOBDIR, the other goes on with."""
    second = SlotQueue if first is DownloaderAwarePriorityQueue else DownloaderAwarePriorityQueue
    with opened(tmp_path, SCRAPY, SCHEDULER_PRIORITY_QUEUE=first) as calls:
        calls.push(*(request_of(n, n % 5, 0, "") for n in range(20)))
        urls = [calls.start().url for _ in range(4)]  # type: ignore[union-attr]  # 20 are there
    with opened(tmp_path, SCRAPY, SCHEDULER_PRIORITY_QUEUE=second) as calls:
        assert len(calls.scheduler) == 16
        urls += calls.drain()
    assert sorted(urls) == sorted(f"http://a.example/{n}" for n in range(20))


def test_durable_scheduler_uses_it_in_place_of_scrapys(tmp_path: Path) -> None:
    """Where Scrapy's class is configured, on disk and in memory; any other class is left alone."""
    with opened(tmp_path, DURABLE, SCHEDULER_PRIORITY_QUEUE="scrapy.pqueues.DownloaderAwarePriorityQueue") as calls:
        assert {type(calls.scheduler.dqs), type(calls.scheduler.mqs)} == {SlotQueue}
    with opened(None, DURABLE, SCHEDULER_PRIORITY_QUEUE="scrapy.pqueues.ScrapyPriorityQueue") as calls:
        assert type(calls.scheduler.mqs).__name__ == "ScrapyPriorityQueue"


def test_requests_imported_from_scrapys_queue_are_counted(tmp_path: Path) -> None:
    """They come into their lanes past push(), and a queue that seems to be empty would end the crawl."""
    options = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue"}
    with opened(tmp_path, SCRAPY, **options) as calls:
        calls.push(*(request_of(n, n % 5, 0, "") for n in range(20)))
    with opened(tmp_path, DURABLE, **options) as calls:
        assert len(calls.scheduler) == 20
        assert len(calls.drain()) == 20


@pytest.mark.parametrize("start_queue", ["scrapy.squeues.PickleFifoDiskQueue", None])
def test_lanes_reopened_by_their_keys_are_those_that_requests_lead_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_queue: str | None
) -> None:
    """With many hosts only the first lanes are led to, and the order is the same as with all of them."""
    urls = {}
    options = {"SCHEDULER_START_DISK_QUEUE": start_queue}
    for led in (3, 10_000):
        monkeypatch.setattr(recovery, "LED_LANES", led)
        jobdir = tmp_path / str(led)
        with opened(jobdir, DURABLE, **options) as calls:
            for n in range(60):
                host = ["[::1]", "a_b.example", "\u00fc.example", f"host-{n % 9}.example"][n % 4]
                meta = {"is_start_request": True} if n % 3 else {}
                calls.push(Request(f"http://{host}/{n}", meta=meta, priority=n % 2))
        with opened(jobdir, DURABLE, **options) as calls:
            assert bool(calls.scheduler._lanes.stored) == (led == 3)
            assert len(calls.scheduler) == len(calls.scheduler.dqs) == 60
            assert all(slot in calls.scheduler.dqs for slot in ["a_b.example", "host-1.example", "host-3.example"])
            calls.push(Request("http://host-1.example/new"))
            urls[led] = calls.drain()
    assert urls[3] == urls[10_000]
    assert len(set(urls[3])) == 61


def test_lanes_are_sorted_anew_where_the_first_lead_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another priority queue than last time: no lane is taken for one of a host, and nothing is lost."""
    monkeypatch.setattr(recovery, "LED_LANES", 3)
    with opened(tmp_path, DURABLE, SCHEDULER_PRIORITY_QUEUE="scrapy.pqueues.ScrapyPriorityQueue") as calls:
        calls.push(*(request_of(n, n % 7, n % 9, "") for n in range(40)))
    with opened(tmp_path, DURABLE) as calls:
        assert len(calls.scheduler) == 40
        assert len(set(calls.drain())) == 40
