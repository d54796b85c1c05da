import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter as ScrapyRequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from scrapy.utils.test import get_crawler

from scrapy_bloom.components import fingerprints as module
from scrapy_bloom.components.fingerprints import (
    RequestFingerprinter,
    fingerprint,
    fingerprint_url,
    fingerprints_of,
    fingerprints_under,
)
from scrapy_bloom.url.canonical import SELF_CHECK_URLS
from scrapy_bloom.url.rules import resolve
from tests.support.processes import run_script
from tests.url.test_canonical import IMPORTS_AGAIN
from tests.url.urlcases import ANY_URLS, NEAR_URLS, REAL_LOOKING, mutations, outcome

URL = "http://example.com/a?b=2&a=1#f"
VERBATIM = {"verbatim_url": True}


def assert_equal_to_scrapy(make_request: Callable[[], Request]) -> None:
    """Compare on two requests of the same make: Scrapy remembers the fingerprint of an object."""
    assert outcome(fingerprint, make_request()) == outcome(scrapy_fingerprint, make_request())


def fingerprint_of_request(url: str) -> bytes:
    return scrapy_fingerprint(Request(url))


def assert_url_and_request_agree(url: str) -> None:
    expected = outcome(fingerprint_of_request, url)
    assert outcome(fingerprint_url, url) == expected, ascii(url)
    assert outcome(lambda url: fingerprint(Request(url)), url) == expected, ascii(url)


def test_a_fingerprint_is_the_sha1_that_scrapy_documents() -> None:
    """The fingerprint of a known request is the one that stored caches and job directories already hold."""
    assert module.IS_FAST
    assert fingerprint(Request("http://www.example.com/query?id=111&cat=222")) == bytes.fromhex(
        "8fcf173c15d0d14f77c0c9a61209caf224e90164"
    )


@pytest.mark.parametrize("names", [[], ["common"]])
def test_an_ordinary_fingerprint_takes_two_calls(names: list[str]) -> None:
    """Most links are canonical but for their fragment; their fingerprint takes at most two functions of ours."""
    of_request, of_url = fingerprints_under(resolve(names))
    called = []

    def count(frame: Any, event: str, _argument: object) -> None:
        if event == "call" and "scrapy_bloom" in frame.f_code.co_filename:
            called.append(frame.f_code.co_name)

    url = "https://www.example.com/catalogue/page-2.html?id=7#top"
    request = Request(url)
    for ask in (lambda: of_request(request), lambda: of_url(url)):
        called.clear()
        sys.setprofile(count)
        ask()
        sys.setprofile(None)
        assert 1 <= len(called) <= 2, called


class LoudUrl(Request):
    @property
    def url(self) -> str:
        return super().url.upper()


class OddBody(Request):
    @property
    def body(self) -> Any:
        return bytearray(b"odd")


class NoBody(Request):
    @property
    def body(self) -> Any:
        return None


class OtherMeta(Request):
    @property
    def meta(self) -> dict[str, Any]:
        return VERBATIM


@pytest.mark.parametrize("request_class", [Request, LoudUrl, OddBody, NoBody, OtherMeta])
def test_classes_methods_bodies_and_meta(request_class: type[Request]) -> None:
    """Whatever the class, the method, the body and verbatim_url, the fingerprint is Scrapy's."""
    for method in ("GET", "POST", "get", "\u00fc"):
        for body in (None, "text", b"\x00\xff"):
            for meta in (None, {}, {"depth": 1}, VERBATIM, {"verbatim_url": 0}, {"verbatim_url": "yes"}):
                for url in (URL, "http://example.com/", "http://example.com/%2e/\u00fc?b&a"):
                    assert_equal_to_scrapy(
                        lambda url=url, method=method, body=body, meta=meta: request_class(  # type: ignore[misc]
                            url, method=method, body=body, meta=meta
                        )
                    )


@pytest.mark.parametrize("method", [b"GET", b"\xff", None, 7, "G\ud800T"])
def test_methods_set_after_the_fact(method: Any) -> None:
    """A method attribute of another type is hashed, or refused, as by Scrapy."""

    def make_request() -> Request:
        request = Request(URL)
        request.method = method
        return request

    assert_equal_to_scrapy(make_request)


@given(
    NEAR_URLS | st.sampled_from(REAL_LOOKING),
    st.just("GET") | st.sampled_from(["POST", "HEAD"]) | st.text(max_size=5),
    st.just(b"") | st.binary(max_size=20) | st.text(st.characters(codec="utf-8"), max_size=10),
    st.none() | st.fixed_dictionaries({}, optional={"verbatim_url": st.booleans(), "depth": st.just(1)}),
)
def test_any_request(url: str, method: str, body: bytes | str, meta: dict[str, Any] | None) -> None:
    """A request with any URL, method, body and meta that Scrapy accepts has Scrapy's fingerprint."""
    try:
        Request(url, method=method, body=body, meta=meta)
    except (ValueError, UnicodeError):
        return
    assert_equal_to_scrapy(lambda: Request(url, method=method, body=body, meta=meta))


@given(NEAR_URLS | ANY_URLS)
def test_any_url_alone(url: str) -> None:
    """The fingerprint of a URL is that of the request for it, and a URL that is refused is refused alike."""
    assert outcome(fingerprint_url, url) == outcome(fingerprint_of_request, url)


@pytest.mark.parametrize("count", [3_000, pytest.param(60_000, marks=pytest.mark.slow)])
def test_real_looking_urls(count: int) -> None:
    """Shipped URLs, whole and with random damage, have the same fingerprint as a URL, as a request, and by Scrapy."""
    for url in (*REAL_LOOKING, *SELF_CHECK_URLS, *mutations(count, seed=20260102)):
        assert_url_and_request_agree(url)


def test_another_scrapy_switches_the_fast_path_off() -> None:
    """If Scrapy hashes anything else, it makes every fingerprint itself, after one warning; rules still hold."""
    run_script(
        IMPORTS_AGAIN
        + """
def changed(request):
    return b"head" if request.method == "HEAD" else real_fingerprint(request)
scrapy.utils.request.fingerprint = changed
message = import_again()
assert message.startswith("WARNING") and message.count("WARNING") == 1 and "scrapy" in message, message
assert canonical.IS_FAST and not fingerprint.IS_FAST
assert fingerprint.RequestFingerprinter().fingerprint(Request("http://a/", method="HEAD")) == b"head"
assert fingerprint.fingerprint_url("http://a/?b&a") == real_fingerprint(Request("http://a/?b&a"))
from scrapy_bloom.url.rules import resolve
of_request, of_url = fingerprint.fingerprints_under(resolve("common"))
assert of_request(Request("http://a/?utm_source=x")) == of_url("http://a:80/") == real_fingerprint(Request("http://a/"))
"""
    )


class Ours(RequestFingerprinter):
    pass


class Theirs:
    def fingerprint(self, request: Request) -> bytes:
        return b"theirs"


@pytest.mark.parametrize(
    ("fingerprinter", "name", "rules", "other"),
    [
        (ScrapyRequestFingerprinter, "scrapy", "default_port,repeated_pairs,www", "http://a.example/"),
        (RequestFingerprinter, "scrapy", "default_port,repeated_pairs,www", "http://a.example/"),
        (Ours, f"{__name__}.Ours", "default_port,repeated_pairs,www", "http://a.example/"),
        (Theirs, f"{__name__}.Theirs", "", None),
    ],
)
def test_a_crawl_names_what_makes_its_fingerprints(
    fingerprinter: type, name: str, rules: str, other: str | None
) -> None:
    """Scrapy's fingerprinter and ours share a key space, which names the rules in order, presets spelled out. A
    subclass of ours applies the rules under its own name. Any other is kept, and gets requests only."""
    settings = {"REQUEST_FINGERPRINTER_CLASS": fingerprinter, "BLOOM_URL_RULES": ["safe", "www"]}
    crawler = get_crawler(settings_dict=settings)
    made = fingerprints_of(crawler)
    assert dict(made.space) == {"fingerprinter": name, "rules": rules, "w3lib": version("w3lib")}
    request = Request("http://www.a.example:80/")
    expected = b"theirs" if other is None else fingerprint_url(other)
    assert made.of_request(request) == expected
    assert (made.of_url is not None, made.ignore_fragments) == (name == "scrapy", name == "scrapy")
    if made.of_url is not None:
        assert made.of_url(request.url) == expected
    if isinstance(crawler.request_fingerprinter, RequestFingerprinter):
        assert crawler.request_fingerprinter.fingerprint(request) == expected
