"""Spiders as people write them get with the add-on what plain Scrapy gives.

The fast tests run all spiders at a time in one process, with a site for each. The slow ones give each spider a process
of its own, which interruptions hit at its own third.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.fleet.servers import RedisServer
from tests.zoo.cells import FLEET_MODES, MODES, Outcome, problems_of, run
from tests.zoo.runner import OWN, species_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.zoo.child import Species

ZOO = {species.name: species for module in OWN for species in species_in(module)}


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@cache
def plain(*names: str) -> dict[str, Outcome]:
    """Return what plain Scrapy gives, for all of *names* in one process."""
    return run([ZOO[name] for name in names], "plain")


def complain(problems: list[str]) -> None:
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def applies(mode: str, species: Species) -> bool:
    return mode not in getattr(species.load(), "skip", ())


@pytest.mark.parametrize("mode", ["plain", "addon", "job", "kill", "stop"])
def test_all_spiders_at_a_time(mode: str) -> None:
    """Each spider gives the items of plain Scrapy, straight and after two interruptions of all."""
    expected = plain(*ZOO)
    zoo = [species for species in ZOO.values() if applies(mode, species)]
    outcomes = run(zoo, mode, sum(expected[species.name].hits.total() for species in zoo))
    problems = {name: problems_of(ZOO[name], mode, outcome, expected[name]) for name, outcome in outcomes.items()}
    complain([f"{name}: {'; '.join(found)}" for name, found in problems.items() if found])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ZOO)
def test_each_spider_alone(name: str, mode: str) -> None:
    """Each spider gives the items of plain Scrapy, in a process of its own."""
    species = ZOO[name]
    if applies(mode, species):
        expected = plain(name)[name]
        complain(problems_of(species, mode, run([species], mode, expected.hits.total())[name], expected))


@pytest.mark.slow
@pytest.mark.parametrize("mode", FLEET_MODES)
@pytest.mark.parametrize("name", [name for name, species in ZOO.items() if applies("fleet", species)])
def test_each_spider_in_a_fleet(name: str, mode: str, redis: RedisServer) -> None:
    """Two workers together give the items of plain Scrapy, also if one of them is killed."""
    species = ZOO[name]
    expected = plain(name)[name]
    outcome = run([species], mode, expected.hits.total(), redis.url)[name]
    complain(problems_of(species, mode, outcome, expected))


def test_the_runner_sees_what_differs() -> None:
    """An item too few, one too many and a page that was not asked for are problems; an equal outcome is none."""
    species, expected = ZOO["ListsOfItems"], plain(*ZOO)["ListsOfItems"]
    item, hit = Counter([min(expected.items)]), Counter([min(expected.hits)])
    assert not problems_of(species, "job", expected, expected)
    for changed in (
        replace(expected, items=expected.items - item),
        replace(expected, items=expected.items + item),
        replace(expected, hits=expected.hits - hit),
        replace(expected, hangs=True),
    ):
        assert problems_of(species, "job", changed, expected)
