import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter as ScrapyRequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from scrapy.utils.test import get_crawler

from scrapy_bloom.crawl import fingerprints as module
from scrapy_bloom.crawl.fingerprints import (
    RequestFingerprinter,
    fingerprint,
    fingerprint_url,
    fingerprints_of,
    fingerprints_under,
)
from scrapy_bloom.url.canonical import SELF_CHECK_URLS, quick_canonical
from scrapy_bloom.url.fingerprint import Fingerprints
from scrapy_bloom.url.rules import resolve
from tests.url.test_canonical import in_fresh_python
from tests.url.urlcases import ANY_URLS, NEAR_URLS, REAL_LOOKING, mutations, outcome, short_strings

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


def test_known_urls() -> None:
    """A request for a shipped URL, its URL alone, and Scrapy's own function agree."""
    for url in (*REAL_LOOKING, *SELF_CHECK_URLS):
        assert_url_and_request_agree(url)


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


@pytest.mark.parametrize(
    ("base", "alphabet", "longest"),
    [
        ("http://a/", "/.;%2c?&=#\\ \t'|", 3),
        ("http://a/?", "&=;+%2'\"[|^a#", 3),
        ("http://a", ":/.@0[]aA%?#\\", 3),
        pytest.param("http://a/?", "&=;+%20'\"[|^a# \\", 5, marks=pytest.mark.slow),
        pytest.param("http://a/", "/.;%2c?&=#\\ \t'|", 5, marks=pytest.mark.slow),
    ],
)
def test_short_strings_alone(base: str, alphabet: str, longest: int) -> None:
    """What Request does to a URL first never shows in the fingerprint of a URL that is recognised as it stands."""
    for tail in short_strings(alphabet, longest):
        if quick_canonical(base + tail) is not None:
            assert fingerprint_url(base + tail) == outcome(fingerprint_of_request, base + tail), ascii(base + tail)


@pytest.mark.parametrize("count", [5_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_wounded_real_looking_urls(count: int) -> None:
    """Real-looking URLs with random damage have the same fingerprint as a URL, as a request, and by Scrapy."""
    for url in mutations(count, seed=20260102):
        assert_url_and_request_agree(url)


def test_another_scrapy_switches_the_fast_path_off() -> None:
    """If Scrapy hashes anything else, it makes every fingerprint itself, after one warning; rules still hold."""
    in_fresh_python("""
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
""")


def test_a_scrapy_without_our_attributes_switches_the_fast_path_off() -> None:
    """If a request keeps its data elsewhere than we look, Scrapy makes every fingerprint itself."""
    in_fresh_python("""
class Elsewhere(Request):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.elsewhere = self._meta or {}
        del self._meta
    @property
    def meta(self):
        return self.elsewhere
import scrapy.http
scrapy.http.Request = Elsewhere
assert import_again().count("WARNING") == 1 and not fingerprint.IS_FAST
assert fingerprint.fingerprint(Elsewhere("http://a/?b&a")) == real_fingerprint(Request("http://a/?b&a"))
assert fingerprint.fingerprint_url("http://a/?b&a") == real_fingerprint(Request("http://a/?b&a"))
""")


def of_settings(**settings: object) -> Fingerprints:
    return fingerprints_of(get_crawler(settings_dict=settings))


class Ours(RequestFingerprinter):
    pass


class Theirs:
    def fingerprint(self, request: Request) -> bytes:
        return b"theirs"


def test_the_fingerprinter_follows_the_rules_for_everybody() -> None:
    """As REQUEST_FINGERPRINTER_CLASS it gives the HTTP cache, among others, the fingerprints of the filter."""
    settings = {"BLOOM_URL_RULES": ["tracking_2"], "REQUEST_FINGERPRINTER_CLASS": RequestFingerprinter}
    fingerprinter = get_crawler(settings_dict=settings).request_fingerprinter
    assert fingerprinter is not None
    assert fingerprinter.fingerprint(Request("http://a/?gclid=1")) == fingerprint_url("http://a/")


@pytest.mark.parametrize("fingerprinter", [ScrapyRequestFingerprinter, RequestFingerprinter])
def test_a_crawl_under_scrapys_fingerprints(fingerprinter: type) -> None:
    """Scrapy's fingerprinter and ours share one key space, which names the rules in order, presets spelled out."""
    found = of_settings(REQUEST_FINGERPRINTER_CLASS=fingerprinter, BLOOM_URL_RULES=["safe", "www"])
    assert found.of_url is not None
    assert found.of_url("http://www.a.example/") == found.of_request(Request("http://a.example:80/"))
    assert found.ignore_fragments
    assert found.space["fingerprinter"] == "scrapy"
    assert found.space["rules"] == "default_port,repeated_pairs,www"
    assert found.space.keys() == {"fingerprinter", "rules", "w3lib"}


def test_a_crawl_under_a_fingerprinter_of_the_users() -> None:
    """The user's fingerprinter is kept and named; nobody can tell its fingerprint of a URL without the request."""
    found = of_settings(REQUEST_FINGERPRINTER_CLASS=Theirs, BLOOM_URL_RULES=["www"])
    assert found.of_request(Request(URL)) == b"theirs"
    assert (found.of_url, found.ignore_fragments) == (None, False)
    assert (found.space["fingerprinter"], found.space["rules"]) == (f"{__name__}.Theirs", "")


def test_a_crawl_under_a_subclass_of_ours() -> None:
    """A subclass of our fingerprinter applies the rules, and has a key space of its own."""
    found = of_settings(REQUEST_FINGERPRINTER_CLASS=Ours, BLOOM_URL_RULES=["www"])
    assert found.of_request(Request("http://www.a.example/")) == fingerprint_url("http://a.example/")
    assert (found.space["fingerprinter"], found.space["rules"]) == (f"{__name__}.Ours", "www")
