"""A small site on loopback that counts its hits, and a spider for it that runs in processes of their own.

with Site(pages=200) as site, start_worker(site, server.url) as worker: ...
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fleet.servers import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

ROOT = Path(__file__).parents[2]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        site: Site = self.server.site  # type: ignore[attr-defined]
        if self.path == "/robots.txt" and site.robots:
            body, pause = site.robots, None
        else:
            body = site.answer(self.path)
            pause = site.pauses.pop(sum(site.hits.values()), None)
        status = 500 if self.path in {f"/page/{page}" for page in site.broken} else 200 if body else 404
        self.send_response(status if pause is None else 429)
        if pause is not None:
            body = b""
            self.send_header("Retry-After", str(pause))
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a worker that was killed


class Site:
    """Pages 0 to *pages* - 1 under ``/page/<i>``, all reachable from the first, with *links* more links each.

    Nothing is answered but for the first page while :attr:`gate` is closed.
    """

    def __init__(self, pages: int, links: int = 10) -> None:
        self.pages, self.links = pages, links
        self.gate = threading.Event()
        self.gate.set()
        self.hits: Counter[int] = Counter()
        self.moments: list[float] = []
        """When it was asked for each of these pages."""
        self.pauses: dict[int, int] = {}
        """By number of the request: for how many seconds its answer, a 429, asks for a pause."""
        self.robots = b""
        self.seconds = 0.0
        """How long each answer takes."""
        self.broken: set[int] = set()
        """Pages that are answered with 500."""
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.site = self  # type: ignore[attr-defined]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/page/0"

    def answer(self, path: str) -> bytes:
        name = path.rpartition("/")[2]
        if not name.isdecimal() or int(name) >= self.pages:
            return b""
        page = int(name)
        with self._changed:
            self.hits[page] += 1
            self.moments.append(time.time())
            self._changed.notify_all()
        if page:
            self.gate.wait(PATIENCE)
        time.sleep(self.seconds)
        rng = random.Random(page)
        found = [i for i in (2 * page + 1, 2 * page + 2) if i < self.pages]
        found += [rng.randrange(1, self.pages) for _ in range(self.links)]
        return "".join(f'<a href="/page/{i}">to</a>\n' for i in found).encode()

    def wait_for(self, hits: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: sum(self.hits.values()) >= hits, PATIENCE), self.hits

    def missing(self) -> list[int]:
        return [i for i in range(self.pages) if not self.hits[i]]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Worker:
    """A crawl in a process of its own."""

    def __init__(self, url: str, settings: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.fleet.site", url, json.dumps(settings)]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=ROOT)
        self.log = ""

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def finish(self) -> dict[str, Any]:
        """Wait for its end, and return its stats."""
        try:
            out, self.log = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, log = self.process.communicate()
            raise AssertionError(f"the worker hangs:\n{log}") from None
        assert out, self.log
        stats: dict[str, Any] = json.loads(out.splitlines()[-1])
        return stats


@contextmanager
def workers(site: Site, server_url: str, count: int = 1, **settings: Any) -> Iterator[list[Worker]]:
    """Yield *count* workers; those that are left in the list at the end are killed."""
    started = [start(site, server_url, **settings) for _ in range(count)]
    try:
        yield started
    finally:
        for worker in started:
            worker.kill()


def start(site: Site, server_url: str, **settings: Any) -> Worker:
    own = {
        "SCHEDULER": "scrapy_bloom.components.fleet_scheduler.FleetScheduler",
        "DUPEFILTER_CLASS": "scrapy_bloom.components.dupefilter.BloomDupeFilter",
        "BLOOM_REDIS_URL": server_url,
        "BLOOM_CAPACITY": 1000,
        "BLOOM_FLEET_LEASE": 2,
        "CONCURRENT_REQUESTS": 4,
    }
    return Worker(site.url, {**own, **settings})


def _main(url: str, settings: dict[str, Any]) -> None:
    import warnings

    import scrapy
    from scrapy.crawler import CrawlerProcess
    from scrapy.exceptions import ScrapyDeprecationWarning

    if not settings["SCHEDULER"].startswith("scrapy_redis."):  # whose calls into Scrapy are deprecated
        warnings.simplefilter("error", ScrapyDeprecationWarning)

    class SiteSpider(scrapy.Spider):
        name = "site"
        start_urls = (url,)

        def parse(self, response: Any, **_: Any) -> Any:
            yield {"url": response.url}
            yield from response.follow_all(css="a")

    class LambdaSpider(SiteSpider):
        """All of its requests are in the memory of its process only."""

        async def start(self) -> Any:
            for i in range(settings["START_REQUESTS"]):
                yield scrapy.Request(f"{url[:-1]}{i}", lambda response: self.parse(response), dont_filter=not i)

        def parse(self, response: Any, **_: Any) -> Any:
            yield {"url": response.url}
            yield from response.follow_all(css="a", callback=lambda response: self.parse(response))

    process = CrawlerProcess({"TELNETCONSOLE_ENABLED": False, "LOG_LEVEL": "INFO", **settings})
    crawler = process.create_crawler(LambdaSpider if "START_REQUESTS" in settings else SiteSpider)
    process.crawl(crawler)
    process.start()
    print(json.dumps(crawler.stats.get_stats() if crawler.stats else {}, default=str))  # noqa: T201 - the output


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
