"""Where a crawl with workers keeps its files, and the locks that keep others out: :class:`CrawlDirectory`.

Both locks are the kernel's. The process that runs the crawl holds ``lock``. The server and the workers inherit
``members.lock`` from it: if it is killed, the next start waits until all of them have ended. Does not know what the
files hold.

    JOBDIR/fleet/lock, owner           who runs the crawl
    JOBDIR/fleet/members.lock, members who else still has the files open
    JOBDIR/fleet/spider                whose crawl it is
    JOBDIR/fleet/server/               data and log of the server
    JOBDIR/fleet/worker-1/             JOBDIR of the first worker, with spider.state, for example
    JOBDIR/fleet/worker-1.stats        its stats as they last were
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from scrapy_bloom.old.errors import InUseError, UnusableError
from scrapy_bloom.old.files.workers_job import FLEET_NAME, SPIDER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

WAIT_SECONDS = 60.0
"""How long a start waits for the processes of a killed crawl: workers have 30 s to end, see ``crawl_worker``."""

_OF_ONE_PROCESS = ("requests.frontier", "requests.bloom", "requests.queue", "requests.seen")


class CrawlDirectory:
    """The directory of one crawl, locked inside the ``with`` block.

    Args:
        jobdir: The job directory. None: a temporary one, removed at the end.
        spider: Name of the spider.
        on_wait: Called with a line to log when processes of a killed crawl have not ended yet.

    Raises:
        InUseError: On entering; another process runs the crawl, or what is left of one does not end.
        UnusableError: On entering; the directory cannot be used, or holds the crawl of a single process or another
            spider.

    """

    def __init__(self, jobdir: Path | None, spider: str, on_wait: Callable[[str], None]) -> None:
        self._jobdir = jobdir
        self._spider = spider
        self._on_wait = on_wait
        self._stack = ExitStack()
        self._members = -1

    @property
    def inherited(self) -> tuple[int, ...]:
        """File descriptors that every process of the crawl must inherit."""
        return () if self._members < 0 else (self._members,)

    def worker(self, name: str) -> Path:
        """Return the job directory of the worker *name*."""
        return self.path / name

    def numbers(self) -> list[int]:
        """Return the numbers of all workers that have ever had a job directory here."""
        names = (each.name.removeprefix("worker-") for each in self.path.glob("worker-*") if each.is_dir())
        return sorted(int(name) for name in names if name.isdecimal())

    def stats_of(self, name: str) -> Path:
        """Return where the worker *name* keeps its stats."""
        return self.path / f"{name}.stats"

    @property
    def server(self) -> Path:
        """Where the data of the server are."""
        return self.path / "server"

    def note_members(self, members: Mapping[str, int | None]) -> None:
        """Write down the processes of the crawl, by name, for a start that finds them still running."""
        temporary = self.path / "members.new"
        temporary.write_text(json.dumps(dict(members)), encoding="utf-8")
        temporary.replace(self.path / "members")

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _open(self) -> None:
        if self._jobdir is None:
            self.path = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="scrapy-bloom-")))
        else:
            _refuse_job_of_one_process(self._jobdir)
            self.path = self._jobdir / FLEET_NAME
        try:
            # Readable by this user alone: the queue holds cookies and headers of the crawl's requests.
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock()
            self._check_spider()
            self.server.mkdir(exist_ok=True)
        except OSError as error:
            raise UnusableError(
                self.path,
                f"cannot be used: {error.strerror or error}",
                advice="Set JOBDIR to a directory that this user may create or write to, one for each spider.",
            ) from error
        self._wait_for_members()

    def _lock(self) -> None:
        lock = FileLock(self.path / "lock", thread_local=False)
        owner = self.path / "owner"
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InUseError(
                self._jobdir,
                f"is in use by {_read(owner) or 'another process'}",
                advice="Two crawls cannot share a job directory. Stop the other one, or give this one another JOBDIR.",
            ) from None
        self._stack.callback(lock.release)
        owner.write_text(f"process {os.getpid()} on {platform.node()}, since {time.ctime()}\n", encoding="utf-8")

    def _check_spider(self) -> None:
        note = self.path / SPIDER_NAME
        known = _read(note)
        if not known:
            note.write_text(f"{self._spider}\n", encoding="utf-8")
        elif known != self._spider:
            raise UnusableError(
                self._jobdir,
                f"holds the crawl of the spider {known!r}, and this is {self._spider!r}",
                advice="Give each spider a JOBDIR of its own.",
            )

    def _wait_for_members(self) -> None:
        if sys.platform == "win32":
            return  # where no lock can be inherited
        import fcntl

        self._members = os.open(self.path / "members.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._stack.callback(os.close, self._members)
        deadline = time.monotonic() + WAIT_SECONDS
        has_said = False
        while True:
            try:
                fcntl.flock(self._members, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not has_said:
                    has_said = True
                    self._on_wait(f"waiting for what is left of a killed crawl: {self._alive()}")
                if time.monotonic() > deadline:
                    raise InUseError(
                        self._jobdir,
                        f"is still in use by processes of a killed crawl: {self._alive()}",
                        advice="End them, then start again.",
                    ) from None
                time.sleep(0.05)
            else:
                return

    def _alive(self) -> str:
        try:
            members = json.loads(_read(self.path / "members") or "{}")
        except ValueError:
            members = {}
        return ", ".join(f"{name} (process {pid})" for name, pid in members.items() if _is_alive(pid)) or "not known"


def _refuse_job_of_one_process(jobdir: Path) -> None:
    found = next((name for name in _OF_ONE_PROCESS if (jobdir / name).exists()), None)
    if found is None:
        return
    advice = "Finish it with scrapy crawl, or give the workers another JOBDIR, where they begin anew."
    if (jobdir / "fleet" / "spider").is_file():
        advice = (
            f"The crawl of workers in {jobdir / 'fleet'} is untouched: to go on with it, delete "
            f"{jobdir / 'requests.*'}, the crawl of the single process. Or finish that one with scrapy crawl."
        )
    raise UnusableError(
        jobdir, f"holds the crawl of a single process ({found}), which workers cannot go on with", advice=advice
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
