import json
import logging
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import scrapy
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import JsonRequest, XmlRpcRequest
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_bloom.old.url import fingerprint as module
from scrapy_bloom.old.url.canonical import SELF_CHECK_URLS, quick_canonical
from scrapy_bloom.old.url.fingerprint import fingerprint, fingerprint_url
from tests.old.url.test_canonical import ANY_URLS, NEAR_URLS, in_fresh_python
from tests.old.url.urlcases import REAL_LOOKING, mutations, outcome, short_strings

URL = "http://example.com/a?b=2&a=1#f"
VERBATIM = {"verbatim_url": True}


def assert_equal_to_scrapy(make_request: Callable[[], Request]) -> None:
    """Compare on two requests of the same make: Scrapy remembers the fingerprint of an object."""
    assert outcome(fingerprint, make_request()) == outcome(scrapy_fingerprint, make_request())


def fingerprint_of_request(url: str) -> bytes:
    return scrapy_fingerprint(Request(url))


def test_the_fast_path_is_on() -> None:
    """With the Scrapy installed here, the self-check passes: these tests test our own code, not Scrapy's."""
    assert module.FAST_PATH_ON
    assert module.first_difference() is None
    assert fingerprint is not scrapy_fingerprint


def test_nearly_all_links_take_the_fast_path() -> None:
    """Of the shipped URLs, picked to be awkward, 97 % are recognised once Scrapy has made requests of them."""
    urls = [Request(url).url for url in REAL_LOOKING]
    assert sum(quick_canonical(url) is not None for url in urls) / len(urls) > 0.97


def test_a_fingerprint_is_the_sha1_that_scrapy_documents() -> None:
    """The fingerprint of a known request is the one that stored caches and job directories already hold."""
    assert fingerprint(Request("http://www.example.com/query?id=111&cat=222")) == bytes.fromhex(
        "8fcf173c15d0d14f77c0c9a61209caf224e90164"
    )


@pytest.mark.parametrize("url", [*REAL_LOOKING, *SELF_CHECK_URLS])
def test_known_urls(url: str) -> None:
    """A request for a shipped URL, its URL alone, and Scrapy's own function agree."""
    expected = outcome(fingerprint_of_request, url)
    assert outcome(fingerprint_url, url) == expected
    assert outcome(lambda url: fingerprint(Request(url)), url) == expected


class LoudUrl(Request):
    @property
    def url(self) -> str:
        return super().url.upper()


class OtherBody(Request):
    @property
    def body(self) -> bytes:
        return b"other"


class NoBody(Request):
    @property
    def body(self) -> Any:
        return None


class OddBody(Request):
    @property
    def body(self) -> Any:
        return bytearray(b"odd")


class OddMethod(Request):
    @property
    def method(self) -> str:
        return "PATCH"

    @method.setter
    def method(self, value: str) -> None:
        pass


class OtherMeta(Request):
    @property
    def meta(self) -> dict[str, Any]:
        return {"verbatim_url": True}


class BytesUrl(Request):
    @property
    def url(self) -> Any:
        return b"http://example.com/?b&a"


class BrokenUrl(Request):
    @property
    def url(self) -> str:
        raise RuntimeError("no url today")


class Slotted(Request):
    __slots__ = ("extra",)


class PlainSubclass(Request):
    pass


@pytest.mark.parametrize(
    "request_class",
    [Request, LoudUrl, OtherBody, NoBody, OddBody, OddMethod, OtherMeta, BytesUrl, BrokenUrl, Slotted, PlainSubclass],
)
@pytest.mark.parametrize("method", ["GET", "POST", "get", "\u00fc"])
@pytest.mark.parametrize("body", [None, "", "text", b"\x00\xff"])
@pytest.mark.parametrize("meta", [None, {}, {"depth": 1}, VERBATIM, {"verbatim_url": 0}, {"verbatim_url": "yes"}])
def test_classes_methods_bodies_and_meta(request_class: type[Request], method: str, body: Any, meta: Any) -> None:
    """Whatever the class, the method, the body and verbatim_url, the fingerprint is Scrapy's."""
    for url in (URL, "http://example.com/", "http://example.com/%2e/\u00fc?b&a"):
        assert_equal_to_scrapy(lambda url=url: request_class(url, method=method, body=body, meta=meta))  # type: ignore[misc]


# Scrapy 2.16 alone deprecates it.
@pytest.mark.filterwarnings("ignore:scrapy.http.FormRequest is deprecated")
@pytest.mark.parametrize(
    "make_request",
    [
        lambda: scrapy.FormRequest(URL, formdata={"k": "v", "q": ["1", "\u00fc"]}),
        lambda: scrapy.FormRequest(URL, method="GET", formdata={"k": "v"}),
        lambda: JsonRequest(URL, data={"k": ["v", None, "\u00fc"]}),
        lambda: JsonRequest(URL),
        lambda: XmlRpcRequest(URL, methodname="m", params=("p",)),
        lambda: Request.from_curl("curl 'http://example.com/?b&a' -X PUT --data-raw 'x'"),
        lambda: Request(URL, headers={"A": "b"}, cookies={"c": "d"}, priority=3, flags=["f"], cb_kwargs={"k": 1}),
        lambda: Request(URL, encoding="cp1252", body="\u00fc"),
        lambda: Request("http://example.com/?q=\u00fc", encoding="cp1252"),
        lambda: Request("http://example.com/?q=\u65e5\u672c", encoding="shift_jis"),
        lambda: Request(URL).replace(url="http://example.com/?z&y", method="DELETE"),
        lambda: Request("data:,x?b&a"),
        lambda: Request("about:blank"),
        lambda: Request("ftp://example.com/?b&a#f"),
        lambda: Request("s3://bucket/key?b&a"),
        lambda: Request("file:///tmp/a%41?b&a"),
    ],
)
def test_scrapys_own_kinds_of_requests(make_request: Callable[[], Request]) -> None:
    """Forms, JSON, XML-RPC, cURL commands, other encodings and other schemes have Scrapy's fingerprints."""
    assert_equal_to_scrapy(make_request)


@pytest.mark.parametrize("method", [b"GET", b"\xff", None, 7, type("Str", (str,), {})("GET"), "G\ud800T"])
def test_methods_set_after_the_fact(method: Any) -> None:
    """A method attribute of another type is hashed, or refused, as by Scrapy."""

    def make_request() -> Request:
        request = Request(URL)
        request.method = method
        return request

    assert_equal_to_scrapy(make_request)


@given(
    st.one_of(NEAR_URLS, st.sampled_from(REAL_LOOKING)),
    st.one_of(st.just("GET"), st.sampled_from(["POST", "HEAD"]), st.text(max_size=5)),
    st.one_of(st.just(b""), st.binary(max_size=20), st.text(st.characters(codec="utf-8"), max_size=10)),
    st.one_of(
        st.none(),
        st.just(VERBATIM),
        st.fixed_dictionaries({}, optional={"verbatim_url": st.booleans(), "depth": st.just(1)}),
    ),
)
def test_any_request(url: str, method: str, body: bytes | str, meta: dict[str, Any] | None) -> None:
    """A request with any URL, method, body and meta that Scrapy accepts has Scrapy's fingerprint."""
    try:
        Request(url, method=method, body=body, meta=meta)
    except (ValueError, UnicodeError):
        return
    assert_equal_to_scrapy(lambda: Request(url, method=method, body=body, meta=meta))


@given(st.one_of(NEAR_URLS, ANY_URLS))
def test_any_url_alone(url: str) -> None:
    """The fingerprint of a URL is that of the request for it, and a URL that is refused is refused alike."""
    assert outcome(fingerprint_url, url) == outcome(fingerprint_of_request, url)


@pytest.mark.parametrize("not_a_url", [None, b"http://example.com/", 7, "", "relative", "//example.com/", "http://a:99999/",
                                       "http://[/", "http://a/\ud800"], ids=ascii)  # fmt: skip
def test_urls_that_no_request_is_made_of(not_a_url: Any) -> None:
    """What Request refuses is refused with the same type of error and the same words."""
    assert outcome(fingerprint_url, not_a_url) == outcome(fingerprint_of_request, not_a_url)


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


@pytest.mark.parametrize("count", [10_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_wounded_real_looking_urls(count: int) -> None:
    """Real-looking URLs with random damage have the same fingerprint as a URL, as a request, and by Scrapy."""
    for url in mutations(REAL_LOOKING, count, seed=20260102):
        expected = outcome(fingerprint_of_request, url)
        assert outcome(fingerprint_url, url) == expected, ascii(url)
        assert outcome(lambda url: fingerprint(Request(url)), url) == expected, ascii(url)


def test_another_scrapy_switches_the_fast_path_off() -> None:
    """If Scrapy hashes anything else, it makes every fingerprint itself, and one warning says so and what it means."""
    output = in_fresh_python("""
import logging, scrapy.utils.request
records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append(record)
logging.getLogger("scrapy_bloom").addHandler(Keep())
real = scrapy.utils.request.fingerprint
def changed(request):
    return b"head" if request.method == "HEAD" else real(request)
scrapy.utils.request.fingerprint = changed
from scrapy_bloom.old.url import canonical, fingerprint
from scrapy import Request
assert [record.levelname for record in records] == ["WARNING"], records
print(records[0].getMessage())
assert fingerprint.fingerprint is changed and not fingerprint.FAST_PATH_ON
assert fingerprint.RequestFingerprinter().fingerprint(Request("http://a/", method="HEAD")) == b"head"
assert fingerprint.fingerprint_url("http://a/?b&a") == real(Request("http://a/?b&a"))
assert canonical.quick_canonical("http://a/") == "http://a/"
""")
    assert "makes fingerprints in a way that scrapy-bloom does not know" in output
    assert "stay right" in output
    assert "about ten times as long" in output


def test_a_scrapy_without_our_attributes_switches_the_fast_path_off() -> None:
    """If a request keeps its data elsewhere than we look, Scrapy makes every fingerprint itself, after one warning."""
    output = in_fresh_python("""
import logging
from scrapy import Request
from scrapy.utils.request import fingerprint as real
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
logging.basicConfig(format="%(levelname)s %(message)s")
from scrapy_bloom.old.url import fingerprint
assert not fingerprint.FAST_PATH_ON
assert fingerprint.fingerprint(Elsewhere("http://a/?b&a")) == real(Request("http://a/?b&a"))
assert fingerprint.fingerprint_url("http://a/?b&a") == real(Request("http://a/?b&a"))
""")
    assert output == ""


def test_an_unchanged_scrapy_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """With a Scrapy that passes, the check says nothing."""
    with caplog.at_level(logging.DEBUG):
        assert module._agrees_with_scrapy()
    assert caplog.records == []


def test_a_crawler_takes_ours_for_its_fingerprinter(tmp_path: Path) -> None:
    """REQUEST_FINGERPRINTER_CLASS puts ours in the place of Scrapy's, and an HTTP cache filled before still hits."""
    # In a Python of its own, because get_crawler of older Scrapy wants a reactor, and there is one per process.
    output = in_fresh_python(f"""
from scrapy.utils.reactor import install_reactor
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
from scrapy import Request, Spider
from scrapy.extensions.httpcache import FilesystemCacheStorage
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from tests.old.url.urlcases import REAL_LOOKING

def opened_cache(spider, **settings):
    spider.crawler = get_crawler(settings_dict={{"HTTPCACHE_DIR": {str(tmp_path)!r}, **settings}})
    cache = FilesystemCacheStorage(spider.crawler.settings)
    cache.open_spider(spider)
    return cache

spider = Spider("s")
cache = opened_cache(spider)
theirs = spider.crawler.request_fingerprinter
for url in REAL_LOOKING:
    request = Request(url)
    cache.store_response(spider, request, Response(url, body=theirs.fingerprint(request)))
cache = opened_cache(spider, REQUEST_FINGERPRINTER_CLASS="scrapy_bloom.old.url.fingerprint.RequestFingerprinter")
ours = spider.crawler.request_fingerprinter
for url in REAL_LOOKING:
    request = Request(url)
    response = cache.retrieve_response(spider, request)
    assert response is not None and response.body == ours.fingerprint(request)
print(type(theirs).__module__, type(ours).__module__)
""")
    assert output.split() == ["scrapy.utils.request", "scrapy_bloom.old.url.fingerprint"]


class Site(BaseHTTPRequestHandler):
    """Pages that link to each other in several spellings; counts what is fetched."""

    fetched: list[str]

    def do_GET(self) -> None:
        self.fetched.append(self.path)
        links = ["/?b=2&a=1", "/?a=1&b=2", "/a%41#x", "/aA", "/aA#y", "/c;d", "/"]
        body = "".join(f'<a href="{link}">x</a>' for link in links).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


CRAWL = """
import json, sys
from scrapy import Spider
from scrapy.crawler import CrawlerProcess

class LinkSpider(Spider):
    name = "links"
    start_urls = [sys.argv[1]]
    def parse(self, response):
        yield from response.follow_all(css="a")

process = CrawlerProcess({
    "REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.old.url.fingerprint.RequestFingerprinter",
    "HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": sys.argv[2], "LOG_ENABLED": False, "TELNETCONSOLE_ENABLED": False,
})
crawler = process.create_crawler(LinkSpider)
process.crawl(crawler)
process.start()
stats = crawler.stats.get_stats()
print(type(crawler.request_fingerprinter).__module__)
print(json.dumps({key: stats.get(key, 0) for key in (
    "httpcache/hit", "httpcache/store", "dupefilter/filtered", "response_received_count", "log_count/ERROR")}))
"""


def scrapy_can_fetch() -> bool:
    try:
        import scrapy.core.downloader.handlers.http11  # noqa: F401 - imports of Twisted's are what may fail
    except ImportError:
        return False
    return True


@pytest.mark.skipif(not scrapy_can_fetch(), reason="this Scrapy has no HTTP handler with the Twisted installed here")
def test_a_crawl_with_the_http_cache(tmp_path: Path) -> None:
    """A real crawl stores each page once under our fingerprints, and a second one is served from the cache alone."""
    handler = type("CountingSite", (Site,), {"fetched": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        runs = []
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", CRAWL, f"http://127.0.0.1:{server.server_port}/", str(tmp_path / "cache")],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
                cwd=Path(module.__file__).parents[3],
            )
            used, stats = done.stdout.splitlines()
            assert used == "scrapy_bloom.old.url.fingerprint"
            runs.append(json.loads(stats))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    # The start page is fetched without being recorded as seen, then once more through its own links, from the cache.
    pages = {"/", "/?b=2&a=1", "/aA", "/c;d"}
    assert len(handler.fetched) == len(pages)
    assert runs[0]["httpcache/store"] == len(pages)
    assert runs[1]["httpcache/store"] == 0
    assert runs[1]["httpcache/hit"] == runs[1]["response_received_count"] == runs[0]["response_received_count"]
    assert runs[0]["dupefilter/filtered"] == runs[1]["dupefilter/filtered"] > 0
    assert runs[0]["log_count/ERROR"] == runs[1]["log_count/ERROR"] == 0
