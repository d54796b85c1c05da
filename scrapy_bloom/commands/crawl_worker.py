"""One worker of ``scrapy bloom crawl``, in a process of its own: ``python -m scrapy_bloom.commands.crawl_worker``.

It reads an order, one line of JSON, from its standard input, so that no list of arguments shows the server's password,
and does what ``scrapy crawl`` does. Then it watches the pipe: a line is Ctrl-C, and the end of the pipe means that the
process which runs the crawl is gone; the worker ends, too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scrapy import Spider, cmdline, signals
from scrapy.extensions.feedexport import FileFeedStorage
from scrapy.utils.project import get_project_settings

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

ORPHAN_SECONDS = 30.0
"""How long a worker may take to end when the process that runs the crawl is gone."""

STATS = "_BLOOM_WORKER_STATS"
"""Setting that names the file for the final stats."""

_SCRAPYS_FEEDS = "scrapy.extensions.feedexport.FeedExporter"
_HERE = "scrapy_bloom.commands.crawl_worker"


class ItemFile(FileFeedStorage):
    """A local file without a buffer, so that its size says what a kill leaves."""

    def open(self, spider: Spider) -> IO[bytes]:  # noqa: ARG002 - Scrapy's argument
        """Open it for appending."""
        return Path(self.path).open("ab", buffering=0)


class StatsFile:
    """An extension that writes the final stats."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Write the stats of *crawler* when its engine has stopped."""

        def write() -> None:
            stats = {} if crawler.stats is None else crawler.stats.get_stats()
            Path(crawler.settings[STATS]).write_text(json.dumps(stats, default=str), encoding="utf-8")

        crawler.signals.connect(write, signal=signals.engine_stopped, weak=False)
        return cls()


class WorkerAddon:
    """Makes a worker of the crawl, whatever the settings of project and spider are."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Write the items of a page before it is acknowledged, and the stats at the end."""
        extensions = {_SCRAPYS_FEEDS: None, "scrapy_bloom.feeds.FeedExporter": 0, f"{_HERE}.StatsFile": 0}
        for name, place in extensions.items():
            settings["EXTENSIONS"].set(name, place, "cmdline")


def main() -> None:
    """Crawl."""
    pipe = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    line = pipe.readline()
    if not line.endswith(b"\n"):
        sys.exit(1)  # the process that runs the crawl has died before it could say what to do
    order: dict[str, Any] = json.loads(line)
    threading.Thread(target=_obey, args=(pipe, order["has_own_server"]), name="scrapy-bloom pipe", daemon=True).start()
    sys.path[:] = order["path"]
    settings = get_project_settings()
    settings.setdict(order["settings"], "cmdline")
    settings.set("FEED_STORAGES", {"": f"{_HERE}.ItemFile", "file": f"{_HERE}.ItemFile"}, "cmdline")
    settings.set("LOG_FORMAT", f"[{order['name']}] {settings['LOG_FORMAT']}", "cmdline")
    settings.set("LOG_FILE_APPEND", True, "cmdline")
    settings["ADDONS"].set(f"{_HERE}.WorkerAddon", 1_000_000, "cmdline")
    arguments = [word for pair in order["arguments"] for word in ("-a", pair)]
    cmdline.execute(["scrapy", "crawl", order["spider"], *arguments], settings)


def _obey(pipe: IO[bytes], has_own_server: bool) -> None:
    while pipe.readline():
        _interrupt()
    if has_own_server:  # it has ended, too, and takes no more acknowledgements
        os._exit(1)
    threading.Timer(ORPHAN_SECONDS, os._exit, [1]).start()
    _interrupt()


def _interrupt() -> None:
    """Send this process a Ctrl-C once Scrapy handles it: before that, it would be a traceback."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while not str(getattr(signal.getsignal(signal.SIGINT), "__module__", "")).startswith("scrapy."):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
