"""A worker joins the fleet: it locks its directory, connects to the server, and begins to take requests."""

from __future__ import annotations

import asyncio
import atexit
import logging
import secrets
import socket
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.utils.reactor import is_reactor_installed

from scrapy_bloom.filter.lock import LOCK_NAME, lock_directory
from scrapy_bloom.fleet.lease import AWAY_SECONDS, LeaseClient, Worker
from scrapy_bloom.fleet.queue import Queue
from scrapy_bloom.fleet.server import Server, ServerAwayError, address_of, key_of
from scrapy_bloom.fleet.takeover import warn_of_scrapy_redis
from scrapy_bloom.frontier.journal import Journal
from scrapy_bloom.frontier.pages_per_host import PagesPerHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

    from scrapy_bloom.fleet.politeness import Politeness
    from scrapy_bloom.frontier.order import Order
    from scrapy_bloom.settings import BloomSettings
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

ITEMS = "_BLOOM_FLEET_ITEMS"
"""Setting by which ``scrapy bloom crawl`` names the list on the server that its workers' items go to: not for users."""
START_SECONDS = 60.0
"""How long the start of a worker waits for a server that is away."""
EXIT_SECONDS = 3.0
"""How long the end of the process waits for the server if nobody has closed the crawl."""
UNLIMITED = 100
"""Number of concurrent requests that is assumed if ``CONCURRENT_REQUESTS`` is 0, which means no limit."""


@dataclass(frozen=True)
class Connection:
    """What connects one worker to the fleet."""

    queue: Queue
    client: LeaseClient
    journal: Journal
    """Of the worker's own feeds; one that notes nothing if it has no job directory."""
    on_close: ExitStack
    process: str = field(default_factory=partial(secrets.token_hex, 4))
    """Tells this process from others."""


def connect(
    crawler: Crawler,
    settings: BloomSettings,
    fingerprints: Fingerprints,
    politeness: Politeness,
    order: Order,
    *,
    wake: Callable[[], None],
    open_journal: Callable[[Path], Journal] | None,
    has_start: bool,
) -> Connection:
    """Join the fleet of *settings*, and lock the job directory of *crawler*, if it has one.

    Raises:
        BloomError: The server cannot be used, or its queue is not for this version or these settings.

    """
    scrapy_settings, name = crawler.settings, crawler.spider.name if crawler.spider is not None else "spider"
    directory = Path(scrapy_settings["JOBDIR"]).absolute() / "requests.bloom" if scrapy_settings["JOBDIR"] else None
    journal = Journal()
    with ExitStack() as on_error:
        if directory is not None:  # two workers of one name would take each other's requests
            on_error.enter_context(lock_directory(directory))
            if open_journal is not None:
                journal = open_journal(directory)
        options = {
            "lease_seconds": settings.fleet_lease,
            "politeness": politeness,
            "pages": PagesPerHost.of(settings.pages_per_host, order),
            "start_urls": key_of(settings.fleet_start_urls, name) if settings.fleet_start_urls else None,
            "items": scrapy_settings.get(ITEMS, ""),
            "has_start": has_start,
        }
        ahead = 2 * (scrapy_settings.getint("CONCURRENT_REQUESTS") or UNLIMITED)
        per_slot = scrapy_settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
        # With a job directory, it is the same worker after each start there.
        worker = Worker(*_identity_of(directory), ahead, per_slot)

        def join() -> Connection:
            with ExitStack() as on_failure:
                server = Server(**address_of(settings.redis_url, scrapy_settings))
                on_failure.callback(server.close)
                server.warn_if_it_forgets()
                warn_of_scrapy_redis(server, scrapy_settings, name)
                queue = Queue.of(server, settings, fingerprints, name, **options)
                queue.begin()
                client = LeaseClient(queue, worker, news=_in_crawl(wake), journal=journal, can_start=has_start)
                client.open()
                on_failure.callback(atexit.unregister, client.close)
                # A process that ends without closing the crawl, as after Ctrl-C twice, has not crashed.
                atexit.register(client.close, EXIT_SECONDS)
                on_error.push(on_failure.pop_all())
                return Connection(queue, client, journal, on_error.pop_all())

        return _once_the_server_is_there(join)


def _once_the_server_is_there(join: Callable[[], Connection]) -> Connection:
    """Return what *join* returns once it raises no ServerAwayError; if that takes too long, let it raise."""
    deadline, has_warned = time.monotonic() + START_SECONDS, False
    while True:
        try:
            return join()
        except ServerAwayError as error:
            if time.monotonic() > deadline:
                raise
            if not has_warned:
                has_warned = True
                logger.warning("The worker waits for its server, %d s at most. %s", START_SECONDS, error)
            time.sleep(AWAY_SECONDS)


def _identity_of(directory: Path | None) -> tuple[str, str]:
    """Return the name of the worker that has locked *directory*, and a text that tells the directory from a copy.

    Two running workers never have both in common: only one process at a time can lock the file on one kernel.
    """
    host, boot = socket.gethostname(), Path("/proc/sys/kernel/random/boot_id")
    if directory is None:
        return f"{host}:{secrets.token_hex(4)}", ""
    path, lock = directory / "worker", (directory / LOCK_NAME).stat()
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    kernel = boot.read_text().strip() if boot.exists() else f"{host} {uuid.getnode()}"
    return f"{host}:{directory.parent} {path.read_text()}", f"{kernel} {lock.st_dev} {lock.st_ino}"


def _in_crawl(call: Callable[[], None]) -> Callable[[], object]:
    """Return a function that makes the crawl's thread call *call*, whichever thread calls it."""
    try:
        return partial(asyncio.get_running_loop().call_soon_threadsafe, call)
    except RuntimeError:
        if not is_reactor_installed():  # a store that is used on its own
            return lambda: None
        from twisted.internet import reactor

        of_reactor: Any = reactor  # its type depends on which one is installed
        return partial(of_reactor.callFromThread, call)
