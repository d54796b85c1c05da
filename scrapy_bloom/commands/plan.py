"""Computes what a crawl of so many URLs will cost, beside other ways to remember them."""

from __future__ import annotations

import argparse
from contextlib import suppress
from functools import partial
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
from scrapy_bloom.settings import MAX_CAPACITY

SCRAPY_BYTES_PER_URL = 91
"""Of RAM, in the set of Scrapy 2.19's own filter, measured at 10 million URLs by ``python -m benchmarks memory``."""

SCRAPY_DISK_BYTES_PER_URL = 22
"""In its ``requests.seen``: two bytes for the length, 20 for the fingerprint."""

REDIS_SET_BYTES_PER_URL = 88
"""Of the server's RAM, in scrapy-redis' set of 40-character digests: ``MEMORY USAGE`` at 200,000 URLs, measured by
``python -m benchmarks fleet``; it varies by a fifth with the count."""

_COLUMNS = ("way", "layers", "bytes_on_disk", "bytes_in_memory", "pages_lost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``plan``."""
    urls = partial(_number, least=1, most=MAX_CAPACITY)
    parser.add_argument("--urls", type=urls, required=True, help="URLs of the whole crawl, such as 1e8")
    rate = partial(_number, least=MIN_ERROR_RATE, most=MAX_ERROR_RATE)
    default = "BLOOM_ERROR_RATE (default: %(default)s)"
    parser.add_argument("--error-rate", type=rate, default=DEFAULT_ERROR_RATE, help=default)


def run(options: argparse.Namespace) -> int:
    """Print what the crawl will cost."""
    show(plan(int(options.urls), options.error_rate), options)
    return OK


def plan(urls: int, error_rate: float) -> dict[str, Any]:
    """Return the cost of *urls* different URLs, and the settings to paste."""
    fleet_bytes = layer_sizes(urls, error_rate)[0][0] * BLOCK_BITS // 8
    ways = [
        ("BLOOM_CAPACITY as it is", *_chain(urls, error_rate, DEFAULT_CAPACITY)),
        ("BLOOM_CAPACITY as below", *_chain(urls, error_rate, urls)),
        ("the same on a fleet's server", 1, None, fleet_bytes, None),
        ("Scrapy's own filter", None, SCRAPY_DISK_BYTES_PER_URL * urls, SCRAPY_BYTES_PER_URL * urls, 0),
        ("a set in Redis, as scrapy-redis has", None, None, REDIS_SET_BYTES_PER_URL * urls, 0),
    ]
    return {
        "urls": urls,
        "error_rate": error_rate,
        "ways": [dict(zip(_COLUMNS, way, strict=True)) for way in ways],
        "settings": [
            'ADDONS = {"scrapy_bloom.Addon": 300}',
            f"BLOOM_CAPACITY = {urls:_}",
            f"BLOOM_ERROR_RATE = {error_rate!r}",
        ],
    }


def _chain(urls: int, error_rate: float, capacity: int) -> tuple[int, int, int, float]:
    layers = planned_layers(urls, capacity, error_rate)
    nbytes = sum(spec.nbytes for spec, _ in layers)
    return len(layers), nbytes, nbytes, expected_false_positives(layers)


def _number(text: str, least: float, most: float) -> float:
    with suppress(ValueError):
        if least <= float(text) <= most:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
