"""Random spiders get with the add-on what plain Scrapy gives.

Of one that fails, ``python -m tests.zoo.random_spiders 7`` shows the program; ``python -m tests.zoo.runner Random7``
runs it again.
"""

from __future__ import annotations

import pytest

from tests.zoo.cells import compare
from tests.zoo.random_spiders import draw, fetches, species

FAILED_ONCE = [1231, 6143]
"""Seeds that have found something: they stay among those of the fast suite."""
# What one program in a hundred shows, 250 of them show in 12 of 13 sets.
SLOW = [range(first, first + 50) for first in range(1_000, 1_250, 50)]


def test_a_few() -> None:
    """Each gives the items of plain Scrapy, straight and after two kills, and straight it asks for the same pages."""
    assert compare([*map(species, [*FAILED_ONCE, *range(3)])], ["job", "kill"]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SLOW, ids=lambda seeds: str(seeds[0]))
def test_hundreds(seeds: range) -> None:
    """The same for 250, also without a job directory and stopped."""
    assert compare([*map(species, seeds)], ["addon", "job", "kill", "stop"]) == {}


def test_programs_are_of_a_size() -> None:
    """A seed draws the same program each time, with pages to be had, and not without bound."""
    for seed in range(200):
        assert str(draw(seed)) == str(draw(seed))
        assert 0 < fetches(draw(seed)) <= 100
