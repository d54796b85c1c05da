"""How long a crawl waits for its duplicate filter when it is resumed: this filter against Scrapy's own.

    python benchmarks/reopen.py [N]

N fingerprints, 10,000,000 unless given, are put into a job directory for each. Every measurement is a process of its
own, so that nothing is warm but the page cache; medians of 5, and what is timed is the opening alone, without imports.
"After a kill" is the opening that has to count the bits anew. At 10 million it takes two to four minutes, 1.5 GB of RAM
and 300 MB of disk.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from hashlib import sha1
from importlib.metadata import version
from pathlib import Path

RUNS = 5


def key(number: int) -> bytes:
    """Return a fingerprint of 20 bytes."""
    return sha1(b"%d" % number).digest()


def fill_ours(directory: Path, count: int) -> None:
    """Leave a cleanly closed filter of this package."""
    from scrapy_bloom import open_filter

    with open_filter(directory / "requests.bloom") as chain:
        for number in range(count):
            chain.add(key(number))


def fill_theirs(directory: Path, count: int) -> None:
    """Write ``requests.seen`` in the format that the installed Scrapy writes itself."""
    from scrapy import Request
    from scrapy.dupefilters import RFPDupeFilter

    class One:
        def fingerprint(self, request: Request) -> bytes:  # noqa: ARG002 - as Scrapy calls it
            return key(0)

    theirs = RFPDupeFilter(str(directory), fingerprinter=One())
    theirs.request_seen(Request("https://example.com"))
    theirs.close("finished")
    seen = directory / "requests.seen"
    is_binary = seen.read_bytes().startswith(b"\0\x14")
    with seen.open("ab") as file:
        for number in range(1, count):
            file.write(b"\0\x14" + key(number) if is_binary else key(number).hex().encode() + b"\n")


def open_ours(directory: Path, count: int, *, then_die: bool) -> float:
    """Return the seconds that opening takes, after a check that keys are known; close unless *then_die*."""
    from scrapy_bloom import open_filter

    start = time.perf_counter()
    chain = open_filter(directory / "requests.bloom")
    elapsed = time.perf_counter() - start
    assert all(key(number) in chain for number in range(0, count, max(1, count // 1000)))
    if not then_die:
        chain.close()
    return elapsed


def open_theirs(directory: Path, count: int) -> float:
    """Return the seconds that Scrapy's filter takes, after a check that it has all fingerprints."""
    from scrapy.dupefilters import RFPDupeFilter
    from scrapy.utils.request import RequestFingerprinter

    fingerprinter = RequestFingerprinter()
    start = time.perf_counter()
    theirs = RFPDupeFilter(str(directory), fingerprinter=fingerprinter)
    elapsed = time.perf_counter() - start
    fingerprints = theirs.__dict__.get("_fingerprints") or theirs.__dict__["fingerprints"]  # set of bytes or of hex
    assert len(fingerprints) == count
    theirs.close("finished")
    return elapsed


JOBS = {
    "ours": lambda directory, count: open_ours(directory, count, then_die=False),
    "ours, to be killed": lambda directory, count: open_ours(directory, count, then_die=True),
    "theirs": open_theirs,
}


def measure(job: str, directory: Path, count: int) -> tuple[float, float]:
    """Return seconds and peak resident MB of a process that opens."""
    command = [sys.executable, __file__, str(count), job, str(directory)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, megabytes = json.loads(done.stdout)
    return seconds, megabytes


def main(count: int) -> None:
    """Print the table."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        fill_ours(directory, count)
        fill_theirs(directory, count)
        on_disk = {
            "ours": sum(path.stat().st_size for path in directory.glob("requests.bloom/*")),
            "theirs": (directory / "requests.seen").stat().st_size,
        }
        for title, job in (
            (f"scrapy-bloom {version_of_ours()}", "ours"),
            ("  the same after a kill", "ours, to be killed"),
            (f"Scrapy {version('scrapy')}", "theirs"),
        ):
            if job == "ours, to be killed":
                measure(job, directory, count)  # leaves the filter unclean for the first run
            runs = [measure(job, directory, count) for _ in range(RUNS)]
            seconds = statistics.median(each[0] for each in runs)
            megabytes = statistics.median(each[1] for each in runs)
            rows.append((title, seconds, megabytes, on_disk["theirs" if job == "theirs" else "ours"] / 1e6))
    print(f"Opening {count:,} fingerprints, median of {RUNS}")
    print(
        f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    )
    print()
    print(f"{'':28}{'seconds':>10}{'times ours':>12}{'peak RSS MB':>14}{'on disk MB':>12}")
    for title, seconds, megabytes, disk in rows:
        print(f"{title:28}{seconds:10.4f}{seconds / rows[0][1]:12.1f}{megabytes:14.0f}{disk:12.0f}")


def version_of_ours() -> str:
    """Return the installed version, if any."""
    try:
        return version("scrapy-bloom")
    except ImportError:  # run from a checkout
        return "(checkout)"


if __name__ == "__main__":
    if len(sys.argv) == 4:
        elapsed = JOBS[sys.argv[2]](Path(sys.argv[3]), int(sys.argv[1]))
        # Kilobytes on Linux. A process "to be killed" ends here without closing its filter.
        print(json.dumps([elapsed, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]), flush=True)
        os._exit(0)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
