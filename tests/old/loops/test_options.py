from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.settings import BaseSettings, Settings

from scrapy_bloom.old.errors import SettingsError
from scrapy_bloom.old.loops.options import OPTIONS, LoopOptions
from scrapy_bloom.old.settings import BloomSettings


def read(value: object) -> LoopOptions | bool:
    return BloomSettings.from_settings(Settings({"BLOOM_LOOP_GUARD": value})).loop_guard


@pytest.mark.parametrize("value", [False, None, 0, "0", "False", "false"])
def test_the_guard_can_be_off(value: object) -> None:
    """The guard is off by default, and under every value that Scrapy takes for False."""
    assert read(value) is False


@pytest.mark.parametrize("value", [True, 1, "1", "True", "true", {}, "{}", BaseSettings()])
def test_the_guard_can_be_on_with_its_defaults(value: object) -> None:
    """True switches the guard on with its defaults, and so does a dict that changes none."""
    assert read(value) == LoopOptions()


@pytest.mark.parametrize(
    "value", [{"depth": 30, "params": None, "allow": ["a+"]}, ' {"depth": "30", "params": null, "allow": "a+"}']
)
def test_a_dict_changes_some_options_and_leaves_the_others(value: object) -> None:
    """A dict, or its JSON, changes the options it names. A single pattern needs no list."""
    assert read(value) == LoopOptions(depth=30, params=None, allow=("a+",))


def test_all_wrong_options_come_in_one_message_with_other_settings() -> None:
    """One error names all wrong settings: unknown keys with a suggestion, wrong values with what is allowed."""
    guard = {"dept": 3, "depth": 0, "length": "long", "tandem": 1, "params": True, "allow": ["("], 7: 1}
    with pytest.raises(SettingsError) as caught:
        BloomSettings.from_settings(Settings({"BLOOM_LOOP_GUARD": guard, "BLOOM_CAPACITY": 0}))
    problems = caught.value.problems
    assert problems[0] == "BLOOM_CAPACITY must be a whole number of URLs from 1 to 1e12, not 0"
    assert problems[1] == "BLOOM_LOOP_GUARD has 'dept', which is none of its options; did you mean 'depth'?"
    assert problems[2] == "BLOOM_LOOP_GUARD['depth'] must be a whole number, at least 1, or None for no limit, not 0"
    assert [problem.partition("]")[0] for problem in problems[3:7]] == [
        f"BLOOM_LOOP_GUARD['{key}'" for key in ("length", "tandem", "params", "allow")
    ]
    assert "must be a list of regular expressions, not ['('] (missing )" in problems[6]
    assert problems[7].startswith("BLOOM_LOOP_GUARD has 7, which is none of its options; known are depth, ")


@pytest.mark.parametrize("value", ["yes", 2, [], ["depth"], "{depth: 3}", 1.5, b"1", '{"a":' * 100_000])
def test_what_is_neither_a_truth_value_nor_a_dict_is_refused(value: object) -> None:
    """A value that is neither a truth value nor a dict raises an error that says what the setting takes."""
    with pytest.raises(SettingsError, match="BLOOM_LOOP_GUARD must be True, False or a dict of limits, not "):
        read(value)


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.text() | st.floats() | st.integers() | st.booleans() | st.none() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*OPTIONS, "x"]), inner, max_size=4),
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
