from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.settings import BloomSettings


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("BLOOM_CAPACITY", "5000000", 5_000_000),
        ("BLOOM_CAPACITY", "1e9", 10**9),
        ("BLOOM_CAPACITY", None, 1_000_000),
        ("BLOOM_ERROR_RATE", "1e-9", 1e-9),
        ("BLOOM_FORGET_FAILED", "True", True),
        ("BLOOM_FORGET_FAILED", "0", False),
        ("BLOOM_PAGES_PER_HOST", "1e3", {"*": 1000}),
        ("BLOOM_PAGES_PER_HOST", '{"*": 10, "a.example": null}', {"*": 10, "a.example": None}),
        ("BLOOM_FLEET_START_URLS", "%(spider)s:start_urls", "%(spider)s:start_urls"),
        ("BLOOM_MAX_AGE", "7d", 604_800.0),
        ("BLOOM_MAX_AGE", "12H", 43_200.0),
        ("BLOOM_MAX_AGE", "1.5h", 5_400.0),
        ("BLOOM_MAX_AGE", 3600, 3_600.0),
    ],
)
def test_values_are_read_as_people_write_them(name: str, value: object, expected: object) -> None:
    """Numbers may come as strings, as they do from a command line, and None means the default."""
    found = getattr(BloomSettings.from_settings(Settings({name: value})), name.removeprefix("BLOOM_").lower())
    assert (found, type(found)) == (expected, type(expected))


WRONG = {
    "BLOOM_CAPACITY": [0, -5, 1.5, "many", True, "inf", [1], 2e12],
    "BLOOM_ERROR_RATE": [0, 1, "nan", 1e-30, "often"],
    "BLOOM_MAX_AGE": ["soon", "7x", "59s", "11 years", -1, "d"],
    "BLOOM_URL_RULES": ["no-such-rule", 5, ["no.such.module.rule"]],
    "BLOOM_LOOP_GUARD": [{"no_such_limit": 3}, 7],
    "BLOOM_FORGET_FAILED": ["perhaps", 2],
    "BLOOM_PAGES_PER_HOST": [0, "many", True, {"a.example": 0}, {"a.example/": 5}, {"a.example:80": 5}, "{", {5: 5}],
    "BLOOM_REDIS_URL": ["localhost", 5, "redis://host:port", "http://host"],
    "BLOOM_REDIS_KEY": ["", "{a}", "%s"],
    "BLOOM_FLEET_SECRET": ["too short", 5],
    "BLOOM_FLEET_LEASE": [0, "long"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_named(name: str, value: object) -> None:
    """The message names the setting; and its value, unless that may be a secret."""
    with pytest.raises(SettingsError, match=name) as caught:
        BloomSettings.from_settings(Settings({name: value}))
    assert len(caught.value.problems) == 1


def test_all_wrong_settings_are_in_one_message() -> None:
    """Whoever mends one learns of the others at once."""
    with pytest.raises(SettingsError) as caught:
        BloomSettings.from_settings(Settings({name: values[0] for name, values in WRONG.items()}))
    assert len(caught.value.problems) == len(WRONG)
    assert all(name in str(caught.value) for name in WRONG)


def test_an_unknown_setting_is_an_error_that_names_the_nearest() -> None:
    """A typing error would otherwise leave a default in force."""
    with pytest.raises(SettingsError, match=r"BLOOM_CAPCITY.*BLOOM_CAPACITY"):
        BloomSettings.from_settings(Settings({"BLOOM_CAPCITY": 5}))
    with pytest.raises(SettingsError, match="BLOOM_ERROR_RATE"):  # nothing is near: all are listed
        BloomSettings.from_settings(Settings({"BLOOM_QQQQQQQQQQ": 5}))


@pytest.mark.parametrize("name", ["BLOOM_REDIS_URL", "BLOOM_REDIS_URI", "BLOOM_FLEET_SECRET", "BLOOM_FLEET_SECRETS"])
@given(secret=st.text("abcdef0123456789", min_size=5, max_size=15))
def test_secrets_are_not_shown(name: str, secret: str) -> None:
    """Passwords stand in no message, however wrong the setting is that holds them."""
    value: Any = [f"redis://:{secret}@host"]
    with pytest.raises(SettingsError, match=name) as caught:
        BloomSettings.from_settings(Settings({name: value}))
    assert secret not in str(caught.value)


def test_a_crawl_with_wrong_settings_does_not_start(caplog: pytest.LogCaptureFixture) -> None:
    """One CRITICAL line names them all; Scrapy alone would bury it between tracebacks."""
    crawler = get_crawler(settings_dict={"BLOOM_CAPACITY": 0, "BLOOM_ERROR": 1, "BLOOM_LOOP_GUARD": 7})
    with pytest.raises(SettingsError):
        BloomDupeFilter.from_crawler(crawler)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert all(name in line for name in ("BLOOM_CAPACITY", "BLOOM_ERROR_RATE", "BLOOM_LOOP_GUARD"))
