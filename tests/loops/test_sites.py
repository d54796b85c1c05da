"""Whole sites under the guard: honest ones are fetched as without it, and rules that it suggests lose no page."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from benchmarks.loops import crawl, merged
from benchmarks.sites import site as drawn_site
from benchmarks.sites.plain import ITEMS, SHAPES, PlainSite
from benchmarks.sites.programs import GROUPS
from benchmarks.sites.records import Library

SIZES = {"traps": {"scale": 0.1}}
SITES = [
    pytest.param(partial(make, seed, **SIZES.get(group, {})), fifo, id=f"{name} {seed} {'fifo' if fifo else 'lifo'}")
    for group, named in GROUPS.items()
    for name, make in named.items()
    for seed in (range(4) if group == "drawn" else (1,))
    for fifo in ((False, True) if group in ("drawn", "programs") else (False,))
]


def lost(site: Any, *, fifo: bool) -> dict[str, set[str]]:
    """Return the honest pages that each rule merges which the guard suggests after a crawl of *site*."""
    result = crawl(site, 2.0, fifo=fifo)
    return {rule: pages for rule in result.advice if (pages := merged(site, rule, result.seen))}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "fifo"), SITES)
def test_suggested_rules_merge_no_pages(make: Callable[[], Any], fifo: bool) -> None:
    """Each rule is applied to all URLs of the site: no two pages get one URL."""
    assert lost(make(), fifo=fifo) == {}


def test_merged_pages_are_found() -> None:
    """A rule that drops the key of records merges them, and one that drops the words of a search does not."""
    site = Library(1, scale=0.05)
    assert len(merged(site, "without:biblionumber", [])) == len(site.records)
    link = f"{site.host}{site.url('record', {'n': site.records[0]}, query_desc='word')}"
    assert merged(site, "without:query_desc", [link]) == set()


@pytest.mark.parametrize("fifo", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["lifo", "fifo"])
@pytest.mark.parametrize(
    "kind", [kind if kind == "facets" else pytest.param(kind, marks=pytest.mark.slow) for kind in (*ITEMS, *SHAPES)]
)
def test_a_site_without_traps_is_whole(kind: str, fifo: bool) -> None:
    """It has more pages than a host may show without news: each page brings something, or leads to what does.

    Only copies of its pages may be left when the guard ends the crawl.
    """
    site = PlainSite(kind)
    result = crawl(site, len(site.pages) / len(site.honest), fifo=fifo)
    assert result.share == 1
    if not site.copies:
        assert not result.is_over
        assert result.by_part == {kind: len(site.honest)}


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "traps", "budget"), [(3, True, 2), (4, False, 1)])
def test_drawn_sites_are_crawled_to_their_honest_pages(seed: int, traps: bool, budget: int) -> None:
    """With traps, twice the budget fetches every honest page, and no trap takes more than half; without, once does."""
    result = crawl(drawn_site(seed, traps=traps), float(budget))
    assert result.at[budget] == 1.0
    assert all(pages < result.pages / 2 for part, pages in result.by_part.items() if part.startswith("trap"))
