from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fleet.servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> Iterator[RedisServer]:
    """An empty server, for tests that do not kill it."""
    with shared_server.client() as client:
        client.flushall()
        client.config_set("maxmemory", 0)
        yield shared_server


@pytest.fixture
def mortal(tmp_path: Any) -> Iterator[RedisServer]:
    """A server that may be killed."""
    with RedisServer(tmp_path / "redis") as server:
        yield server
