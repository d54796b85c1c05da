"""Sites without traps, each of a kind that a judge of content may misread, are fetched as without the guard."""

from __future__ import annotations

import pytest

from benchmarks.loops import crawl
from benchmarks.sites.plain import KINDS, plain_site


@pytest.mark.parametrize("fifo", [False, True], ids=["lifo", "fifo"])
@pytest.mark.parametrize("name", KINDS)
def test_a_site_of_700_pages_is_whole(name: str, fifo: bool) -> None:
    """Whatever its pages look like: a thousand pages without news are no proof of a trap."""
    site = plain_site(name)
    result = crawl(site, fifo=fifo)
    assert not result.is_over
    assert result.by_part == {name: len(site.honest)}


@pytest.mark.slow
@pytest.mark.parametrize("fifo", [False, True], ids=["lifo", "fifo"])
@pytest.mark.parametrize("name", ["parts", "phone_book", "sensors", "galleries", "files"])
def test_a_site_of_20_000_pages_is_whole(name: str, fifo: bool) -> None:
    """Its pages differ in numbers, pictures or bytes alone."""
    site = plain_site(name, 20_000)
    result = crawl(site, fifo=fifo)
    assert not result.is_over
    assert result.by_part == {name: len(site.honest)}
