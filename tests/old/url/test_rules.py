from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import FormRequest
from scrapy.settings import Settings
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_bloom.old.errors import SettingsError
from scrapy_bloom.old.settings import BloomSettings
from scrapy_bloom.old.url.canonical import canonicalize_url
from scrapy_bloom.old.url.fingerprint import fingerprint, fingerprints_under
from scrapy_bloom.old.url.rules import _SESSION_NAMES, _TRACKING, PRESETS, RULES, Rules, resolve, rules_of
from tests.old.url.urlcases import REAL_LOOKING

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = (Path(__file__).parents[3] / "docs" / "rules.md").read_text(encoding="utf-8")
SID = "0123456789abcdefABCDEF0123"

EXAMPLES = {
    "default_port": [
        ("http://a.example:80/x?b=1", "http://a.example/x?b=1"),
        ("https://a.example:443/", "https://a.example/"),
        ("https://me@a.example:443/", "https://me@a.example/"),
        ("http://a.example:443/", None),
        ("http://a.example:8080/:80/", None),
        ("http://[::1]:80/", "http://[::1]/"),
        ("http://[fe80::80]/", None),
    ],
    "repeated_pairs": [
        ("http://a.example/?a=1&a=1&b=2", "http://a.example/?a=1&b=2"),
        ("http://a.example/?a=1&a=2", None),
        ("http://a.example/a=1&a=1", None),
    ],
    "tracking": [
        ("http://a.example/?id=7&utm_source=mail&utm_medium=x", "http://a.example/?id=7"),
        ("http://a.example/?gclid=abc", "http://a.example/"),
        ("http://a.example/?fbclid=", "http://a.example/"),
        ("http://a.example/?my_gclid=1&utmost=2&q=utm_source", None),
        ("http://a.example/utm_source=1", None),
    ],
    "session_ids": [
        (f"http://a.example/x;jsessionid={SID}?b=1", "http://a.example/x?b=1"),
        (f"http://a.example/x;JSESSIONID={SID}.node1!17", "http://a.example/x"),
        (f"http://a.example/?PHPSESSID={SID}&id=7", "http://a.example/?id=7"),
        (f"http://a.example/?sid={SID}", "http://a.example/"),
        ("http://a.example/?s=0123456789abcdef0123456789ABCDEF", "http://a.example/"),
        ("http://a.example/(S(lit3py55t21z5v55vlm25s55))/orders.aspx", "http://a.example/orders.aspx"),
        ("http://a.example/(A(k_1)S(lit3py55t21z5v55vlm25s55)F(x-2))", "http://a.example/"),
        ("http://a.example/x;jsessionid=short?sid=42&PHPSESSID=7", None),
        (f"http://a.example/?token={SID}&s={SID}", None),
        ("http://a.example/(S(short))/a(S(lit3py55t21z5v55vlm25s55))/", None),
    ],
    "trailing_slash": [
        ("http://a.example/b/?c=1", "http://a.example/b?c=1"),
        ("http://a.example//b//", "http://a.example//b"),
        ("http://a.example/", None),
        ("http://a.example/b?c=/", None),
    ],
    "www": [
        ("http://www.a.example/", "http://a.example/"),
        ("http://me@www.a.example:8080/", "http://me@a.example:8080/"),
        ("http://www.example/", None),
        ("http://www2.a.example/www.b.example", None),
    ],
    "scheme": [
        ("http://a.example/", "https://a.example/"),
        ("http://a.example:80/", "https://a.example/"),
        ("https://a.example:443/", "https://a.example/"),
        ("http://a.example:8080/", None),
        ("ftp://a.example/", None),
    ],
    "index_page": [
        ("http://a.example/b/index.html", "http://a.example/b/"),
        ("http://a.example/Default.aspx?id=1", "http://a.example/?id=1"),
        ("http://a.example/index.php/news", None),
        ("http://a.example/my-index.html", None),
    ],
    "lowercase_path": [
        ("http://a.example/About/%C3%9CBER?Q=A", "http://a.example/about/%C3%9Cber?Q=A"),
        ("http://a.example/about?Q=A", None),
    ],
}
"""URLs, and what a rule makes of them; None: nothing else."""


def test_every_rule_has_examples() -> None:
    """No rule goes untested."""
    assert EXAMPLES.keys() == RULES.keys()


@pytest.mark.parametrize(("name", "url", "expected"), [(n, u, e) for n, cases in EXAMPLES.items() for u, e in cases])
def test_a_rule_does_what_it_says_and_leaves_the_rest(name: str, url: str, expected: str | None) -> None:
    """Each rule turns its examples into what is documented, and near misses into nothing else."""
    assert resolve([name]).apply(url) == (expected or canonicalize_url(url))


def test_the_documentation_shows_what_the_rules_do() -> None:
    """Every rule has its row in docs/rules.md, and the example there is what the rule makes of it."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, flags=re.MULTILINE))
    assert rows.keys() == RULES.keys()
    for name, row in rows.items():
        url, expected = re.findall(r"`(https?://[^`]*)`", row)[:2]
        assert resolve([name]).apply(url) == expected != url


# What rules look for, in pieces that can end up next to each other.
PIECES = st.sampled_from(
    [
        *(
            "/",
            "//",
            ":80",
            ":443",
            ":",
            "www.",
            "www.www.",
            "@",
            "?",
            "&",
            "&&",
            "=",
            ";",
            "#",
            "%",
            "a",
            "A=1",
            "%41",
        ),
        *("utm_source=x", "utm_", "gclid", "gclid=1", "_ga=2", "hsCtaTracking=1", f"sid={SID}", "PHPSESSID=" + SID),
        *(";jsessionid=", f";jsessionid={SID}", f";JSessionID={SID};", "/(S(lit3py55t21z5v55vlm25s55))", "/(S(", "))"),
        *("s=0123456789abcdef0123456789abcdef", "/index.html", "/Default.aspx", "index.php", "%2f", "%C3%9c", "+", "İ"),
        *("[::1]", ".", "..", "/../", "\t", " ", "\\", "é", "%75tm_source=1", "a=1&a=1", "http://", "x.example"),
    ]
)
URLS = st.builds(
    lambda scheme, host, pieces: scheme + host + "".join(pieces),
    st.sampled_from(["http://", "https://", "HTTP://", "ftp://", "data:", ""]),
    st.sampled_from(["a.example", "www.a.example", "www.www.example", "a.example:80", "u:80@a.example:443", "[::1]"]),
    st.lists(PIECES, max_size=8),
)


def canonical(url: str) -> str | None:
    try:
        return canonicalize_url(url)
    except ValueError:
        return None


@pytest.mark.parametrize("name", RULES)
@given(url=URLS)
@example(url="http://a.example/;;/;/")
def test_every_rule_is_idempotent(name: str, url: str) -> None:
    """A rule has nothing left to do on what it has made, whatever the URL, canonical or not."""
    rule = RULES[name]
    for given_url in filter(None, (url, canonical(url))):
        assert rule(rule(given_url)) == rule(given_url)


@pytest.mark.parametrize("name", RULES)
@given(url=URLS)
@example(url="http://a.example//;/")
@example(url=f"http://a.example/(S(lit3py55t21z5v55vlm25s55));jsessionid={SID};")
def test_a_ruled_url_stays_ruled_when_it_is_made_canonical(name: str, url: str) -> None:
    """A URL is ruled, then made canonical for its fingerprint; a link to that very URL gets the same fingerprint."""
    rules = resolve([name])
    before = canonical(url)
    if before is not None:
        ruled = canonicalize_url(rules.apply(before))
        assert canonicalize_url(rules.apply(ruled)) == ruled


BARE = st.builds(
    "{}://a.example{}/{}{}".format,
    st.sampled_from(["http", "https"]),
    st.sampled_from(["", "", ":80", ":8080"]),
    st.sampled_from(["", "a/b.html", "a;jsessionid=" + SID, "(S(" + SID + "))/", "%20", "a%7e"]),
    st.sampled_from(
        ["", "?a=1", "?S=" + SID, "?sid=" + SID, "?utm_a=", "?gclid=1", "?Gclid=1", "?a=1#gclid=1", "#?gclid=1"]
    ),
)


@given(url=URLS)
def test_the_quick_look_misses_nothing(url: str) -> None:
    """A canonical URL of which the quick look says that no common rule can touch it is not touched by any of them."""
    common = resolve(["common"])
    given_url = canonical(url)
    if given_url is None:
        return
    if not common.may_touch(given_url):
        for name in PRESETS["common"]:
            assert RULES[name](given_url) == given_url


@given(url=st.one_of(URLS, BARE))
def test_what_is_matched_at_once_is_canonical_and_untouched(url: str) -> None:
    """The one match that most links take gives the canonical URL, and no common rule changes it."""
    match = resolve(["common"]).match_untouched(url)
    if match is not None and "/." not in url:
        assert match[1] == canonicalize_url(url)
        for name in PRESETS["common"]:
            assert RULES[name](match[1]) == match[1]


def test_the_quick_look_knows_every_name() -> None:
    """No name that a rule drops is missing from the pattern of the quick look."""
    common = resolve(["common"])
    fields = [f"{name}=1" for name in (*_TRACKING, "utm_x")]
    fields += [
        f"{spelled}={SID}" for name in (*_SESSION_NAMES, "aspsessionidabcdefgh") for spelled in (name, name.upper())
    ]
    for field in fields:
        assert common.apply(f"http://a.example/?{field}") == "http://a.example/", field


def test_most_links_take_the_quick_way() -> None:
    """Of the shipped URLs, picked to be awkward, nine in ten that no common rule touches are known so at once."""
    common = resolve(["common"])
    untouched = [url for url in map(canonicalize_url, REAL_LOOKING) if common.apply(url) == url]
    assert sum(not common.may_touch(url) for url in untouched) / len(untouched) > 0.9
    assert sum(common.match_untouched(url) is not None for url in untouched) / len(untouched) > 0.4


RULESETS = st.lists(st.sampled_from([*RULES, *PRESETS]), max_size=4)


@given(URLS, RULESETS)
def test_requests_and_links_get_the_fingerprint_of_the_ruled_url(url: str, names: list[str]) -> None:
    """Under any rules, a link and the request made of it share the fingerprint that Scrapy makes of the ruled URL."""
    rules = resolve(names)
    of_request, of_url = fingerprints_under(rules)
    try:
        request = Request(url)
        expected = scrapy_fingerprint(Request(rules.apply(request.url) if names else url))
    except ValueError:
        return
    assert of_request(request) == expected
    assert of_url(url) == expected


def test_method_and_body_still_tell_requests_apart() -> None:
    """Rules are about URLs: what else a fingerprint is made of stays in it."""
    of_request, _ = fingerprints_under(resolve(["tracking"]))
    noisy, plain = "http://a.example/?utm_source=x", "http://a.example/"
    for make in (
        lambda url: Request(url, method="POST", body=b"1"),
        lambda url: Request(url, method="POST", body=b"2"),
        lambda url: Request(url, method="HEAD"),
        lambda url: FormRequest(url, formdata={"a": "b"}),
    ):
        assert of_request(make(noisy)) == scrapy_fingerprint(make(plain)) == of_request(make(plain))


def test_a_verbatim_url_is_left_alone() -> None:
    """A request that wants its URL as it is gets Scrapy's fingerprint."""
    of_request, _ = fingerprints_under(resolve(["common"]))
    request = Request("http://a.example/?utm_source=x", meta={"verbatim_url": True})
    assert of_request(request) == fingerprint(request)


def test_presets_are_their_rules_and_what_comes_twice_counts_once() -> None:
    """The key space holds names of rules, so a preset and its rules written out share their filters."""
    assert resolve(["common"]).names == PRESETS["common"]
    assert resolve(["safe", "tracking", "session_ids", "safe"]).names == PRESETS["common"]
    assert resolve(["www", "safe"]).names == ("www", *PRESETS["safe"])
    assert Rules() == resolve([])


def without_digits(url: str) -> str:
    """A rule of a user's own."""
    return re.sub(r"\d+", "0", url)


def returns_none(url: str) -> None:
    pass


def returns_none_later(url: str) -> str | None:
    return url if url.endswith("value") else None


def raises(url: str) -> str:
    raise RuntimeError("broken")


def test_a_users_own_functions_are_rules() -> None:
    """By import path or as a function, before or after ours; the import path stands in the key space."""
    path = f"{__name__}.without_digits"
    for own in (path, without_digits):
        rules = resolve(["tracking", own])
        assert rules.names == ("tracking", path)
        assert rules.apply("http://a.example/17?utm_source=x") == "http://a.example/0"


def test_a_rule_that_fails_later_says_which() -> None:
    """What is not a URL never becomes a fingerprint: the request passes unchecked, with this reason in the log."""
    rules = resolve([returns_none_later])
    with pytest.raises(TypeError, match=r"a URL rule of .*returns_none_later has returned None, which is no URL"):
        rules.apply("http://a.example/")


class NotAFunction:
    value = 1


def test_everything_wrong_with_the_rules_comes_in_one_message() -> None:
    """Unknown names with a suggestion, what cannot be imported, what is no function, what does not work."""
    here = __name__
    given_rules: list[Any] = [
        *("traking", "x", "no.such.module", f"{here}.nothing", f"{here}.NotAFunction.value"),
        *(f"{here}.returns_none", f"{here}.raises", lambda url: url, 7),
    ]
    with pytest.raises(SettingsError) as caught:
        BloomSettings.from_settings(Settings({"BLOOM_URL_RULES": given_rules, "BLOOM_CAPACITY": 0}))
    problems = caught.value.problems
    assert problems[0].startswith("BLOOM_CAPACITY")
    assert problems[1] == "BLOOM_URL_RULES has 'traking', which is no rule; did you mean tracking?"
    assert problems[2].startswith("BLOOM_URL_RULES has 'x', which is no rule; known are safe, common, default_port, ")
    assert "'no.such.module', which cannot be imported (No module named 'no')" in problems[3]
    assert "which cannot be imported" in problems[4]
    assert "which cannot be imported" in problems[5]
    assert "which returns None for http://example.com/path?key=value, not a URL" in problems[6]
    assert "which raises RuntimeError('broken') for http://example.com/" in problems[7]
    assert "which has no import path by which a later run could know it" in problems[8]
    assert problems[9] == "BLOOM_URL_RULES has 7, which is no function"
    assert len(problems) == 10


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, ()),
        ([], ()),
        ("", ()),
        ("safe", PRESETS["safe"]),
        ("tracking, www", ("tracking", "www")),
        (("www",), ("www",)),
        ('["tracking", "www"]', ("tracking", "www")),
    ],
)
def test_the_setting_is_read_as_scrapy_reads_lists(value: object, names: tuple[str, ...]) -> None:
    """A list, or text as on a command line, with commas or as JSON; the default is none at all."""
    settings = Settings({"BLOOM_URL_RULES": value})
    assert BloomSettings.from_settings(settings).url_rules == names
    assert rules_of(settings).names == names


@pytest.mark.parametrize("value", [True, 3, {"safe": 1}, {"safe"}, without_digits, '["safe"'])
def test_what_is_no_list_is_refused(value: object) -> None:
    """The message says what the setting takes, wherever it is read first."""
    settings = Settings({"BLOOM_URL_RULES": value})
    readers: list[Callable[[Settings], object]] = [BloomSettings.from_settings, rules_of]
    for read in readers:
        with pytest.raises(SettingsError, match=r"BLOOM_URL_RULES must be a list of rules, presets and import paths"):
            read(settings)
