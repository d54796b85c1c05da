"""A Redis server of a benchmark's own, on a free port of 127.0.0.1, without persistence."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def redis_server() -> Iterator[tuple[str, Any]]:
    """Run a server; yield its URL and a client."""
    from scrapy_bloom.fleet.own_server import server_executable  # not of the old version that a process measures

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        command = [server_executable(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
        patience = Retry(ConstantBackoff(0.02), 1_000)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                with Redis(port=port, protocol=2, retry=patience) as client:
                    client.ping()
                    yield f"redis://127.0.0.1:{port}", client
            finally:
                process.kill()
