"""Commands and takeovers that are killed at each of their writes: run again, they end as if nothing had happened."""

import io
import itertools
import os
import pickle
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.components.takeover import export_queue
from scrapy_bloom.filter.directory import reading
from scrapy_bloom.job.database import Database
from scrapy_bloom.job.store import stopped_job
from tests.support.damage import verify_job
from tests.support.engine import OUR_FILTER, SCRAPY_LEAVES_FILES_OPEN, SCRAPYS, opened

pytestmark = SCRAPY_LEAVES_FILES_OPEN

HOST = "http://a.example"
SCRAPYS_QUEUE_ALONE = {**SCRAPYS, "DUPEFILTER_CLASS": OUR_FILTER}


def copied_before_writes(act: Callable[[Path], None], jobdir: Path, target: Path, step: int) -> list[Path]:
    """Let *act* change *jobdir*, and return copies of it before every *step*-th write: that is what a kill leaves.

    A write is a statement of a database, or a call that changes a file or a directory.
    """
    copies: list[Path] = []
    writes, copying, connect = itertools.count(), threading.Lock(), sqlite3.connect

    def before_write() -> None:
        if copying.acquire(blocking=False):  # otherwise this is a write of the copy
            if next(writes) % step == 0:
                copies.append(shutil.copytree(jobdir, target / str(len(copies))))
            copying.release()

    def noted(call: Callable[..., Any], is_write: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
        def noted_call(*arguments: Any, **options: Any) -> Any:
            if is_write(*arguments):
                before_write()
            return call(*arguments, **options)

        return noted_call

    def before_statement(statement: str) -> None:
        if not statement.upper().startswith(("SELECT", "PRAGMA", "--")):
            before_write()

    def connect_and_trace(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(before_statement)
        return connection

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "replace", "remove", "unlink", "rmdir", "mkdir", "truncate"):
            patch.setattr(os, name, noted(getattr(os, name)))
        patch.setattr(io, "open", noted(io.open, lambda _path, mode="r", *_: mode[0] != "r" or "+" in mode))
        patch.setattr(sqlite3, "connect", connect_and_trace)
        act(jobdir)
    return copies


# -- jobs, and what is done to them ------------------------------------------------------------------------------------


def urls(*numbers: int) -> list[str]:
    return [f"{HOST}/{number}" for number in numbers]


def with_pending(jobdir: Path, settings: dict[str, Any] | None = None) -> None:
    """A job with 20 pages pending, 5 done and 3 failed."""
    with opened(jobdir, settings) as engine:
        engine.push(*map(Request, urls(*range(28))))
        for number in range(8):
            request = engine.fetch()
            engine.end(request, 500 if number < 3 else 200)


def of_scrapys_scheduler(jobdir: Path) -> None:
    with_pending(jobdir, SCRAPYS)


def damaged(jobdir: Path) -> None:
    with_pending(jobdir)
    with closing(Database(jobdir / "requests.bloom" / "job.sqlite")) as database:
        database.writer.execute("UPDATE request SET body = x'00' WHERE id = (SELECT max(id) FROM request)")


def with_a_list(jobdir: Path) -> None:
    """A job, URLs to take in, and a ``requests.seen`` of Scrapy's beside them."""
    jobdir.mkdir()
    (jobdir / "urls.txt").write_text("\n".join(urls(*range(20, 40))))
    seen = (fingerprint(Request(url)) for url in urls(*range(100, 120)))
    (jobdir / "requests.seen").write_bytes(b"".join(b"\0\x14" + one for one in seen))


def crawl(jobdir: Path) -> None:
    with opened(jobdir):
        pass


def export(jobdir: Path) -> None:
    with opened(None) as engine, stopped_job(jobdir, "site") as job:
        export_queue(jobdir, job.database, engine.crawler)


def command(*words: str) -> Callable[[Path], None]:
    def run(jobdir: Path) -> None:
        assert main([word.replace("JOBDIR", str(jobdir)) for word in words]) == 0

    return run


CASES: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "takeover": (of_scrapys_scheduler, crawl),
    "takeover of the filter": (with_a_list, crawl),
    "export": (with_pending, export),
    "requeue": (with_pending, command("requeue", "JOBDIR", "--failed")),
    "forget": (with_pending, command("forget", "JOBDIR", *urls(0, 3, 999))),
    "import": (with_a_list, command("import", "JOBDIR", "JOBDIR/urls.txt")),
    "seed": (with_a_list, command("seed", "JOBDIR", "JOBDIR/urls.txt")),
    "repair": (damaged, command("verify", "--fix", "JOBDIR")),
}


def contents(jobdir: Path) -> dict[str, Any]:
    """What a job holds: pending and failed requests, what Scrapy's own queue has, and what counts as seen."""
    job = jobdir / "requests.bloom"
    held: dict[str, Any] = {"problems": verify_job(jobdir)}
    with reading(job, None) as chain:
        held["seen"] = [url for url in urls(*range(50), *range(100, 120)) if chain.contains(fingerprint(Request(url)))]
    with closing(Database(job / "job.sqlite")) as database:
        held["failed"] = Counter(url for (url,) in database.select("SELECT url FROM failed"))
        held["pending"] = Counter(pickle.loads(body or b"")["url"] for _, _, body in database.requests())
    if (jobdir / "requests.queue" / "active.json").is_file():
        copy = shutil.copytree(jobdir, jobdir.with_name("drained"))
        with opened(copy, SCRAPYS_QUEUE_ALONE) as engine:
            held["exported"] = Counter(engine.drain())
        shutil.rmtree(copy)
    return held


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("action", CASES)
def test_a_command_that_was_killed_can_be_repeated(action: str, step: int) -> None:
    """Whichever write the kill prevents, the second call leaves the job as one call without a kill does."""
    prepare, act = CASES[action]
    with tempfile.TemporaryDirectory() as name:  # each write of a database is synced
        job = Path(name, "job")
        prepare(job)
        copies = copied_before_writes(act, job, Path(name), step)
        expected = contents(job)
        assert not expected["problems"]
        for copy in copies:
            shutil.rmtree(job)
            copy.rename(job)
            act(job)
            assert (copy.name, contents(job)) == (copy.name, expected)
    assert len(copies) > 1, "there was no write"
