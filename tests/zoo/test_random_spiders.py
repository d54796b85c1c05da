"""Random spiders get with the add-on what plain Scrapy gives.

Of one that fails, ``python -m tests.zoo.random_spiders 7`` shows the program; ``python -m tests.zoo.cells Random7``
runs it again.
"""

import pytest

from tests.zoo.cells import compare
from tests.zoo.random_spiders import draw, fetches, species

FAILED_ONCE = [1231, 6143, 40013]
"""Seeds that have found something."""
# What one program in fifty shows, 80 of them show in four of five sets.
SLOW = {
    range(first, first + 20): ("addon", "kill") if first % 40 else ("job", "stop") for first in range(1_020, 1_180, 20)
}


@pytest.mark.slow
def test_those_that_failed_once() -> None:
    """Each gives the items of plain Scrapy, straight and after two kills."""
    assert compare([*map(species, FAILED_ONCE)], ["job", "kill"]) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "modes"), SLOW.items(), ids=lambda part: str(part[0]))
def test_hundreds(seeds: range, modes: tuple[str, str]) -> None:
    """The same for hundreds: half of them without a job directory and killed, half of them with one and stopped."""
    assert compare([*map(species, seeds)], modes) == {}


def test_programs_are_of_a_size() -> None:
    """A seed draws the same program each time, with pages to be had, and not without bound."""
    for seed in range(200):
        assert str(draw(seed)) == str(draw(seed))
        assert 0 < fetches(draw(seed)) <= 100
