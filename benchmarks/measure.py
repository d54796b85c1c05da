"""What all benchmarks share: the line about the machine, rounds side by side, medians with spread, tables, pictures.

Does not know what is measured. Times are CPU time: on a busy machine wall time stretches at will, CPU time only by
shared caches and hyper-threads. A ratio is taken within a round, whose sides run within a second or so of each other;
the median is over rounds.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")
P = ParamSpec("P")

ROOT = Path(__file__).parent.parent


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


@dataclass(frozen=True)
class Picture:
    """What a benchmark would draw: one bar for each name, or one line if the values are ``(x, y)`` points."""

    title: str
    axis: str
    """What the values are, with their unit."""
    values: Mapping[str, Spread | Sequence[tuple[float, float]]]
    x_axis: str = ""
    """What x is, for lines."""

    def save(self, path: Path) -> None:
        """Draw into the file at *path*, in the format of its ending. Needs matplotlib (the extra ``plot``)."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            sys.exit("--plot needs matplotlib: pip install -e '.[plot]'")
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        axes.set_title(self.title)
        if self.x_axis:
            for name, points in self.values.items():
                axes.plot(*zip(*points, strict=True), label=name)
            axes.set(xlabel=self.x_axis, ylabel=self.axis, ylim=(0, None))
            axes.legend()
        else:
            names = list(self.values)
            spreads = [spread for spread in self.values.values() if isinstance(spread, Spread)]
            middles = [spread.median for spread in spreads]
            errors = [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]
            axes.barh(names, middles, xerr=errors)
            axes.invert_yaxis()
            axes.set_xlabel(self.axis)
        figure.savefig(path)


def print_environment(*packages: str) -> None:
    """Print the lines that every result begins with: date, machine and its load, versions of *packages*."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    memory = _memory()
    print(time.strftime("%Y-%m-%d"), f"{machine()}, {os.cpu_count()} cores{memory}{load}", sep=", ")
    versions = [f"Python {platform.python_version()}", *(f"{name} {installed(name)}" for name in packages)]
    print(", ".join(versions) + "\n")


def machine() -> str:
    """Return the name of the processor, as far as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _memory() -> str:
    try:
        return f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):
        return ""


def installed(package: str) -> str:
    """Return the version of *package*, or say that it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def side_by_side(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Call each of *sides* once a round, every other round in reverse order, and return what each returned."""
    results: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(rounds):
        names = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in names:
            results[name].append(sides[name]())
    return results


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Return the spread of the rounds' own ratios, rather than the ratio of two medians."""
    return Spread.of([above / below for above, below in zip(numerators, denominators, strict=True)])


def nanoseconds_each(function: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    """Return the CPU time of one call, in nanoseconds, as the mean over one pass over *arguments*.

    The loop itself is in it, about 20 ns. All threads of the process count.
    """
    start = time.process_time_ns()
    for argument in arguments:
        function(argument)
    return (time.process_time_ns() - start) / len(arguments)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from charging one side for walking over the other's objects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def random_fingerprints(seed: int, count: int, length: int = 20) -> list[bytes]:
    """Return *count* new objects that look like fingerprints; different ones for each *seed*."""
    blob = random.Random(seed).randbytes(count * length)
    return [blob[at : at + length] for at in range(0, len(blob), length)]


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM now."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        sys.exit("Resident memory is read from /proc/self/statm, which only Linux has.")
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Return the most memory that this process has had in RAM since it started its program."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        sys.exit("The peak of resident memory is read from /proc/self/status, which only Linux has.")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def in_own_process(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return what *function*, of a module, returns in a process of its own. It takes and returns what JSON can hold.

    For measurements that leave traces in a process (memory, a reactor that has run), or must not see those of others.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    command = command_for(function, *arguments, **named)
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if ended.returncode:
        sys.exit(f"{function.__name__} of {function.__module__} ended with status {ended.returncode}; see above.")
    returned: T = json.loads(ended.stdout.strip().splitlines()[-1])
    return returned


def command_for(function: Callable[P, Any], *arguments: P.args, **named: P.kwargs) -> list[str]:
    """Return the command that calls *function* and prints what it returns, for a process that finds this folder."""
    given = json.dumps([arguments, named])
    return [sys.executable, "-m", "benchmarks.measure", function.__module__, function.__name__, given]


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table, aligned to be readable as plain text: the first column left, all others right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *others]) + " |"

    print(line(header))
    print("|" + "|".join("-" * (width + 1) + ("-" if at == 0 else ":") for at, width in enumerate(widths)) + "|")
    for row in rows:
        print(line(row))
    print(flush=True)


def print_target(what: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
    """Print whether *value* reaches the target named by the keyword."""
    if at_least is not None:
        reached, bound = value >= at_least, f"at least {at_least:g}"
    elif at_most is not None:
        reached, bound = value <= at_most, f"at most {at_most:g}"
    else:
        raise TypeError("a target needs a bound")
    print(f"{'reached' if reached else 'MISSED '}: {what}: {value:.3g}, target {bound}")


if __name__ == "__main__":  # the other side of in_own_process()
    _, _module, _function, _given = sys.argv
    _arguments, _named = json.loads(_given)
    print(json.dumps(getattr(import_module(_module), _function)(*_arguments, **_named)))
