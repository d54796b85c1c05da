"""Computes what a crawl of so many URLs will cost, beside other ways to remember them."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import Any

from scrapy_bloom.commands.terminal import OK, show
from scrapy_bloom.filter.plan import (
    DEFAULT_CAPACITY,
    DEFAULT_ERROR_RATE,
    MAX_ERROR_RATE,
    MIN_ERROR_RATE,
    expected_false_positives,
    planned_layers,
)
from scrapy_bloom.fleet.blocks import BLOCK_BITS, layer_sizes

SCRAPY_BYTES_PER_URL = 91
"""Of RAM, in the set of Scrapy 2.19's own filter, measured at 10 million URLs by ``python -m benchmarks memory``."""

SCRAPY_DISK_BYTES_PER_URL = 22
"""In its ``requests.seen``: two bytes for the length, 20 for the fingerprint."""

REDIS_SET_BYTES_PER_URL = 88
"""Of the server's RAM, in scrapy-redis' set of 40-character digests: ``MEMORY USAGE`` at 200,000 URLs, measured by
``python -m benchmarks fleet``; it varies by a fifth with the count."""

MAX_URLS = 10**12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``plan``."""
    parser.add_argument("--urls", type=_count, required=True, help="URLs of the whole crawl, such as 1e8")
    parser.add_argument(
        "--error-rate", type=_rate, default=DEFAULT_ERROR_RATE, help="BLOOM_ERROR_RATE (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Print what the crawl will cost."""
    show(plan(options.urls, options.error_rate), options)
    return OK


def plan(urls: int, error_rate: float) -> dict[str, Any]:
    """Return the cost of *urls* different URLs, and the settings to paste."""
    fleet_bytes = layer_sizes(urls, error_rate)[0][0] * BLOCK_BITS // 8
    scrapy_disk, scrapy_memory = SCRAPY_DISK_BYTES_PER_URL * urls, SCRAPY_BYTES_PER_URL * urls
    return {
        "urls": urls,
        "error_rate": error_rate,
        "ways": [
            _chain("BLOOM_CAPACITY as it is", urls, error_rate, DEFAULT_CAPACITY),
            _chain("BLOOM_CAPACITY as below", urls, error_rate, urls),
            _way("the same on a fleet's server", None, fleet_bytes, layers=1),
            _way("Scrapy's own filter", scrapy_disk, scrapy_memory, lost=0),
            _way("a set in Redis, as scrapy-redis has", None, REDIS_SET_BYTES_PER_URL * urls, lost=0),
        ],
        "settings": [
            'ADDONS = {"scrapy_bloom.Addon": 300}',
            f"BLOOM_CAPACITY = {urls:_}",
            f"BLOOM_ERROR_RATE = {error_rate!r}",
        ],
    }


def _chain(name: str, urls: int, error_rate: float, capacity: int) -> dict[str, Any]:
    layers = planned_layers(urls, capacity, error_rate)
    nbytes = sum(spec.nbytes for spec, _ in layers)
    return _way(name, nbytes, nbytes, layers=len(layers), lost=expected_false_positives(layers))


def _way(
    name: str, disk: int | None, memory: int | None, *, layers: int | None = None, lost: float | None = None
) -> dict[str, Any]:
    """Return one row; memory is what the file's pages take at most, and None is not known or nothing."""
    return {"way": name, "layers": layers, "bytes_on_disk": disk, "bytes_in_memory": memory, "pages_lost": lost}


def _count(text: str) -> int:
    return int(_number(text, 1, MAX_URLS, "number"))


def _rate(text: str) -> float:
    return _number(text, MIN_ERROR_RATE, MAX_ERROR_RATE, "error rate")


def _number(text: str, least: float, most: float, what: str) -> float:
    with suppress(ValueError):
        if least <= float(text) <= most:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no {what} from {least:g} to {most:g}")
