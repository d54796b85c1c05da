"""A worker joins the fleet: it locks its directory, connects to the server, and begins to take requests."""

from __future__ import annotations

import atexit
import logging
import secrets
import signal
import socket
import threading
import time
import uuid
from contextlib import ExitStack
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.filter.lock import LOCK_NAME, lock_directory
from scrapy_bloom.fleet.lease import AWAY_SECONDS, LeaseClient
from scrapy_bloom.fleet.server import Server, ServerAwayError
from scrapy_bloom.frontier.store import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

START_SECONDS = 60.0
"""How long the start of a worker waits for a server that is away."""
EXIT_SECONDS = 3.0
"""How long the end of the process waits for the server if nobody has closed the crawl."""


def connect(
    address: Mapping[str, Any],
    directory: Path | None,
    journal_in: Callable[[Path], Journal],
    client_at: Callable[[Server, str, Journal], LeaseClient],
) -> tuple[LeaseClient, ExitStack]:
    """Join the fleet on the server at *address*, which holds arguments of :class:`Server`.

    Locks the worker's *directory*, ``JOBDIR/requests.bloom``, if it has one. *journal_in* opens the journal there, and
    *client_at* makes a client of the server, the worker's name and its journal. Returns the client, and what ends the
    connection. Raises BloomError if the server cannot be used, or its queue is not for this version or these settings.
    """
    with ExitStack() as on_error:
        if directory is not None:  # two workers of one name would take each other's requests
            on_error.enter_context(lock_directory(directory))
        journal = Journal() if directory is None else journal_in(directory)
        name = _name_of(directory)  # with a directory, it is the same worker after each start there

        def join() -> tuple[LeaseClient, ExitStack]:
            with ExitStack() as on_failure:
                server = Server(**address)
                on_failure.callback(server.close)
                server.warn_if_it_forgets()
                client = client_at(server, name, journal)
                client.open()
                on_failure.callback(atexit.unregister, client.close)
                # A process that ends without closing the crawl, as after Ctrl-C twice, has not crashed.
                atexit.register(client.close, EXIT_SECONDS)
                on_error.push(on_failure.pop_all())
                return client, on_error.pop_all()

        return _once_the_server_is_there(join)


def _once_the_server_is_there(join: Callable[[], _T]) -> _T:
    """Return what *join* returns once it raises no ServerAwayError; if that takes too long, let it raise."""
    try:
        return join()
    except ServerAwayError as error:
        logger.warning("The worker waits for its server, %d s at most. %s", START_SECONDS, error)
    deadline = time.monotonic() + START_SECONDS
    # Scrapy's handlers would have no effect before the reactor runs again. Python allows handlers in the main thread.
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        while True:
            time.sleep(AWAY_SECONDS)
            try:
                return join()
            except ServerAwayError:
                if time.monotonic() > deadline:
                    raise
    except KeyboardInterrupt:
        advice = "Start it again once its server is there."
        raise UnusableError("The worker", "was stopped as it waited", advice=advice) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _name_of(directory: Path | None) -> str:
    """Return the name of the worker that has locked *directory*. Two running workers never have the same name.

    A worker that is started again in *directory* has the same name as before, until the machine is started again. In a
    copy of the directory it has another name.
    """
    host, boot = socket.gethostname(), Path("/proc/sys/kernel/random/boot_id")
    if directory is None:
        return f"{host}:{secrets.token_hex(4)}"
    lock = (directory / LOCK_NAME).stat()  # only one process at a time can lock it on one kernel
    kernel = boot.read_text() if boot.exists() else f"{uuid.getnode()}"
    digest = sha1(f"{kernel} {lock.st_dev} {lock.st_ino}".encode(), usedforsecurity=False).hexdigest()
    return f"{host}:{directory.parent} {digest[:8]}"
