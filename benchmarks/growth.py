"""One chain that grows from the default capacity: time and bytes per URL, and its error rate held to its promise.

Fingerprints are made outside of the measured time. At the end it is asked for some that were added, of which all must
be found, and for some that were not: as many as are found by accident are held to the promised bound and to the chain's
own estimate.
"""

from __future__ import annotations

import gc
import math
import time
from typing import TYPE_CHECKING

from benchmarks import measure
from scrapy_bloom import ScalableBloomFilter

if TYPE_CHECKING:
    import argparse

_ABSENT_SEED = 1 << 40  # far from the numbers of the batches, which are the seeds of the fingerprints


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--urls", type=int, default=3_000_000, help="default: %(default)s")
    parser.add_argument(
        "--absent", type=int, default=1_000_000, help="URLs asked for at the end (default: %(default)s)"
    )
    parser.add_argument("--error-rate", type=float, default=1e-6, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=10_000, help="URLs made at once (default: %(default)s)")
    parser.add_argument("--large", action="store_true", help="the same as --urls 100000000 --absent 20000000")


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print a table."""
    measure.print_environment("bitarray", "mmh3")
    count, absent = (100_000_000, 20_000_000) if options.large else (options.urls, options.absent)
    batch = min(options.batch, count)
    for _ in range(3):  # what the fingerprints need, and what malloc keeps of it, is not charged to the filter
        fingerprints = measure.random_fingerprints(0, batch)
    gc.collect()
    before = measure.resident_bytes()
    seen = ScalableBloomFilter(error_rate=options.error_rate)
    start = time.monotonic()
    rows = []
    points = []
    nanoseconds = since_row = 0.0
    last_row = added = refused = 0
    next_row = batch
    with measure.uncollected():
        while added < count:
            fingerprints = measure.random_fingerprints(added // batch, batch)
            each = measure.nanoseconds_each(seen.add, fingerprints)
            nanoseconds += each * batch
            since_row += each * batch
            added += batch
            if added >= next_row or added >= count:
                refused = added - len(seen)
                each = since_row / (added - last_row)
                points.append((added / 1e6, each))
                rows.append(
                    [
                        f"{added:,}",
                        f"{each:.0f}",
                        str(len(seen.layers)),
                        f"{seen.nbytes / added:.2f}",
                        f"{(measure.resident_bytes() - before) / added:.2f}",
                        f"{seen.estimated_error_rate():.2e}",
                        str(refused),
                    ]
                )
                last_row, since_row = added, 0.0
                next_row = _next_row(added)
    header = ["URLs", "ns each since the row above", "layers", "bytes of bits per URL", "bytes of RAM per URL"]
    measure.print_table([*header, "error rate now", "taken for seen"], rows)
    wall = time.monotonic() - start
    print(f"{nanoseconds / 1e9:.1f} s of CPU time in add; {wall:.0f} s by the clock, with making the URLs")
    print(f"expected to be taken for seen: {seen.expected_false_positives():.1f}; taken for seen: {refused}")
    _check_memory(seen, added // batch, batch)
    _print_error_rate(seen, absent, batch)
    return measure.Picture("A chain as it grows", "ns per new URL", {"add": points}, "million URLs")


def _next_row(added: int) -> int:
    """Return the next number in 1, 2, 5, 10, 20, 50, ... times a power of ten."""
    magnitude = 10 ** math.floor(math.log10(added))
    return next(step * magnitude for step in (1, 2, 5, 10) if step * magnitude > added)


def _check_memory(seen: ScalableBloomFilter, batches: int, batch: int) -> None:
    """Ask for ten of the batches again, first and last among them."""
    asked = sorted({round(at * (batches - 1) / 9) for at in range(10)})
    forgotten = sum(fingerprint not in seen for at in asked for fingerprint in measure.random_fingerprints(at, batch))
    print(f"of {len(asked) * batch:,} URLs asked for again, forgotten: {forgotten}")
    if forgotten:
        raise AssertionError("a bloom filter must not forget")


def _print_error_rate(seen: ScalableBloomFilter, absent: int, batch: int) -> None:
    found = asked = 0
    nanoseconds = 0.0
    contains = seen.__contains__
    while asked < absent:
        fingerprints = measure.random_fingerprints(_ABSENT_SEED + asked, batch)
        start = time.process_time_ns()
        found += sum(map(contains, fingerprints))
        nanoseconds += time.process_time_ns() - start
        asked += batch
    print(
        f"of {asked:,} absent URLs ({nanoseconds / asked:.0f} ns each), found: {found}; expected: "
        f"{seen.estimated_error_rate() * asked:.1f} by the fill of the layers, at most {seen.error_rate * asked:.1f} "
        "by the promise (give or take the square root of each)"
    )
    # Four standard deviations above the bound, since what is measured is a sample of the promise.
    bound = seen.error_rate * asked
    measure.print_target("growth, absent URLs found", found, at_most=bound + 4 * math.sqrt(bound))
