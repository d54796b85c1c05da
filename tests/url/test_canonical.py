from typing import Any
from urllib.parse import urlparse

import pytest
from hypothesis import given
from scrapy import Request
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from w3lib.url import canonicalize_url as w3lib_canonicalize_url

from benchmarks.request_seen import composed_urls
from scrapy_bloom.components.fingerprints import fingerprint_url
from scrapy_bloom.url import canonical
from scrapy_bloom.url.canonical import canonicalize_url, quick_canonical
from tests.support.processes import run_script
from tests.url.urlcases import ANY_URLS, NEAR_URLS, REAL_LOOKING, outcome, short_strings


def assert_equal_to_w3lib(url: Any) -> None:
    assert outcome(canonicalize_url, url) == outcome(w3lib_canonicalize_url, url), ascii(url)


def test_nearly_all_real_looking_links_are_recognised() -> None:
    """The self-check passes here. All but ten of the shipped URLs, picked to be awkward, are answered without w3lib,
    and 99 % of those that are composed like the links of pages."""
    assert canonical.IS_FAST
    assert len([url for url in REAL_LOOKING if quick_canonical(url) is None]) == 10
    composed = composed_urls(1_000, seed=1)
    assert sum(quick_canonical(url) is not None for url in composed) >= 990


@pytest.mark.parametrize(
    "odd",
    [
        *(b"http://example.com/?b&a", b"http://example.com/\xff", bytearray(b"http://example.com/"), "", None, 42),
        *(urlparse("http://example.com/a?b=2&a=1#f"), urlparse(b"http://example.com/a"), ["http://example.com/"]),
        *("http://a:99999/", "http://a:65535/?b&a", "http://a:065/", "http://a:b/", "http://[/", "http://[::1/"),
        *("http://a]/", "http://\u2100/", "http://a/\ud800", "http://a/?\udfff", "http://a/#\ud800"),
    ],
    ids=ascii,
)
def test_odd_arguments_fare_as_with_w3lib(odd: Any) -> None:
    """What is no URL or no string is answered, or refused, exactly as w3lib does."""
    assert_equal_to_w3lib(odd)


@pytest.mark.parametrize(
    ("base", "alphabet", "longest"),
    [
        ("http://a/", "/.;%2Fc?&=#\\", 4),
        ("http://a/?", "&=;+%20-.a#", 4),
        ("http://a", ":/.@06[]aA%?#\\\t", 3),
        ("http://a/b;", "/.;%4cC?", 4),
        ("", "htp:/sS.?# ", 4),
        ("http://a/?", "&=2'\"[|^ ", 3),
        pytest.param("http://a/", "/.;%2fFC?&=+#a\\: \t'|", 4, marks=pytest.mark.slow),
        pytest.param("http://a/?", "&=;+%20-.a~#\xfc'[", 4, marks=pytest.mark.slow),
        pytest.param("http://a", ":/.@0569[]aA%?#-_\\\t", 4, marks=pytest.mark.slow),
        pytest.param("http://a/", "/.;%2fc?&=#a\t", 5, marks=pytest.mark.slow),
        pytest.param("http://a/?", "&=;+%20.a~#[", 5, marks=pytest.mark.slow),
        pytest.param("http://a", ":/.@06[]aA%?\\", 5, marks=pytest.mark.slow),
    ],
)
def test_short_strings_of_risky_characters(base: str, alphabet: str, longest: int) -> None:
    """No short string of separators, escapes and dots is canonicalized otherwise than by w3lib; and what Request does
    to a URL first never shows in the fingerprint of a URL that is recognised as it stands."""
    recognised = 0
    for tail in short_strings(alphabet, longest):
        url = base + tail
        answer = quick_canonical(url)
        if answer is not None:
            recognised += 1
            assert answer == outcome(w3lib_canonicalize_url, url), ascii(url)
            if len(tail) < 4:
                assert fingerprint_url(url) == scrapy_fingerprint(Request(url)), ascii(url)
    assert recognised > 0 or not base


@given(NEAR_URLS | ANY_URLS)
def test_any_text(url: str) -> None:
    """Any text at all is canonicalized, or refused, as by w3lib."""
    assert_equal_to_w3lib(url)


PLACES = (
    *("{}http://a/", "h{}ttp://a/", "http://{}/", "http://a{}/", "http://a:8{}/", "http://a{}", "http://a?{}"),
    *("http://a#b{}c", "http://a/{}", "http://a/b{}c", "http://a/b;{}", "http://a/b;c{}/d", "http://a/?b{}c=1&b=2"),
    *("http://a/?b={}&b=a", "http://a/?{}{}", "http://a/#{}", "http://a/.{}", "http://a/?a{}=1&a={}"),
    "http://a/a?{}&{}=;",
)


def test_every_character_and_every_escape_everywhere() -> None:
    """Each of the first 256 characters, and each %XX in both cases, in each part of a URL, comes out as from w3lib."""
    for byte in range(256):
        for text in (chr(byte), f"%{byte:02X}", f"%{byte:02x}"):
            for place in PLACES:
                assert_equal_to_w3lib(place.replace("{}", text))


SUBTLE_CHANGES = {
    "query sorted as strings": 'c.replace("a=2&a%2B", "a%2B").replace("a=2&a+=4", "a+=4&a=2")',
    "blank values dropped": 'c.replace("a=&", "&")',
    "lower-case escapes": 'c.replace("%2F", "%2f")',
    "one more safe character in paths": 'c.replace("%7B", "{")',
    "one safe character less": 'c.replace("~", "%7E")',
    "spaces as %20": 'c.replace("+", "%20")',
    "dot names resolved": 'c.replace("/.a", "/a")',
    "default path gone": 'c[:-1] if c.endswith(".com/") else c',
    "double slashes merged": 'c.replace("//a//", "//a/")',
    "params unquoted": 'c.replace("b%20c", "b c")',
    "fragments kept": 'c + "#f" if url.endswith("#f") else c',
    "ports dropped": 'c.replace(":8080", "")',
    "upper-case host": 'c.replace("example.com", "EXAMPLE.com")',
    "an error": '1 / (url == "http://a/?b;a")',
}

IMPORTS_AGAIN = """
import importlib, io, logging, sys
import scrapy.utils.request, w3lib.url
from scrapy import Request
from scrapy_bloom.components import fingerprints as fingerprint
from scrapy_bloom.url import canonical
log = io.StringIO()
logging.basicConfig(stream=log, format="%(levelname)s %(message)s", force=True)
real, real_fingerprint = w3lib.url.canonicalize_url, scrapy.utils.request.fingerprint
urls = canonical.SELF_CHECK_URLS
def import_again():
    log.seek(0)
    log.truncate()
    importlib.reload(canonical)
    importlib.reload(fingerprint)
    return log.getvalue()
"""


def test_another_w3lib_switches_the_fast_path_off() -> None:
    """If the installed w3lib differs in anything, every URL goes to it, after one warning that names it."""
    run_script(f"""{IMPORTS_AGAIN}
for name, change in {SUBTLE_CHANGES!r}.items():
    asked = []
    def changed(url, *args, **kwargs):
        asked.append(url)
        c = real(url, *args, **kwargs)
        return eval(change) if started else c
    started = True
    w3lib.url.canonicalize_url = changed
    message = import_again()
    started = False
    assert message.startswith("WARNING") and message.count("WARNING") == 1 and "w3lib" in message, (name, message)
    assert not canonical.IS_FAST and not fingerprint.IS_FAST, name
    for url in urls:
        assert canonical.quick_canonical(url) is None
        asked.clear()
        assert canonical.canonicalize_url(url) == real(url)
        assert asked == [url]
    request = Request("http://example.com/?b&a")
    assert fingerprint.fingerprint(request) == fingerprint.fingerprint_url(request.url) == real_fingerprint(request)
w3lib.url.canonicalize_url = real
assert import_again() == "" and fingerprint.IS_FAST
""")
