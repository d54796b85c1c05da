"""Tells where a crawl's scheduler keeps its requests, as seen from the filter's server: :func:`queue_place`.

Knows classes and settings. Does not connect to anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.utils.misc import load_object

from scrapy_bloom.old.fleet.address import is_same_server, server_of
from scrapy_bloom.old.fleet.filter.backlog import QueuePlace

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from scrapy_bloom.old.fleet.address import Address


def queue_place(settings: BaseSettings, server: Address) -> QueuePlace:
    """Return where the scheduler of *settings* puts a request that the filter on *server* has let through.

    What counts is whose ``enqueue_request()`` it uses: Scrapy's and our durable queue's keep requests in the process or
    its job directory, scrapy-redis' sends them to its server, and any other may do anything.
    """
    enqueue_request = getattr(load_object(settings["SCHEDULER"]), "enqueue_request", None)
    module = str(getattr(enqueue_request, "__module__", ""))
    if module == "scrapy.core.scheduler" or module.startswith("scrapy_bloom.old.frontier."):
        return QueuePlace.HERE
    if module.startswith("scrapy_redis.") and is_same_server(server, server_of(None, settings)):
        return QueuePlace.ON_THE_SERVER
    return QueuePlace.ELSEWHERE
