"""Following the URL rules that the guard suggests loses no page."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from benchmarks.loops import crawl, merged
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
