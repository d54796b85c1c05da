"""One worker of ``scrapy bloom crawl``, in a process of its own: ``python -m scrapy_bloom.commands.crawl_worker``.

It reads an order, one line of JSON, from its standard input, so that no list of arguments shows the server's password,
and crawls. Then it watches the pipe: a line is Ctrl-C, and the end of the pipe means that the process which runs the
crawl is gone; the worker dies at once then, which loses nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scrapy.crawler import CrawlerProcess
from scrapy.extensions.feedexport import FileFeedStorage
from scrapy.utils.project import get_project_settings

from scrapy_bloom.fleet.store import ITEMS

if TYPE_CHECKING:
    from scrapy import Spider

_HERE = "scrapy_bloom.commands.crawl_worker"


class ItemFile(FileFeedStorage):
    """A local file without a buffer, so that its size says what a kill leaves."""

    def open(self, spider: Spider) -> IO[bytes]:  # noqa: ARG002 - Scrapy's argument
        """Open it for appending."""
        return Path(self.path).open("ab", buffering=0)


def main() -> None:
    """Crawl, and write the final stats to ``stats.json`` in the worker's directory."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(1))  # until Scrapy handles it
    pipe = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    order: dict[str, Any] = json.loads(pipe.readline())
    threading.Thread(target=_obey, args=(pipe,), name="scrapy-bloom pipe", daemon=True).start()
    directory = Path(order["directory"])
    items = str(directory / "items.jl")
    settings = get_project_settings()
    own = {
        "SCHEDULER": "scrapy_bloom.fleet_scheduler.FleetScheduler",
        "DUPEFILTER_CLASS": "scrapy_bloom.dupefilter.BloomDupeFilter",
        "JOBDIR": str(directory),
        "FEEDS": {items: {"format": "jsonlines"}},
        "FEED_STORAGES": {"": f"{_HERE}.ItemFile", "file": f"{_HERE}.ItemFile"},
        "LOG_FORMAT": f"[{directory.name}] {settings['LOG_FORMAT']}",
        "LOG_FILE_APPEND": True,
        ITEMS: items,
    }
    settings.setdict({**order["settings"], **own}, "cmdline")
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(order["spider"])
    # Whatever project and spider say: the items of a page are written before it is acknowledged.
    crawler.settings["EXTENSIONS"].set("scrapy.extensions.feedexport.FeedExporter", None, "cmdline")
    crawler.settings["EXTENSIONS"].set("scrapy_bloom.feeds.FeedExporter", 0, "cmdline")
    process.crawl(crawler, **order["arguments"])
    process.start()
    stats = crawler.stats.get_stats() if crawler.stats is not None else {}
    (directory / "stats.json").write_text(json.dumps(stats, default=str), encoding="utf-8")


def _obey(pipe: IO[bytes]) -> None:
    while pipe.readline():
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(1)


if __name__ == "__main__":
    main()
