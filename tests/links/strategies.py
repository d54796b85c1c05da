"""Pages whose links are spelled in every way that means something to somebody."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st
from scrapy.http import HtmlResponse, XmlResponse

HREFS = st.one_of(
    st.sampled_from(
        [
            *("a.html", "a.html#x", "./a.html", "../docs/a.html", "b.html", "b.html#y.1_-", "b.html#", "#", "#x", ""),
            *(
                "/docs/a.html",
                "//a.example/docs/a.html",
                "http://a.example/docs/a.html",
                "HTTP://A.example/docs/a.html",
            ),
            *(
                "?q=1",
                "?q=2&p=1",
                "?p=1&q=2",
                "a.html?p=1&q=2",
                "a.html?q=2&p=1#x",
                ";p",
                "a;p",
                "c.pdf",
                "a.html?x.pdf",
            ),
            *(
                "http:a.html",
                "http:/a.html",
                "http:///a.html",
                "http://",
                "https://a.example/docs/a.html",
                "https:a.html",
            ),
            *(
                "mailto:me@a.example",
                "javascript:void(0)",
                "http://[",
                "http://a.example:x/",
                "//[::1",
                "data:,x",
                "a b",
            ),
            *(
                " a.html",
                "a.html ",
                "\ta.html\n",
                "/x ",
                " /x",
                " #x",
                "#x ",
                "a\n.html",
                "\x01a",
                "\u00a0a",
                "\\a",
                "a\\b",
            ),
            *("\u00e4", "a?\u00e4=\u00fc", "#\u00e4", "a.html#\u00e4", "%e4", "a%20b", "a%2", "#a%20b", "#a#b", "#!a"),
            *("../../../x", "..", ".", "./", "../", "/", "//", "///x", "/../x", "a/../b.html", "www.b.example", "a//b"),
            *("http://b.example/", "http://b.example", "http://b.example?x", "http://sub.b.example/a.html", "ftp://b/"),
            *("http://b.example/x.pdf#y", "http://b.example:80/x", "x.tar.gz", "../docs/b.html#x", "//x", "http://x"),
            *(
                "a/..x",
                "~a/_b-1.html#x",
                "h\nttp:?q=1",
                "http:?q=1",
                "http:#x",
                "?",
                "a.html?",
                "a.html?a+b",
                "a/",
                "-",
            ),
        ]
    ),
    st.text("ab/.:?#;&=%\\@[] \u00e4\n", max_size=8),
)
URLS = st.sampled_from(
    [
        *("http://a.example/docs/page.html", "http://a.example/docs/page.html", "http://a.example/docs/other.html?q=0"),
        *("http://a.example/docs/deep/", "http://a.example", "http://a.example/", "https://a.example/docs/page.html"),
        *("http://b.example/docs/;p", "http://a.example/docs/page.html#f", "file:///docs/page.html", "about:x"),
        *("http://a.example:80/docs/page.html", "http://a.example/x/../docs/page.html", "http://a.example/d//x"),
    ]
)
BASES = st.sampled_from(["/docs/", "http://b.example/x/y", "deep/", "//b.example", "http://[", "mailto:x", ""])


@st.composite
def sites(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Arguments of ``response_of()`` for a few pages with the same few hrefs, or nothing would be remembered."""
    hrefs = st.sampled_from(draw(st.lists(HREFS, min_size=1, max_size=5, unique=True)))
    attributes = st.lists(
        st.tuples(st.sampled_from(["href", "href", "href", "src", "data-href"]), hrefs),
        min_size=1,
        max_size=2,
        unique_by=lambda attribute: attribute[0],
    )
    rel = st.sampled_from([[], [], [("rel", "nofollow")], [("rel", "me")]])
    element = st.tuples(
        st.sampled_from(["a", "a", "a", "area", "link", "A", "img", "div"]),
        st.builds(lambda attributes, rel: attributes + rel, attributes, rel),
        st.sampled_from(["text", "", "next <b>page</b>", "\u00e4 &amp; b", " spaces  "]),
        st.sampled_from(["nav", "main"]),
    )
    page = st.tuples(
        st.sampled_from([HtmlResponse, HtmlResponse, HtmlResponse, XmlResponse]),
        URLS | st.just("http://a.example/docs/page.html"),
        st.none() | st.none() | BASES,
        st.sampled_from(["utf-8", "utf-8", "cp1252", "utf-16"]),
        st.lists(element, min_size=1, max_size=8),
    )
    return draw(st.lists(page, min_size=2, max_size=5))


def without_queries(value: str) -> str | None:
    return None if "?" in value else value.replace("b.html", "a.html")


ARGUMENTS = st.just({}) | st.fixed_dictionaries(
    {},
    optional={
        "allow": st.sampled_from([r"\.html", [re.compile("docs"), "#x"], ()]),
        "deny": st.sampled_from(["b", ["#y", r"\?"], "x$"]),
        "allow_domains": st.sampled_from(["a.example", {"b.example", "A.EXAMPLE"}]),
        "deny_domains": st.sampled_from(["b.example", ["sub.b.example"]]),
        "deny_extensions": st.sampled_from([(), ["html"], "pdf", ["gz", ""], "tar.gz"]),
        "restrict_xpaths": st.sampled_from(
            ["//div", ["//div[@class='main']", "//body"], "//nothing", "//a", "//comment()"]
        ),
        "restrict_css": st.sampled_from([".nav", [".main", "a"]]),
        "restrict_text": st.sampled_from(["text", ["page", "^$"]]),
        "tags": st.sampled_from(["a", ("a", "link", "img"), ["area"], (), {"div", "a"}, "*"]),
        "attrs": st.sampled_from(["href", ("src", "href"), (), "*"]),
        "canonicalize": st.booleans(),
        "unique": st.booleans(),
        "process_value": st.sampled_from([None, without_queries]),
        "strip": st.booleans(),
    },
)
