"""Hrefs that are read from the text of tags: never fewer than a parser finds."""

from __future__ import annotations

import codecs
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scrapy.http import HtmlResponse

from scrapy_bloom.old.crawl.href_tags import HrefTags

HEAD = b"<html><head><title>x</title></head><body>"


def parsed(body: bytes, encoding: str) -> Counter[str]:
    """What Scrapy's parser finds."""
    root: Any = HtmlResponse("http://a.example/", body=body, encoding=encoding).selector.root
    elements = [] if isinstance(root, str) else root.iter("a", "area")
    return Counter(element.get("href") for element in elements if element.get("href") is not None)


def shown(body: bytes, encoding: str = "utf-8") -> Counter[str] | None:
    hrefs = HrefTags().read(body, encoding)
    return None if hrefs is None else Counter(href for href in hrefs.shown if href is not None)


SOUP = st.lists(
    st.sampled_from(
        [
            *("<a", "<A", "<area", "<abbr", "<a ", "<a/", "<a\n", "<a>", "</a>", "</a", "<x:a ", "<x:area\u00e4 ", "<"),
            *('<a href="x">', "<a href=y>", "<a class='n' href='z'>", '<a title="a>b" href="x">', "<a\x0c"),
            *(' href="p"', " href=q", " HREF=r", " href", ' href = "s"', 'href="t"', ' title="', "title='", "href"),
            *("=", '"', "'", ">", "/>", "/", " ", "\n", "\t", "\r\n", "\x0b", "\x00", "\x01", "\u00e4", "\u00a0", "x"),
            *("&amp;", "&", "&lt;", "&#65;", "&#x41", "&copy", "&copy;", "#", "?", "\\", "-", ";", ":", "`", "a b"),
            *("<!--", "-->", "--!>", "<!-->", "<!", "<?", "<![CDATA[", "]]>", "<script>", "<script ", "<script/>"),
            *("</script>", "</script", "<SCRIPT>", "<style>", "</style>", "<textarea>", "</textarea>", "<plaintext>"),
            *("<title>", "</title>", "<xmp>", "</xmp>", "<iframe>", "</iframe>", "<noframes>", "<template>", "<svg>"),
            *('<b title="', '<link href="l">', '<base href="/b/">', '<use xlink:href="#i">', "<select>", "<table>"),
            *("<body>", "</body>", "</html>", "<head>", "</head>", "<noscript>", "</noscript>", "<frameset>"),
        ]
    ),
    max_size=14,
).map("".join)
ENCODINGS = st.sampled_from(["utf-8", "utf-8", "cp1252", "iso8859-15", "koi8-r", "ascii", "utf-16", "gb18030"])


@pytest.mark.parametrize("examples", [1_000, pytest.param(30_000, marks=pytest.mark.slow)])
def test_nothing_is_missed_that_a_parser_finds(examples: int) -> None:
    """In whatever a page may be, cut short or broken by a byte; or nothing is said about it."""

    @hypothesis_settings(max_examples=examples)
    @given(text=SOUP, encoding=ENCODINGS, before=st.booleans(), broken=st.none() | st.tuples(st.integers(0, 60), BYTES))
    def never_fewer(text: str, encoding: str, *, before: bool, broken: tuple[int, bytes] | None) -> None:
        body = (HEAD if before else b"") + text.encode(encoding, "replace") + (b'<a href="w">w</a>' if before else b"")
        if broken:
            body = body[: broken[0]] + broken[1] + body[broken[0] :]
        hrefs = HrefTags().read(body, encoding)
        assert hrefs is None or parsed(body, encoding).keys() <= {*hrefs.shown, *hrefs.hidden}

    never_fewer()


BYTES = st.integers(128, 255).map(lambda byte: bytes([byte]))

VALUES = st.text("ab/.:?#=%+~!(),; \u00e4\u20ac\n", min_size=1, max_size=8) | st.sampled_from(
    ["a&b", "\u00a0", "?a&copy=1"]
)
TAGS = st.builds(
    lambda name, before, value, quote, after: f"<{name}{before} href={quote}{value}{quote}{after}>",
    st.sampled_from(["a", "area", "A"]),
    st.sampled_from(["", ' class="x y"', " id=z", " data-href='no'", ' download title="1 + 1"']),
    VALUES.map(lambda value: value.replace("&", "&amp;")),
    st.sampled_from(['"', "'"]),
    st.sampled_from(["", ' rel="next"', " hidden", ' href="second"', " /"]),
)
OTHERS = st.sampled_from(
    [
        *(
            "text",
            "<p>",
            '<abbr title="x">',
            '<link href="l">',
            '<a name="top">',
            "<a>",
            "<a href=u/v.html>",
            "<area href=w id=x>",
            '<div data-href="x">',
        ),
        *('<!-- <a href="c"> -->', "<script>'<a href=\"s\">'</script>", '<style>/* <a href="t"> */</style>'),
        *("<SCRIPT>var a = b.href; x('<a href=\"' + a + '\">')</SCRIPT>", '<script>"<a href=\\"x\\">"</script>'),
    ]
)


@pytest.mark.parametrize("examples", [200, pytest.param(5_000, marks=pytest.mark.slow)])
def test_what_is_shown_is_what_a_parser_finds(examples: int) -> None:
    """Every href as often, decoded as by the parser, whatever comments and scripts hide."""

    @hypothesis_settings(max_examples=examples)
    @given(parts=st.lists(TAGS | OTHERS, max_size=10), tags=st.just(HrefTags()))
    def the_same(parts: list[str], tags: HrefTags) -> None:
        body = HEAD + "".join(parts).encode()
        hrefs = tags.read(body, "utf-8")
        assert hrefs is not None
        assert Counter(href for href in hrefs.shown if href is not None) == parsed(body, "utf-8")

    the_same()


@pytest.mark.parametrize(
    "odd",
    [
        *(
            '<a title="a > b" href="x">',
            '<a href="x',
            '<a title="x"href="y">',
            '<a href=a"b>',
            "<a href=x/>",
            "<a href>",
        ),
        *('<a\x0chref="x">', '<a <a href="x">', '<a"b href="x">', '<x:a href="x">', '<svg:area href="x">', "hr\0ef"),
        *(f'<a {"x" * 100}href="q" href="z">', f'<{"x" * 98}:abc href="q">', '<a -x="p href=q r" href="z">'),
        *('<abbr <a href="x">', '<a href="\xff">', f'<a title="{"x" * 2_000}" href="y">', "<a\u00e4 href=x>"),
    ],
)
def test_of_what_parsers_may_read_otherwise_nothing_is_said(odd: str) -> None:
    body = HEAD + b'<a href="x">' + odd.encode("latin-1")
    assert HrefTags().read(body, "utf-8") is None
    assert shown(HEAD + b'<a href="x">') == {"x": 1}


PROGRAMS = [
    *(
        "<a href=\"' + url + '\">",
        "<a href='\" + url + \"'>",
        '<a href=" + x + ">',
        "<a class='x' href='#_\" + n + \"'>",
    ),
    *('<a href=\\"x\\">', "<a href=\\'x\\'>", '<a href="/x/${id}">'),
]


@pytest.mark.parametrize("made", PROGRAMS)
def test_what_a_script_puts_together_is_no_link(made: str) -> None:
    """It would look new on every page."""
    script = f"<script>x = {made}</script><script>'<a href=\"plain\">'</script>"
    hrefs = HrefTags().read(HEAD + script.encode() + b"<a href=y>", "utf-8")
    assert hrefs is not None
    assert (hrefs.shown, hrefs.hidden) == (["y"], ["plain"])


@pytest.mark.parametrize(
    "before",
    [
        *("<title>How to use the <script> tag</title>", '<input value="<script>">', "<iframe><script></iframe>"),
        *("<!foo <script>>", "<?php <script>?>", "<![CDATA[ <script> ]]>", "<script/>", "<xmp><script></xmp>"),
    ],
)
@pytest.mark.parametrize("link", ['<a href="/wiki/C++">', "<a href='/a+\"b\"'>", '<a href="/x" title="1 + &quot;">'])
def test_what_follows_a_script_that_is_none_is_read(before: str, link: str) -> None:
    """Where a script begins is only guessed."""
    body = HEAD + f"{before}{link}<script>x</script>".encode()
    hrefs = HrefTags().read(body, "utf-8")
    assert hrefs is not None
    assert parsed(body, "utf-8").keys() <= {*hrefs.shown, *hrefs.hidden}
    assert {*hrefs.shown, *hrefs.hidden} & {"/wiki/C++", '/a+"b"', "/x"}


def test_only_encodings_that_keep_ascii_are_read() -> None:
    """In any of them, the bytes of a tag are its characters, and no other byte is one of them."""
    page = HEAD + b'<a href="x">'
    names = {codecs.lookup(name).name for name in ALL_ENCODINGS}
    read = {name for name in names if HrefTags().read(page, name) is not None}
    ascii_bytes = bytes(range(1, 128))
    for name in read:
        assert ascii_bytes.decode(name) == ascii_bytes.decode("ascii")
        for byte in range(128, 256):
            text = (bytes([byte]) + b'"').decode(name, "replace")
            assert text.endswith('"')
            assert not text[:-1].isascii()
    assert {"utf-8", "cp1252", "iso8859-15", "koi8-r", "cp1251"} <= read
    assert not {"utf-16", "utf-7", "shift_jis", "gb18030", "big5", "euc_jp", "cp1026"} & read


ALL_ENCODINGS = [
    *("ascii", "utf-8", "utf-7", "utf-16", "utf-32", "koi8-r", "koi8-u", "shift_jis", "gb18030", "gbk", "big5"),
    *("euc_jp", "euc_kr", "iso2022_jp", "hz", "cp437", "cp1026", "mac-roman"),
    *(f"cp125{n}" for n in range(9)),
    *(f"iso8859-{n}" for n in range(1, 17) if n != 12),
]


def test_names_of_encodings_that_scrapy_passes_over_are_not_believed() -> None:
    page = HEAD + b'<a href="x">'
    for name in ("foo", " utf-8", "utf 8", ""):
        assert HrefTags().read(page, name) is None


def test_what_may_be_json_is_left_to_the_parser() -> None:
    for body in (b'""', b'[{"h": "<a href=x.html>"}]', b"text <a href=x>"):
        assert HrefTags().read(body, "utf-8") is None
    assert HrefTags().read(codecs.BOM_UTF8 + b"\r\n <a href=x>", "utf-8") == (["x"], [])


def test_an_encoding_does_not_read_what_another_has_taught() -> None:
    """The same bytes may be another name."""
    tags, page = HrefTags(), HEAD + '<a href="\u00e4">'.encode()
    hrefs = tags.read(page, "utf-8")
    assert hrefs is not None
    assert hrefs.shown == ["\u00e4"]
    assert tags.read(page, "cp1252") is None


def test_memory_is_bounded() -> None:
    """By number, and nothing is kept of long tags."""
    tags = HrefTags()
    for page in range(20):
        links = "".join(f'<a href="{page}-{n}"><a title="{"x" * 300}" href="{page}-{n}">' for n in range(1_000))
        tags.read(HEAD + links.encode(), "utf-8")
        assert len(tags._of_utf8) <= 4_096
        assert all(len(tag) <= 300 for tag in tags._of_utf8)


@pytest.mark.parametrize(
    ("body", "has_new", "most"),
    [(HEAD, True, 20), (HEAD + b"<a href=x/>", True, 20), (HEAD + b"<a href=x/>", False, 220), (HEAD, False, 1_000)],
)
def test_it_is_left_where_it_does_not_pay(body: bytes, has_new: bool, most: int) -> None:
    """Where nearly every page has a new link, or an odd tag; it is taken up again where that ends."""
    tags, tried = HrefTags(), 0
    for _ in range(1_000):
        is_read = tags.likely_pay
        hrefs = tags.read(body, "utf-8") if is_read else None
        tried += is_read
        if hrefs is None or has_new:
            tags.had_to_parse(has_new=has_new, was_read=is_read)
        else:
            tags.saved_parsing()
    assert most - 20 <= tried <= most
    for _ in range(10):
        tags.had_to_parse(has_new=False, was_read=False)
    assert tags.likely_pay
