"""What our exceptions say, and that every one of them is ours."""

from __future__ import annotations

import pytest

from scrapy_bloom.old import errors
from scrapy_bloom.old.errors import (
    BloomError,
    DamagedError,
    KeySpaceError,
    MissingPackageError,
    SettingsError,
    UnknownFormatError,
    UnusableError,
)
from scrapy_bloom.old.filter.key_space import check_key_space


def test_one_base_class_catches_everything() -> None:
    """Every exception in errors.py is a BloomError, and there are no more than a handful and the base."""
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(classes) == 8
    assert all(issubclass(cls, BloomError) for cls in classes)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnusableError("job", "is read-only", advice="Make it writable."), "job is read-only. Make it writable."),
        (UnusableError("It", "failed: Gone.", advice="Try again."), "It failed: Gone. Try again."),
        (
            UnusableError("job", "has 3 files", expected="4", advice="Find the fourth."),
            "job has 3 files; expected: 4. Find the fourth.",
        ),
        (
            DamagedError("file", "it is empty", offset=0, advice="Restore it."),
            "file is damaged at byte 0: it is empty. Restore it.",
        ),
        (DamagedError("file", "it is empty", advice="Restore it."), "file is damaged: it is empty. Restore it."),
        (
            UnknownFormatError("file", "format version", 3, 2, advice="Upgrade."),
            "file has format version 3, and this scrapy-bloom knows format versions up to 2. Upgrade.",
        ),
        (
            KeySpaceError("The filter", {"rules": ("", "www")}, advice="Go."),
            "The filter was filled under other settings: rules was '', is now 'www'. Every URL would look new. Go.",
        ),
        (SettingsError(["A is wrong", "B too"]), "These settings cannot be used:\n  A is wrong\n  B too"),
        (
            MissingPackageError("redis", "redis", "This"),
            'This needs the package redis, which is not installed. Install it with: pip install "scrapy-bloom[redis]"',
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_message_says_where_what_and_what_to_do(error: BloomError, message: str) -> None:
    """Place, finding, expectation and advice make sentences, and none of them claims to know about a crawl."""
    assert str(error) == message


def test_key_spaces_are_compared_by_ingredient() -> None:
    """Missing counts as empty; another w3lib is a warning; anything else is an error that names all that differs."""
    ours = {"fingerprinter": "scrapy", "rules": "", "w3lib": "2.5.0"}
    assert check_key_space("It", ours, ours, advice="") == []
    assert check_key_space("It", {"fingerprinter": "scrapy", "w3lib": "2.5.0"}, ours, advice="") == []
    (warning,) = check_key_space("It", {**ours, "w3lib": "1.22.0"}, ours, advice="")
    assert warning.startswith("It was filled under w3lib 1.22.0, and this is 2.5.0. ")
    with pytest.raises(KeySpaceError) as caught:
        check_key_space("It", {**ours, "w3lib": "1.22.0", "rules": "www"}, ours, advice="Go back.")
    assert caught.value.differences == {"rules": ("www", ""), "w3lib": ("1.22.0", "2.5.0")}
    assert str(caught.value).endswith(" Go back.")
