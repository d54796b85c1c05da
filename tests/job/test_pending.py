"""One model of "pending requests", which the schedulers in memory and in a job are run against, with kills."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from scrapy import Request
from twisted.python.failure import Failure

from scrapy_bloom.job import store
from scrapy_bloom.job.inspect import inspect_job
from tests.support.engine import RAM, Engine, opened, snapshot

IN_MEMORY = ["http://memory.example/1", "http://memory.example/2"]
"""Requests for these cannot be serialized."""
URLS = [f"http://host-{n % 3}.example/{n}" for n in range(60)] + IN_MEMORY
some_urls = st.lists(st.sampled_from(URLS) | st.sampled_from(IN_MEMORY + URLS[:3]), min_size=1, max_size=4)
PENDING, DONE = "pending", "done"
PAGES = 3
"""Of a host, in a crawl with a limit."""
LIMITED = {"BLOOM_PAGES_PER_HOST": PAGES}


def durable(urls: list[str]) -> list[str]:
    return [url for url in urls if url not in IN_MEMORY]


def host_of(url: str) -> str:
    return url.split("/")[2]


class PendingRequests(RuleBasedStateMachine):
    """A crawl without a disk: the model, and what holds in every store."""

    settings: ClassVar[dict[str, Any]] = {}
    without_limit: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=RAM))
        self.runs = 0
        self.is_seen: dict[str, str] = {}
        self.queue: list[str] = []
        self.in_flight: list[Request] = []
        self.pages: Counter[str] = Counter()
        self.failed: list[str] = []
        self.engine = self.open()

    def open(self, directory: Path | None = None) -> Engine:
        return Engine(directory, self.settings)

    def waits(self, url: str) -> bool:
        """Return whether the host of *url* has had its pages, those in flight included."""
        if not self.settings or url in self.without_limit:
            return False
        hosts = [host_of(request.url) for request in self.in_flight]
        return self.pages[host_of(url)] + hosts.count(host_of(url)) >= PAGES

    def teardown(self) -> None:
        self.engine.stop()
        shutil.rmtree(self.directory)

    @rule(urls=some_urls, priority=st.integers(0, 1), is_again=st.booleans())
    def push(self, urls: list[str], priority: int, is_again: bool, **meta: Any) -> None:
        for url in urls:
            unserializable = {"unserializable": lambda: None} if url in IN_MEMORY else {}
            request = Request(url, priority=priority, dont_filter=is_again, meta={**meta, **unserializable})
            is_new = is_again or url not in self.is_seen
            assert self.engine.push(request) == [is_new]
            if is_new:
                self.queue.append(url)
                if not is_again:
                    self.is_seen[url] = PENDING

    @rule(times=st.integers(1, 4))
    def start(self, times: int) -> None:
        for _ in range(times):
            request = self.engine.start()
            assert (request is None) == all(map(self.waits, self.queue))
            if request is not None:
                assert not self.waits(request.url)
                self.queue.remove(request.url)
                self.in_flight.append(request)

    @rule(place=st.integers(0, 100), times=st.integers(1, 4), fails=st.booleans())
    def end(self, place: int, times: int, fails: bool) -> None:
        """End requests; those that fail are taken back, as with ``BLOOM_FORGET_FAILED``."""
        for _ in range(min(times, len(self.in_flight))):
            request = self.in_flight.pop(place % len(self.in_flight))
            self.engine.end(request, Failure(TimeoutError()) if fails else 200)
            self._is_done(request.url, is_page=not fails)
            if fails:
                self.failed.append(request.url)
                self.engine.crawl.forget(request)
                self.is_seen.pop(request.url, None)

    @rule(place=st.integers(0, 100), is_redirect=st.booleans())
    def replace(self, place: int, is_redirect: bool) -> None:
        """End a request in whose place a retry comes, or which is redirected to what was seen: no page, no failure."""
        if self.in_flight:
            request = self.in_flight[place % len(self.in_flight)]
            seen = sorted(self.is_seen.keys() - {request.url})
            if [each.url for each in self.in_flight].count(request.url) != 1:
                return
            if is_redirect and seen:
                there = Request(seen[place % len(seen)], meta={"redirect_urls": [request.url]})
                assert self.engine.push(there) == [False]
            else:
                there = request
                self.push([request.url], 0, True, retry_times=1)
            self._is_done(request.url, is_page=False)
            self.in_flight.remove(request)
            self.engine.end(request, there)

    def _is_done(self, url: str, *, is_page: bool) -> None:
        self.pages[host_of(url)] += is_page
        if self.is_seen.get(url) == PENDING:
            self.is_seen[url] = DONE

    @invariant()
    def the_end_is_known(self) -> None:
        if all(map(self.waits, self.queue)):
            assert self.engine.start() is None
            assert not self.engine.scheduler.has_pending_requests()

    @invariant()
    def as_many_are_pending(self) -> None:
        assert len(self.engine.scheduler) == len(self.queue)

    @invariant()
    def links_are_answered(self) -> None:
        assert self.answers() == [url in self.is_seen for url in URLS]

    def answers(self) -> list[bool]:
        fingerprints = [self.engine.crawl.fingerprints.of_request(Request(url)) for url in URLS]
        return self.engine.crawl.seen(fingerprints)


class PendingInJob(PendingRequests):
    """A crawl with a job directory, which is stopped, killed and resumed."""

    without_limit: ClassVar[list[str]] = IN_MEMORY

    def __init__(self) -> None:
        super().__init__()
        self.taken_back: set[str] = set()
        self._committed()

    def open(self, directory: Path | None = None) -> Engine:
        return Engine(directory or self._next_directory(), self.settings)

    def _committed(self, whole: bool = True) -> None:
        """Note what a kill may not undo. After a transaction alone, what was taken back before may be new once more."""
        self.committed_pages, self.committed_failed = Counter(self.pages), Counter(self.failed)
        self.unfinished = durable(self.queue + [request.url for request in self.in_flight])
        self.known = set(durable(list(self.is_seen))) - (set() if whole else self.taken_back)
        self.pushed: list[str] = []
        self.ended: list[str] = []

    @rule(urls=some_urls, priority=st.integers(0, 1), is_again=st.booleans())
    def push(self, urls: list[str], priority: int, is_again: bool, **meta: Any) -> None:
        before = len(self.queue)
        super().push(urls, priority, is_again, **meta)
        self.pushed += durable(self.queue[before:])

    @rule(place=st.integers(0, 100), times=st.integers(1, 4), fails=st.booleans())
    def end(self, place: int, times: int, fails: bool) -> None:
        before = Counter(request.url for request in self.in_flight)
        super().end(place, times, fails)
        ended = list((before - Counter(request.url for request in self.in_flight)).elements())
        self.ended += ended
        self.taken_back |= set(ended) if fails else set()
        self.known &= self.is_seen.keys()

    @rule(place=st.integers(0, 100), is_redirect=st.booleans())
    def replace(self, place: int, is_redirect: bool) -> None:
        before = Counter(request.url for request in self.in_flight)
        super().replace(place, is_redirect)
        self.ended += (before - Counter(request.url for request in self.in_flight)).elements()

    def commit(self, whole: bool) -> None:
        self.engine.commit(whole=whole)
        self._committed(whole)

    @rule(times=st.integers(1, 3))
    def tick(self, times: int) -> None:
        """Begin commits, and end those that are written."""
        for _ in range(times):
            self.engine.crawl.tick()

    @rule()
    def stop(self) -> None:
        while self.in_flight:
            self.end(0, 1, False)
        self._committed()
        directory = self.engine.jobdir
        self.engine.stop()
        assert directory is not None
        self._resume(directory)

    @rule(after=st.sampled_from(["", "transaction", "commit"]))
    def kill(self, after: str) -> None:
        if after:
            self.commit(whole=after == "commit")
        copy = self._next_directory()
        assert self.engine.jobdir is not None
        snapshot(self.engine.jobdir, copy)
        self.engine.stop()
        self._resume(copy)

    def _resume(self, directory: Path) -> None:
        """Nothing pending is lost, nothing done at the last commit comes back, and nothing lost counts as seen.

        What was counted and listed then still is.
        """
        with opened(Path(shutil.copytree(directory, self._next_directory()))) as probe:
            found = Counter(probe.drain())
        assert Counter(self.unfinished) - Counter(self.ended) <= found <= Counter(self.unfinished + self.pushed)
        self.engine = self.open(directory)
        seen = {url for url, is_seen in zip(URLS, self.answers(), strict=True) if is_seen}
        done = {url for url in durable(list(self.is_seen)) if self.is_seen[url] == DONE}
        assert self.known <= seen <= found.keys() | done
        failed = [each.url for each in inspect_job(directory).failed]
        assert self.committed_failed <= Counter(failed) <= Counter(self.failed)
        pages = Counter(self.pages) if self.engine.store.pages is None else self.engine.store.pages.counts
        assert self.committed_pages <= pages <= self.pages
        self.failed, self.pages = failed, Counter(pages)
        self.queue, self.in_flight = list(found.elements()), []
        self.is_seen = {url: PENDING if url in found else DONE for url in seen}
        self._committed()

    def _next_directory(self) -> Path:
        self.runs += 1
        return self.directory / str(self.runs)


class LimitedRequests(PendingRequests):
    """Without a disk, with a limit to the pages of a host."""

    settings: ClassVar[dict[str, Any]] = LIMITED


class LimitedInJob(PendingInJob):
    """With a job directory and a limit to the pages of a host."""

    settings: ClassVar[dict[str, Any]] = LIMITED


@pytest.mark.parametrize("examples", [8, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("machine", [PendingRequests, PendingInJob, LimitedRequests, LimitedInJob])
def test_no_pending_request_is_lost(
    machine: type[PendingRequests], examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is pushed, handed out, done, retried, taken back, committed, stopped and killed, pages are pending or
    new; a host gets as many as it may.
    """
    monkeypatch.setattr(store, "COMMIT_SECONDS", 0.0)
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
        if is_taken_back:
            engine.crawl.forget(page)
        snapshot(tmp_path / "job", tmp_path / "copy")
    with opened(tmp_path / "copy") as engine:
        assert engine.push(page) == [is_taken_back]
