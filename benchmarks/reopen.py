"""How long a resumed crawl waits for its duplicate filter: ours, closed or killed, and Scrapy's own.

Every opening is in a process of its own, so that nothing is warm but the page cache. Timed is the opening alone, by the
clock, without imports.
"""

from __future__ import annotations

import sys
import tempfile
import time
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import measure

if TYPE_CHECKING:
    import argparse

    from scrapy import Request

KILLED = "scrapy-bloom, after a kill"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--urls", type=int, default=1_000_000, help="URLs known (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="openings of each (default: %(default)s)")
    parser.add_argument("--large", action="store_true", help="the same as --urls 10000000: 1.5 GB of RAM")


def run(options: argparse.Namespace) -> None:
    """Measure and print a table."""
    measure.print_environment("Scrapy", "bitarray")
    count = 10_000_000 if options.large else options.urls
    with tempfile.TemporaryDirectory() as temporary:
        sides = {
            measure.OURS: measure.Side(open_ours, {"count": count}),
            KILLED: measure.Side(open_ours, {"count": count, "dies": True}),
            "Scrapy": measure.Side(open_scrapys, {"count": count}),
        }
        sides = measure.with_old(sides, options.old)
        for number, (name, side) in enumerate(sides.items()):
            directory = str(Path(temporary, str(number)))
            fill = fill_ours if side.function is open_ours else fill_scrapys
            measure.in_own_process(fill, directory, count, package=side.package)
            sides[name] = side._replace(arguments={**side.arguments, "directory": directory})
        sides[KILLED]()  # leaves the filter as a kill does for the first round
        found = measure.side_by_side(sides, options.rounds)
    columns = {"seconds": ("s to open", ".4f"), "peak_mb": ("peak RAM, MB", ".0f"), "disk_mb": ("disk, MB", ".0f")}
    measure.print_figures(f"{count:,} fingerprints", found, columns)


def _fingerprint(number: int) -> bytes:
    return sha1(b"%d" % number).digest()


def fill_ours(directory: str, count: int) -> None:
    """Leave a cleanly closed filter of this package."""
    from scrapy_bloom import open_filter

    with open_filter(directory) as chain:
        for number in range(count):
            chain.add(_fingerprint(number))


def fill_scrapys(directory: str, count: int) -> None:
    """Write ``requests.seen`` in the format that the installed Scrapy writes itself."""
    from scrapy import Request
    from scrapy.dupefilters import RFPDupeFilter

    class First:
        def fingerprint(self, request: Request) -> bytes:  # noqa: ARG002 - as Scrapy calls it
            return _fingerprint(0)

    seen = Path(directory, "requests.seen")
    seen.parent.mkdir()
    theirs = RFPDupeFilter(directory, fingerprinter=First())
    theirs.request_seen(Request("https://example.com"))
    theirs.close("finished")
    is_binary = seen.read_bytes().startswith(b"\0\x14")
    with seen.open("ab") as file:
        for number in range(1, count):
            file.write(b"\0\x14" + _fingerprint(number) if is_binary else _fingerprint(number).hex().encode() + b"\n")


def open_ours(directory: str, count: int, dies: bool = False) -> measure.Figures:
    """Open the filter, check that it knows what it should, and close it or die."""
    from scrapy_bloom import open_filter

    start = time.perf_counter()
    chain = open_filter(directory)
    seconds = time.perf_counter() - start
    if not all(_fingerprint(number) in chain for number in range(0, count, max(1, count // 1000))):
        sys.exit("the filter has forgotten fingerprints")
    figures = _figures(directory, seconds)
    if dies:
        measure.die_with(figures)
    chain.close()
    return figures


def open_scrapys(directory: str, count: int) -> measure.Figures:
    """Open Scrapy's filter, and check that it has as many fingerprints as it should."""
    from scrapy.dupefilters import RFPDupeFilter
    from scrapy.utils.request import RequestFingerprinter

    fingerprinter = RequestFingerprinter()
    start = time.perf_counter()
    theirs = RFPDupeFilter(directory, fingerprinter=fingerprinter)
    seconds = time.perf_counter() - start
    known = theirs.__dict__.get("_fingerprints") or theirs.__dict__["fingerprints"]  # bytes from 2.19 on, else hex
    if len(known) != count:
        sys.exit(f"Scrapy's filter knows {len(known)} of {count} fingerprints")
    figures = _figures(directory, seconds)
    theirs.close("finished")
    return figures


def _figures(directory: str, seconds: float) -> measure.Figures:
    return {
        "seconds": seconds,
        "peak_mb": measure.peak_bytes() / 1e6,
        "disk_mb": measure.disk_bytes(directory) / 1e6,
    }
