"""Adding fingerprints and asking for them, beside other bloom filters, a set and SQLite.

Every filter is made for as many and the same error rate, then filled to four fifths. Each round adds new fingerprints,
adds equal ones once more (duplicates), and asks for others (absent). Ours promises the rate for a chain of any length
and therefore spends more bits on its first layer than the others on their only one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import measure, rivals

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

QUESTIONS = ("new", "duplicate", "absent")

# Far from the numbers of the rounds, which are the seeds of new fingerprints.
_FILL_SEED, _ABSENT_SEED, _WARM_UP_SEED = 1 << 20, 1 << 21, 1 << 22


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--capacity", type=int, default=250_000, help="URLs; 1 MB of bits at the default %(default)s")
    parser.add_argument("--large", action="store_true", help="1 GB of bits, which takes 12 GB of RAM for all filters")
    parser.add_argument("--error-rate", type=float, default=1e-6, help="default: %(default)s")
    parser.add_argument("--sample", type=int, help="URLs per round (default: a hundredth of the capacity, at most 1e4)")
    parser.add_argument("--rounds", type=int, default=19, help="default: %(default)s")


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print a table."""
    measure.print_environment(*rivals.PACKAGES)
    capacity = 280_000_000 if options.large else options.capacity
    sample = options.sample or min(10_000, max(1, capacity // 100))
    with tempfile.TemporaryDirectory() as directory, measure.uncollected():
        memories = _made(capacity, options.error_rate, Path(directory), preset=options.large)
        if not options.large:
            for fingerprint in measure.random_fingerprints(_FILL_SEED, max(0, capacity * 4 // 5)):
                for memory in memories.values():
                    memory.add(fingerprint)
        times = measure.side_by_side(
            {name: _round_of(memory, sample) for name, memory in memories.items()}, options.rounds
        )
        bits = {name: memory.size_bits for name, memory in memories.items()}
        del memories  # files are closed before their directory goes

    print(
        f"{capacity:,} URLs at {options.error_rate:g}; medians of {options.rounds} rounds of {sample:,} URLs. "
        f"Times as long as {rivals.OURS} takes (lowest-highest), then ns of CPU time per URL\n"
    )
    ours = times[rivals.OURS]
    rows = []
    drawn = {}
    for name, rounds in times.items():
        ratios = [
            measure.ratios([one[at] for one in rounds], [one[at] for one in ours]) for at in range(len(QUESTIONS))
        ]
        medians = [measure.Spread.of([one[at] for one in rounds]) for at in range(len(QUESTIONS))]
        size = bits[name]
        rows.append(
            [
                name,
                *(f"{ratio:.2f}" for ratio in ratios),
                *(f"{spread.median:.0f}" for spread in medians),
                f"{size / capacity:.1f}" if size else "-",
            ]
        )
        drawn[name] = medians[0]
    measure.print_table(["", *QUESTIONS, *(f"{question}, ns" for question in QUESTIONS), "bits per URL"], rows)
    for name, least, most in (
        (rivals.RBLOOM, None, 2.0),
        (rivals.SEEDED_RBLOOM, None, 2.0),
        (rivals.PYBLOOM, 6.0, None),
    ):
        if name not in times:
            continue
        for at, question in enumerate(QUESTIONS[:2]):
            theirs, mine = [one[at] for one in times[name]], [one[at] for one in ours]
            if most:
                ratio = measure.ratios(mine, theirs).median
                measure.print_target(f"add, {question}: our time over that of {name}", ratio, at_most=most)
            else:
                ratio = measure.ratios(theirs, mine).median
                measure.print_target(f"add, {question}: time of {name} over ours", ratio, at_least=least)
    return measure.Picture(f"Adding a new URL, filters for {capacity:,} URLs", "ns of CPU time", drawn)


def _made(capacity: int, error_rate: float, directory: Path, *, preset: bool) -> dict[str, rivals.Memory]:
    memories = {}
    for number, (name, make) in enumerate(rivals.MEMORIES.items()):
        own_directory = directory / str(number)
        own_directory.mkdir()
        try:
            memories[name] = make(rivals.Need(capacity, error_rate, own_directory, preset))
        except ImportError as error:
            print(f"left out: {name} ({error})")
        except rivals.NoPresetError as error:
            print(f"left out: {name} ({error})")
    return memories


def _round_of(memory: rivals.Memory, sample: int) -> Callable[[], tuple[float, ...]]:
    """Return a function that times one round on *memory*, with fingerprints of its own each time it is called."""
    number = 0

    def one_round() -> tuple[float, ...]:
        nonlocal number
        number += 1
        # The other sides have used the caches since.
        measure.nanoseconds_each(memory.contains, measure.random_fingerprints(_WARM_UP_SEED + number, sample))
        return (
            measure.nanoseconds_each(memory.add, measure.random_fingerprints(number, sample)),
            # Equal fingerprints, but not the same objects: those would know their hash already.
            measure.nanoseconds_each(memory.add, measure.random_fingerprints(number, sample)),
            measure.nanoseconds_each(memory.contains, measure.random_fingerprints(_ABSENT_SEED + number, sample)),
        )

    return one_round
