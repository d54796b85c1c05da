"""Computes what a crawl of so many URLs will cost, beside other ways to remember them. Opens no job."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.commands.terminal import OK, Table, show, size
from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.filter.chain import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    DEFAULT_GROWTH,
    MAX_ERROR_RATE,
    MIN_ERROR_RATE,
    expected_false_positives,
    planned_ageing_layers,
    planned_layers,
)
from scrapy_bloom.old.fleet.filter import bitmap
from scrapy_bloom.old.fleet.filter.fleet_filter import LOCAL_SHARE, MAX_LOCAL, MAX_LOCAL_CAPACITY
from scrapy_bloom.old.settings import parse_age

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRAPY_BYTES_PER_URL = 91
"""Of RAM, in the set of Scrapy 2.19's own filter, measured at 10 million URLs by ``python -m benchmarks memory``."""

SCRAPY_DISK_BYTES_PER_URL = 22
"""In the ``requests.seen`` of Scrapy 2.19: two bytes for the length, 20 for the fingerprint."""

REDIS_SET_BYTES_PER_URL = 88
"""Of the server's RAM, in scrapy-redis' set of 40-character digests: ``MEMORY USAGE`` at 200,000 URLs, measured by
``python -m benchmarks fleet``. The set's table doubles as it grows, so it varies by a fifth with the count."""

SQLITE_BYTES_PER_URL = 27.8
"""On disk, in a table of 20-byte fingerprints that is its own index (``WITHOUT ROWID``), measured at 1 million URLs by
``python -m benchmarks memory``."""

HOST_BYTES = 600
"""Of RAM, per host with pending requests under ``DurableScheduler``, as ``python -m benchmarks hosts`` measures it: the
peak of a process that opens 80,000 requests for 40,000 hosts (93.5 MB) less that for 2,000 hosts (71.0 MB)."""

MAX_URLS_PER_SHARD = 110_000_000
"""Keeps the first layer of a shard below the 512 MB of a Redis string, at any error rate down to 1e-8."""

MARGIN = 1.01
"""On the capacity of a filter in several shards: chance gives some more URLs than others, and a layer that overflows by
a few URLs makes the chain grow by one of twice the size."""

MAX_URLS = 10**12

_HOSTS_PER_SHARD = 8  # at least, so that nodes get about equal shares


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``plan``."""
    parser.add_argument("--urls", type=count_argument, required=True, help="URLs of the whole crawl, such as 1e8")
    parser.add_argument(
        "--error-rate", type=rate_argument, default=DEFAULT_ERROR_RATE, help="BLOOM_ERROR_RATE (default: %(default)s)"
    )
    parser.add_argument(
        "--max-age", type=age_argument, metavar="AGE", help="BLOOM_MAX_AGE, such as 7d; --urls then come in each age"
    )
    parser.add_argument("--hosts", type=count_argument, help="hosts that have pending requests at the same time")
    parser.add_argument("--redis", action="store_true", help="filter and queue on a Redis server or cluster")
    parser.add_argument("--workers", type=count_argument, help="processes that crawl together, through a Redis server")


def run(options: argparse.Namespace) -> int:
    """Print what the crawl will cost."""
    workers = options.workers or 1
    found = plan(
        options.urls,
        options.error_rate,
        max_age=options.max_age,
        hosts=options.hosts,
        workers=workers if options.redis or workers > 1 else None,
    )
    show(found, options, _lines)
    return OK


def plan(
    urls: int,
    error_rate: float,
    *,
    max_age: str | None = None,
    hosts: int | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Return the cost of *urls* URLs, in plain types, under stable names; bytes are bytes.

    Args:
        urls: Different URLs of the whole crawl.
        error_rate: ``BLOOM_ERROR_RATE``.
        max_age: ``BLOOM_MAX_AGE``, in which *urls* come; None for a crawl that forgets nothing.
        hosts: That have pending requests at the same time; None for no answer on them.
        workers: Processes that share filter and queue on Redis; None for one process with a job directory.

    Raises:
        UnusableError: The error rate is too small for a fleet.

    """
    if workers is not None and error_rate < MIN_ERROR_RATE / LOCAL_SHARE:
        advice = f"Give {MIN_ERROR_RATE / LOCAL_SHARE:g} or more, or plan for one machine."
        raise UnusableError(f"An error rate of {error_rate:g}", "is less than a fleet can promise", advice=advice)
    found = {
        "urls": urls,
        "error_rate": error_rate,
        "scrapy": {"disk": SCRAPY_DISK_BYTES_PER_URL * urls, "memory": SCRAPY_BYTES_PER_URL * urls},
        "redis_set": {"memory": REDIS_SET_BYTES_PER_URL * urls},
        "sqlite": {"disk": round(SQLITE_BYTES_PER_URL * urls)},
        "hosts": None if hosts is None else {"hosts": hosts, "memory": HOST_BYTES * hosts},
    }
    age = {} if max_age is None else {"BLOOM_MAX_AGE": max_age}
    if workers is None:
        return {
            **found,
            "workers": None,
            "default_capacity": _on_disk(urls, error_rate, DEFAULT_CAPACITY, max_age),
            "right_capacity": _on_disk(urls, error_rate, urls, max_age),
            "settings": {
                "ADDONS": {"scrapy_bloom.Addon": 300},
                "BLOOM_CAPACITY": urls,
                "BLOOM_ERROR_RATE": error_rate,
                **age,
            },
        }
    shards = 1 << max(0, math.ceil(math.log2(urls / MAX_URLS_PER_SHARD)))
    capacity = urls if shards == 1 else math.ceil(MARGIN * urls)
    settings: dict[str, Any] = {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "BLOOM_REDIS_URL": "redis://localhost:6379",
        "BLOOM_CAPACITY": capacity,
        "BLOOM_ERROR_RATE": error_rate,
        **age,
    }
    return {
        **found,
        "workers": {"workers": workers, "memory": workers * _local(urls, error_rate, capacity)["memory"]},
        "default_capacity": _on_server(urls, error_rate, DEFAULT_CAPACITY, shards, max_age),
        "right_capacity": _on_server(urls, error_rate, capacity, shards, max_age),
        "settings": settings if shards == 1 else {**settings, "BLOOM_REDIS_SHARDS": shards},
    }


def _on_disk(urls: int, error_rate: float, capacity: int, max_age: str | None = None) -> dict[str, Any]:
    if max_age is None:
        layers = planned_layers(urls, capacity=capacity, error_rate=error_rate, growth=DEFAULT_GROWTH)
    else:
        layers = planned_ageing_layers(urls, capacity=capacity, error_rate=error_rate)
    nbytes = sum(spec.nbytes for spec, _ in layers)
    return {
        "capacity": capacity,
        "layers": len(layers),
        "disk": nbytes,
        "memory": nbytes,
        "expected_lost": expected_false_positives(layers, others_come_and_go=max_age is not None),
    }


def _on_server(urls: int, error_rate: float, capacity: int, shards: int, max_age: str | None = None) -> dict[str, Any]:
    """Return the cost of a filter with the engine ``bitmap``, whose shards get the same number of URLs each."""
    count, share, rate = math.ceil(urls / shards), -(-capacity // shards), (1 - LOCAL_SHARE) * error_rate
    if max_age is None:
        layers = bitmap.planned_layers(count, capacity=share, error_rate=rate, growth=DEFAULT_GROWTH)
    else:
        layers = bitmap.planned_ageing_layers(count, capacity=share, error_rate=rate)
    lost = expected_false_positives(layers, others_come_and_go=max_age is not None)
    return {
        "capacity": capacity,
        "shards": shards,
        "layers": len(layers),
        "disk": None,
        "memory": shards * sum(layer.nbytes for layer, _ in layers),
        "expected_lost": shards * lost + _local(urls, error_rate, capacity)["lost"],
    }


def _local(urls: int, error_rate: float, capacity: int) -> dict[str, Any]:
    """Return the memory of one worker's local filter, and the pages lost to all of them, each at most.

    A worker that has seen every URL has the most; beyond `MAX_LOCAL` its filter begins again. A new URL is checked
    against the local filter of one worker.
    """
    layers = planned_layers(
        min(urls, MAX_LOCAL),
        capacity=min(capacity, MAX_LOCAL_CAPACITY),
        error_rate=LOCAL_SHARE * error_rate,
        growth=DEFAULT_GROWTH,
    )
    return {
        "memory": sum(spec.nbytes for spec, _ in layers),
        "lost": expected_false_positives(layers) * max(1.0, urls / MAX_LOCAL),
    }


def _lines(found: dict[str, Any]) -> Iterator[str | Table]:
    workers, hosts = found["workers"], found["hosts"]
    where = "" if workers is None else "server: "
    each = f" in each {age}, then forgotten," if (age := found["settings"].get("BLOOM_MAX_AGE")) else ""
    yield f"{found['urls']:,} URLs{each} at an error rate of {found['error_rate']:g}"
    yield ""
    rows = [
        (f"{where}BLOOM_CAPACITY as it is", found["default_capacity"]),
        (f"{where}BLOOM_CAPACITY as below", found["right_capacity"]),
        ("Scrapy's own filter", found["scrapy"]),
        ("a table in SQLite", found["sqlite"]),
        ("a set in Redis, as scrapy-redis has", found["redis_set"]),
    ]
    yield Table(
        ["", "layers", "on disk", "in memory", "pages lost"],
        [
            (label, str(cost.get("layers", "")), _size(cost.get("disk")), _size(cost.get("memory")), _lost(cost))
            for label, cost in rows
        ],
    )
    yield ""
    if workers is None:
        yield "In memory: at most; it is the file's pages, which the system may take back."
    else:
        each = workers["memory"] // workers["workers"]
        who = "The worker" if workers["workers"] == 1 else f"Each of the {workers['workers']:,} workers"
        yield f"{who} takes up to {size(each)} of memory for its local filter."
    if hosts is not None:
        yield f"The queue takes {size(hosts['memory'])} of memory for {hosts['hosts']:,} hosts with pending requests."
        shards = found["right_capacity"].get("shards", 1)
        if shards > 1 and hosts["hosts"] < _HOSTS_PER_SHARD * shards:
            yield f"So few hosts spread badly over {shards} shards: one gets more than its share, and grows layers."
    yield ""
    yield from (f"{name} = {_literal(value)}" for name, value in found["settings"].items())


def _size(nbytes: int | None) -> str:
    return "" if nbytes is None else size(nbytes)


def _lost(cost: dict[str, Any]) -> str:
    lost = cost.get("expected_lost", 0)
    return f"{lost:,.0f}" if lost >= 10 or not lost else f"{lost:.2g}"


def _literal(value: Any) -> str:
    """Return *value* as one writes it in ``settings.py``."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(each)}" for key, each in value.items()) + "}"
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:_}" if isinstance(value, int) else repr(value)


def age_argument(text: str) -> str:
    """Check an age from the command line, and return it as it was written."""
    try:
        parse_age(text)
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is no age from 60 seconds to 10 years, such as 7d or 12h") from None
    return text


def count_argument(text: str) -> int:
    """Read a number of URLs from the command line."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 1 <= number <= MAX_URLS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MAX_URLS:.0e}; 1e8 is one")
    return int(number)


def rate_argument(text: str) -> float:
    """Read an error rate from the command line."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not MIN_ERROR_RATE <= rate <= MAX_ERROR_RATE:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no error rate from {MIN_ERROR_RATE:g} to {MAX_ERROR_RATE:g}; 1e-6 is one"
        )
    return rate
