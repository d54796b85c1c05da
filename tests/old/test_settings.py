from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.settings import Settings

from scrapy_bloom.old.errors import SettingsError
from scrapy_bloom.old.settings import BloomSettings


def test_without_settings_the_defaults_are_those_of_the_design() -> None:
    """A crawl that sets nothing but the class gets a million URLs at one in a million."""
    assert BloomSettings.from_settings(Settings()) == BloomSettings(
        capacity=1_000_000, error_rate=1e-6, growth=2.0, sync_interval=30.0
    )


@pytest.mark.parametrize(
    ("name", "given_value", "attribute", "expected"),
    [
        ("BLOOM_CAPACITY", "5000000", "capacity", 5_000_000),
        ("BLOOM_CAPACITY", "1e9", "capacity", 10**9),
        ("BLOOM_CAPACITY", "10_000", "capacity", 10_000),
        ("BLOOM_CAPACITY", 1, "capacity", 1),
        ("BLOOM_CAPACITY", None, "capacity", 1_000_000),
        ("BLOOM_ERROR_RATE", "1e-9", "error_rate", 1e-9),
        ("BLOOM_GROWTH", "4", "growth", 4.0),
        ("BLOOM_SYNC_INTERVAL", 0, "sync_interval", 0.0),
        ("BLOOM_FLEET_MAX_IDLE", "600", "fleet_max_idle", 600.0),
        ("BLOOM_FLEET_START_URLS", "%(name)s:start_urls", "fleet_start_urls", "%(name)s:start_urls"),
        ("BLOOM_MAX_AGE", "7d", "max_age", 604_800.0),
        ("BLOOM_MAX_AGE", "12H", "max_age", 43_200.0),
        ("BLOOM_MAX_AGE", "1.5h", "max_age", 5_400.0),
        ("BLOOM_MAX_AGE", "2w", "max_age", 1_209_600.0),
        ("BLOOM_MAX_AGE", "3600", "max_age", 3_600.0),
        ("BLOOM_MAX_AGE", 60, "max_age", 60.0),
    ],
)
def test_values_are_read_as_people_write_them(name: str, given_value: object, attribute: str, expected: object) -> None:
    """Numbers may come as strings, as they do from a command line, and None means the default."""
    value = getattr(BloomSettings.from_settings(Settings({name: given_value})), attribute)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BLOOM_CAPACITY", 0),
        ("BLOOM_CAPACITY", -5),
        ("BLOOM_CAPACITY", 1.5),
        ("BLOOM_CAPACITY", "many"),
        ("BLOOM_CAPACITY", True),
        ("BLOOM_CAPACITY", "inf"),
        ("BLOOM_CAPACITY", [1]),
        ("BLOOM_ERROR_RATE", 0),
        ("BLOOM_ERROR_RATE", 1),
        ("BLOOM_ERROR_RATE", "nan"),
        ("BLOOM_ERROR_RATE", 1e-11),
        ("BLOOM_GROWTH", 1),
        ("BLOOM_GROWTH", 100),
        ("BLOOM_SYNC_INTERVAL", -1),
        ("BLOOM_FLEET_MAX_IDLE", 0.5),
        ("BLOOM_FLEET_MAX_IDLE", -1),
        ("BLOOM_FLEET_START_URLS", ""),
        ("BLOOM_FLEET_START_URLS", "%(key)s:start_urls"),
        ("BLOOM_FLEET_START_URLS", 1),
        ("BLOOM_SYNC_INTERVAL", "30s"),
        ("BLOOM_SYNC_INTERVAL", {}),
        ("BLOOM_MAX_AGE", 0),
        ("BLOOM_MAX_AGE", "59s"),
        ("BLOOM_MAX_AGE", "a week"),
        ("BLOOM_MAX_AGE", "7 days"),
        ("BLOOM_MAX_AGE", "d"),
        ("BLOOM_MAX_AGE", "nan"),
        ("BLOOM_MAX_AGE", "11y"),
        ("BLOOM_MAX_AGE", True),
    ],
)
def test_a_wrong_value_is_refused_with_name_value_and_what_is_allowed(name: str, value: object) -> None:
    """The message holds the setting, what it was set to, and what it may be."""
    with pytest.raises(SettingsError) as caught:
        BloomSettings.from_settings(Settings({name: value}))
    (problem,) = caught.value.problems
    assert problem.startswith(f"{name} must be a")
    assert problem.endswith(f", not {value!r}")


def test_all_wrong_settings_come_in_one_message() -> None:
    """Whoever has three settings wrong reads about all three at the first start."""
    settings = Settings({"BLOOM_CAPACITY": -1, "BLOOM_ERROR_RATE": "x", "BLOOM_EROR_RATE": 1e-3, "BLOOM_GROWTH": 3})
    with pytest.raises(SettingsError) as caught:
        BloomSettings.from_settings(settings)
    assert str(caught.value) == (
        "These settings cannot be used:\n"
        "  BLOOM_CAPACITY must be a whole number of URLs from 1 to 1e12, not -1\n"
        "  BLOOM_EROR_RATE (set to 0.001) is not a setting of this scrapy-bloom; did you mean BLOOM_ERROR_RATE?\n"
        "  BLOOM_ERROR_RATE must be a probability from 1e-10 to 0.5, not 'x'"
    )


def test_settings_of_others_are_left_alone() -> None:
    """Other plugins' settings, such as BLOOMFILTER_*, are nobody's mistake."""
    assert BloomSettings.from_settings(Settings({"BLOOMFILTER_BIT": 30, "bloom_capacity": 1})) == BloomSettings()


@given(st.text() | st.binary() | st.floats() | st.integers() | st.booleans() | st.lists(st.integers()) | st.none())
def test_whatever_is_set_is_either_taken_or_refused(value: object) -> None:
    """No value of any type makes reading the settings fail with another error than ours."""
    names = ("BLOOM_CAPACITY", "BLOOM_ERROR_RATE", "BLOOM_GROWTH", "BLOOM_SYNC_INTERVAL")
    try:
        read = BloomSettings.from_settings(Settings(dict.fromkeys(names, value)))
    except SettingsError:
        return
    assert read.capacity >= 1
    assert 0 < read.error_rate < 1
    assert read.growth >= 2
    assert read.sync_interval >= 0
