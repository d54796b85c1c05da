"""How long a resumed crawl waits for its duplicate filter: this filter against Scrapy's own.

Every opening is in a process of its own, so that nothing is warm but the page cache; timed is the opening alone, by the
clock, without imports. "After a kill" is the opening that has to count the bits anew.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
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

OURS, KILLED, SCRAPY = "scrapy-bloom", "scrapy-bloom, after a kill", "Scrapy"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--urls", type=int, default=1_000_000, help="URLs known (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="openings of each (default: %(default)s)")
    parser.add_argument(
        "--large", action="store_true", help="the same as --urls 10000000: 1.5 GB of RAM, 300 MB of disk"
    )


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print a table."""
    measure.print_environment("Scrapy", "bitarray")
    count = 10_000_000 if options.large else options.urls
    with tempfile.TemporaryDirectory() as temporary:
        directories = {side: Path(temporary, str(number)) for number, side in enumerate((OURS, KILLED, SCRAPY))}
        _fill_ours(directories[OURS], count)
        shutil.copytree(directories[OURS], directories[KILLED])
        # Leaves the filter unclean for the first round.
        measure.in_own_process(_opened, KILLED, str(directories[KILLED]), count)
        _fill_theirs(directories[SCRAPY], count)
        disk = {
            side: sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 1e6
            for side, directory in directories.items()
        }
        sides = {
            side: lambda side=side, place=str(place): measure.in_own_process(_opened, side, place, count)
            for side, place in directories.items()
        }
        found = measure.side_by_side(sides, options.rounds)
    print(f"{count:,} fingerprints; Scrapy's time over ours, medians of {options.rounds} rounds (lowest-highest)\n")
    rows = []
    seconds = {side: [one["seconds"] for one in ones] for side, ones in found.items()}
    for side, ones in found.items():
        ratio = measure.ratios(seconds[SCRAPY], seconds[side])
        peak = measure.Spread.of([one["peak_mb"] for one in ones]).median
        median = measure.Spread.of(seconds[side]).median
        rows.append([side, f"{ratio:.0f}", f"{median:.4f}", f"{peak:.0f}", f"{disk[side]:.0f}"])
    measure.print_table(["", "times as fast", "seconds", "peak RSS, MB", "on disk, MB"], rows)
    middles = {side: measure.Spread.of(values) for side, values in seconds.items()}
    measure.print_target(f"reopen, seconds for {count:,} URLs", middles[OURS].median, at_most=0.1)
    return measure.Picture(f"Opening {count:,} fingerprints", "seconds", middles)


def _fingerprint(number: int) -> bytes:
    return sha1(b"%d" % number).digest()


def _fill_ours(directory: Path, count: int) -> None:
    """Leave a cleanly closed filter of this package."""
    from scrapy_bloom import open_filter

    with open_filter(directory / "requests.bloom") as chain:
        for number in range(count):
            chain.add(_fingerprint(number))


def _fill_theirs(directory: Path, count: int) -> None:
    """Write ``requests.seen`` in the format that the installed Scrapy writes itself."""
    from scrapy import Request
    from scrapy.dupefilters import RFPDupeFilter

    class First:
        def fingerprint(self, request: Request) -> bytes:  # noqa: ARG002 - as Scrapy calls it
            return _fingerprint(0)

    directory.mkdir()
    theirs = RFPDupeFilter(str(directory), fingerprinter=First())
    theirs.request_seen(Request("https://example.com"))
    theirs.close("finished")
    seen = directory / "requests.seen"
    is_binary = seen.read_bytes().startswith(b"\0\x14")
    with seen.open("ab") as file:
        for number in range(1, count):
            file.write(b"\0\x14" + _fingerprint(number) if is_binary else _fingerprint(number).hex().encode() + b"\n")


def _open_ours(directory: Path, count: int, *, then_die: bool) -> float:
    """Return the seconds that opening takes, after a check that the URLs are known; close unless *then_die*."""
    from scrapy_bloom import open_filter

    start = time.perf_counter()
    chain = open_filter(directory / "requests.bloom")
    elapsed = time.perf_counter() - start
    if not all(_fingerprint(number) in chain for number in range(0, count, max(1, count // 1000))):
        raise AssertionError("the filter has forgotten fingerprints")
    if not then_die:
        chain.close()
    return elapsed


def _open_theirs(directory: Path, count: int) -> float:
    """Return the seconds that Scrapy's filter takes, after a check that it has all fingerprints."""
    from scrapy.dupefilters import RFPDupeFilter
    from scrapy.utils.request import RequestFingerprinter

    fingerprinter = RequestFingerprinter()
    start = time.perf_counter()
    theirs = RFPDupeFilter(str(directory), fingerprinter=fingerprinter)
    elapsed = time.perf_counter() - start
    fingerprints = theirs.__dict__.get("_fingerprints") or theirs.__dict__["fingerprints"]  # set of bytes or of hex
    if len(fingerprints) != count:
        raise AssertionError(f"Scrapy's filter knows {len(fingerprints)} of {count} fingerprints")
    theirs.close("finished")
    return elapsed


def _opened(side: str, directory: str, count: int) -> dict[str, float]:
    """Open a filter and print what that took; the process ends in here, without closing the filter to be killed."""
    import resource  # Windows has none, and shall run the other benchmarks

    logging.disable(logging.WARNING)  # that the filter was not closed is the point
    if side == SCRAPY:
        seconds = _open_theirs(Path(directory), count)
    else:
        seconds = _open_ours(Path(directory), count, then_die=side == KILLED)
    # Kilobytes on Linux, bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    print(json.dumps({"seconds": seconds, "peak_mb": peak}), flush=True)
    os._exit(0)
