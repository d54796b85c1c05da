"""Whole crawls by one worker with its queue on a server: round trips per page, and how long the crawl stands still.

FleetScheduler beside the scheduler of scrapy-redis, with its own filter and with ours. Each crawl runs in a process of
its own, and reaches the server through a proxy that counts round trips and makes them as slow as asked for. All must
fetch the same pages.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks import measure
from benchmarks.crawl import local_root, served
from benchmarks.delaying_proxy import delaying_proxy

if TYPE_CHECKING:
    from collections.abc import Sequence

FLEET = "FleetScheduler"
ONE_AT_A_TIME = f"{FLEET}, CONCURRENT_REQUESTS = 1"
THEIRS = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler"}
SIDES: dict[str, dict[str, Any]] = {
    FLEET: {"SCHEDULER": "scrapy_bloom.FleetScheduler"},
    ONE_AT_A_TIME: {"SCHEDULER": "scrapy_bloom.FleetScheduler", "CONCURRENT_REQUESTS": 1},
    "scrapy-redis, filter of ours": {**THEIRS, "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter"},
    "scrapy-redis, its own filter": {**THEIRS, "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
}
MOST_TRIPS = 1.2


def compare(client: Any, port: int, *, pages: int, links: int, rounds: int, round_trips_ms: Sequence[float]) -> None:
    """Crawl with all sides at each latency, and print a table."""
    sides = dict(SIDES)
    if measure.installed("scrapy-redis").startswith("("):
        print("left out, since it is not installed: scrapy-redis")
        sides = {name: settings for name, settings in sides.items() if "scrapy_redis" not in settings["SCHEDULER"]}
    rows = []
    trips = []
    fetched = set()
    with served(["--pages", str(pages), "--links", str(links)]) as url:
        for milliseconds in round_trips_ms:

            def crawl(name: str, seconds: float = milliseconds / 1000) -> dict[str, Any]:
                client.flushall()
                with delaying_proxy(port, seconds) as proxy:
                    server = f"redis://127.0.0.1:{proxy.port}"
                    settings = {"BLOOM_REDIS_URL": server, "REDIS_URL": server, **sides[name]}
                    found = measure.in_own_process(crawled, url=url, settings=settings)
                return {**found, "trips": proxy.round_trips / found["pages"]}

            results = measure.side_by_side({name: lambda name=name: crawl(name) for name in sides}, rounds)
            for name, found in results.items():
                fetched |= {one["pages"] for one in found}
                cells = [
                    measure.Spread.of([one[figure] for one in found])
                    for figure in ("per_minute", "trips", "blocked_ms", "waited_ms", "longest_ms")
                ]
                rows.append([name, f"{milliseconds:g}", *map(format, cells, (",.0f", ".2f", ".2f", ".2f", ".1f"))])
                trips += [cells[1].median] if name == FLEET else []
    if len(fetched) != 1:
        raise AssertionError(f"not all crawls fetched the same pages: {sorted(fetched)}")
    print(f"\nOne worker, {pages:,} pages with {links} links each, {rounds} crawls of each kind")
    header = ["scheduler and filter", "round trip, ms", "pages a minute", "round trips per page"]
    measure.print_table([*header, "ms in the scheduler per page", "of these waiting", "longest call, ms"], rows)
    measure.print_target("fleet, round trips per page, the worst", max(trips), at_most=MOST_TRIPS)


def crawled(url: str, settings: dict[str, Any]) -> dict[str, float]:
    """Crawl all that *url* leads to, and return how long the crawl stood still in its scheduler."""
    from scrapy import Spider
    from scrapy.crawler import CrawlerProcess
    from scrapy.linkextractors import LinkExtractor
    from scrapy.utils.misc import load_object

    root = local_root(url)
    blocked = waited = longest = 0.0
    pages = 0

    def timed(name: str) -> Any:
        call = getattr(cls, name)

        def method(*arguments: Any) -> Any:
            nonlocal blocked, waited, longest
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return call(*arguments)
            finally:
                cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
                blocked += wall
                waited += max(0.0, wall - cpu)
                longest = max(longest, wall)

        return method

    class LinkSpider(Spider):
        name = "links"
        start_urls = (url,)
        extractor = LinkExtractor(allow=root)

        def parse(self, response: Any) -> Any:
            nonlocal pages
            pages += 1
            yield from response.follow_all(self.extractor.extract_links(response))

    cls = load_object(settings["SCHEDULER"])
    methods = {name: timed(name) for name in ("enqueue_request", "next_request", "has_pending_requests")}
    process = CrawlerProcess(
        {"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False, "ROBOTSTXT_OBEY": False, "DOWNLOAD_DELAY": 0}
        | {"CONCURRENT_REQUESTS_PER_DOMAIN": 16}
        | settings
        | {"SCHEDULER": type(cls.__name__, (cls,), methods)}
    )
    process.crawl(LinkSpider)
    began = time.monotonic()
    process.start()
    elapsed = time.monotonic() - began
    return {
        "pages": pages,
        "per_minute": 60 * pages / elapsed,
        "blocked_ms": 1000 * blocked / pages,
        "waited_ms": 1000 * waited / pages,
        "longest_ms": 1000 * longest,
    }
