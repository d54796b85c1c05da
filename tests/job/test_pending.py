"""One model of "pending requests", which the schedulers in memory and in a job are run against, with kills."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from scrapy import Request, signals
from twisted.python.failure import Failure

from scrapy_bloom.job import commits
from scrapy_bloom.job.inspect import inspect_job
from tests.support.engine import Engine, opened, snapshot

IN_MEMORY = ["http://memory.example/1", "http://memory.example/2"]
"""Requests for these cannot be serialized."""
URLS = [f"http://host-{n % 3}.example/{n}" for n in range(60)] + IN_MEMORY
some_urls = st.lists(st.sampled_from(URLS) | st.sampled_from(IN_MEMORY + URLS[:3]), min_size=1, max_size=4)
places = st.integers(0, 100)
PAGES = 3
"""Of a host, in a crawl with a limit."""
LIMITED = {"BLOOM_PAGES_PER_HOST": PAGES}


def host_of(url: str) -> str:
    return url.split("/")[2]


@dataclass(eq=False)
class Fetch:
    """What the model knows of one request: when it may be written, and when its page is committed."""

    number: int
    """In the request's meta, which survives a kill."""
    url: str
    is_filtered: bool
    parent: Fetch | None = None
    """The page that led to it, if it is known."""
    children: list[Fetch] = field(default_factory=list)
    is_ended: bool = False
    fails: bool = False

    @property
    def is_in_memory(self) -> bool:
        return self.url in IN_MEMORY

    @property
    def holder(self) -> Fetch | None:
        """The page whose commit this request and its own commit wait for."""
        return self.parent if self.is_in_memory or not self.is_filtered else None

    @property
    def is_complete(self) -> bool:
        return self.is_ended and all(child.is_complete for child in self.children if child.is_in_memory)

    @property
    def is_committed(self) -> bool:
        return self.is_complete and (self.holder is None or self.holder.is_committed)

    @property
    def is_written(self) -> bool:
        return not self.is_in_memory and (self.holder is None or self.holder.is_committed)

    @property
    def is_pending(self) -> bool:
        return self.is_written and not self.is_committed


class PendingRequests(RuleBasedStateMachine):
    """A crawl without a disk: the model, and what holds in every store."""

    settings: ClassVar[dict[str, Any]] = {}
    without_limit: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.runs = 0
        self.fetches: dict[int, Fetch] = {}
        self.seen: set[str] = set()
        self.queue: list[Fetch] = []
        self.in_flight: list[tuple[Fetch, Request]] = []
        self.pages: Counter[str] = Counter()
        self.engine = self.open()

    def open(self, directory: Path | None = None) -> Engine:
        return Engine(directory, self.settings)

    def waits(self, fetch: Fetch) -> bool:
        """Return whether the host of *fetch* has had its pages, those in flight included."""
        if self.settings is not LIMITED or fetch.url in self.without_limit:
            return False
        hosts = [host_of(other.url) for other, _ in self.in_flight]
        return self.pages[host_of(fetch.url)] + hosts.count(host_of(fetch.url)) >= PAGES

    def teardown(self) -> None:
        self.engine.stop()
        shutil.rmtree(self.directory)

    @rule(urls=some_urls, priority=st.integers(0, 1), is_filtered=st.booleans(), parent=st.none() | places)
    def push(self, urls: list[str], priority: int, is_filtered: bool, parent: int | None) -> None:
        """Push requests; of the page in flight at *parent*, or such that nobody knows the page of."""
        page = self.in_flight[parent % len(self.in_flight)] if self.in_flight and parent is not None else None
        for url in urls:
            request = Request(url, priority=priority, dont_filter=not is_filtered)
            with self.engine.within(page[1]) if page else nullcontext():
                self._push(request, page and page[0])

    def _push(self, request: Request, parent: Fetch | None) -> None:
        number, url, is_filtered = len(self.fetches), request.url, not request.dont_filter
        request.meta["number"] = number
        if url in IN_MEMORY:
            request.meta["unserializable"] = lambda: None
        is_new = not is_filtered or url not in self.seen
        assert self.engine.push(request) == [is_new]
        if not is_new:
            return
        fetch = Fetch(number, url, is_filtered, parent)
        if parent is not None:
            parent.children.append(fetch)
        self.fetches[number] = fetch
        self.queue.append(fetch)
        if is_filtered:
            self.seen.add(url)

    @rule(times=st.integers(1, 4))
    def start(self, times: int) -> None:
        for _ in range(times):
            request = self.engine.start()
            assert (request is None) == all(map(self.waits, self.queue))
            if request is not None:
                fetch = self.fetches[request.meta["number"]]
                assert not self.waits(fetch)
                self.queue.remove(fetch)
                self.in_flight.append((fetch, request))

    @rule(place=places, times=st.integers(1, 4), fails=st.booleans())
    def end(self, place: int, times: int, fails: bool) -> None:
        """End requests; those that fail are taken back, as with ``BLOOM_FORGET_FAILED``."""
        for _ in range(min(times, len(self.in_flight))):
            fetch, request = self.in_flight.pop(place % len(self.in_flight))
            self.engine.end(request, Failure(TimeoutError()) if fails else 200)
            fetch.is_ended, fetch.fails = True, fails
            self.pages[host_of(fetch.url)] += not fails
            if fails:
                self.engine.crawl.forget(request)
                self.seen.discard(fetch.url)

    @rule(place=places, is_redirect=st.booleans())
    def replace(self, place: int, is_redirect: bool) -> None:
        """End a request in whose place a retry comes, or which is redirected to what was seen: no page, no failure."""
        if not self.in_flight:
            return
        fetch, request = self.in_flight[place % len(self.in_flight)]
        seen = sorted(self.seen)
        if is_redirect and seen:
            there = request.replace(url=seen[place % len(seen)], dont_filter=False)
        else:
            there = request.replace(dont_filter=True)
        self.engine.crawl.result_came(request, there)
        with self.engine.within(request):
            self._push(there, fetch)
        self.in_flight.remove((fetch, request))
        self.engine.end(request, None)
        fetch.is_ended = True

    @invariant()
    def the_end_is_known(self) -> None:
        if all(map(self.waits, self.queue)):
            assert self.engine.start() is None
            assert not self.engine.scheduler.has_pending_requests()

    @invariant()
    def the_store_is_consistent(self) -> None:
        self.engine.store.check()

    @invariant()
    def as_many_are_pending(self) -> None:
        assert len(self.engine.scheduler) == len(self.queue)

    @invariant()
    def links_are_answered(self) -> None:
        assert self.answers() == self.seen

    def answers(self) -> set[str]:
        """Return which URLs are seen."""
        fingerprints = [self.engine.crawl.fingerprints.of_request(Request(url)) for url in URLS]
        return set(itertools.compress(URLS, self.engine.crawl.core.decisions.seen(fingerprints)))


class PendingInJob(PendingRequests):
    """A crawl with a job directory, which is stopped, killed and resumed."""

    without_limit: ClassVar[list[str]] = IN_MEMORY

    def __init__(self) -> None:
        super().__init__()
        self.taken_back: set[str] = set()
        self.failed: list[str] = []
        self._committed()

    def open(self, directory: Path | None = None) -> Engine:
        return Engine(directory or self._next_directory(), self.settings)

    def _committed(self, whole: bool = True) -> None:
        """Note what a kill may not undo. After a transaction alone, what was taken back before may be new once more."""
        self.committed_pages = Counter(self.pages)
        self.committed_failed = self._failed()
        self.pending = {number for number, fetch in self.fetches.items() if fetch.is_pending}
        in_memory = {fetch.url for fetch in self.fetches.values() if fetch.is_in_memory and not fetch.is_committed}
        self.known = self.seen - in_memory - (set() if whole else self.taken_back)

    def _failed(self) -> Counter[str]:
        """Return the failures that are committed with their pages: each page gives the one item of this model."""
        now = [fetch.url for fetch in self.fetches.values() if fetch.fails and fetch.is_committed]
        return Counter(self.failed + now)

    @rule(place=places, times=st.integers(1, 4), fails=st.booleans())
    def end(self, place: int, times: int, fails: bool) -> None:
        before = set(self.seen)
        super().end(place, times, fails)
        self.taken_back |= before - self.seen
        self.known &= self.seen

    @rule()
    def write(self) -> None:
        """Write a transaction that the crawl does not know of yet, while it hands out requests."""
        self.commit(whole=False)

    def commit(self, whole: bool) -> None:
        self.engine.commit(whole=whole)
        self._committed(whole)

    @rule(times=st.integers(1, 3))
    def tick(self, times: int) -> None:
        """Begin commits, and end those that are written."""
        for _ in range(times):
            self.engine.crawl.core.tick()

    @rule()
    def stop(self) -> None:
        while self.in_flight:
            self.end(0, 1, False)
        self._committed()
        directory = self.engine.jobdir
        self.engine.stop()
        assert directory is not None
        self._resume(directory, was_committed=True)

    @rule(after=st.sampled_from(["", "transaction", "commit"]))
    def kill(self, after: str) -> None:
        if after:
            self.commit(whole=after == "commit")
        copy = self._next_directory()
        assert self.engine.jobdir is not None
        snapshot(self.engine.jobdir, copy)
        self.engine.stop()
        self._resume(copy, was_committed=bool(after))

    def _resume(self, directory: Path, *, was_committed: bool) -> None:
        """What the last commit, or a later one, has written is pending, and nothing else; nothing lost counts as seen.

        A page is pending, or all that it led to is; and its failure is listed once.
        """
        with opened(Path(shutil.copytree(directory, self._next_directory()))) as probe:
            numbers = []
            while (request := probe.start()) is not None:
                numbers.append(request.meta["number"])
                probe.end(request)
        found = set(numbers)
        assert len(numbers) == len(found)
        written = {number for number, fetch in self.fetches.items() if fetch.is_written}
        committed = {number for number, fetch in self.fetches.items() if fetch.is_committed}
        assert self.pending - committed <= found <= self.pending | written
        if was_committed:
            assert found == self.pending
        for number in self.pending - found:
            assert {child.number for child in self.fetches[number].children if child.is_written} <= found | committed
        self.engine = self.open(directory)
        seen = self.answers()
        kept = [fetch for fetch in self.fetches.values() if fetch.number in found | committed]
        assert self.known <= seen <= {fetch.url for fetch in kept if fetch.is_filtered}
        failed = Counter(row.url for row in inspect_job(directory).failed)
        assert self.committed_failed <= failed <= self._failed()
        pages = Counter(self.pages) if self.engine.store.pages is None else self.engine.store.pages.counts
        assert self.committed_pages <= pages <= self.pages
        self.failed, self.pages = list(failed.elements()), Counter(pages)
        self.seen, self.in_flight = seen, []
        self.fetches = {
            number: Fetch(number, fetch.url, fetch.is_filtered, is_ended=number not in found)
            for number, fetch in self.fetches.items()
        }
        self.queue = [self.fetches[number] for number in found]
        self._committed()

    def _next_directory(self) -> Path:
        self.runs += 1
        return self.directory / str(self.runs)


class FifoInJob(PendingInJob):
    settings: ClassVar[dict[str, Any]] = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}


class LimitedRequests(PendingRequests):
    settings: ClassVar[dict[str, Any]] = LIMITED


class LimitedInJob(PendingInJob):
    settings: ClassVar[dict[str, Any]] = LIMITED


MACHINES = [PendingRequests, PendingInJob, FifoInJob, LimitedRequests, LimitedInJob]
FEW: list[Any] = [(PendingRequests, 5), (LimitedRequests, 5), (LimitedInJob, 2)]
MANY = [pytest.param(machine, 20, marks=pytest.mark.slow) for machine in MACHINES]


@pytest.mark.parametrize(("machine", "examples"), FEW + MANY)
def test_no_pending_request_is_lost(
    machine: type[PendingRequests], examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is pushed, handed out, done, retried, taken back, committed, stopped and killed, pages are pending or
    new; a host gets as many as it may.
    """
    monkeypatch.setattr(commits, "COMMIT_SECONDS", 0.0)
    some = settings(max_examples=examples, stateful_step_count=40, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=some)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("is_taken_back", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_a_kill_after_the_transaction(tmp_path: Path, whole: bool, is_taken_back: bool) -> None:
    """Pages of a transaction whose bits a kill has kept from being set are seen, unless they were taken back since."""
    page = Request(URLS[0])
    with opened(tmp_path / "job") as engine:
        engine.push(page)
        engine.drain()
        engine.commit(whole=whole)
        assert engine.push(page) == [False]
        if is_taken_back:
            engine.crawl.forget(page)
        snapshot(tmp_path / "job", tmp_path / "copy")
    assert whole or is_taken_back or inspect_job(tmp_path / "copy").urls == 1
    with opened(tmp_path / "copy") as engine:
        assert engine.push(page) == [is_taken_back]


def test_a_state_that_the_spider_begins_with_gives_way_to_the_last_commits(tmp_path: Path) -> None:
    """As with Scrapy's own ``spider.state``: a spider that sets one in ``__init__`` loses nothing when it resumes."""
    with opened(tmp_path / "job") as engine:
        engine.spider.state["kept"] = True
        engine.commit()
        snapshot(tmp_path / "job", tmp_path / "copy")
    with opened(tmp_path / "copy") as engine:
        assert engine.spider.state == {}
        engine.crawler.signals.send_catch_log(signals.spider_opened, spider=engine.spider)
        assert engine.spider.state["kept"]
