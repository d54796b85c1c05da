"""Computes what a crawl of so many URLs will cost, beside other ways to remember them."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.terminal import OK, show, size, table
from scrapy_bloom.filter.plan import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    MAX_ERROR_RATE,
    MIN_ERROR_RATE,
    expected_false_positives,
    planned_layers,
)
from scrapy_bloom.fleet.blocks import BLOCK_BITS, layer_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

SCRAPY_BYTES_PER_URL = 91
"""Of RAM, in the set of Scrapy 2.19's own filter, measured at 10 million URLs by ``python -m benchmarks memory``."""

SCRAPY_DISK_BYTES_PER_URL = 22
"""In the ``requests.seen`` of Scrapy 2.19: two bytes for the length, 20 for the fingerprint."""

SQLITE_BYTES_PER_URL = 27.8
"""On disk, in a table of 20-byte fingerprints that is its own index (``WITHOUT ROWID``), measured at 1 million URLs by
``python -m benchmarks memory``."""

REDIS_SET_BYTES_PER_URL = 88
"""Of the server's RAM, in scrapy-redis' set of 40-character digests: ``MEMORY USAGE`` at 200,000 URLs, measured by
``python -m benchmarks fleet``. The set's table doubles as it grows, so it varies by a fifth with the count."""

MAX_URLS = 10**12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``plan``."""
    parser.add_argument("--urls", type=count_argument, required=True, help="URLs of the whole crawl, such as 1e8")
    parser.add_argument(
        "--error-rate", type=rate_argument, default=DEFAULT_ERROR_RATE, help="BLOOM_ERROR_RATE (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Print what the crawl will cost."""
    show(plan(options.urls, options.error_rate), options, _lines)
    return OK


def plan(urls: int, error_rate: float) -> dict[str, Any]:
    """Return the cost of *urls* different URLs, in plain types, under stable names; bytes are bytes."""
    return {
        "urls": urls,
        "error_rate": error_rate,
        "default_capacity": _chain(urls, error_rate, DEFAULT_CAPACITY),
        "right_capacity": _chain(urls, error_rate, urls),
        "fleet": {"layers": 1, "memory": layer_sizes(urls, error_rate)[0][0] * BLOCK_BITS // 8},
        "scrapy": {
            "disk": SCRAPY_DISK_BYTES_PER_URL * urls,
            "memory": SCRAPY_BYTES_PER_URL * urls,
            "expected_lost": 0,
        },
        "sqlite": {"disk": round(SQLITE_BYTES_PER_URL * urls), "expected_lost": 0},
        "redis_set": {"memory": REDIS_SET_BYTES_PER_URL * urls, "expected_lost": 0},
        "settings": {"BLOOM_CAPACITY": urls, "BLOOM_ERROR_RATE": error_rate},
    }


def _chain(urls: int, error_rate: float, capacity: int) -> dict[str, Any]:
    layers = planned_layers(urls, capacity, error_rate)
    nbytes = sum(spec.nbytes for spec, _ in layers)
    return {
        "capacity": capacity,
        "layers": len(layers),
        "disk": nbytes,
        "memory": nbytes,
        "expected_lost": expected_false_positives(layers),
    }


def _lines(found: dict[str, Any]) -> Iterator[str | Table]:
    yield f"{found['urls']:,} URLs at an error rate of {found['error_rate']:g}"
    yield ""
    rows = {
        "BLOOM_CAPACITY as it is": found["default_capacity"],
        "BLOOM_CAPACITY as below": found["right_capacity"],
        "the same on a fleet's server": found["fleet"],
        "Scrapy's own filter": found["scrapy"],
        "a table in SQLite": found["sqlite"],
        "a set in Redis, as scrapy-redis has": found["redis_set"],
    }
    yield table(
        ["", "layers", "on disk", "in memory", "pages lost"],
        [(label, str(cost.get("layers", "")), *_figures(cost)) for label, cost in rows.items()],
    )
    yield ""
    yield "In memory: at most; it is the file's pages, which the system may take back."
    yield ""
    yield 'ADDONS = {"scrapy_bloom.Addon": 300}'
    yield f"BLOOM_CAPACITY = {found['urls']:_}"
    yield f"BLOOM_ERROR_RATE = {found['error_rate']!r}"


def _figures(cost: dict[str, Any]) -> list[str]:
    sizes = [size(cost[where]) if where in cost else "" for where in ("disk", "memory")]
    lost = cost.get("expected_lost")
    return [*sizes, "" if lost is None else f"{lost:,.0f}" if lost >= 10 or not lost else f"{lost:.2g}"]


def count_argument(text: str) -> int:
    """Read a number of URLs from the command line."""
    return int(_number(text, 1, MAX_URLS, "number"))


def rate_argument(text: str) -> float:
    """Read an error rate from the command line."""
    return _number(text, MIN_ERROR_RATE, MAX_ERROR_RATE, "error rate")


def _number(text: str, least: float, most: float, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no {what} from {least:g} to {most:g}")
    return number
