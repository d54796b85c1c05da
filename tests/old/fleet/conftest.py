from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom.old.fleet.client import connect
from scrapy_bloom.old.fleet.filter.backlog import QueuePlace
from scrapy_bloom.old.fleet.filter.fleet_filter import FleetFilter
from scrapy_bloom.old.fleet.filter.shared import SharedFilter
from tests.old.support.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_numbers = itertools.count()


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis without modules, that no test may kill."""
    with RedisServer(tmp_path_factory.mktemp("plain")) as server:
        yield server


@pytest.fixture(scope="session")
def bloom_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis with the bloom module, that no test may kill."""
    with RedisServer(tmp_path_factory.mktemp("bloom"), bloom=True) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test uses."""
    return f"test{next(_numbers)}"


@pytest.fixture(params=["bitmap", "bf"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest, engine: str) -> RedisServer:
    """The shared server that has the engine."""
    found: RedisServer = request.getfixturevalue("bloom_server" if engine == "bf" else "plain_server")
    return found


@pytest.fixture
def open_shared(request: pytest.FixtureRequest, prefix: str) -> Iterator[Callable[..., SharedFilter]]:
    """Return filters as further processes would open them, on connections of their own."""
    opened = []
    # In a test over both engines, the one it is at: auto would avoid bf for layers as small as tests want them.
    at = {"engine": request.getfixturevalue("engine")} if "engine" in request.fixturenames else {}

    def open_one(url: str, **options: object) -> SharedFilter:
        settings = {"capacity": 100, "error_rate": 1e-6, "growth": 2.0, "key_space": {}, **at, **options}
        shared = SharedFilter(connect(url, {}), prefix, **settings)
        opened.append(shared)
        shared.open()
        return shared

    yield open_one
    for shared in opened:
        shared.server.close()


@pytest.fixture
def open_fleet(open_shared: Callable[..., SharedFilter]) -> Callable[..., FleetFilter]:
    """Return opened filters with a local one in front."""

    def open_one(
        url: str,
        *,
        on_error: str = "retry",
        on_away: Callable[[], None] | None = None,
        queue: QueuePlace = QueuePlace.HERE,
        local_age: float | None = None,
        **options: object,
    ) -> FleetFilter:
        shared = open_shared(url, **options)
        fleet = FleetFilter(
            shared,
            capacity=1000,
            error_rate=1e-7,
            growth=2.0,
            local_age=local_age,
            on_error=on_error,
            on_away=on_away,
            queue=queue,
        )
        fleet.open()
        return fleet

    return open_one
