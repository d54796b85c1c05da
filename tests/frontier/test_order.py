"""The order in which requests come out, against Scrapy's own scheduler of the version that is installed."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scrapy import Request

from scrapy_bloom.job import commits
from tests.support.engine import BY_HOST, BY_PRIORITY, OURS, SCRAPY_LEAVES_FILES_OPEN, SCRAPYS, Engine

pytestmark = SCRAPY_LEAVES_FILES_OPEN


@pytest.fixture(autouse=True)
def _commit_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "COMMIT_SECONDS", 0.0)


def programs(*kinds: str, restarts: bool) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    steps: list[st.SearchStrategy[tuple[Any, ...]]] = [
        st.tuples(
            st.just("push"),
            st.sampled_from([1, 1, 2, 90]),  # more than are read from the file at once
            st.integers(0, 2),
            st.integers(0, 1),
            st.sampled_from(kinds),
        ),
        st.tuples(st.just("start"), st.sampled_from([1, 1, 2, 70])),
        st.tuples(st.just("end"), st.integers(0, 5)),
        st.tuples(st.just("commit")),
    ]
    if restarts:
        steps.append(st.tuples(st.just("restart")))
    return st.lists(st.one_of(*steps), min_size=30, max_size=50)  # short ones show little


# Not both at once: a request that cannot be serialized leaves an empty queue in Scrapy's priority queue, which Scrapy's
# scheduler takes along into the next run.
IN_JOB = programs("", "start", "memory", restarts=False) | programs("", "start", restarts=True)
IN_MEMORY = programs("", "start", restarts=False)


Rank = tuple[int, bool, int]
"""Priority of a request, whether it is no start request, and its number."""


def slot_of(url: str) -> str:
    return url.split("/")[2]


class Run:
    """One run of a program: what came out, and for each pop what could have."""

    def __init__(self, jobdir: Path | None, options: dict[str, Any]) -> None:
        self.jobdir, self.options = jobdir, options
        self.engine = Engine(jobdir, options)
        self.out: list[str] = []
        self.busy: list[Request] = []
        self.pops: list[tuple[str, dict[str, int], dict[str, Rank]]] = []
        """Of each pop: its URL, how many are active in each slot with something pending, and its rivals in its own."""
        self.pending: dict[str, Rank] = {}
        self._count = 0

    def run(self, program: list[tuple[Any, ...]]) -> list[str]:
        for step, *arguments in program:
            getattr(self, step)(*arguments)
        for request in self.busy:
            self.engine.end(request)
        self.busy.clear()
        while self.start(1):
            self.engine.end(self.busy.pop())
        self.engine.stop()
        return self.out

    def push(self, times: int, host: int, priority: int, kind: str) -> None:
        for _ in range(times):
            self._count += 1
            meta: dict[str, Any] = {"is_start_request": True} if kind == "start" else {}
            if kind == "memory":
                meta["unserializable"] = lambda: None
            url = f"http://host-{host}.example/{self._count}"
            assert self.engine.push(Request(url, priority=priority, meta=meta, dont_filter=kind == "start")) == [True]
            self.pending[url] = (priority, kind != "start", self._count)

    def start(self, times: int) -> bool:
        request = None
        for _ in range(times):
            active = Counter(slot_of(each.url) for each in self.busy)
            waiting = {slot: active[slot] for slot in map(slot_of, self.pending)}
            request = self.engine.start()
            self.out.append(request.url if request else "nothing")
            if request:
                slot = slot_of(request.url)
                rivals = {url: rank for url, rank in self.pending.items() if slot_of(url) == slot}
                self.pops.append((request.url, waiting, rivals))
                del self.pending[request.url]
                self.busy.append(request)
        return request is not None

    def end(self, place: int) -> None:
        if self.busy:
            self.engine.end(self.busy.pop(place % len(self.busy)))

    def commit(self) -> None:
        self.engine.commit()

    def restart(self) -> None:
        self.engine.stop()
        self.busy.clear()
        self.pops.append(("", {}, {}))
        self.engine = Engine(self.jobdir, self.options)


def options_of(queue: str, usual: str, start: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {"SCHEDULER_PRIORITY_QUEUE": queue}
    for where, names in {"DISK": "scrapy.squeues.Pickle{}DiskQueue", "MEMORY": "scrapy.squeues.{}MemoryQueue"}.items():
        options[f"SCHEDULER_{where}_QUEUE"] = names.format(usual)
        options[f"SCHEDULER_START_{where}_QUEUE"] = start and names.format(start)
    return options


ORDERS = [("Lifo", "Fifo"), ("Fifo", "Fifo"), ("Lifo", None), ("Fifo", "Lifo")]
some = settings(max_examples=2, report_multiple_bugs=False, phases=[Phase.explicit, Phase.generate])


def check_order(program: list[tuple[Any, ...]], order: tuple[str, str | None], in_job: bool) -> None:
    options = options_of(BY_PRIORITY, *order)
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        expected = Run(Path(theirs) if in_job else None, {**options, **SCRAPYS}).run(program)
        assert Run(Path(ours) if in_job else None, {**options, **OURS}).run(program) == expected


@pytest.mark.parametrize("in_job", [True, False])
@pytest.mark.parametrize("order", ORDERS)
@some
@given(data=st.data())
def test_requests_come_out_in_scrapys_order(order: tuple[str, str | None], in_job: bool, data: st.DataObject) -> None:
    """Pushes, pops, ends, commits and restarts give exactly the order of Scrapy's own scheduler."""
    check_order(data.draw(IN_JOB if in_job else IN_MEMORY), order, in_job)


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_commit_adds_to_a_file_that_was_read_ahead_comes_in_its_turn(order: tuple[str, str | None]) -> None:
    """As above: with the last in as the first out, what was read is older than what a commit adds."""
    turn = [("start", 5), ("push", 7, 0, 0, ""), ("commit",), ("start", 9)]
    check_order([("push", 100, 0, 0, ""), ("commit",), *turn, *turn, *turn], order, in_job=True)


@pytest.mark.parametrize("in_job", [True, False])
@pytest.mark.parametrize("order", [("Lifo", "Fifo"), ("Fifo", "Lifo")])
@some
@given(data=st.data())
def test_hosts_take_turns(order: tuple[str, str], in_job: bool, data: st.DataObject) -> None:
    """Each pop takes a host among the idlest, none twice before others as idle; in a host, the order is Scrapy's."""
    check_turns(data.draw(programs("", "start", restarts=in_job)), order, in_job)


def test_hosts_that_are_equally_busy_take_turns() -> None:
    """As above, while each host has requests in progress."""
    turn = [("start", 1), ("end", 2)]
    check_turns([("push", 9, 0, 0, ""), ("push", 9, 1, 0, ""), ("start", 2), *turn * 4], ("Lifo", "Fifo"), in_job=False)


def check_turns(program: list[tuple[Any, ...]], order: tuple[str, str], in_job: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = Run(Path(directory) if in_job else None, {**options_of(BY_HOST, *order), **OURS})
        run.run(program)
    signs = {True: 1 if order[0] == "Lifo" else -1, False: 1 if order[1] == "Lifo" else -1}
    owed: dict[str, set[str]] = {}  # by slot: those as idle ever since its last turn, and without one of their own
    for url, waiting, rivals in run.pops:
        if not url:
            owed.clear()
            continue
        slot = slot_of(url)
        assert waiting[slot] == min(waiting.values())
        idlest = {each for each in waiting if waiting[each] == waiting[slot]}
        for others in owed.values():
            others &= idlest - {slot}
        assert not owed.get(slot), f"{slot} had its turn twice before {owed[slot]}"
        owed[slot] = idlest - {slot}
        assert url == max(rivals, key=lambda each: (*rivals[each][:2], signs[rivals[each][1]] * rivals[each][2]))


def test_a_request_in_file_and_memory_comes_once(tmp_path: Path) -> None:
    """Between a transaction and the end of its commit the file has requests that the lane has in memory, too: each
    comes once, and in order."""
    fifo = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}
    engine = Engine(tmp_path, {"SCHEDULER_PRIORITY_QUEUE": BY_PRIORITY, **fifo})
    urls = [f"http://a.example/{number}" for number in range(150)]
    engine.push(*map(Request, urls[:100]))
    engine.commit()
    first = [engine.start() for _ in range(60)]
    engine.push(*map(Request, urls[100:]))
    engine.commit(whole=False)
    assert [request.url for request in first if request] + engine.drain() == urls
    assert not engine.crawl.core.has_failed
    engine.stop()
