"""What a crawl of so many URLs will cost. Opens nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.terminal import OK, show
from scrapy_bloom.filter.chain import DEFAULT_CAPACITY, DEFAULT_GROWTH, expected_false_positives, planned_layers

if TYPE_CHECKING:
    import argparse

SCRAPY_BYTES_PER_URL = 91
"""Of RAM, in the set of Scrapy 2.19's own filter, measured at 10 million URLs by ``python -m benchmarks memory``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what ``plan`` takes."""
    parser.add_argument("--urls", type=_count, required=True, help="URLs of the whole crawl, such as 1e8")
    parser.add_argument("--error-rate", type=_rate, default=1e-6, help="BLOOM_ERROR_RATE (default: 1e-6)")


def run(options: argparse.Namespace) -> int:
    """Print what the crawl will cost."""
    show(plan(options.urls, options.error_rate), options, _lines)
    return OK


def plan(urls: int, error_rate: float) -> dict[str, Any]:
    """Return the cost of a filter for *urls* URLs, with the default capacity and with the right one."""
    return {
        "urls": urls,
        "error_rate": error_rate,
        "default_capacity": _cost(urls, error_rate, DEFAULT_CAPACITY),
        "right_capacity": _cost(urls, error_rate, urls),
        "scrapy_bytes": urls * SCRAPY_BYTES_PER_URL,
        "settings": {"BLOOM_CAPACITY": urls, "BLOOM_ERROR_RATE": error_rate},
    }


def _cost(urls: int, error_rate: float, capacity: int) -> dict[str, Any]:
    layers = planned_layers(urls, capacity=capacity, error_rate=error_rate, growth=DEFAULT_GROWTH)
    return {
        "capacity": capacity,
        "layers": len(layers),
        "bytes": sum(spec.nbytes for spec, _ in layers),
        "expected_lost": expected_false_positives(layers),
    }


def _lines(found: dict[str, Any]) -> list[str]:
    default, right = found["default_capacity"], found["right_capacity"]
    return [
        f"{'':24}{'layers':>8}{'bytes':>20}{'expected lost':>16}",
        *(
            f"{label:<24}{cost['layers']:>8}{cost['bytes']:>20,}{cost['expected_lost']:>16.2g}"
            for label, cost in (("BLOOM_CAPACITY as it is", default), ("BLOOM_CAPACITY = URLs", right))
        ),
        f"{'Scrapy (memory)':<24}{'':>8}{found['scrapy_bytes']:>20,}{0:>16}",
        "",
        *(f"{name} = {value!r}" for name, value in found["settings"].items()),
    ]


def _count(text: str) -> int:
    number = float(text)
    if not 1 <= number <= 1e12:
        raise ValueError
    return int(number)


def _rate(text: str) -> float:
    rate = float(text)
    if not 1e-10 <= rate <= 0.5:
        raise ValueError
    return rate
