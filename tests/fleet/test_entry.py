import datetime
import http
import json
import pickle
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request, Selector, Spider
from scrapy.settings import Settings

from scrapy_bloom.commands.targets import fingerprints_by
from scrapy_bloom.components.fleet_requests import FleetRequests
from scrapy_bloom.fleet.entry import PLAIN, RETRIED, SIGNED, packed, url_of
from scrapy_bloom.frontier.order import Order

SECRET = "a secret of some length"
ORDER, FINGERPRINTS = Order(by_slot=True, is_lifo=(True, True)), fingerprints_by(Settings())
values = (
    st.dates()
    | st.datetimes()
    | st.datetimes(timezones=st.just(datetime.timezone.utc))
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.complex_numbers(allow_nan=False)
)
scalars = (
    values
    | st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False)
)
hashables = st.integers(-100, 100) | st.text() | st.binary()
plain = st.recursive(
    scalars | st.frozensets(hashables) | st.sets(hashables),
    lambda inner: st.lists(inner) | st.dictionaries(hashables, inner) | st.tuples(inner, inner),
    max_leaves=5,
)


class Entries(FleetRequests):
    def __init__(self, spider: Spider | None = None, secret: str | None = None) -> None:
        super().__init__(spider, secret, ORDER, FINGERPRINTS)

    def entry(self, request: Request) -> bytes:
        """Return the entry of *request*, without its lane."""
        return self.write(request)[1]


class PageSpider(Spider):
    name = "pages"

    def parse_item(self, response: Any) -> None:
        pass


class Detached:
    def __repr__(self) -> str:
        raise RuntimeError


class Number(int):
    pass


class Bytes(bytes):
    pass


class Harmful:
    """Leaves a trace when it is unpickled."""

    done: list[str] = []  # noqa: RUF012 - the trace

    def __reduce__(self) -> Any:
        return (Harmful.done.append, ("unpickled",))


@settings(max_examples=25)
@given(meta=st.dictionaries(st.text(), plain), headers=st.dictionaries(st.sampled_from(["A", "B"]), st.binary()))
def test_a_request_of_plain_types_comes_back_as_it_was(meta: dict[str, Any], headers: dict[str, bytes]) -> None:
    """Whatever plain types a request holds, the entry brings them back."""
    spider = PageSpider()
    meta.pop("bloom", None)
    request = Request(
        "https://example.com/", spider.parse_item, "POST", headers, b"\x00body", meta=meta, priority=-3, cb_kwargs=meta
    )
    back = Entries(spider).read(Entries(spider).entry(request))
    assert back.to_dict(spider=spider) == request.to_dict(spider=spider)


def test_what_needs_a_pickle_needs_the_secret() -> None:
    """A request that only a pickle can hold is refused without a secret, and comes back with it.

    So is an object whose ``__repr__`` raises.
    """
    with pytest.raises(ValueError, match="Detached"):
        Entries().entry(Request("http://a.example/", meta={"row": Detached()}))
    request = Request("https://example.com/", meta={"part": Fraction(1, 3)})
    with pytest.raises(ValueError, match="Fraction"):
        Entries().entry(request)
    entry = Entries(secret=SECRET).entry(request)
    assert Entries(secret=SECRET).read(entry).meta["part"] == Fraction(1, 3)
    for reader in (Entries(), Entries(secret="another secret of length")):
        with pytest.raises(ValueError, match="BLOOM_FLEET_SECRET"):
            reader.read(entry)


def test_subclasses_of_plain_values_travel_as_these() -> None:
    """The text of a link is one. An enumeration is not: somebody may ask for its members."""
    (text,) = Selector(text="<a href=/x>of a link</a>").root.xpath("//a/text()")
    assert type(text) is not str
    meta = {text: text, "number": Number(3), "b": Bytes(b"x")}
    back = Entries().read(Entries().entry(Request("https://example.com/", meta=meta)))
    assert back.meta == meta
    assert {type(value) for value in back.meta.values()} == {str, int, bytes}
    with pytest.raises(ValueError, match="HTTPStatus"):
        Entries().entry(Request("https://example.com/", meta={"status": http.HTTPStatus.OK}))


@pytest.mark.parametrize("secret", [None, SECRET])
def test_no_pickle_is_loaded_unless_it_is_signed(secret: str | None) -> None:
    """A pickle that somebody wrote to the server without the secret runs nothing in a worker."""
    body = pickle.dumps({0: "https://example.com/", 7: Harmful()})
    for entry in (body, SIGNED + body, SIGNED + bytes(32) + body):
        with pytest.raises(ValueError, match=r"it begins with|SECRET"):
            Entries(secret=secret).read(entry)
    assert not Harmful.done


@settings(max_examples=50)
@given(st.binary() | st.binary().map(lambda body: b"M" + body))
def test_hostile_bytes_are_refused_with_one_error(entry: bytes) -> None:
    """Whatever lies on the server, reading it is a request or a ValueError, and never another exception."""
    with suppress(ValueError):
        Entries(PageSpider()).read(entry)


def test_what_cannot_be_read_is_told_from_a_pickle() -> None:
    """People who look at dead letters see the first bytes of a request that is damaged, and of no other pickle."""
    assert url_of(Entries().entry(Request("https://example.com/"))) == "https://example.com/"
    assert url_of(b"Mdamaged\xff") == "Mdamaged\\xff"
    assert "pickled" in url_of(SIGNED + bytes(40))


def test_no_entry_makes_a_worker_import_a_class() -> None:
    """A class that the process has not imported, or that is no request, is refused."""
    for path in ("this.d", "subprocess.Popen", "scrapy.Spider"):
        request = Request("https://example.com/")
        entry = Entries().entry(request)
        hostile = bytearray(entry)
        hostile[1] += 1  # one field more
        hostile += b"\x0d" + bytes([0xA0 + len(path)]) + path.encode()
        with pytest.raises(ValueError, match="class"):
            Entries().read(bytes(hostile))


# -- what whoever can write to the server can make a worker do: fetch pages, and nothing else --------------------------

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
