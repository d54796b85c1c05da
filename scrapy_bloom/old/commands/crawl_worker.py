"""One worker of ``scrapy bloom crawl``, in a process of its own: ``python -m scrapy_bloom.old.commands.crawl_worker``.

It reads one line of JSON from its standard input, an :class:`Order`, and does what ``scrapy crawl`` does. Then it
watches the pipe: the line ``stop`` is Ctrl-C; the end of the pipe means that the process which runs the crawl is gone,
and the worker ends, too. Does not know the other workers.

Settings come with the order, not as arguments: they hold the server's password, and anybody can list arguments.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import cmdline, signals
from scrapy.utils.misc import load_object
from scrapy.utils.project import get_project_settings

from scrapy_bloom.old.commands.crawl_feeds import share_feeds
from scrapy_bloom.old.fleet.own_server import shut_down

if TYPE_CHECKING:
    from typing import BinaryIO

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

ORPHAN_SECONDS = 30.0
"""How long a worker may take to end when the process that runs the crawl is gone, before it ends at once."""

STATS_SECONDS = 1.0
"""Seconds between two writes of a worker's stats: a kill loses the counts since the last one."""

SCHEDULER = "scrapy_bloom.FleetScheduler"
"""Of each worker, unless the settings name a subclass of it."""

STOP = b"stop\n"

_LOOK_SECONDS = 0.02
_ADD_ON = "scrapy_bloom.Addon"


class Order(NamedTuple):
    """What a worker has to do."""

    name: str
    """Of the worker, such as ``worker-1``."""
    spider: str
    arguments: dict[str, str]
    """The spider's, as of ``-a``."""
    settings: dict[str, Any]
    """As of ``-s``."""
    output: list[str]
    overwrite_output: list[str]
    stats: str
    """File for the stats."""
    own_server: str
    """URL of the server to shut down if the process that runs the crawl is gone; "" for none."""
    path: list[str]
    """Where modules are found: the project, above all."""

    def line(self) -> bytes:
        """Return the order as a line of JSON."""
        return json.dumps(self._asdict()).encode() + b"\n"


def main() -> None:
    """Crawl."""
    pipe = _life_line(sys.stdin.fileno())
    line = pipe.readline()
    if not line.endswith(b"\n"):
        sys.exit(1)  # the process that runs the crawl has died before it could say what to do
    order = Order(**json.loads(line))
    threading.Thread(target=_obey, args=(pipe, order.own_server), name="scrapy-bloom life line", daemon=True).start()
    sys.path[:] = order.path
    settings = get_project_settings()
    settings.setdict(order.settings, "cmdline")
    settings.set("LOG_FILE_APPEND", True, "cmdline")
    settings.set("LOG_FORMAT", f"[{order.name}] {settings['LOG_FORMAT']}", "cmdline")
    add_on = _worker_add_on(order)
    settings.setdefault_in_component_priority_dict("ADDONS", load_object(_ADD_ON), 300)
    settings.setdefault_in_component_priority_dict("ADDONS", add_on, 1_000_000)
    command = ["scrapy", "crawl", order.spider]
    command += [word for name, value in order.arguments.items() for word in ("-a", f"{name}={value}")]
    command += [word for name in order.output for word in ("-o", name)]
    command += [word for name in order.overwrite_output for word in ("-O", name)]
    cmdline.execute(command, settings)


def is_fleet_scheduler(settings: BaseSettings) -> bool:
    """Return whether the scheduler of *settings* is :data:`SCHEDULER` or a subclass of it."""
    return issubclass(load_object(settings["SCHEDULER"]), load_object(SCHEDULER))


def _worker_add_on(order: Order) -> type:
    """Return an add-on that makes a worker of the crawl: it comes after the settings of the spider and of others."""

    class WorkerAddon:
        def update_settings(self, settings: BaseSettings) -> None:
            if not is_fleet_scheduler(settings):
                settings.set("SCHEDULER", SCHEDULER, "cmdline")
            share_feeds(settings, order.name)
            settings.setdefault_in_component_priority_dict("EXTENSIONS", _stats_file(Path(order.stats)), 0)

    return WorkerAddon


def _stats_file(path: Path) -> type:
    """Return an extension that keeps the crawl's stats in the file at *path*."""

    class StatsFile:
        def __init__(self, crawler: Crawler) -> None:
            self._crawler = crawler
            self._end = threading.Event()
            self._thread = threading.Thread(target=self._keep, name="scrapy-bloom stats", daemon=True)
            crawler.signals.connect(self._thread.start, signals.engine_started)
            crawler.signals.connect(self._finish, signals.engine_stopped)

        @classmethod
        def from_crawler(cls, crawler: Crawler) -> StatsFile:
            return cls(crawler)

        def _keep(self) -> None:
            while not self._end.wait(STATS_SECONDS):
                self._write()

        def _finish(self) -> None:
            self._end.set()
            self._thread.join()
            self._write()

        def _write(self) -> None:
            stats = self._crawler.stats
            found = dict(stats.get_stats()) if stats is not None else {}
            temporary = path.with_name(f"{path.name}.new")
            try:
                temporary.write_text(json.dumps(found, default=str), encoding="utf-8")
                temporary.replace(path)
            except OSError as error:
                logger.warning("%s cannot be written, and the summary of the crawl lacks it: %s", path, error)

    return StatsFile


def _life_line(descriptor: int) -> BinaryIO:
    """Return the pipe at *descriptor*, unbuffered: what follows the first line is for another thread to read.

    Whoever reads the standard input from now on finds it empty.
    """
    pipe = os.fdopen(os.dup(descriptor), "rb", buffering=0)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is needed
        os.dup2(nothing.fileno(), descriptor)
    return pipe


def _obey(pipe: BinaryIO, own_server: str) -> None:
    for line in iter(pipe.readline, b""):
        if line == STOP:
            _interrupt()
    # On a thread of its own: Scrapy may be busy in a callback, or have nobody to answer a signal.
    threading.Timer(ORPHAN_SECONDS, os._exit, [1]).start()
    logger.warning("The process that runs this crawl is gone; this worker ends, too. The next start goes on from here.")
    if own_server:
        shut_down(own_server)
    _interrupt()


def _interrupt() -> None:
    """Send this process a Ctrl-C once Scrapy handles it: before that, it would be a traceback."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while not _is_handled(signal.getsignal(signal.SIGINT)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    if hasattr(signal, "pthread_kill"):
        main_thread = threading.main_thread().ident
        if main_thread is not None:
            signal.pthread_kill(main_thread, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)


def _is_handled(handler: object) -> bool:
    """Return whether *handler* is Scrapy's or a spider's; Twisted's, a moment before, would stop without closing."""
    by_default = handler in (signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL, None)
    return not by_default and not str(getattr(handler, "__module__", "")).startswith("twisted.")


if __name__ == "__main__":
    main()
