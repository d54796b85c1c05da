"""A Redis or Valkey server that belongs to one crawl: :class:`OwnServer` starts it on its own data, and ends it.

Knows no crawl, and restarts nothing by itself. The server listens on 127.0.0.1 only. It gets its password on standard
input, so no command line, file or log has it: only this process, the server, and whoever is given the URL.

The server ends when this process does, however that ends: on Linux the kernel sends it SIGTERM. Elsewhere whoever
knows the URL can call :func:`shut_down`.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.errors import MissingPackageError, UnusableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

HOST = "127.0.0.1"

START_SECONDS = 30.0
"""How long a server may take to answer after its start; reading its data does not count."""

STOP_SECONDS = 30.0
"""How long a server may take to end before it is killed. All its data are on disk by then."""

_JOB_KEY = "scrapy-bloom:job"
_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.02

_CONFIGURATION = """\
port {port}
bind {host}
protected-mode yes
requirepass {password}
appendonly yes
appendfsync always
save ""
maxmemory-policy noeviction
daemonize no
"""
# appendfsync always: under everysec a reply may leave up to 2 s before its write, when the disk is slow; a server that
# is killed then would come back without links that workers count as delivered. It costs 2 ms per round trip here.


class OwnServer:
    """A server on the data in *directory*.

    Args:
        directory: An existing directory that only servers of this class have used.
        executable: The program, see :func:`~scrapy_bloom.old.fleet.server_executable.server_executable`.
        inherited: File descriptors that stay open in the server, such as that of a lock.

    """

    def __init__(self, directory: Path, executable: str, inherited: Sequence[int] = ()) -> None:
        self.directory = directory
        self.executable = executable
        self.log = directory / "server.log"
        self._inherited = inherited
        self._password = secrets.token_hex(24)
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is, with the password; the same after it was started again."""
        return f"redis://:{self._password}@{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Its process, while it has one."""
        return None if self._process is None else self._process.pid

    def start(self, is_unwanted: Callable[[], bool] = lambda: False) -> None:
        """Start it, and wait until it has read its data and answers, or until it *is_unwanted*.

        Call it in the main thread: the server ends with the thread that starts it.

        Raises:
            UnusableError: It does not start, or its data are not those that it had.
            MissingPackageError: redis-py is not installed.

        """
        attempts = 1 if self._port else 3
        for left in range(attempts, 0, -1):
            port = self._port or _free_port()
            self._launch(port)
            if self._has_answered(port, is_unwanted):
                self._port = port
                if not is_unwanted():
                    self._check_data()
                return
            said = self._last_words()
            if left > 1 and "in use" in said.lower():  # another program took the port in between
                continue
            raise UnusableError(
                f"The server {self.executable}",
                f"has not started on {self.directory}: {said or 'it said nothing'}",
                advice=f"See {self.log}. If the data were written by another version, put that one on the PATH.",
            )

    def has_ended(self) -> bool:
        """Return whether it has ended by itself, or was killed."""
        return self._process is not None and self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; a negative one is the signal that killed it."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """End it, and wait for that."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _launch(self, port: int) -> None:
        configuration = _CONFIGURATION.format(port=port, host=HOST, password=self._password)
        options: dict[str, Any] = {}
        if os.name == "posix":
            # Its own session: Ctrl-C in a terminal must not end it before the workers have delivered what they did.
            options = {
                "start_new_session": True,
                "pass_fds": tuple(self._inherited),
                "preexec_fn": _ends_with_parent(os.getpid()),
            }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the program found on this machine
                [self.executable, "-"], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self.directory, **options
            )
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        with suppress(OSError):  # it has ended already; what it said is in its log
            self._process.stdin.write(configuration.encode())
            self._process.stdin.close()

    def _has_answered(self, port: int, is_unwanted: Callable[[], bool]) -> bool:
        try:
            from redis.exceptions import BusyLoadingError, RedisError
        except ImportError:
            raise MissingPackageError("redis", "fleet", "A crawl with workers") from None
        deadline = time.monotonic() + START_SECONDS
        with _client(port, self._password) as client:
            while not self.has_ended() and time.monotonic() < deadline and not is_unwanted():
                try:
                    client.ping()
                except BusyLoadingError:
                    deadline = time.monotonic() + START_SECONDS
                except RedisError:
                    pass  # not listening yet, or another program
                else:
                    return not self.has_ended()
                time.sleep(_LOOK_SECONDS)
        if is_unwanted() and not self.has_ended():
            return True
        self.stop()
        return False

    def _check_data(self) -> None:
        """Check that the server has read back what was written before.

        An older version does not find the data that a newer one has written, and begins empty.
        """
        note = self.directory / "job-id"
        with _client(self._port, self._password) as client:
            found = client.get(_JOB_KEY)
            known = note.read_text(encoding="ascii").strip().encode() if note.exists() else None
            # An empty note is of a start that was killed while it wrote that; the server had its id before.
            if known is None or (not known and found):
                client.set(_JOB_KEY, found or secrets.token_hex(8), nx=True)
                note.write_text(client.get(_JOB_KEY).decode(), encoding="ascii")
            elif found != known:
                self.stop()
                raise UnusableError(
                    f"The queue in {self.directory}",
                    f"is not there: {self.executable} has read nothing of it",
                    advice="If another version of the server wrote it, put that one on the PATH; or restore the "
                    "directory from a backup, whole. With another JOBDIR the crawl begins anew.",
                )

    def _last_words(self) -> str:
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return " / ".join(lines[-2:]).replace(self._password, "***")


def shut_down(url: str) -> None:
    """Ask the server at *url* to end, and do not wait for it. One that is gone already is no error."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError
    from redis.retry import Retry

    with suppress(RedisError, OSError), Redis.from_url(url, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)) as client:
        client.shutdown(nosave=True)


def _client(port: int, password: str) -> Any:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return Redis(host=HOST, port=port, password=password, protocol=2, socket_timeout=5.0, retry=Retry(NoBackoff(), 0))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _ends_with_parent(parent: int) -> Callable[[], None] | None:
    """Return a function that makes a new process get SIGTERM when this one dies; None if the system has none."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # found before the fork, after which little is safe

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has died meanwhile
            os._exit(1)

    return end_with_parent
