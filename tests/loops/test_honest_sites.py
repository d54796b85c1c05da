"""Sites without traps, each of a kind that a judge of content may misread, are fetched as without the guard."""

import pytest

from benchmarks.loops import crawl
from benchmarks.sites.plain import ITEMS, SHAPES, PlainSite

FAST = ("facets",)


@pytest.mark.parametrize("fifo", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["lifo", "fifo"])
@pytest.mark.parametrize(
    "kind", [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in (*ITEMS, *SHAPES)]
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
