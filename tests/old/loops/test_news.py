"""What a page brings: copies bring nothing, whatever changes on them, and everything honest brings something."""

from __future__ import annotations

import json
import random
from math import log
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from scrapy.http import HtmlResponse, JsonResponse, Response, TextResponse

from scrapy_bloom import ScalableBloomFilter
from scrapy_bloom.old.loops.news import READ_ON, News
from scrapy_bloom.old.loops.page_text import WINDOW_BYTES
from tests.old.support.loopsite import prose

if TYPE_CHECKING:
    from collections.abc import Callable

rng = random.Random(7)


def html(body: str, url: str = "https://example.com/page") -> HtmlResponse:
    return HtmlResponse(url, body=f"<html><body>{body}</body></html>".encode(), encoding="utf-8")


def chinese(key: int) -> str:
    """Return a sentence without spaces."""
    own = random.Random(key)
    return "".join(chr(own.randrange(0x4E00, 0x9FA5)) for _ in range(20))


def hexadecimal(digits: int = 32) -> str:
    return f"{rng.getrandbits(4 * digits):0{digits}x}"


def digits(n: int) -> int:
    return rng.randrange(10 ** (n - 1), 10**n)


def table(rows: int, columns: int) -> str:
    cells = (f"<td>{rng.uniform(-9, 30):.1f}</td>" for _ in range(rows * columns))
    return "".join(f"<tr>{''.join(next(cells) for _ in range(columns))}</tr>" for _ in range(rows))


COPIES = {
    "the same": lambda: "",
    "a clock": lambda: f"<p>It is {digits(2)}:{digits(2)}:{digits(2)} on 2026-{digits(2)}-{digits(2)} now</p>",
    "a clock in every block": lambda: (lambda now: "".join(f"<p>{prose(i, words=8)} at {now}</p>" for i in range(30)))(
        f"{digits(2)}:{digits(2)}:{digits(2)}.{digits(4)}"
    ),
    "a counter": lambda: f"<p>You are visitor number {digits(7)} of this page</p>",
    "a counter in every block": lambda: "".join(
        f"<p>{prose(i, words=8)}, seen {digits(6)} times, liked {digits(4)} times</p>" for i in range(30)
    ),
    "a token": lambda: f"<p>Your session is {hexadecimal()}</p>",
    "a token in every block": lambda: "".join(f"<p>{prose(i, words=15)} {hexadecimal()}</p>" for i in range(30)),
    "a name that is counted in every block": lambda: "".join(f"<p>build-{digits(6)}.tar.gz</p>" for _ in range(30)),
    "a token with dashes in every block": lambda: "".join(
        f"<p>{UUID(int=rng.getrandbits(128))} {hexadecimal(12)}-{hexadecimal(9)}</p>" for _ in range(30)
    ),
    "a token in the middle of a paragraph": lambda: f"<p>{prose(1)} {UUID(int=rng.getrandbits(128))} {prose(2)}</p>",
    "scripts and styles": lambda: (
        f"<script>var t = '{hexadecimal()} {prose(rng.random())}'</script><style>a{{}}</style>"
    ),
    "comments and attributes": lambda: f"<!-- {prose(rng.random())} --><i class='{prose(rng.random())}'></i>",
    "another order": lambda: "".join(f"<li>{prose(i, words=9)}</li>" for i in rng.sample(range(30), 30)),
    "fewer of the same": lambda: "".join(f"<li>{prose(i, words=9)}</li>" for i in rng.sample(range(30), 10)),
    "a month's days": lambda: "<table>" + "".join(f"<td>{d}</td>" for d in range(digits(1), 32)) + f"<td>{digits(4)}",
    "a pager": lambda: (lambda n: "".join(f"<a>{i}</a> " for i in range(n, n + 20)))(digits(4)),
    "a picture that counts visits": lambda: f"<img width=1 height=1 src='/pixel/{hexadecimal()}'>",
    "a picture with a token": lambda: f"<img src='/captcha?s={hexadecimal()}'><img src='/logo.png?t={digits(10)}'>",
}


@pytest.mark.parametrize("what", COPIES)
def test_a_copy_brings_nothing_whatever_changes_on_it(what: str) -> None:
    """Of 60 copies of a page, the last 30 bring nothing new, though each differs from all others."""
    news = News(ScalableBloomFilter(10_000, 1e-3))
    text = f"<p>{prose('page', words=100)}</p>"
    brought = [news.brought(html(text + COPIES[what]())) for _ in range(60)]
    assert brought[0]
    assert brought[30:] == [False] * 30


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://example.com/{}/{}", "<h1>{0} {1}</h1><p>The page /{0}/{1} was not found on this server, sorry</p>"),
        ("https://example.com/search?q={}+{}", "<title>{0} {1}</title><p>Your search for {0} {1} had no results</p>"),
        ("https://example.com/shoes?colour={}&size={}", "<h1>Shoes, {0}, size {1}</h1><li>{0} x</li><li>{1} x</li>"),
    ],
)
def test_a_page_that_echoes_its_url_brings_nothing(url: str, text: str) -> None:
    """Words of a page that are in its URL too, encoded or not, are no news."""
    news = News(ScalableBloomFilter(10_000, 1e-3))
    words = [(prose(i, words=1) + "ing", prose(-i, words=1) + "ühl") for i in range(60)]
    brought = [news.brought(html(text.format(*pair), url.format(*pair))) for pair in words]
    assert not any(brought[20:])


def test_a_manual_that_names_its_subject_in_every_line_brings_something() -> None:
    """Each of several manuals that differ only in a name, which is in their URLs too, is news if the name is in a dozen
    lines."""
    news = News(ScalableBloomFilter(10_000, 1e-3))
    for name in ("multimap", "multiset", "priority_queue"):
        lines = "".join(f"<li>{name}.{prose(i, words=6)}</li>" for i in range(20))
        assert news.brought(html(lines, f"https://example.com/std/{name}/insert.html"))


@pytest.mark.parametrize(
    "make",
    [
        lambda i: html(f"<p>{prose(i, words=12)}</p>"),
        lambda i: html(f"<img src='/photo/{i}.jpg'>"),
        lambda i: html(f"<img src='/photo.php?id={i}'>"),
        lambda i: html(f"<img src='/blank.gif' data-src='/photo/{i}.jpg'>"),
        lambda i: html(f"<table>{table(28, 5)}</table>"),
        lambda i: html("<table>" + "".join(f"<tr><td>{h:02}:00</td>{table(1, 4)[4:]}" for h in range(0, 24, 2))),
        lambda i: html(f'<script type="application/ld+json">{json.dumps({"name": prose(i, words=12)})}</script>'),
        lambda i: html("".join(f"<p>{prose(i, n, words=1)}-{prose(n, i, words=1)}-1.{n}.tgz</p>" for n in range(6))),
        lambda i: html("<nav>" + "<p>menu</p>" * 3000 + f"</nav><p>{prose(i, words=12)}</p>"),
        lambda i: HtmlResponse("https://example.com", body=f"<p>{prose(i)}</p>".encode("utf-16"), encoding="utf-16"),
        lambda i: JsonResponse("https://example.com/api", body=json.dumps({"id": 1, "text": prose(i)}).encode()),
        lambda i: JsonResponse(
            "https://example.com/api", body=json.dumps({"id": i, "text": prose(i)}, separators=(",", ":")).encode()
        ),
        lambda i: html(f"<p>{chinese(i)}2019年{chinese(-1 - i)}</p>", f"https://example.com/{2019 + i}"),
        lambda i: TextResponse("https://example.com/x.txt", body=prose(i).encode(), encoding="utf-8"),
        lambda i: Response("https://example.com/x.pdf", body=b"%PDF" + bytes([i])),
    ],
    ids="prose picture id lazy table hours script files menu utf-16 json compact chinese text binary".split(),  # noqa: SIM905 - one line
)  # fmt: skip
def test_what_differs_brings_something_and_its_copy_nothing(make: object) -> None:
    """Each of forty different pages is news the first time and not the second."""
    news = News(ScalableBloomFilter(10_000, 1e-3))
    pages = [make(i) for i in range(40)]  # type: ignore[operator] # a function, to mypy an object
    assert [news.brought(page) for page in pages] == [True] * 40
    assert sum(news.brought(page) for page in pages) <= 1


def test_the_first_copy_of_a_page_with_text_and_a_picture_brings_nothing() -> None:
    """A page whose text is news is remembered with its picture, so the same page under another URL brings nothing."""
    news = News(ScalableBloomFilter(10_000, 1e-3))
    for number in range(20):
        page = f"<p>{prose(number, words=40)}</p><img src='/photo/{number}.jpg'>"
        assert news.brought(html(page))
        assert not news.brought(html(page, f"https://example.com/{number}?gclid={hexadecimal()}"))


@pytest.mark.parametrize(
    "make",
    [
        lambda words: "".join(f'<li><a href="/ideas/{w}-{words[0]}">{w} {words[0]}</a></li>' for w in words),
        lambda words: "".join(f"<li><A class=x\nHREF='/find?q={w}+{words[0]}'>{w} {words[0]}</A></li>" for w in words),
        lambda words: f"<h1>Term: {words[0]}</h1><p>{words[0]} has five narrower terms.</p>",
    ],
    ids=["names", "names over two lines", "a template"],
)
def test_what_a_maze_can_make_up_is_no_news_where_pages_breed(make: Callable[[list[str]], str]) -> None:
    """Links named by their addresses, and a sentence with one word of it changed, bring something, but not on pages
    that lead to ever more of their kind."""
    pages = [html(make([prose(number, i, words=1) + "ing" for i in range(8)])) for number in range(40)]
    for breeds in (False, True):
        news = News(ScalableBloomFilter(10_000, 1e-3))
        brought = [news.brought(page, breeds=breeds) for page in pages]
        assert sum(brought[10:]) > 20 if not breeds else not any(brought[10:])


def test_prose_and_the_titles_of_a_list_are_news_also_where_pages_breed() -> None:
    """Text that no address has, on pages and as links, is news whatever the pages lead to."""
    news = News(ScalableBloomFilter(10_000, 1e-3))
    for number in range(40):
        titles = "".join(f'<li><a href="/item/{i}">{prose(number, i, words=4)}</a></li>' for i in range(8))
        assert news.brought(html(titles), breeds=True)
        assert news.brought(html(f"<p>{prose(number, words=30)}</p>"), breeds=True)


@pytest.mark.parametrize("paragraphs", [2, 20, 600])
def test_copies_of_a_long_page_are_soon_no_news(paragraphs: int) -> None:
    """A page is read up to its first news, so its first copies are news by the rest. Each of them is read further than
    the one before, READ_ON windows for each that was known, and so there are at most log(windows) of them."""
    news = News(ScalableBloomFilter(100_000, 1e-3))
    long = html("".join(f"<p>{prose(i, words=30)}</p>" for i in range(paragraphs)))
    brought = [news.brought(long) for _ in range(50)]
    windows = len(long.body) // WINDOW_BYTES + 1
    assert brought == sorted(brought, reverse=True)
    assert 1 <= sum(brought) <= 2 + log(windows, READ_ON)


def test_a_list_is_read_on_for_the_pages_that_show_parts_of_it() -> None:
    """What stands at the end of a list of 5 kB is known when a filter shows it at the beginning of another page."""
    news = News(ScalableBloomFilter(10_000, 1e-3))
    items = [f'<li><a href="/item/{i}">{prose(i, words=4)}</a></li>' for i in range(80)]
    assert news.brought(html("".join(items)))
    assert len("".join(items)) > 2 * WINDOW_BYTES
    assert not any(news.brought(html("".join(items[start:]), f"https://example.com/?q={start}")) for start in (30, 60))


@pytest.mark.parametrize("address", ["?C={}", "/pub/apple/?C={}"])
def test_a_directory_in_another_order_brings_nothing(address: str) -> None:
    """A page that links to itself with queries is read on, few links as it has: other orders begin with its end."""
    news = News(ScalableBloomFilter(10_000, 1e-3))
    head = "".join(f'<th><a href="{address.format(column)}">{column}</a></th>' for column in "NMSD")
    rows = [
        f"<tr><td>{prose(i, words=2).replace(' ', '-')}-1.0.tgz</td><td>{'&nbsp;' * 9}</td></tr>" for i in range(60)
    ]
    url = "https://example.com/pub/apple/"
    assert len("".join(rows)) > 2 * WINDOW_BYTES
    assert news.brought(html(f"<table><tr>{head}</tr>{''.join(rows)}", url))
    assert not news.brought(html(f"<table><tr>{head}</tr>{''.join(rows[::-1])}", f"{url}?C=N"))


def test_a_name_in_title_and_heading_counts_once() -> None:
    """The months of an empty calendar are no news by their names, however far it goes back."""
    news = News(ScalableBloomFilter(10_000, 1e-3))
    months = "January February March April May June July August September October November December".split()  # noqa: SIM905 - one line
    url = "https://example.com/rooms/month/{}/1"
    for number, month in enumerate(months):
        text = f"<title>Rooms: month of 14 {month} | Example</title><h1>Rooms: month of 14 {month}</h1><p>free</p>"
        assert not news.brought(html(text, url.format(number)))


@pytest.mark.parametrize("body", ["", "<", "<script", "<script>x", "<style>" * 50, "<!--", "\0" * 99, "<p" * 9000])
def test_no_page_is_too_broken(body: str) -> None:
    """A page with unfinished markup of any kind is judged without an exception."""
    news = News(ScalableBloomFilter(10_000, 1e-3))
    for size in (1, 20_000):
        news.brought(html(body * size if len(body) < 9 else body))
