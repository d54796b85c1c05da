"""Spiders as people write them get with the add-on what plain Scrapy gives.

Several spiders crawl at a time in one process, with a site for each. In a fleet, each spider has processes of its own.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.fleet.servers import RedisServer
from tests.zoo.cells import OWN, applies, compare, problems_of, run, species_in
from tests.zoo.random_spiders import species as random_spider

ZOO = {species.name: species for species in species_in(*OWN)}
IN_FLEETS = [species for species in ZOO.values() if applies("fleet", species)] + [random_spider(n) for n in range(4)]
TEAM = 10
FAST = ["LoginThenHome", "ItemsOfStart", "Outputs", "TypesAndFiles", "LinkedFailures"]


def test_a_few_spiders_at_a_time() -> None:
    """Each spider gives the items of plain Scrapy and asks for the same pages."""
    assert compare([ZOO[name] for name in FAST], ["job"]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(ZOO), TEAM))
def test_all_spiders_in_each_mode(first: int) -> None:
    """Each spider gives the items of plain Scrapy, straight and after two interruptions at about its own thirds."""
    assert compare([*ZOO.values()][first : first + TEAM], ["addon", "job", "kill", "stop"]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(IN_FLEETS), TEAM))
def test_spiders_in_fleets(first: int, server: RedisServer) -> None:
    """Two workers together give the items of plain Scrapy, though one of them is killed. Ten fleets run at a time."""
    with ThreadPoolExecutor(TEAM) as pool:
        team = IN_FLEETS[first : first + TEAM]
        problems = pool.map(lambda species: compare([species], ["fleet-kill"], server.url), team)
        assert [*filter(None, problems)] == []


def test_the_runner_sees_what_differs() -> None:
    """An item too few, one too many and a page that was not asked for are problems; an equal outcome is none."""
    species = ZOO["Lists"]
    expected = run([species], "plain")[species.name]
    expected.remove_files()
    item, hit = Counter([min(expected.items)]), Counter([min(expected.hits)])
    assert not problems_of(species, "job", expected, expected)
    for changed in (
        replace(expected, items=expected.items - item),
        replace(expected, items=expected.items + item),
        replace(expected, hits=expected.hits - hit),
        replace(expected, hangs=True),
    ):
        assert problems_of(species, "job", changed, expected)
