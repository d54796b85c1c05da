"""A process that adds URLs to a shared filter; prints which of them it was told are new.

    python adder.py <url> <engine> <count> <seed> <error rate>

It adds its URLs in an order drawn from the seed, and begins when the key "go" of the server appears.
"""

from __future__ import annotations

import random
import sys

from scrapy_bloom.old.fleet.client import Command, connect
from scrapy_bloom.old.fleet.filter.fleet_filter import FleetFilter
from scrapy_bloom.old.fleet.filter.shared import SharedFilter
from tests.old.support.fingerprints import fingerprints


def main(url: str, engine: str, count: int, seed: int, error_rate: float) -> None:
    server = connect(url, {})
    shared = SharedFilter(server, "race", engine=engine, capacity=100, error_rate=error_rate, growth=2.0, key_space={})
    fleet = FleetFilter(shared, capacity=1000, error_rate=1e-7, growth=2.0)
    keys = fingerprints(count)
    order = random.Random(seed).sample(range(count), count)
    server.call(Command(("RPUSH", "ready", seed), "ready"))
    while not server.call(Command(("EXISTS", "go"), "go")):
        pass
    fleet.open()
    print(*(i for i in order if fleet.add(keys[i])))  # noqa: T201 - the script's output
    fleet.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
