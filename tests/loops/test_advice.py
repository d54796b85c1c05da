"""Following the URL rules that the guard suggests loses no page."""

from __future__ import annotations

import pytest

from benchmarks.loops import crawl, merged
from benchmarks.sites.programs import GROUPS
from benchmarks.sites.records import Learning, Library

SITES = [
    pytest.param(make, seed, id=f"{name} {seed}", marks=pytest.mark.slow)
    for group, named in GROUPS.items()
    for name, make in named.items()
    for seed in (range(6) if group == "drawn" else (1,))
]


def lost(site: object, *, fifo: bool) -> dict[str, set[str]]:
    """Return the honest pages that each rule merges which the guard suggests after a crawl of *site*."""
    result = crawl(site, 2.0, fifo=fifo)  # type: ignore[arg-type]
    return {rule: pages for rule in result.advice if (pages := merged(site, rule, result.seen))}  # type: ignore[arg-type]


AWAITED = pytest.mark.xfail(reason="The guard suggests without:biblionumber and without:id.", strict=False)


@AWAITED
@pytest.mark.parametrize("fifo", [False, True], ids=["lifo", "fifo"])
@pytest.mark.parametrize(("make", "seed"), SITES)
def test_suggested_rules_merge_no_pages(make, seed: int, fifo: bool) -> None:  # type: ignore[no-untyped-def]
    """Each rule is applied to all URLs of the site: no two pages get one URL."""
    assert lost(make(seed), fifo=fifo) == {}


@pytest.mark.parametrize("program", [Library, Learning])
def test_a_key_that_records_share_with_forms_is_not_dropped(program: type[Library | Learning]) -> None:
    """Forms that look the same under each key outnumber the records with that key."""
    assert lost(program(1, scale=0.4), fifo=True) == {}


def test_merged_pages_are_found() -> None:
    """A rule that drops the key of records merges them, and one that drops the words of a search does not."""
    site = Library(1, scale=0.05)
    assert len(merged(site, "without:biblionumber", [])) == len(site.records)
    link = f"{site.host}{site.url('record', {'n': site.records[0]}, query_desc='word')}"
    assert merged(site, "without:query_desc", [link]) == set()
