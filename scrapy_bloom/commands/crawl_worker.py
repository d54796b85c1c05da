"""One worker of ``scrapy bloom crawl``, in a process of its own: ``python -m scrapy_bloom.commands.crawl_worker``.

The worker reads an order, one line of JSON, from its standard input. A command line would show the server's password to
other users. While it crawls, it watches the pipe: each further line stands for Ctrl-C. The end of the pipe means that
the process which runs the crawl is gone. The worker then dies at once, which loses nothing.
"""

from __future__ import annotations

import io
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

from scrapy_bloom.components.fleet_settings import ITEMS
from scrapy_bloom.components.spider_crawl import crawl_of

if TYPE_CHECKING:
    from scrapy import Spider

_HERE = "scrapy_bloom.commands.crawl_worker"


class ItemBuffer(FileFeedStorage):
    """Hands the items of a page to the store, which sends them with the page's acknowledgement."""

    def open(self, spider: Spider) -> IO[bytes]:
        """Return the buffer of the store."""
        crawl = crawl_of(spider.crawler)
        store: Any = None if crawl is None else crawl.store
        # The feed of a worker without items is opened when the store is closed.
        buffer: IO[bytes] = io.BytesIO() if store is None else store.items
        return buffer

    def store(self, file: IO[bytes]) -> None:
        """Do nothing: what is in the buffer then is of pages that are not done."""


def main() -> None:
    """Crawl, and write the final stats to ``stats.json`` in the worker's directory."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(1))  # until Scrapy handles it
    pipe = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    order: dict[str, Any] = json.loads(pipe.readline())
    threading.Thread(target=_obey, args=(pipe,), name="scrapy-bloom pipe", daemon=True).start()
    directory = Path(order["directory"])
    settings = get_project_settings()
    worker_settings = {
        "SCHEDULER": "scrapy_bloom.components.scheduler.FleetScheduler",
        "DUPEFILTER_CLASS": "scrapy_bloom.components.dupefilter.BloomDupeFilter",
        "JOBDIR": str(directory),
        "FEEDS": {"items.jl": {"format": "jsonlines"}} if order["items"] else {},
        "FEED_STORAGES": {"": f"{_HERE}.ItemBuffer"},
        "LOG_FORMAT": f"[{directory.name}] {settings['LOG_FORMAT']}",
        "LOG_FILE_APPEND": True,
        ITEMS: order["items"],
    }
    settings.setdict({**order["settings"], **worker_settings}, "cmdline")
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(order["spider"])
    # Whatever project and spider say: the items of a page go with its acknowledgement.
    feeds = {"scrapy.extensions.feedexport.FeedExporter": None, "scrapy_bloom.FeedExporter": 0}
    crawler.settings.set("EXTENSIONS", {**crawler.settings["EXTENSIONS"], **feeds}, "cmdline")
    process.crawl(crawler, **order["arguments"])
    process.start()
    stats = crawler.stats.get_stats() if crawler.stats is not None else {}
    temporary = directory / "stats.new"
    temporary.write_text(json.dumps(stats, default=str), encoding="utf-8")
    temporary.replace(directory / "stats.json")


def _obey(pipe: IO[bytes]) -> None:
    while pipe.readline():
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(1)


if __name__ == "__main__":
    main()
