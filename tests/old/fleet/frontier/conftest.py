from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.old.support.schedulers import EngineCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.old.support.redis_servers import RedisServer


@pytest.fixture
def open_worker(plain_server: RedisServer, prefix: str) -> Iterator[Callable[..., EngineCalls]]:
    """Return schedulers of workers that share a queue, each with an engine around it."""
    opened: list[EngineCalls] = []

    def open_one(**settings: Any) -> EngineCalls:
        ours = {
            "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
            "BLOOM_REDIS_URL": plain_server.url,
            "BLOOM_REDIS_KEY": prefix,
            "BLOOM_CAPACITY": 1000,
            "CONCURRENT_REQUESTS": 1,
            **settings,
        }
        opened.append(EngineCalls(None, "scrapy_bloom.FleetScheduler", **ours))
        return opened[-1]

    yield open_one
    for one in opened:
        if one.scheduler._courier is not None:
            one.stop()
