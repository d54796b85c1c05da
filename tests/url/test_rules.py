import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_bloom.components.fingerprints import fingerprints_under
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.url.canonical import canonicalize_url
from scrapy_bloom.url.noise import TRACKING_2
from scrapy_bloom.url.rules import (
    PRESETS,
    RULES,
    Rules,
    resolve,
)
from tests.url.urlcases import REAL_LOOKING

PAGE = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
SID = "0123456789abcdefABCDEF0123"
ASP = "/(S(lit3py55t21z5v55vlm25s55))"
ASP_1 = "/(lit3py55t21z5v55vlm25s55)"
EXAMPLES = Path(__file__).with_name("rule_examples.txt").read_text(encoding="utf-8").split("\n\n")[1:]


def test_a_rule_does_what_it_says_and_leaves_the_rest() -> None:
    """Each rule turns its examples into what is documented, and near misses into nothing else."""
    assert [examples.split()[0] for examples in EXAMPLES] == list(RULES)
    for examples in EXAMPLES:
        name, *lines = examples.splitlines()
        for line in lines:
            url, _, expected = line.strip().partition(" -> ")
            assert resolve([name]).apply(canonicalize_url(url)) == (expected or canonicalize_url(url)), line


def test_the_documentation_shows_what_the_rules_do() -> None:
    """Every rule has its row in docs/rules.md, and the example there is what the rule makes of it."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, flags=re.MULTILINE))
    assert list(rows) == list(RULES)
    for name, row in rows.items():
        url, expected = re.findall(r"`(https?://[^`]*)`", row)[:2]
        assert resolve([name]).apply(canonicalize_url(url)) == expected != url


# What rules look for, in pieces that can end up next to each other.
PIECES = st.sampled_from(
    [
        *("/", "//", ":80", ":443", ":", "www.", "www.www.", "@", "?", "&", "&&", "=", "#", "%", "a", "A=1", "%41"),
        *("utm_source=x", "utm_", "gclid", "gclid=1", "_ga=2", "hsCtaTracking=1", f"sid={SID}", f"PHPSESSID={SID}"),
        *(";x", ";jsessionid=", f";jsessionid={SID}", f";JSessionID={SID}", ASP, ASP_1, "/(S(", "))", "/index.html"),
        *("CFID=1", "CFTOKEN=12345678", "amp;", "&amp;", f"CGISESSID={SID}", "jsessionid=0123456789.n", "__s=abcdef"),
        *("s=0123456789abcdef0123456789abcdef", "/Default.aspx", "index.php", "%2f", "%C3%9c", "+", "\u0130"),
        *("[::1]", ".", "..", "/../", "\t", " ", "\\", "\u00e9", "%75tm_source=1", "a=1&a=1", "http://", "x.example"),
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


@settings(max_examples=200)
@given(name=st.sampled_from([*RULES]), url=URLS)
def test_a_ruled_url_stays_ruled(name: str, url: str) -> None:
    """A URL is ruled, then made canonical for its fingerprint; a link to that very URL gets the same fingerprint."""
    rules = resolve([name])
    before = canonical(url)
    if before is not None:
        ruled = rules.apply(before)
        assert rules.apply(ruled) == ruled
        again = canonicalize_url(ruled)
        assert canonicalize_url(rules.apply(again)) == again


@given(url=URLS)
def test_the_quick_look_misses_nothing(url: str) -> None:
    """A canonical URL of which the quick look says that no common rule can touch it is not touched by any of them."""
    may_touch = resolve("common").may_touch
    assert may_touch is not None
    given_url = canonical(url)
    if given_url is not None and not may_touch(given_url):
        assert all(RULES[name](given_url) == given_url for name in PRESETS["common"])


def test_the_quick_look_knows_every_name() -> None:
    """No name that a rule drops is missing from the pattern of the quick look, and most links pass it."""
    common = resolve(["common"])
    fields = [f"{name}=1" for name in TRACKING_2]
    sessions = "phpsessid jsessionid sessionid session_id sessid sid oscsid xtcsid zenid cgisessid aspsessionidabcdefgh"
    fields += [f"{spelled}={SID}" for name in sessions.split() for spelled in (name, name.upper())]
    fields += [
        "sesskey=0123456789",
        "_wpnonce=0123456789",
        "searchid=scs_1",
        "query_desc=1",
        "_pos=1",
        "_sid=012345678",
        "_ss=r",
    ]
    fields += ["_sid=012345678", *(f"pr_{name}=1" for name in ("prod_strat", "rec_id", "rec_pid", "ref_pid", "seq"))]
    for field in fields:
        assert common.apply(f"http://a.example/?{field}") == "http://a.example/", field
    untouched = [url for url in map(canonicalize_url, REAL_LOOKING) if common.apply(url) == url]
    assert common.may_touch is not None
    assert sum(not common.may_touch(url) for url in untouched) / len(untouched) > 0.9


@given(
    URLS,
    st.lists(st.sampled_from([*RULES, *PRESETS]), max_size=4),
    st.sampled_from([{}, {}, {"method": "POST", "body": b"1"}, {"method": "HEAD"}, {"meta": {"verbatim_url": True}}]),
)
def test_requests_and_links_get_the_fingerprint_of_the_ruled_url(
    url: str, names: list[str], options: dict[str, Any]
) -> None:
    """Under any rules, a link and its request share the fingerprint that Scrapy makes of the ruled URL. Method and body
    still tell requests apart, and a request that wants its URL as it is gets Scrapy's fingerprint."""
    rules = resolve(names)
    of_request, of_url = fingerprints_under(rules)
    try:
        request = Request(url, **options)
        ruled = request.url if "meta" in options else rules.apply(canonicalize_url(request.url))
        expected = scrapy_fingerprint(Request(ruled, **options))
    except ValueError:
        return
    assert of_request(request) == expected
    if not options:
        assert of_url(url) == expected


@pytest.mark.parametrize(
    ("value", "names"),
    [
        *[(nothing, ()) for nothing in (None, [], "")],
        ("common", ("default_port", "repeated_pairs", "tracking_2", "session_ids_2")),
        (["safe", "tracking_2", "session_ids_2", "safe"], PRESETS["common"]),
        (["www", "safe"], ("www", *PRESETS["safe"])),
        ("tracking_2, www", ("tracking_2", "www")),
        (("www",), ("www",)),
    ],
)
def test_presets_are_their_rules_and_what_comes_twice_counts_once(value: object, names: tuple[str, ...]) -> None:
    """The setting is a list, or text as on a command line; the key space has presets spelled out, in order."""
    assert resolve(value).names == names
    assert resolve(value) == resolve(names)
    assert Rules() == resolve([])


@given(URLS, st.permutations([*RULES]))
def test_the_order_of_index_page_and_trailing_slash_makes_no_difference(url: str, names: list[str]) -> None:
    """Both orders in a list are the same rules, whatever stands between them, and one key space."""
    first, second = sorted(map(names.index, ("index_page", "trailing_slash")))
    swapped = [*names]
    swapped[first], swapped[second] = names[second], names[first]
    assert resolve(["trailing_slash", "index_page"]) == resolve(["index_page", "trailing_slash"])
    before = canonical(url)
    if before is not None:
        assert resolve(swapped).apply(before) == resolve(names).apply(before)


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
        rules = resolve(["tracking_2", own])
        assert rules.names == ("tracking_2", path)
        assert rules.apply("http://a.example/17?utm_source=x") == "http://a.example/0"


def test_what_a_rule_makes_of_a_url_is_a_url_or_an_error() -> None:
    """What is no URL never becomes a fingerprint."""
    for rules in (resolve([returns_none_later]), resolve([returns_none_later, "www"])):
        for ask, argument in zip(fingerprints_under(rules), (Request("http://a/"), "http://a/"), strict=True):
            with pytest.raises(TypeError):
                ask(argument)  # type: ignore[operator] # each its own argument


@pytest.mark.parametrize(
    ("url", "on_all_hosts", "on_one"),
    [
        ("http://a.example/x?id=1&view=print", "http://a.example/x?id=1", "http://a.example/x?id=1"),
        ("https://A.example/x;view=1?View=2&view", "https://a.example/x?View=2", "https://a.example/x?View=2"),
        ("http://b.example:80/?view=a&view=b", "http://b.example:80/", None),
        ("http://a.example:81/view=1?preview=1&q=view", None, None),
        ("mailto:a@a.example?view=1", None, None),
    ],
)
def test_a_parameter_can_be_named_on_all_hosts_or_on_one(
    url: str, on_all_hosts: str | None, on_one: str | None
) -> None:
    """It is dropped from query and path by its whole name; the rule is idempotent and has its name in the key space."""
    canonical = canonicalize_url(url)
    for name, expected in (("without:view", on_all_hosts), ("without:view@A.example", on_one)):
        rules = resolve(["safe", name])
        assert rules.names[-1] == name
        ruled = resolve([name]).apply(canonical)
        assert ruled == resolve([name]).apply(ruled) == (expected or canonical)


class NotAFunction:
    value = 1


NOT_PARAMETERS = ["without:", "without:a,b", "without:a@", "without:a=1", "without:a@b/c", "without"]


def test_everything_wrong_with_the_rules_comes_in_one_message() -> None:
    """Unknown names with a suggestion, what cannot be imported, what is not a function, what does not work."""
    own = [f"{__name__}.{name}" for name in ("nothing", "NotAFunction.value", "returns_none", "raises")]
    wrong: list[Any] = ["traking", "x", "no.such.module", *own, lambda url: url, 7, *NOT_PARAMETERS]
    with pytest.raises(SettingsError) as caught:
        resolve(["www", *wrong])
    problems = caught.value.problems
    for rule, problem in zip(wrong, problems, strict=True):
        assert problem.startswith(f"BLOOM_URL_RULES has {rule!r}, ")
        assert rule not in NOT_PARAMETERS or "without:<parameter>@<host>" in problem
    assert problems[0].endswith("did you mean tracking_2?")
    assert all(name in problems[1] for name in (*RULES, *PRESETS))
    assert "broken" in problems[6]
    for value in (True, 3, {"safe": 1}, {"safe"}, without_digits):
        with pytest.raises(SettingsError, match=r"BLOOM_URL_RULES") as caught:
            resolve(value)
        assert repr(value) in str(caught.value)
