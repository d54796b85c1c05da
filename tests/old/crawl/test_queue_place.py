from __future__ import annotations

from typing import Any

import pytest
from scrapy.core.scheduler import Scheduler
from scrapy.settings import Settings
from scrapy_redis.scheduler import Scheduler as ScrapyRedisScheduler

from scrapy_bloom.old.crawl.queue_place import queue_place
from scrapy_bloom.old.fleet.address import is_same_server, server_of
from scrapy_bloom.old.fleet.filter.backlog import QueuePlace


class Subclass(Scheduler):
    """Changes nothing about where requests are."""


class Elsewhere(Scheduler):
    def enqueue_request(self, request: Any) -> bool:
        return super().enqueue_request(request)


class RedisSubclass(ScrapyRedisScheduler):  # type: ignore[misc] - scrapy-redis has no types
    pass


HERE, ON_THE_SERVER, ELSEWHERE = QueuePlace.HERE, QueuePlace.ON_THE_SERVER, QueuePlace.ELSEWHERE


@pytest.mark.parametrize(
    ("scheduler", "settings", "expected"),
    [
        ("scrapy.core.scheduler.Scheduler", {}, HERE),
        ("scrapy_bloom.DurableScheduler", {}, HERE),
        (Subclass, {}, HERE),
        (Elsewhere, {}, ELSEWHERE),
        ("scrapy_redis.scheduler.Scheduler", {"REDIS_HOST": "10.0.0.1"}, ON_THE_SERVER),
        (RedisSubclass, {"REDIS_URL": "redis://10.0.0.1/5", "url": "redis://:secret@10.0.0.1:6379"}, ON_THE_SERVER),
        (RedisSubclass, {"url": "redis://127.0.0.1:6379"}, ON_THE_SERVER),
        (RedisSubclass, {"REDIS_HOST": "10.0.0.1", "url": "redis://10.0.0.2"}, ELSEWHERE),
        (RedisSubclass, {"url": "redis://localhost:6380"}, ELSEWHERE),
        (object, {}, ELSEWHERE),
    ],
)
def test_where_a_scheduler_keeps_its_requests(
    scheduler: object, settings: dict[str, str], expected: QueuePlace
) -> None:
    """Only Scrapy's queues and our own are in the process; whoever enqueues by code of their own may do anything."""
    url = settings.pop("url", None)
    chosen = Settings({"SCHEDULER": scheduler, **settings})
    assert queue_place(chosen, server_of(url, chosen)) is expected


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://a", "redis://A:6379/3", True),
        ("redis://a:port", "redis://a", True),
        ("rediss://u:p@[::1]:7000", "redis://localhost:7000", True),
        ("unix:///run/redis.sock?db=1", "unix://user@/run/redis.sock", True),
        ("unix:///run/redis.sock", "redis://localhost", False),
        ("redis://a:1", "redis://a:2", False),
    ],
)
def test_addresses_of_one_server(one: str, other: str, same: bool) -> None:
    """Host and port decide, or the path of a socket."""
    settings = Settings()
    assert is_same_server(server_of(one, settings), server_of(other, settings)) is same
