from collections.abc import Iterator
from typing import Any

import pytest

from scrapy_bloom.fleet import lease
from tests.fleet.engine import Join, Worker
from tests.fleet.servers import RedisServer, redis_cluster
from tests.support.crawls import IMPATIENT


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers of this process ask their server again soon."""
    monkeypatch.setattr("scrapy_bloom.fleet.connection.AWAY_SECONDS", 0.02)
    for name, seconds in IMPATIENT.items():
        monkeypatch.setattr(lease, name, seconds)


@pytest.fixture
def join(server: RedisServer) -> Iterator[Join]:
    """Let workers join the fleet on the server; they leave it at the end."""
    joined: list[Worker] = []

    def join(url: str = server.url, **options: Any) -> Worker:
        joined.append(Worker(url, **options))
        return joined[-1]

    yield join
    for worker in joined:
        worker.leave()


@pytest.fixture
def mortal(tmp_path: Any) -> Iterator[RedisServer]:
    """A server that may be killed."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture
def cluster(shared_cluster: list[RedisServer]) -> list[RedisServer]:
    """The nodes of an empty cluster, which may be killed and started again."""
    for node in shared_cluster:
        with node.client() as client:
            client.flushall()
    return shared_cluster
