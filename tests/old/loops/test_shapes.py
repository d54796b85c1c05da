"""URLs of a kind have one shape, and a shape has only URLs of a kind."""

from __future__ import annotations

import random
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.old.loops.shapes import FOLDERS, SECTION, SECTIONS, Shapes, _Folder, mask


@pytest.mark.parametrize(
    ("segment", "masked"),
    [
        ("2026", "N"),
        ("item-4711.html", "item-N.html"),
        ("da39a3ee5e6b4b0d3255bfef95601890afd80709", "HASH"),
        (str(UUID(int=7)), "UUID"),
        ("dQw4w9WgXcQ7fKs03zP", "TOKEN"),
        ("about", "about"),
        ("a-long-title-of-an-article-from-2019", "a-long-title-of-an-article-from-N"),
        ("decade", "decade"),
        ("page;jsessionid=ABC", "page;"),
        ("", ""),
    ],
)
def test_what_looks_drawn_or_counted_is_masked(segment: str, masked: str) -> None:
    """Numbers, hashes, UUIDs and tokens are masked; words and titles are not."""
    assert mask(segment) == masked


def test_the_shapes_of_a_url_from_the_inside_out() -> None:
    """The URL's own shape comes first, then its path under any query, then its folders. Pages with a query and those
    without have no folder in common: sort orders of a directory say nothing about the next directory."""
    assert Shapes().of("https://Example.com/shop/shoes/4711?page=3&colour=red#top") == (
        "example.com/shop/shoes/N?colour&page",
        "example.com/shop/shoes/*?colour&page",
        "example.com/shop/shoes/*?(2)",
        "example.com/shop/shoes/N?*",
        "example.com/shop/shoes/N/**?*",
        "example.com/shop/shoes/**?*",
        "example.com/shop/**?*",
    )
    assert Shapes().of("https://example.com/shop/shoes/4711") == (
        "example.com/shop/shoes/N",
        "example.com/shop/shoes/N/**",
        "example.com/shop/shoes/**",
        "example.com/shop/**",
    )
    assert Shapes().of("https://example.com") == ("example.com",)
    assert Shapes().of("https://example.com/") == ("example.com/",)


def test_a_session_in_the_path_makes_one_kind_wherever_it_stands() -> None:
    """A session before the name of the page counts as one behind it, and such pages are not those without a session."""
    before = Shapes().of("https://example.com/tickets/(S(lit3py55t21z5v55vlm25s55))/show17.do")
    behind = Shapes().of("https://example.com/tickets/show4.do;jsessionid=0656931E8D96CF19CF779CD9A4326E09")
    assert before[0] == behind[0] == "example.com/tickets/showN.do;"
    assert Shapes().of("https://example.com/tickets/show17.do")[0] == "example.com/tickets/showN.do"
    assert Shapes().of("https://example.com/wiki/(S(x)")[0] == "example.com/wiki/(S(x)"


def test_sections_of_a_site_do_not_share_their_queries() -> None:
    """The lists of two sections have no shape in common, so that one that runs dry does not park the other."""
    shapes = Shapes()
    lists = [shapes.of(f"https://example.com/{section}?page=2&by=name") for section in ("forum/", "firms/", "a", "b")]
    assert len({shape for one in lists for shape in one}) == sum(map(len, lists))


def test_many_different_children_are_one_kind() -> None:
    """Words and titles in one folder are masked once there are many of them."""
    shapes = Shapes()
    words = [f"{a}{b}" for a in "abcdefghijklmnopqrst" for b in ("hat", "shoe", "coat")]
    for word in words:
        shapes.learn(f"https://example.com/shop/{word}")
    assert {shapes.of(f"https://example.com/shop/{word}")[0] for word in words} == {"example.com/shop/*"}


def test_the_sections_of_a_site_keep_their_names_among_many_pages() -> None:
    """In a folder of many children, those with many URLs below them are not masked."""
    shapes = Shapes()
    rng = random.Random(3)
    for i in range(2000):
        shapes.learn(f"https://example.com/docs/page{i}")
        shapes.learn(f"https://example.com/{'abcdefgh'[i % 8]}{rng.choice('uvwxyz') * 3}-{'xyz'[i % 3] * (i % 50 + 2)}")
    assert shapes.of("https://example.com/docs/other")[-1] == "example.com/docs/**"
    assert shapes.of("https://example.com/never-seen")[-1] == "example.com/*/**"


def test_words_that_come_up_evenly_never_become_sections() -> None:
    """In a maze of 500 words every folder is masked, however long the crawl is."""
    shapes = Shapes()
    rng = random.Random(4)
    for _ in range(20_000):
        shapes.learn(
            "https://example.com/" + "".join(f"/w{rng.choice('abcdefghij') * rng.randint(1, 50)}" for _ in range(2))
        )
    assert SECTION * 500 < 20_000
    names = {shapes.of(f"https://example.com//w{c * n}/x")[-1] for c in "abcdefghij" for n in range(1, 51)}
    assert len(names) <= 3


@given(st.lists(st.integers(0, 7), max_size=60))
def test_shapes_that_are_kept_are_those_that_would_be_found_now(children: list[int]) -> None:
    """What was found for a URL is forgotten as soon as its folder learns something that changes it: that it is wide, or
    that a child has become a section or is none any more."""
    urls = [f"https://example.com/shop/{'x' * child}y/1" for child in range(8)]
    with patch.multiple("scrapy_bloom.old.loops.shapes", CHILDREN=3, SECTION=2):
        keeping, forgetful = Shapes(), Shapes()
        for number, child in enumerate(children):
            for shapes in (keeping, forgetful):
                shapes.learn(f"{urls[child]}/{number}")
            for url in urls:
                forgetful._found.clear()
                assert keeping.judges_of(url) == forgetful.judges_of(url)


def test_what_is_learned_is_bounded_and_survives() -> None:
    """At most FOLDERS folders of CHILDREN children are remembered, and the next run remembers the same."""
    shapes = Shapes()
    for i in range(FOLDERS + 500):
        shapes.learn(f"https://example{i}.com/a/b")
    assert len(shapes._folders) <= FOLDERS
    for i in range(SECTIONS + 1):
        shapes.learn(f"https://example.com/{'x' * i}y")
    rows = shapes.changed()
    again = Shapes()
    again.load(rows)
    assert again.of("https://example.com/other") == ("example.com/*", "example.com/*/**")
    assert shapes.changed() == []


@given(st.lists(st.sampled_from("abcdefgh"), max_size=200))
def test_the_counts_of_a_folder_are_those_of_space_saving(children: list[str]) -> None:
    """They are those of a model that looks at all counters each time one has to go."""
    folder = _Folder(3)
    model: dict[str, tuple[int, int]] = {}
    for child in children:
        folder.count(child)
        if child in model or len(model) < 3:
            count, excess = model.get(child, (0, 0))
        else:
            count, _ = model.pop(min(model, key=lambda name: model[name][0]))
            excess = count
        model[child] = (count + 1, excess)
        assert folder.children == model
