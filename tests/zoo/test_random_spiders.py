"""Random spiders get with the add-on what plain Scrapy gives. What fails here is told by `tests.zoo.random_spiders`."""

from __future__ import annotations

import pytest

from tests.zoo.cells import run
from tests.zoo.random_spiders import draw, fetches, judge, species

FAILED_ONCE = [1231, 6143]
"""Seeds that have found something: they stay among those of the fast suite."""
FAST = [*FAILED_ONCE, *range(24)]
SLOW = [list(range(first, first + 25)) for first in range(1_000, 1_500, 25)]


def check(seeds: list[int], modes: list[str]) -> None:
    plain = run([species(seed) for seed in seeds], "plain")
    problems = {f"seed {seed}, {mode}": found for mode in modes for seed, found in judge(seeds, mode, plain).items()}
    if problems:
        pytest.fail("\n".join(f"{name}: {'; '.join(found)}" for name, found in problems.items()), pytrace=False)


def test_a_few_dozen() -> None:
    """Each gives the items of plain Scrapy, and asks for the same pages."""
    check(FAST, ["job"])


def test_a_few_that_are_killed() -> None:
    """Each gives the items of plain Scrapy after two kills."""
    check([*FAILED_ONCE, *range(24, 34)], ["kill"])


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SLOW, ids=lambda seeds: str(seeds[0]))
def test_five_hundred(seeds: list[int]) -> None:
    """The same for five hundred, without a job directory, killed, and stopped."""
    check(seeds, ["addon", "kill", "stop"])


def test_programs_are_of_a_size() -> None:
    """A seed draws the same program each time, with pages to be had, and not without bound."""
    for seed in range(200):
        assert str(draw(seed)) == str(draw(seed))
        assert 0 < fetches(draw(seed)) <= 100
