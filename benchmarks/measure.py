"""Runs the sides of a comparison in turns, each in a process of its own, and prints medians and ratios.

Times are CPU time unless a table says "by the clock": on a busy machine the clock stretches at will, CPU time only by
shared caches and hyper-threads. A ratio is taken within a round, whose sides run within seconds of each other; the
median is over the rounds.
"""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

ROOT = Path(__file__).parent.parent
OURS, OLD, SCRAPY = "scrapy-bloom", "scrapy-bloom, old", "Scrapy"
DUPEFILTERS = {OURS: "scrapy_bloom.BloomDupeFilter", SCRAPY: "scrapy.dupefilters.RFPDupeFilter"}
SCHEDULERS = {OURS: "scrapy_bloom.DurableScheduler", SCRAPY: "scrapy.core.scheduler.Scheduler"}
MISSING = "(not installed)"
Figures = dict[str, Any]
Side = partial[Figures]
"""One of the things that are compared: a call of :func:`in_own_process`, which returns the figures of one run."""
T = TypeVar("T")


def of_each(
    function: Callable[..., Figures], names: Iterable[str] = (OURS, SCRAPY), **arguments: Any
) -> dict[str, Side]:
    """Return a side for each of *names*: *function*, which gets the name, in a process of its own."""
    return {name: partial(in_own_process, function, name=name, **arguments) for name in names}


def with_old(sides: Mapping[str, Side], old: Path | None) -> dict[str, Side]:
    """Return *sides*, with ours a second time from the folder *old* if there is one."""
    olds = {OLD: partial(sides[OURS], package=old.resolve())} if old else {}
    return {OURS: sides[OURS], **olds, **sides}


def side_by_side(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Call each of *sides* once a round, every other round in reverse order, and return what each returned."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else reversed(sides):
            found[name].append(sides[name]())
    return found


def in_own_process(function: Callable[..., T], *arguments: Any, package: Path | None = None, **named: Any) -> T:
    """Return what *function*, of a module, returns in a process of its own; see :func:`die_with` for one that dies.

    For measurements that leave traces in a process (memory, a reactor that has run), or need another version of
    ``scrapy_bloom`` from the folder *package*. What it takes and returns is what JSON can hold.
    """
    command, environment = command_for(function, *arguments, package=package, **named)
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if ended.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"{function.__module__}.{function.__name__} ended with status {ended.returncode}; see above.")
    returned: T = json.loads(ended.stdout.strip().splitlines()[-1])
    return returned


def command_for(
    function: Callable[..., Any], *arguments: Any, package: Path | None = None, **named: Any
) -> tuple[list[str], dict[str, str]]:
    """Return the command that calls *function* and prints what it returns, and the environment that it needs."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    called = [str(package or ""), function.__module__, function.__name__, json.dumps([arguments, named])]
    return [sys.executable, "-m", "benchmarks.measure", *called], {**os.environ, "PYTHONPATH": path}


def die_with(figures: Figures) -> NoReturn:
    """End this process as ``kill -9`` does, after a last word."""
    print(json.dumps(figures), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


# -- what is printed ---------------------------------------------------------------------------------------------------


def print_environment(*packages: str) -> None:
    """Print what every result begins with: date, machine, its load, and the versions of *packages*."""
    load = os.getloadavg()[0]
    print(f"{time.strftime('%Y-%m-%d')}, {platform.platform()}, {os.cpu_count()} cores, load {load:.1f}")
    versions = [f"{name} {installed(name)}" for name in packages]
    print(", ".join([f"Python {platform.python_version()}", *versions]) + "\n")


def installed(package: str) -> str:
    """Return the version of *package*, or say that it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return MISSING


class Spread(NamedTuple):
    """The median of a few rounds, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of *values*, at least one."""
        return cls(statistics.median(values), min(values), max(values))

    def __format__(self, spec: str) -> str:
        """Show all three, each formatted by *spec*: ``2.1 (2.0-2.4)``; just the median if there is no spread."""
        if self.low == self.high:
            return format(self.median, spec)
        return f"{self.median:{spec}} ({self.low:{spec}}-{self.high:{spec}})"


def print_side_by_side(what: str, sides: Mapping[str, Side], old: Path | None, rounds: int) -> None:
    """Run *sides*, and ours from the folder *old*, and print what they return."""
    print_figures(what, side_by_side(with_old(sides, old), rounds))


def print_figures(what: str, found: Mapping[str, Sequence[Figures]]) -> None:
    """Print a row for each side: the median of each of its figures, and how many times the first side's it is.

    The latter is the spread of the rounds' own ratios, rather than the ratio of two medians.
    """
    first, *_ = found
    header, rows = [what], {name: [name] for name in found}
    for key in [key for key, value in found[first][0].items() if not isinstance(value, str)]:
        base = [one[key] for one in found[first]]
        header += [key, "times the first"]
        for name, ones in found.items():
            ratios = [one[key] / below for one, below in zip(ones, base, strict=True) if below]
            rows[name] += [rounded(statistics.median(one[key] for one in ones))]
            rows[name] += [format(Spread.of(ratios), ".2f") if ratios and name != first else ""]
    print_table(header, list(rows.values()))


def rounded(value: float) -> str:
    """Return *value* with three digits, or with all that stand before the point; a count with all."""
    digits = 0 if value == int(value) else max(0, 2 - math.floor(math.log10(value)))
    return f"{value:,.{digits}f}"


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table, aligned to be readable as plain text: the first column left, all others right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * (width + 1) + ("-" if at == 0 else ":") for at, width in enumerate(widths)]
    lines = [
        "| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |"
        for row in (header, *rows)
    ]
    print("\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]]), end="\n\n", flush=True)


# -- memory of this process --------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM now. Linux only."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_and_disk(directory: str) -> Figures:
    """Return the most memory that this process has had in RAM, and the room of *directory*. Linux only."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return {"peak RAM, MB": peak / 1e6, "disk, MB": disk_bytes(directory) / 1e6}


def disk_bytes(directory: str) -> int:
    """Return the room that all files below *directory* take."""
    return sum(path.stat().st_blocks * 512 for path in Path(directory).rglob("*") if path.is_file())


def _run_side(package: str, module: str, function: str, arguments: str) -> None:
    if package:  # only this package: everything else is the installed one
        sys.path.insert(0, package)
        import_module("scrapy_bloom")
        sys.path.remove(package)
    given, named = json.loads(arguments)
    print(json.dumps(getattr(import_module(module), function)(*given, **named)))


if __name__ == "__main__":
    _run_side(*sys.argv[1:])
