from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.http import HtmlResponse, Response, TextResponse

from scrapy_bloom.loops.novelty import Novelty

WORDS = [first + second for first in "bcdfglmnprst" for second in ("ade", "ilo", "orun", "essy", "alt", "ump", "ick")]


def novelty() -> Novelty:
    seen: set[bytes] = set()

    def add(key: bytes) -> bool:
        is_new = key not in seen
        seen.add(key)
        return is_new

    return Novelty(add)


def text(key: object, words: int = 14) -> str:
    return " ".join(random.Random(f"{key}").choices(WORDS, k=words)).capitalize() + "."


def page(content: str, url: str = "http://a.example/page", title: str = "A title") -> HtmlResponse:
    body = (
        f"<html><head><title>{title}</title>\n<style>p {{}}</style></head>\n<body><h1>The site of all sites</h1>\n"
        f"<p><a href=/>Home of everything that there is</a></p>\n{content}\n<p>{text('foot')}</p></body></html>"
    )
    return HtmlResponse(url, body=body.encode(), encoding="utf-8")


def brings(content: str, url: str = "http://a.example/2", before: str = f"<p>{text('main')}</p>") -> bool:
    """Whether a page brings something after one with *before*."""
    known = novelty()
    assert known.brought(page(before, "http://a.example/1")).is_news
    return known.brought(page(content, url)).is_news


MAIN = f"<p>{text('main')}</p>"


@pytest.mark.parametrize(
    "noise",
    [
        "",
        "<p>It is 2024-05-06 17:45:12 now</p>",
        "<p>You are visitor number 48,211 of this page</p>",
        "<p>Request id 9f86d081884c7d659a2feaa0</p>",
        '<form><input type=hidden name=csrf value="Zm9vYmFyYmF6cXV4"></form>',
        "<p>You are here: /some/very/long/path/of/this/page/that/it/shows</p>",
        "<script>var a = 'something completely different on each page of it';</script>",
        "<!-- served by a machine of many, with quite some words in it -->",
        '<img src="/pixel.gif?123" width=1 height=1>',
        "<ul><li><a href=/x>The name of another page that was never seen</a></li></ul>",
        "<p>12.50</p>",
    ],
)
def test_noise_is_no_news(noise: str) -> None:
    """Clocks, counters, tokens, echoes of the URL, scripts, pixels and names in links bring nothing."""
    assert not brings(MAIN + noise, "http://a.example/some/very/long/path/of/this/page/that/it/shows")


def test_a_heading_made_of_filters_is_no_news() -> None:
    """Words that the URL has do not count, in the path or in the query."""
    assert not brings(
        f"<h2>Garden furniture wooden benches</h2>{MAIN}", "http://a.example/garden/furniture?q=wooden+benches"
    )


@pytest.mark.parametrize(
    "content",
    [
        f"<p>{text('other')}</p>",
        MAIN + f"<div class=desc>{text('one sentence', 9)}</div>",
        '<img src="/media/4f2a.jpg">',
        "<table>"
        + "".join(f"<tr>{''.join(f'<td>{n * m * 7.3:.1f}</td>' for n in range(2, 8))}</tr>" for m in range(3, 12))
        + "</table>",
        f'<script type="application/ld+json">{{"text": "{text("data")}"}}</script>',
        "<p>\u5317\u4eac\u662f\u4e2d\u534e\u4eba\u6c11\u5171\u548c\u56fd\u7684\u9996\u90fd\u548c\u7b2c\u4e8c\u5927\u57ce\u5e02</p>",
    ],
)
def test_content_is_news_once(content: str) -> None:
    """Text, one sentence in boilerplate, media, numbers, data, scripts without spaces: new once, and known then."""
    known = novelty()
    assert known.brought(page(MAIN, "http://a.example/1")).is_news
    assert known.brought(page(content, "http://a.example/2")).is_news
    assert not known.brought(page(content, "http://a.example/3")).is_news


def test_json_text_and_files_are_news_once() -> None:
    """Documents that are no HTML bring what no document before did."""
    bodies = [json.dumps({"text": text("json")}).encode(), text("plain", 40).encode()]
    for make in (
        lambda body: TextResponse("http://a.example/t", body=body),
        lambda body: Response("http://a.example/f", body=body),
    ):
        known = novelty()
        for body in bodies:
            assert known.brought(make(body)).is_news
            assert not known.brought(make(body)).is_news


def test_a_copy_names_its_original() -> None:
    """A page that shows what another one did tells which one; a page with nothing of its own tells none."""
    known = novelty()
    for number in range(8):
        url = f"http://a.example/{number}"
        assert known.brought(page(f"<p>{text(number)}</p>\n<p>{text((number, 2))}</p>", url)).is_news
    copy = page(f"<p>{text(3)}</p>\n<p>{text((3, 2))}</p>", "http://a.example/print/3")
    assert known.brought(copy).twin == "http://a.example/3"
    assert known.brought(page("", "http://a.example/empty")).twin == ""


def test_an_excerpt_is_no_original_and_an_advertisement_no_copy() -> None:
    """A page is a copy only of one that shows little else: not of a digest, and not because of a line by the way."""
    known = novelty()
    lines = [f"<p>{text(number)}</p>" for number in range(6)]
    digest = page("\n".join(lines), "http://a.example/digest")
    assert known.brought(digest).is_news
    assert known.brought(page(lines[0], "http://a.example/0")).twin == ""
    assert known.brought(page(f"{lines[0]}\n<p>{text('ad')}</p>\n<p>{text('own')}</p>", "http://a.example/ad")).is_news
    assert known.brought(page(f"<p>{text('ad')}</p>", "http://a.example/list")).twin == ""


def test_a_copy_has_one_original() -> None:
    """Of many pages that show the same, those that come after the plainest are its copies."""
    known = novelty()
    content = f"<p>{text('item')}</p>\n<p>{text('more')}</p>"
    assert known.brought(page(content, "http://a.example/item?visit=12")).is_news
    assert known.brought(page(content, "http://a.example/item")).twin == "http://a.example/item?visit=12"
    assert known.brought(page(content, "http://a.example/item?visit=13")).twin == "http://a.example/item"


@given(st.binary(max_size=300), st.sampled_from(["utf-8", "utf-16", "latin-1"]))
def test_no_body_makes_it_fail(body: bytes, encoding: str) -> None:
    """Whatever a server sends is judged, and brings nothing the second time."""
    known = novelty()
    for make in (HtmlResponse, TextResponse):
        known.brought(make("http://a.example/", body=body, encoding=encoding))
        assert not known.brought(make("http://a.example/", body=body, encoding=encoding)).is_news
