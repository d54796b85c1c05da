"""Spiders as people write them get with the add-on what plain Scrapy gives.

The fast tests run many spiders at a time in one process, with a site for each. The slow ones give each spider a process
of its own, which interruptions hit at its own third.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.fleet.servers import RedisServer
from tests.zoo.cells import FLEET_MODES, applies, compare, problems_of, run
from tests.zoo.random_spiders import species as random_spider
from tests.zoo.runner import OWN, species_in

if TYPE_CHECKING:
    from collections.abc import Iterator

ZOO = {species.name: species for module in OWN for species in species_in(module)}


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.mark.parametrize("module", OWN)
def test_all_spiders_of_a_module_at_a_time(module: str) -> None:
    """Each spider gives the items of plain Scrapy and asks for the same pages."""
    assert compare(species_in(module), ["job"]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["addon", "kill", "stop"])  # with a job, the fast ones
def test_all_spiders_at_a_time_in_each_mode(mode: str) -> None:
    """Each spider gives the items of plain Scrapy, straight and after two interruptions of all."""
    assert compare([*ZOO.values()], [mode]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_each_spider_alone(name: str) -> None:
    """Each spider gives the items of plain Scrapy, in a process of its own that is interrupted at its own thirds."""
    assert compare([ZOO[name]], ["kill", "stop"]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, species in ZOO.items() if applies("fleet", species)])
def test_each_spider_in_a_fleet(name: str, redis: RedisServer) -> None:
    """Two workers together give the items of plain Scrapy, also if one of them is killed."""
    assert compare([ZOO[name]], FLEET_MODES, redis.url) == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_random_spider_in_a_fleet(seed: int, redis: RedisServer) -> None:
    """As above, for spiders that are drawn."""
    assert compare([random_spider(seed)], FLEET_MODES, redis.url) == {}


def test_the_runner_sees_what_differs() -> None:
    """An item too few, one too many and a page that was not asked for are problems; an equal outcome is none."""
    species = ZOO["ListsOfItems"]
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
