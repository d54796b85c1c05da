"""Commands and takeovers that are killed at each of their writes: run again, they end as if nothing had happened."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.filter.inspect import reading
from scrapy_bloom.job.database import Database
from scrapy_bloom.job.stopped import stopped_job
from scrapy_bloom.job.takeover import export_queue
from scrapy_bloom.job.verify import verify_job
from tests.support.engine import OUR_FILTER, RAM, SCRAPY_LEAVES_FILES_OPEN, SCRAPYS, opened
from tests.support.processes import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = SCRAPY_LEAVES_FILES_OPEN

WRITES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
HOST = "http://a.example"
SCRAPYS_QUEUE_ALONE = {**SCRAPYS, "DUPEFILTER_CLASS": OUR_FILTER}


def die_at(write: int) -> None:
    """Have this process kill itself before its write number *write*: of a file, a directory or a database."""
    left = write

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def count_statement(statement: str) -> None:
        if not statement.upper().startswith(("SELECT", "PRAGMA", "--")):
            count()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        is_open_for_writing = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
        if event in WRITES or is_open_for_writing:
            count()

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = original(*arguments, **options)
        connection.set_trace_callback(count_statement)
        return connection

    original, sqlite3.connect = sqlite3.connect, connect  # type: ignore[assignment]
    sys.addaudithook(watch)


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
    with opened(None) as engine, stopped_job(jobdir, "site") as (_, database):
        export_queue(jobdir, database, engine.crawler)


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


def act_and_die(action: str, jobdir: Path, write: int) -> None:
    die_at(write)
    CASES[action][1](jobdir)


def killed_at(action: str, jobdir: Path, write: int) -> bool:
    """Whether *action* made so many writes that it was killed."""
    process = PROCESSES.Process(target=act_and_die, args=(action, jobdir, write))
    process.start()
    process.join()
    assert process.exitcode in {0, -signal.SIGKILL}
    return process.exitcode != 0


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in RAM if there is one: each write of a database is synced."""
    root = Path(RAM) if RAM else tmp_path_factory.getbasetemp()
    path = root / f"killed-{os.getpid()}"
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("action", CASES)
def test_a_command_that_was_killed_can_be_repeated(directory: Path, action: str, step: int) -> None:
    """Whichever write the kill prevents, the second call leaves the job as one call without a kill does."""
    prepare, act = CASES[action]
    prepare(directory / "before")
    shutil.copytree(directory / "before", directory / "undisturbed")
    act(directory / "undisturbed")
    expected = contents(directory / "undisturbed")
    assert not expected["problems"]
    write, was_killed = 1, True
    while was_killed:
        job = shutil.copytree(directory / "before", directory / "job")
        was_killed = killed_at(action, job, write)
        act(job)
        assert (write, contents(job)) == (write, expected)
        shutil.rmtree(job)
        write += step
    assert write > 1 + step, "no kill hit a write"
