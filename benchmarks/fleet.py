"""A fleet's queue and filter: whole crawls, and time, round trips and the server's time and bytes of the filter alone.

Starts a server on 127.0.0.1, where a round trip takes some 50 microseconds of which most is Python's. On a network it
takes 200 to 500, and the number of them is what counts. Times are by the clock, since client and server wait for each
other, except for those that the server measures itself.
"""

from __future__ import annotations

import contextlib
import io
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request, Spider
from scrapy.utils.misc import load_object
from scrapy.utils.reactor import install_reactor
from scrapy.utils.test import get_crawler

from benchmarks import fleet_crawls, measure
from benchmarks.redis_server import bloom_module, redis_server
from scrapy_bloom.old.fleet.client import connect
from scrapy_bloom.old.fleet.filter.shared import SharedFilter
from scrapy_bloom.old.redis_dupefilter import RedisBloomDupeFilter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

DUPLICATES = 0.9
_RIVALS = {
    "scrapy-redis": "scrapy_redis.dupefilter.RFPDupeFilter",
    "scrapy-redis-bloomfilter": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter",
}
_BATCH = 10_000


class SiteSpider(Spider):
    """Gives the Redis keys their name."""

    name = "site"


class Cost(NamedTuple):
    """What one filter cost in one round."""

    micros: float
    """Per request, by the clock."""
    server_micros: float
    """Of the server, per new URL."""
    trips: float
    """Per request."""
    new: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--urls", type=int, default=2000, help="URLs per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--memory-urls", type=int, default=200_000, help="for the bytes (default: %(default)s)")
    parser.add_argument("--pages", type=int, default=150, help="of the whole crawls; 0: none (default: %(default)s)")
    parser.add_argument("--links", type=int, default=60, help="on each of them (default: %(default)s)")
    parser.add_argument("--crawls", type=int, default=1, help="of each kind (default: %(default)s)")
    parser.add_argument(
        "--round-trip-ms",
        type=float,
        nargs="+",
        default=[0.0, 2.0],
        metavar="MS",
        help="latency added for the crawls, there and back (default: 0 2)",
    )
    parser.add_argument(
        "--large",
        action="store_true",
        help="the same as --urls 20000 --memory-urls 1000000 --pages 300 --crawls 3",
    )


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print the tables."""
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")  # Scrapy 2.13 asks which one it is
    urls, memory_urls = (20_000, 1_000_000) if options.large else (options.urls, options.memory_urls)
    pages, crawls = (300, 3) if options.large else (options.pages, options.crawls)
    measure.print_environment("scrapy", "redis", *_RIVALS)
    engines = ("bitmap", "bf") if bloom_module() else ("bitmap",)
    with redis_server() as (url, client):
        info = client.info("server")
        print(
            f"Redis {info['redis_version']}"
            + (f", Valkey {info['valkey_version']}" if "valkey_version" in info else "")
        )
        filters: dict[str, Callable[[], Any]] = {f"scrapy-bloom, {one}": partial(_ours, url, one) for one in engines}
        for name, path in _RIVALS.items():
            try:
                load_object(path)
            except ImportError:
                print(f"left out, since it is not installed: {name}")
            else:
                filters[name] = partial(_theirs, path, url)
        costs = _compare_time(client, filters, urls, options.rounds)
        _compare_memory(url, client, engines, memory_urls)
        if pages:
            fleet_crawls.compare(
                client,
                client.connection_pool.connection_kwargs["port"],
                pages=pages,
                links=options.links,
                rounds=crawls,
                round_trips_ms=options.round_trip_ms,
            )
    return measure.Picture("The filter of a fleet", "us per request", costs)


def _workload(urls: int, seed: int) -> list[str]:
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


def _ours(url: str, engine: str) -> RedisBloomDupeFilter:
    crawler = get_crawler(SiteSpider, {"BLOOM_REDIS_URL": url, "BLOOM_REDIS_ENGINE": engine})
    dupefilter = RedisBloomDupeFilter.from_crawler(crawler)
    dupefilter.open()
    return dupefilter


def _theirs(path: str, url: str) -> Any:
    """Build a filter as the scheduler of scrapy-redis does."""
    spider = SiteSpider.from_crawler(get_crawler(SiteSpider, {"REDIS_URL": url}))
    with contextlib.redirect_stdout(io.StringIO()):  # one of them prints its settings
        return load_object(path).from_spider(spider)


def _compare_time(
    client: Any, filters: dict[str, Callable[[], Any]], urls: int, rounds: int
) -> dict[str, measure.Spread]:
    orders = [_workload(urls, seed) for seed in range(rounds)]

    def side(name: str) -> Callable[[], Cost]:
        left = iter(orders)
        return lambda: _cost(filters[name], client, next(left))

    results = measure.side_by_side({name: side(name) for name in filters}, rounds)
    first, *_ = results
    base = [one.micros for one in results[first]]
    rows = []
    for name, costs in results.items():
        micros = measure.Spread.of([one.micros for one in costs])
        rows.append(
            [
                name,
                f"{measure.ratios([one.micros for one in costs], base):.2f}",
                f"{micros.median:.0f}",
                f"{measure.Spread.of([one.server_micros for one in costs]).median:.1f}",
                f"{measure.Spread.of([one.server_micros for one in costs]).low:.1f}",
                f"{measure.Spread.of([one.trips for one in costs]).median:.2f}",
                f"{measure.Spread.of([one.new for one in costs]).median:.0f}",
            ]
        )
    print(f"\n{DUPLICATES:.0%} duplicates, {urls:,} URLs; medians of {rounds} rounds. Times as long as {first} takes")
    header = ["filter", "time", "us per request", "us of the server per new URL", "the same, least"]
    measure.print_table([*header, "round trips per request", "taken for new"], rows)
    return {name: measure.Spread.of([one.micros for one in costs]) for name, costs in results.items()}


def _cost(build: Callable[[], Any], client: Any, order: list[str]) -> Cost:
    client.flushall()
    dupefilter = build()
    requests = [Request(url) for url in order]
    client.config_resetstat()
    began = time.perf_counter()
    new = sum(not dupefilter.request_seen(request) for request in requests)
    elapsed = time.perf_counter() - began
    stats = client.info("commandstats")
    own_trips = getattr(getattr(dupefilter, "_filter", None), "shared", None)
    # A script's time has that of its commands in it, and only the script is a round trip.
    of_scripts = [one for name, one in stats.items() if name.startswith("cmdstat_eval")]
    counted = of_scripts or [
        one for name, one in stats.items() if name not in ("cmdstat_info", "cmdstat_config|resetstat")
    ]
    trips = sum(one["calls"] for one in counted)
    server_micros = sum(one["usec"] for one in counted)
    if own_trips is not None:
        dupefilter.close("finished")
    return Cost(elapsed / len(order) * 1e6, server_micros / len(set(order)), trips / len(order), new)


def _compare_memory(url: str, client: Any, engines: tuple[str, ...], urls: int) -> None:
    rows = []

    def report(name: str, fill: Callable[[], list[str]]) -> None:
        client.flushall()
        client.memory_purge()
        before = client.info("memory")["used_memory"]
        filled = fill()
        used = client.info("memory")["used_memory"] - before
        usage = sum(client.memory_usage(key, samples=0) for key in client.keys("*"))
        rows.append([name, f"{usage / urls:.2f}", f"{used / urls:.2f}", *filled])

    def fill_set() -> list[str]:
        for start in range(0, urls, _BATCH):
            fingerprints = measure.random_fingerprints(start, min(_BATCH, urls - start))
            client.sadd("site:dupefilter", *(fingerprint.hex() for fingerprint in fingerprints))
        return ["-", "-", "0"]

    def fill_ours(engine: str, capacity: int) -> list[str]:
        shared = SharedFilter(
            connect(url, {}), "memory", engine=engine, capacity=capacity, error_rate=0.75e-6, growth=2.0, key_space={}
        )
        shared.open()
        for start in range(0, urls, _BATCH):
            shared.add(measure.random_fingerprints(start, min(_BATCH, urls - start)))
        figures = shared.figures()
        shared.server.close()
        return [str(figures.layers), f"{figures.error_rate:.1e}", str(urls - figures.urls)]

    for engine in engines:
        report(f"scrapy-bloom, {engine}, capacity right", partial(fill_ours, engine, urls))
        report(f"scrapy-bloom, {engine}, capacity a fifth", partial(fill_ours, engine, urls // 5))
    report("scrapy-redis: a set of 40-character digests", fill_set)
    print(f"\nbytes of the server per URL, {urls:,} URLs, error rate 1e-6")
    header = ["filter", "MEMORY USAGE", "used_memory", "layers", "error rate now", "taken for seen"]
    measure.print_table(header, rows)
