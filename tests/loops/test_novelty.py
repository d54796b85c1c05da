import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.http import HtmlResponse, TextResponse

from scrapy_bloom.components.loop_guard import answer_of
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.loops.novelty import Answer, Novelty, likeness

WORDS = [first + second for first in "bcdfglmnprst" for second in ("ade", "ilo", "orun", "essy", "alt", "ump", "ick")]


LITTLE = 0.5
"""News of a page with a few new words or numbers, at most."""


def novelty() -> Novelty:
    return Novelty(ScalableBloomFilter(10_000, 1e-9).add)


def text(key: object, words: int = 14) -> str:
    return " ".join(random.Random(f"{key}").choices(WORDS, k=words)).capitalize() + "."


def page(content: str, url: str = "http://a.example/page", title: str = "A title") -> Answer:
    body = (
        f"<html><head><title>{title}</title>\n<style>p {{}}</style></head>\n<body><h1>The site of all sites</h1>\n"
        f"<p><a href=/>Home of everything that there is</a></p>\n{content}\n<p>{text('foot')}</p></body></html>"
    )
    return Answer(url, body.encode(), "markup")


def brings(content: str, url: str = "http://a.example/2", before: str = f"<p>{text('main')}</p>") -> float:
    """Return what a page brings after one with *before*."""
    known = novelty()
    assert known.brought(page(before, "http://a.example/1")).news
    return known.brought(page(content, url)).news


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
        "<!-- served by a machine of many, with quite some words in it -->",
        '<img src="/pixel.gif?123" width=1 height=1>',
        "<ul><li><a href=/x>The name of another page that was never seen</a></li></ul>",
        "<p>12.50</p>",
    ],
)
def test_noise_is_no_news(noise: str) -> None:
    """Clocks, counters, tokens, echoes of the URL, pixels and names in links do not count as a page."""
    assert brings(MAIN + noise, "http://a.example/some/very/long/path/of/this/page/that/it/shows") < 1


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
        f"<script>show({{'text': '{text('script')}'}});</script>",
        f'<script type="application/ld+json">{{"text": "{text("data")}"}}</script>',
        "<p>\u5317\u4eac\u662f\u4e2d\u534e\u4eba\u6c11\u5171\u548c\u56fd\u7684\u9996\u90fd\u548c\u7b2c\u4e8c\u5927\u57ce\u5e02</p>",
    ],
)
def test_content_is_news_once(content: str) -> None:
    """Text, one sentence in boilerplate, media, numbers, data, scripts without spaces: new once, and known then."""
    known = novelty()
    assert known.brought(page(MAIN, "http://a.example/1")).news
    assert known.brought(page(content, "http://a.example/2")).news
    assert not known.brought(page(content, "http://a.example/3")).news


def test_json_text_and_files_are_news_once() -> None:
    """Documents that are no HTML bring what no document before did."""
    bodies = [json.dumps({"text": text("json")}).encode(), text("plain", 40).encode()]
    for form in ("text", "binary"):
        known = novelty()
        for body in bodies:
            assert known.brought(Answer("http://a.example/t", body, form)).news
            assert not known.brought(Answer("http://a.example/t", body, form)).news


@pytest.mark.parametrize("end", ["", "/"])
@pytest.mark.parametrize(
    "line",
    ["It took {} ms to make this page for you", "You are visitor no. {} of the whole site", "Order within {} minutes"],
)
def test_numbers_that_change_all_over_a_site_are_furniture(line: str, end: str) -> None:
    """A line whose numbers change on pages of several shapes brings nothing any more, wherever it is."""
    known = novelty()
    urls = [f"http://a.example/{path}{end}" for path in ("", "word", "12", "x-1", "b/a-1", "c/12")]
    for number, url in enumerate(urls, 71):
        known.brought(page(f"<p>{line.format(number * 37)}</p>", url))
    for number, url in enumerate(urls, 91):
        assert not known.brought(page(f"<p>{line.format(number * 37)}</p>", url)).news


@pytest.mark.parametrize(
    "line", ["Hex bolt M{} x 45", "Art. no. {}", "Temperature: {}.5 C", "<script>[3, {}, 8]</script>"]
)
def test_numbers_that_change_in_one_section_are_content(line: str) -> None:
    """Each page with another number brings a little, and nothing when it is fetched again."""
    known = novelty()
    pages = [page(f"<p>{line.format(n * 37)}</p>", f"http://a.example/{n}") for n in range(3, 9)]
    known.brought(pages[0])
    assert all(0 < known.brought(each).news < LITTLE for each in pages[1:])
    assert [known.brought(each).news for each in pages] == [0] * 6


def test_tables_of_numbers_are_content_wherever_they_are() -> None:
    """Twenty-four rows of numbers bring as much as text, on pages of any shape, after tables of other pages."""
    known = novelty()
    for number, path in enumerate(
        ("a/1", "word", "x-1", "a.php?b=1", "", *(f"station-{n}/2021-03-{n}" for n in range(9)))
    ):
        rng = random.Random(number)
        rows = "".join(
            f"<tr><td>{hour:02}:00</td><td>{rng.random() * 30:.1f}</td><td>{rng.randint(980, 1040)}</td></tr>"
            for hour in range(24)
        )
        assert known.brought(page(f"<table>{rows}</table>", f"http://a.example/{path}")).news == 1


def three(key: object) -> str:
    return "".join(f"<p>{text((key, k))}</p>\n" for k in range(3))


def sketches_of(*pages: tuple[str, str]) -> list[bytes]:
    """Return the sketches of pages that come one after the other, each a content and a path."""
    known = novelty()
    return [known.brought(page(content, f"http://a.example/{path}")).sketch for content, path in pages]


def test_what_surrounds_every_record_is_in_no_sketch() -> None:
    """Two records among the same forty links are not alike."""
    links = "".join(f"<a href=/x{n}>{text(('service', n), 3)}</a>\n" for n in range(40))
    *_, one, other = sketches_of(*((links + three(n), f"{n}") for n in range(12)))
    alike = likeness(one, other)
    assert alike is not None
    assert alike < 0.5


def test_pages_that_show_the_same_are_alike() -> None:
    """Their sketches have most lines in common, whatever furniture differs, and those of other pages have few."""
    before = ((f"{three(n)}<p>{n * 37} ms</p>", f"{n}{'a' * n}") for n in range(6))
    same = ((f"{three(n)}<p>{ms} ms</p>", f"p?{ms}") for n, ms in ((3, 777), (3, 888), (4, 999)))
    *_, one, again, other = sketches_of(*before, *same)
    assert likeness(one, again) == 1
    assert (likeness(again, other) or 0) < 0.5
    assert likeness(one, b"") is None


def test_a_page_that_is_shown_often_does_not_become_furniture() -> None:
    """Copies do not make its lines common: after ten of them, the next is still alike."""
    first, *_, last = sketches_of(*((f"{three('it')}<img src=/{n}.jpg>", f"p?variant={n}") for n in range(12)))
    assert likeness(first, last) == 1


@given(st.binary(max_size=300), st.sampled_from(["utf-8", "utf-16", "latin-1"]))
def test_no_body_makes_it_fail(body: bytes, encoding: str) -> None:
    """Whatever a server sends is judged, and brings nothing the second time."""
    known = novelty()
    for make in (HtmlResponse, TextResponse):
        answer = answer_of(make("http://a.example/", body=body, encoding=encoding))
        assert answer is not None
        known.brought(answer)
        assert not known.brought(answer).news


@pytest.mark.parametrize(
    "fragment", ["3", "3.", "<script src", "style=", "<a x>", "<td>3", "x1", '"src=', "://?", "&;"]
)
def test_no_page_takes_for_ever(fragment: str) -> None:
    """Whatever a page repeats, it is read, and after a few times it brings nothing.

    A number of 40 digits with letters behind it took hours once: an expression tried each way to divide its digits.
    Lines that three pages had are left out, and a page that is longer than what is read is then read further.
    """
    known = novelty()
    for content in (
        fragment * (30_000 // len(fragment)) + "abcdefgh",
        f"<p>{fragment * 40}abcdefgh {fragment * 40}-x</p>",
    ):
        news = [known.brought(page(content)).news for _ in range(6)]
        assert news[-2:] == [0, 0]
