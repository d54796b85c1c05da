"""What ``kill -9`` leaves of a crawl at any step of what it writes: each page is fetched, each item is there once.

A kill is what it is for files: the directory is copied before or after a step, and a crawl goes on in the copy.
"""

import csv
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom.errors import BloomError
from scrapy_bloom.job.inspect import inspect_job
from tests.support.damage import verify_job
from tests.support.feeds import FeedRun

PAGES, STARTS, AT_ONCE, BATCH = 20, 3, 3, 7
FEEDS = {
    "items.jl": {"format": "jsonlines"},
    "items.csv": {"format": "csv"},
    "items.json": {"format": "json"},
    "batch-%(batch_id)d.jl": {"format": "jsonlines", "batch_item_count": BATCH},
}
WANTED = Counter((page, item) for page in range(PAGES) for item in range((page * 5 + 3) % 4))


class Steps:
    """Calls *before* with the number of each step: a call that writes to files, before it and after it."""

    IN_C = frozenset(
        {"execute", "executescript", "connect", "fsync", "flush", "truncate", "replace", "unlink", "posix_fallocate"}
    )
    IN_PYTHON = frozenset({"add", "begin", "write_state", "lengths", "close", "create"})

    def __init__(self, before: Callable[[int], None]) -> None:
        self.count, self._before = 0, before

    def profile(self, frame: Any, event: str, arg: Any) -> None:
        if event in {"c_call", "c_return"}:
            is_step = getattr(arg, "__name__", "") in self.IN_C
        else:
            code = frame.f_code
            is_step = event == "call" and code.co_name in self.IN_PYTHON and "scrapy_bloom" in code.co_filename
        if is_step:
            self.count += 1
            self._before(self.count)


def crawl(directory: Path) -> list[int]:
    """Crawl what is left of the site to the end, and return the pages that were fetched."""
    run = FeedRun(directory, FEEDS, BLOOM_CAPACITY=8)  # the filter grows in the crawl
    engine, fetched = run.engine, list[int]()
    engine.push(*(Request(f"http://site.test/{page}") for page in range(STARTS)))
    in_progress = [engine.start() for _ in range(AT_ONCE)]
    while any(in_progress):
        if (request := in_progress.pop(0)) is not None:
            page = int(request.url.rpartition("/")[2])
            fetched.append(page)
            assert len(fetched) <= 2 * PAGES, "pages come again and again"
            engine.spider.state.setdefault("pages", []).append(page)
            with engine.within(request):
                for item in range((page * 5 + 3) % 4):
                    run.scrape({"page": page, "item": item})
                engine.push(*(Request(f"http://site.test/{(page * 7 + n * 13 + 1) % PAGES}") for n in range(4)))
            engine.end(request)
            if len(fetched) % 4 == 0:
                run.commit()
        in_progress.append(engine.start())
    assert set(engine.spider.state["pages"]) == set(range(PAGES))
    run.end()
    return fetched


def is_finished(directory: Path) -> bool:
    with suppress(BloomError):  # it is not even begun
        state = inspect_job(directory / "job").state
        return state.is_finished and state.runs > 0
    return False


def finished(directory: Path) -> set[int]:
    """Return the pages whose items are in the feed as far as the job knows of it."""
    feed = directory / "items.jl"
    with suppress(BloomError):  # it is not even begun
        for noted in inspect_job(directory / "job").feeds:
            if noted.path == str(feed) and feed.exists():
                return {json.loads(line)["page"] for line in feed.read_bytes()[: noted.size].splitlines()}
    return set()


def items(paths: list[Path]) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for path in paths:
        with path.open(newline="") as file:
            rows = {".csv": csv.DictReader, ".json": json.load, ".jl": lambda lines: map(json.loads, lines)}[
                path.suffix
            ](file)
            found.update((int(row["page"]), int(row["item"])) for row in rows)
    return found


def check(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fail unless each item is in each feed once, and the batches are full."""
    for name in ("items.jl", "items.csv", "items.json", "batch-*.jl"):
        assert items(sorted(directory.glob(name))) == WANTED, name
    batches = [len(path.read_text().splitlines()) for path in directory.glob("batch-*")]
    assert sorted(batches) == sorted([BATCH] * (len(batches) - 1) + [WANTED.total() - BATCH * (len(batches) - 1)])
    assert verify_job(directory / "job") == []
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}]


@pytest.mark.usefixtures("commits_at_once")
@pytest.mark.parametrize("every", [90, pytest.param(4, marks=pytest.mark.slow)])
def test_a_kill_at_any_step_loses_nothing(tmp_path: Path, every: int, caplog: pytest.LogCaptureFixture) -> None:
    """Before or after a statement, a sync, a change of bits or watermark, also while the job is begun or closed:
    resumed, the crawl has every page and item, and fetches no page again whose commit was whole."""
    directory, copies = tmp_path / "run", tmp_path / "copies"
    steps = Steps(lambda step: step % every or shutil.copytree(directory, copies / str(step)))  # type: ignore[func-returns-value]
    directory.mkdir()
    sys.setprofile(steps.profile)
    try:
        fetched = crawl(directory)
    finally:
        sys.setprofile(None)
    assert sorted(fetched) == list(range(PAGES))
    check(directory, caplog)
    killed = sorted(copies.iterdir(), key=lambda path: int(path.name))
    assert len(killed) > 10
    for copy in killed:
        shutil.rmtree(directory)
        copy.rename(directory)
        before = finished(directory)
        again = [] if is_finished(directory) else crawl(directory)
        assert not before & set(again), f"step {copy.name}: a page whose commit was whole was fetched again"
        check(directory, caplog)
