import logging
import os
import string
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any
from urllib.parse import urlparse

import pytest
from hypothesis import given
from hypothesis import strategies as st
from w3lib.url import canonicalize_url as w3lib_canonicalize_url

from scrapy_bloom.old.url import canonical
from scrapy_bloom.old.url.canonical import SELF_CHECK_URLS, canonicalize_url, first_difference, quick_canonical
from tests.old.url.urlcases import REAL_LOOKING, mutations, outcome, short_strings

HOSTS = st.from_regex(r"[a-z0-9][a-z0-9._\-]{0,8}(:[0-9]{1,5})?", fullmatch=True)
PATHS = st.text(string.ascii_letters + string.digits + "-._~!$&'()*+,;=:@/%2FfCc", max_size=20).map(
    lambda text: "/" + text
)
QUERIES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)
PAIRS = st.lists(st.tuples(st.text("aAbB0-._~+%24", max_size=3), st.text("a0=%3d+&;", max_size=3))).map(
    lambda pairs: "&".join(f"{key}={value}" for key, value in pairs)
)
FRAGMENTS = st.one_of(st.just(""), st.text(max_size=6).map(lambda text: "#" + text))
NEAR_URLS = st.builds(
    lambda scheme, host, path, query, fragment: f"{scheme}://{host}{path}{query}{fragment}",
    st.sampled_from(["http", "https"]),
    HOSTS,
    st.one_of(st.just(""), PATHS),
    st.one_of(st.just(""), st.one_of(QUERIES, PAIRS).map(lambda text: "?" + text)),
    FRAGMENTS,
)
"""URLs in and just outside the set that is recognised."""

ANY_URLS = st.one_of(
    st.text(max_size=20),
    st.text(max_size=20).map(lambda text: "http://" + text),
    st.text(max_size=20).map(lambda text: "http://a/" + text),
    st.builds("{}://{}/{}".format, st.text(max_size=5), st.text(max_size=8), st.text(max_size=12)),
)


def assert_equal_to_w3lib(url: Any) -> None:
    assert outcome(canonicalize_url, url) == outcome(w3lib_canonicalize_url, url), ascii(url)


def test_the_fast_path_is_on() -> None:
    """With the w3lib installed here, the self-check passes: the tests of this file test our own code, not w3lib's."""
    assert first_difference(quick_canonical) is None
    assert quick_canonical("http://example.com/") == "http://example.com/"


def test_nearly_all_real_looking_links_are_recognised() -> None:
    """At least nine in ten of the shipped URLs, picked to be awkward, are recognised, and a third need no edit."""
    recognised = [url for url in REAL_LOOKING if quick_canonical(url) is not None]
    untouched = [url for url in recognised if quick_canonical(url) == url]
    assert len(REAL_LOOKING) > 300
    assert len(recognised) / len(REAL_LOOKING) > 0.94
    assert len(untouched) / len(REAL_LOOKING) > 0.4


@pytest.mark.parametrize("url", [*REAL_LOOKING, *SELF_CHECK_URLS])
def test_known_urls_get_the_canonical_form_of_w3lib(url: str) -> None:
    """Every shipped URL has the canonical form that w3lib gives it."""
    assert_equal_to_w3lib(url)


@pytest.mark.parametrize(
    "odd",
    [
        b"http://example.com/?b&a",
        b"http://example.com/\xff",
        bytearray(b"http://example.com/"),
        pytest.param(memoryview(b"http://example.com/"), id="memoryview"),
        urlparse("http://example.com/a?b=2&a=1#f"),
        urlparse(b"http://example.com/a"),
        "",
        None,
        42,
        ["http://example.com/"],
        type("Url", (str,), {"__contains__": lambda self, other: False})("http://example.com/a/../b"),
        "http://a:99999/",
        "http://a:65535/?b&a",
        "http://a:065/",
        "http://a:b/",
        "http://[/",
        "http://[::1/",
        "http://a]/",
        "http://\u2100/",
        "http://a/\ud800",
        "http://a/?\udfff",
        "http://a/#\ud800",
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
    ],
)
def test_short_strings_of_risky_characters(base: str, alphabet: str, longest: int) -> None:
    """No short string of separators, escapes and dots is canonicalized otherwise than by w3lib."""
    recognised = 0
    for tail in short_strings(alphabet, longest):
        answer = quick_canonical(base + tail)
        if answer is not None:
            recognised += 1
            assert answer == outcome(w3lib_canonicalize_url, base + tail), ascii(base + tail)
    assert recognised > 0 or not base


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "alphabet", "longest"),
    [
        ("http://a/", "/.;%2fFC?&=+#a\\: ", 5),
        ("http://a/?", "&=;+%20-.a~B#\xfc", 5),
        ("http://a", ":/.@0569[]aA%?#-_\\\t", 5),
        ("http://a/b;", "/.;%4cC?a#", 6),
    ],
)
def test_longer_strings_of_risky_characters(base: str, alphabet: str, longest: int) -> None:
    """The same, for some millions of strings."""
    test_short_strings_of_risky_characters(base, alphabet, longest)


@given(NEAR_URLS)
def test_urls_around_the_recognised_set(url: str) -> None:
    """Whether or not a URL is recognised, its canonical form is w3lib's."""
    assert_equal_to_w3lib(url)


@given(ANY_URLS)
def test_any_text(url: str) -> None:
    """Any text at all is canonicalized, or refused, as by w3lib."""
    assert_equal_to_w3lib(url)


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_wounded_real_looking_urls(count: int) -> None:
    """Real-looking URLs with random damage still have w3lib's canonical form, and many are still recognised."""
    recognised = 0
    for url in mutations(REAL_LOOKING, count, seed=20260101):
        answer = quick_canonical(url)
        if answer is not None:
            recognised += 1
            assert answer == outcome(w3lib_canonicalize_url, url), ascii(url)
    assert recognised > count * 0.3


def test_canonical_urls_never_need_escaping_in_json() -> None:
    """A recognised canonical URL is printable ASCII without quotes and backslashes: JSON takes it as it is."""
    for url in mutations(REAL_LOOKING, 20_000, seed=7):
        answer = quick_canonical(url)
        assert answer is None or (answer.isascii() and answer.isprintable() and not set(answer) & set(' "\\')), ascii(
            url
        )


def test_every_escape_in_a_path_and_in_a_query() -> None:
    """Each %XX, in all four spellings and next to each kind of neighbour, comes out as from w3lib."""
    for byte in range(256):
        for escape in {
            f"{byte:02X}",
            f"{byte:02x}",
            f"{byte:02X}"[0] + f"{byte:02x}"[1],
            f"{byte:02x}"[0] + f"{byte:02X}"[1],
        }:
            for template in (
                "/%{}",
                "/a%{}b",
                "/.%{}",
                "/;%{}",
                "/a;b%{}/c",
                "/?%{}",
                "/?a%{}=1&a=%{}",
                "/a?%{}&%{}=;",
            ):
                assert_equal_to_w3lib("http://a" + template.replace("{}", escape))


PLACES = (
    *("{}http://a/", "h{}ttp://a/", "http://{}/", "http://a{}/", "http://a:8{}/", "http://a{}", "http://a?{}"),
    *("http://a#b{}c", "http://a/{}", "http://a/b{}c", "http://a/b;{}", "http://a/b;c{}/d", "http://a/?b{}c=1&b=2"),
    *("http://a/?b={}&b=a", "http://a/?{}{}", "http://a/#{}"),
)


def test_every_character_everywhere() -> None:
    """Each character of the first 256, in each part of a URL, comes out as from w3lib."""
    for character in map(chr, range(256)):
        for place in PLACES:
            assert_equal_to_w3lib(place.replace("{}", character))


@pytest.mark.parametrize(
    "port", [0, 1, 9, 10, 80, 443, 9999, 10000, 59999, 60000, 64999, 65000, 65535, 65536, 99999, 100000]
)
def test_ports(port: int) -> None:
    """Ports are kept, normalized or refused as by w3lib, leading zeros and empty ports included."""
    for text in (f":{port}", f":0{port}", f":{port}x", f":{port}:", f":-{port}", ":"):
        for rest in ("", "/", "/a?b=1", "?b", "#c"):
            assert_equal_to_w3lib(f"http://a{text}{rest}")


@contextmanager
def executed_lines(code: CodeType) -> Iterator[set[int]]:
    lines: set[int] = set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not code:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    "function", [canonical._recognise, canonical._canonical_query, canonical._canonical_escape, canonical._unquote]
)
def test_the_self_check_walks_every_line_of_the_fast_path(function: Any) -> None:
    """The self-check's URLs between them run every line that can make a canonical URL."""
    code = function.__code__
    every_line = {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}
    if not canonical._semicolon_separates:
        every_line -= {line for line in every_line if 'replace(";", "&")' in source_line(code, line)}
    with executed_lines(code) as lines:
        assert quick_canonical(None) is None  # type: ignore[arg-type] # the line for what is no str
        first_difference(quick_canonical)
    assert every_line - lines == set()


def source_line(code: CodeType, line: int) -> str:
    with open(code.co_filename, encoding="utf-8") as source:  # noqa: PTH123 - a name, not a Path
        return source.read().splitlines()[line - 1]


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
    "an error": "1 / 0",
}


def in_fresh_python(script: str, timeout: float = 60) -> str:
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("change", SUBTLE_CHANGES.values(), ids=SUBTLE_CHANGES.keys())
def test_another_w3lib_switches_the_fast_path_off(change: str) -> None:
    """If the installed w3lib differs in anything, every URL goes to it, and one warning says so and what it means."""
    output = in_fresh_python(f"""
import logging, w3lib.url
records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append(record)
logging.getLogger("scrapy_bloom").addHandler(Keep())
real = w3lib.url.canonicalize_url
calls = []
def changed(url, *args, **kwargs):
    calls.append(url)
    c = real(url, *args, **kwargs)
    return ({change}) if started else c
started = False
w3lib.url.canonicalize_url = changed
import scrapy.utils.request
started = True
try:
    from scrapy_bloom.old.url import canonical, fingerprint
finally:
    started = False
from scrapy import Request
assert [record.levelname for record in records] == ["WARNING"], records
print(records[0].getMessage())
for url in canonical.SELF_CHECK_URLS:
    assert canonical.quick_canonical(url) is None
    calls.clear()
    assert canonical.canonicalize_url(url) == real(url)
    assert calls == [url]
assert not fingerprint.FAST_PATH_ON
assert fingerprint.fingerprint is scrapy.utils.request.fingerprint
calls.clear()
fingerprint.fingerprint_url("http://example.com/")
assert calls == ["http://example.com/"]
""")
    assert "canonicalizes URLs in a way that scrapy-bloom does not know" in output
    assert "stay right" in output
    assert "about ten times as long" in output


def test_an_unchanged_w3lib_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """With a w3lib that passes, the check says nothing and keeps the fast path."""
    with caplog.at_level(logging.DEBUG):
        assert canonical._checked() is canonical._recognise
    assert caplog.records == []


HOSTILE = [
    ("http://a/", "a", " "),
    ("http://a/", "/", "\\"),
    ("http://a/", "%20", "%"),
    ("http://a/", "%41", ""),
    ("http://a/", "%2", ""),
    ("http://a/", ";", ""),
    ("http://a/", "/.a", "/.."),
    ("http://a/", "/", "/.."),
    ("http://a/", "...", "/.b"),
    ("http://", "a", "!"),
    ("http://", "a.", ":"),
    ("http://a", ":1", ""),
    ("http://a:", "1", "/"),
    ("http://a/?", "a=1&", " "),
    ("http://a/?", "a=1&", "a"),
    ("http://a/?", "a", " "),
    ("http://a/?", "=", ""),
    ("http://a/?", "&", " "),
    ("http://a/", "?", " "),
    ("http://a/?", "%41=%zz&", ""),
    ("http://a/", "#", "\ud800"),
    ("http://a/#", "/.", "\ud800"),
    ("", " ", "http://a/"),
    ("", "http://", ""),
]
"""What a URL starts with, what fills it up to a million characters, and what it ends with."""


def test_matching_takes_linear_time() -> None:
    """URLs of megabytes, built to make patterns backtrack, are recognised or refused one after another in no time.

    The limit is a safety net, not a measurement: all of them take a few seconds together, while one pattern with
    quadratic time would take hours over a million characters.
    """
    output = in_fresh_python(
        f"""
from scrapy_bloom.old.url.canonical import quick_canonical
for start, filling, end in {HOSTILE!a}:
    quick_canonical(start + filling * (1_000_000 // len(filling)) + end)
print("done")
""",
        timeout=120,
    )
    assert output == "done\n"
