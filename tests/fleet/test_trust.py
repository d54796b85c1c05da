"""What whoever can write to the server can make a worker do: fetch pages, and nothing else."""

import json
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom.fleet.entry import PLAIN, RETRIED, packed, url_of
from tests.fleet.test_entry import Entries

SECRET = "a long random secret"
ACTING: list[dict[str, Any]] = [
    {"url": "ftp://example.com/x", "meta": {"ftp_local_filename": b"spiders.py"}},
    {"url": "https://example.com/", "meta": {"ftp_local_filename": "spiders.py"}},
    {"url": "file:///etc/passwd"},
    {"url": "s3://bucket/key"},
    {"url": "https://example.com/", "meta": {"playwright": True, "playwright_context_kwargs": {}}},
    {"url": "https://example.com/", "meta": {"splash": {"args": {"lua_source": ""}}}},
]
"""What a request may hold so that a download handler touches files or runs scripts."""


def hostile(fields: dict[str, Any]) -> bytes:
    numbers = {"url": 0, "meta": 7}
    return PLAIN + packed({numbers[name]: value for name, value in fields.items()})


@pytest.mark.parametrize("fields", ACTING)
def test_an_unsigned_entry_is_only_an_address(fields: dict[str, Any]) -> None:
    """It is not read, with a secret or without; nor written without one: then the request stays in memory."""
    for secret in (None, SECRET):
        with pytest.raises(ValueError, match="signed"):
            Entries(secret=secret).read(hostile(fields))
    with pytest.raises(ValueError, match="signed"):
        Entries().entry(Request(**fields))
    back = Entries(secret=SECRET).read(Entries(secret=SECRET).entry(Request(**fields)))
    assert (back.url, back.meta) == (fields["url"], fields.get("meta", {}))


@pytest.mark.parametrize("fields", ACTING[1:])
@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_pushed_start_url_is_only_an_address(fields: dict[str, Any], secret: str | None) -> None:
    """Others may push start URLs without the secret."""
    with pytest.raises(ValueError, match="signed"):
        Entries(secret=secret).pushed(json.dumps(fields).encode())


def test_with_a_secret_only_signed_entries_are_read() -> None:
    """Also those of plain types; a changed one, or one of another kind with the same signature, is refused."""
    entry = Entries(secret=SECRET).entry(Request("https://example.com/a"))
    assert Entries(secret=SECRET).read(entry).url == url_of(entry) == "https://example.com/a"
    for changed in (entry[:-1] + b"b", b"S" + entry[1:], Entries().entry(Request("https://example.com/a"))):
        with pytest.raises(ValueError, match="signed"):
            Entries(secret=SECRET).read(changed)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_requeued_entry_has_its_retries_again(secret: str | None) -> None:
    """Without anybody signing it anew."""
    entries = Entries(secret=secret)
    entry = RETRIED + entries.entry(Request("https://example.com/", meta={"retry_times": 2, "row": 1}))
    assert entries.read(entry).meta == {"row": 1}
    assert url_of(entry) == "https://example.com/"
