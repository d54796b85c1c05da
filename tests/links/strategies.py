"""Pages whose links are spelled in every way that means something to somebody."""

import re
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import HtmlResponse, TextResponse, XmlResponse

_SPELLED = """
a.html a.html#x ./a.html ../docs/a.html b.html b.html#y.1_- b.html# # #x #a%20b #a#b #!a #\u00e4 a.html#\u00e4
/docs/a.html //a.example/docs/a.html http://a.example/docs/a.html HTTP://A.example/docs/a.html https://a.example/docs/a.html
?q=1 ?q=2&p=1 ?p=1&q=2 a.html?p=1&q=2 a.html?q=2&p=1#x ;p a;p c.pdf a.html?x.pdf ? a.html? a.html?a+b a/ -
http:a.html http:/a.html http:///a.html http:// http:?q=1 http:#x mailto:me@a.example javascript:void(0)
http://[ http://a.example:x/ //[::1 data:,x \\a a\\b \u00e4 a?\u00e4=\u00fc %e4 a%20b a%2 ~a/_b-1.html#x
../../../x .. . ./ ../ / // ///x /../x a/../b.html a/..x www.b.example a//b ../docs/b.html#x //x http://x x.tar.gz
http://b.example/ http://b.example http://b.example?x http://sub.b.example/a.html ftp://b/ http://b.example/x.pdf#y
http://b.example:80/x
"""
_ODD = (*("", "a b", " a.html", "a.html ", "\ta.html\n", "/x ", " /x", " #x", "a\n.html", "h\nttp:?q=1", "\u00a0a"),)
HREFS = st.sampled_from([*_SPELLED.split(), *_ODD]) | st.text("ab/.:?#;&=%\\@[] \u00e4\n", max_size=8)
_URLS = """
http://a.example/docs/page.html http://a.example/docs/other.html?q=0 http://a.example/docs/deep/ http://a.example
http://a.example/ https://a.example/docs/page.html http://b.example/docs/;p http://a.example/docs/page.html#f
file:///docs/page.html about:x http://a.example:80/docs/page.html http://a.example/x/../docs/page.html http://a.example/d//x
"""
URLS = st.just("http://a.example/docs/page.html") | st.sampled_from(_URLS.split())
BASES = st.sampled_from(["/docs/", "http://b.example/x/y", "deep/", "//b.example", "http://[", "mailto:x", ""])


@st.composite
def sites(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Arguments of :func:`response_of` for a few pages with the same few hrefs, or nothing would be remembered."""
    hrefs = st.sampled_from(draw(st.lists(HREFS, min_size=1, max_size=5, unique=True)))
    names = st.lists(st.sampled_from(["href", "href", "src", "data-href"]), min_size=1, max_size=2, unique=True)
    element = st.tuples(
        st.sampled_from(["a", "a", "a", "area", "link", "A", "img", "div"]),
        names.flatmap(lambda names: st.tuples(*(st.tuples(st.just(name), hrefs) for name in names))),
        st.sampled_from(["", "", ' rel="nofollow"', ' rel="me"']),
        st.sampled_from(["text", "", "next <b>page</b>", "\u00e4 &amp; b", " spaces  "]),
        st.sampled_from(["nav", "main"]),
    )
    page = st.tuples(
        st.sampled_from([HtmlResponse, HtmlResponse, HtmlResponse, XmlResponse]),
        URLS,
        st.none() | st.none() | BASES,
        st.sampled_from(["utf-8", "utf-8", "cp1252", "utf-16"]),
        st.lists(element, min_size=1, max_size=8),
    )
    return draw(st.lists(page, min_size=2, max_size=5))


_ESCAPES = str.maketrans({"&": "&amp;", '"': "&quot;", "<": "&lt;", "\n": "&#10;", "\t": "&#9;"})


def response_of(
    kind: type[TextResponse], url: str, base: str | None, encoding: str, elements: Sequence[tuple[Any, ...]]
) -> TextResponse:
    made = []
    for tag, attributes, rel, text, css in elements:
        attrs = "".join(f' {name}="{value.translate(_ESCAPES)}"' for name, value in attributes)
        made.append(f'<div class="{css}"><{tag}{attrs}{rel}>{text}</{tag}></div>')
    head = "" if base is None else f'<base href="{base}"/>'
    html = f'<html><head>{head}<!-- <a href="a.html">x</a> --></head><body>{"".join(made)}</body></html>'
    return kind(url, body=html, encoding=encoding, request=Request(url))


def without_queries(value: str) -> str | None:
    return None if "?" in value else value.replace("b.html", "a.html")


_OPTIONS: dict[str, list[Any]] = {
    "allow": [r"\.html", [re.compile("docs"), "#x"], ()],
    "deny": ["b", ["#y", r"\?"], "x$"],
    "allow_domains": ["a.example", {"b.example", "A.EXAMPLE"}],
    "deny_domains": ["b.example", ["sub.b.example"]],
    "deny_extensions": [(), ["html"], "pdf", ["gz", ""], "tar.gz"],
    "restrict_xpaths": ["//div", ["//div[@class='main']", "//body"], "//nothing", "//a", "//comment()"],
    "restrict_css": [".nav", [".main", "a"]],
    "restrict_text": ["text", ["page", "^$"]],
    "tags": ["a", ("a", "link", "img"), ["area"], (), {"div", "a"}, "*"],
    "attrs": ["href", ("src", "href"), (), "*"],
    "canonicalize": [True, False],
    "unique": [True, False],
    "process_value": [None, without_queries],
    "strip": [True, False],
}
ARGUMENTS = st.just({}) | st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(values) for name, values in _OPTIONS.items()}
)
