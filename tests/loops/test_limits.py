import random
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.settings import BaseSettings, Settings

from scrapy_bloom.errors import SettingsError
from scrapy_bloom.loops.limits import LONGEST_BLOCK, TRIVIAL, LoopOptions, objection_by, tandem_repeat
from scrapy_bloom.settings import BloomSettings

objection = objection_by(LoopOptions())


def read(value: object) -> LoopOptions | Literal[False]:
    return BloomSettings.from_settings(Settings({"BLOOM_LOOP_GUARD": value})).loop_guard


SITE = "http://a.example/"


@pytest.mark.parametrize(
    ("url", "limit", "reason"),
    [
        (SITE + "/".join(f"s{i}" for i in range(21)), "depth", "21 path segments, more than 20"),
        (SITE + "x/" * 4 + "/".join("abcdefghijklmnopqr"), "depth", "22 path segments, more than 20"),
        (SITE + "?q=" + "x" * 2064, "length", "2,084 characters, more than 2,083"),
        (SITE + "news/news/news/news", "tandem", "'news' 4 times in a row in its path"),
        (SITE + "x/ab/cd/ab/cd/ab/cd/y?q=1", "tandem", "'ab/cd' 3 times in a row in its path"),
        (SITE + "ab/1/ab/1/ab/1/ab/1/", "tandem", "'ab/1' 4 times in a row in its path"),
        (SITE + "0/0/0/0/0/index.php/index.php/index.php/index.php", "tandem", "'index.php' 4 times"),
        (SITE + "?" + "&".join(f"p{i}={i}" for i in range(21)), "params", "21 query parameters, more than 20"),
        (SITE + "?a=1&lang=en&a=1&b=2&a=1", "params", "the parameter 'a=1' 3 times"),
    ],
)
def test_each_limit_holds_back_what_exceeds_it(url: str, limit: str, reason: str) -> None:
    """The objection names the limit, what was found, and what is allowed."""
    found = objection(url)
    assert found
    assert found.limit == limit
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    "url",
    [
        *(SITE + "/".join(f"s{i}" for i in range(20)) + "/", SITE + "?q=" + "x" * 2063 + "#" + "f" * 100),
        *(SITE + "news/news/news", SITE + "ab/cd/ab/cd/x", SITE + "ab/1/ab/1/ab/1", SITE + "2024/11/11/11/11/11"),
        SITE + "0/0/0/0/0/all/all/all/all/index/index/index/index/a/a/a/a",
        *(SITE + "?" + "&".join(f"p{i}={i}" for i in range(20)), SITE + "?a=1&a=1&a=2&a=3&a=4"),
        *(SITE + "x?a=1&amp;&amp;&amp;&amp;b", SITE + "#" + "/news" * 30, SITE + "?u=" + "/news" * 30),
        *("data:text/html," + "x" * 5000, "file:///" + "ab/" * 30, "", "?&&&&&&&&&&&&"),
    ],
)
def test_what_stays_within_the_limits_passes(url: str) -> None:
    """URLs exactly at a limit pass, and trivial segments, fragments and other schemes do not count."""
    assert objection(url) is None


def test_a_limit_that_is_off_objects_to_nothing() -> None:
    """None switches a limit off, and only that one."""
    urls = {
        "depth": "http://a.example/" + "/".join(f"s{i}" for i in range(30)),
        "length": "http://a.example/" + "x" * 5000,
        "tandem": "http://a.example/news/news/news/news",
        "params": "http://a.example/?a=1&a=1&a=1&" + "&".join(f"p{i}={i}" for i in range(30)),
    }
    for off in urls:
        judge = objection_by(LoopOptions(**{off: None}))
        assert {name for name, url in urls.items() if judge(url)} == urls.keys() - {off}


def test_what_a_user_allows_is_never_held_back() -> None:
    """A URL in which a pattern of *allow* is found passes whatever limit it exceeds."""
    judge = objection_by(LoopOptions(allow=("/news/", r"^https://")))
    assert judge("http://a.example/news/news/news/news") is None
    assert judge("https://a.example/" + "x" * 5000) is None
    assert judge("http://a.example/" + "x" * 5000)


def slow_tandem_repeat(segments: list[str], times: int) -> bool:
    """Compare every block with what follows it, as one would explain the limit to somebody."""
    for start in range(len(segments)):
        for period in range(1, LONGEST_BLOCK + 1):
            block = segments[start : start + period]
            telling = sum(
                len(segment) > 1 and not segment.isdecimal() and segment.lower() not in TRIVIAL for segment in block
            )
            needed = times if telling > 1 else times + 1
            if telling and block * needed == segments[start : start + period * needed]:
                return True
    return False


SEGMENTS = st.lists(st.sampled_from(["ab", "cd", "ef", "1", "all", ""]), max_size=24)


@given(SEGMENTS, SEGMENTS, st.lists(st.sampled_from(["ab", "cd", "1"]), min_size=1, max_size=4), st.integers(2, 4))
def test_tandem_repeats_are_those_of_the_definition(
    before: list[str], after: list[str], block: list[str], times: int
) -> None:
    """The walk in linear time finds a repeat exactly where comparing all blocks with all does."""
    for segments in (before, before + block * times + after, before + block * (times + 1) + after):
        found = tandem_repeat(segments, times)
        assert bool(found) == slow_tandem_repeat(segments, times)
        if found:
            repeated, needed = found
            text = "\0".join([*segments, ""])
            assert "\0".join([*repeated, ""]) * needed in text


@given(st.text(max_size=200))
def test_no_text_makes_it_fail(text: str) -> None:
    """For any text at all the answer is an objection or None, and no exception."""
    objection(text)
    objection(f"http://a.example/{text}")
    objection(f"http://a.example/?{text}")


def test_hostile_urls_of_a_megabyte_take_work_linear_in_their_length() -> None:
    """Without the limit of length, the walk compares each segment of a URL of a megabyte a few times at most.
    Comparisons are counted, so that the load of the machine makes no difference."""

    class Counted(str):
        __slots__ = ()
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    rng = random.Random(1)
    size = 20_000
    hostile = {
        "one trivial segment": ["1"] * size,
        "many short runs of trivial segments": (["1"] * 5 + ["2"]) * (size // 6),
        "almost a repeat": ["ab", "ab", "cd", "ef"] * 2 + ["gh"] * (size // 8),
        "two segments at random": [rng.choice("12") for _ in range(size)],
    }
    for name, segments in hostile.items():
        Counted.compared = 0
        tandem_repeat([Counted(segment) for segment in segments], 3)
        # One walk per length of block, and one for the set.
        assert Counted.compared <= (LONGEST_BLOCK + 2) * size, name


CHANGED = LoopOptions(depth=30, params=None, allow=("a+",))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, False) for value in (False, None, 0, "0", "False", "false")),
        *((value, LoopOptions()) for value in (True, 1, "1", "True", "true", {}, "{}", BaseSettings())),
        ({"depth": 30, "params": None, "allow": ["a+"]}, CHANGED),
        (' {"depth": "30", "params": null, "allow": "a+"}', CHANGED),
    ],
)
def test_the_guard_is_off_on_or_on_with_other_options(value: object, expected: object) -> None:
    """Off by default, and under every value that Scrapy takes for False. A dict, or its JSON, changes the options that
    it names; a single pattern needs no list."""
    assert read(value) == expected


def test_all_wrong_options_come_in_one_error() -> None:
    """One error has a sentence for every unknown key and every wrong value."""
    wrong = {"dept": 3, "depth": 0, "length": "long", "tandem": 1, "params": True, "allow": ["("], 7: 1}
    with pytest.raises(SettingsError) as caught:
        read(wrong)
    assert len(caught.value.problems) == len(wrong)
    assert all(repr(key) in problem for key, problem in zip(wrong, caught.value.problems, strict=True))


ANYTHING = st.recursive(
    st.text() | st.floats() | st.integers() | st.booleans() | st.none() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["depth", "length", "tandem", "params", "allow", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(ANYTHING)
def test_whatever_is_set_is_either_taken_or_refused(value: object) -> None:
    """No value of any type makes reading the setting fail with another error than ours."""
    try:
        options = read(value)
    except SettingsError:
        return
    assert options is False or isinstance(options, LoopOptions)
