"""Arguments that name a job directory or the queue of a fleet, and the connection to such a queue."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from scrapy_bloom.fleet.shared_queue import SharedQueue


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments JOBDIR, which may be a server, and KEY."""
    parser.add_argument("directory", metavar="JOBDIR", help="or the redis:// server of a fleet")
    parser.add_argument("key", metavar="KEY", nargs="?", default="", help="of a fleet's queue, such as bloom:books")


@contextmanager
def queue_of(options: argparse.Namespace) -> Iterator[SharedQueue]:
    """Open the queue that the arguments name. Raises UnusableError if there is none."""
    from scrapy_bloom.fleet.server import Server
    from scrapy_bloom.fleet.shared_queue import SharedQueue  # imports redis, which is optional

    with closing(Server(options.directory)) as server:
        yield SharedQueue(server, options.key)
