"""What is left out of a page's text has been yielded before, whatever stands around it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_bloom.old.loops.page_text import LONGEST_HEAD, LONGEST_TITLE, WINDOW_BYTES, PageText, title_of

LINES = [
    "<p>a sentence of <b>some</b> words</p>", "a line without tags", "<li>an item<br>in two lines", "<td>12.5</td>",
    "<script>", "</script>", "<script type='application/ld+json'>", "<style>", "</style>", "<!--", "-->",
    "<!-- a remark -->", "<a", "href='/there'>", "a > b", "a < b", "", "x" * (WINDOW_BYTES // 3),
]  # fmt: skip
SHOWN = [line for line in LINES if not any(hiding in line for hiding in ("script", "style", "--"))]
MEDIA = ["<img src=/photos/4711.jpg>", "<p><video src='/clip-1.webm'></video></p>"]


@given(st.lists(st.lists(st.sampled_from(LINES), max_size=12), min_size=1, max_size=12))
def test_every_line_of_a_page_is_yielded_then_or_was_before(pages: list[list[str]]) -> None:
    """Of pages made of a few lines in any order, each line of text is yielded when it comes for the first time, with
    scripts, comments and tags over several lines around it."""
    remembering = PageText()
    yielded: set[bytes] = set()
    for page in pages:
        body = "\n".join(page).encode()
        for window in remembering.windows(body):
            yielded.update(line.strip() for line in window.text.split(b"\n"))
        for window in PageText().windows(body):
            assert {line.strip() for line in window.text.split(b"\n")} <= yielded


@given(st.lists(st.lists(st.sampled_from([*SHOWN, *MEDIA]), max_size=12), min_size=1, max_size=12))
def test_a_window_with_a_numbered_picture_says_so_each_time(pages: list[list[str]]) -> None:
    """A picture whose address has digits may be another one on each page, so its line is never left out."""
    text = PageText()
    for page in pages:
        for window in text.windows("\n".join(page).encode()):
            assert window.has_media == any(medium.encode() in window.html for medium in MEDIA)


def test_what_pages_have_in_common_is_left_out_from_the_third_page_on() -> None:
    """The head of a page is yielded twice. Its own lines, and lines with numbers, are yielded every time."""
    head = "<title>A manual</title>\n<ul>\n<li><a href='/a'>The first chapter</a>\n</ul>\n"
    text = PageText()
    pages = [f"{head}<p>Page {number} of it\n<td>12.5</td>" for number in range(4)]
    found = [b"\n".join(window.text for window in text.windows(page.encode())) for page in pages]
    assert [b"the first chapter" in page for page in found] == [True, True, False, False]
    assert all(b"00.0" in page for page in found)


@given(
    st.lists(st.sampled_from(["<li>", "<p class=x>", "\n<tr><td>", "<div>", "<br>"]), min_size=150, max_size=200),
    st.integers(0, WINDOW_BYTES),
)
@settings(max_examples=25)
def test_windows_end_between_lines(openings: list[str], before: int) -> None:
    """Wherever a window ends, no line of the page's text is cut in two, as half a line would be a new one."""
    items = "".join(f"{opening}line {i} with <a href='/{i}'>a link</a> in it" for i, opening in enumerate(openings))
    body = f"<p>{'x' * before}{items}".encode()
    shown = {b" ".join(line.split()) for window in PageText().windows(body) for line in window.text.split(b"\n")}
    lines = [b"line %s with a link in it" % (b"0" * digits) for digits in (1, 2, 3)]
    assert shown - {b""} == {*lines, *([b"x" * before] if before else [])}


def text_of_page(page: str) -> bytes:
    return b"\n".join(window.text for window in PageText().windows(page.encode()))


def test_of_a_long_head_only_the_title_is_read() -> None:
    """Styles and scripts are passed over, unless the head has data in it or no title, or does not end at the body."""
    styles = "<style>" + "p { margin: 0 }\n" * 200 + "</style>"
    data = '<script type="application/ld+json">{"text": "a recipe"}</script>'
    body = "<body class=x><p>a paragraph"
    for head, shown in (
        (f"<head><meta name=x><title>the title</title>stray text{styles}</head>", [b"the title", b"a paragraph"]),
        (f"<head><title>the title</title>{styles}{data}</head>", [b"the title", b"a recipe", b"a paragraph"]),
        (f"<head>stray text{styles}</head>", [b"stray text", b"a paragraph"]),
        (f"<title>the title</title>{styles}stray text", [b"the title", b"stray text", b"a paragraph"]),
        (f"<head><title>the title</title>{styles}</head>stray text", [b"the title", b"stray text", b"a paragraph"]),
    ):
        text = text_of_page(head + body)
        assert [b"the title" in text, b"stray text" in text, b"a recipe" in text, b"a paragraph" in text] == [
            what in shown for what in (b"the title", b"stray text", b"a recipe", b"a paragraph")
        ]


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<html><head><title>Garden 17</title></head>", "garden 00"),
        ("<title lang=en>\n A pond </title>", "a pond"),
        ("<p>no title</p>", ""),
        ("<TITLE>in capitals</TITLE>", ""),
        ("<title>without an end", ""),
        (f"<title>{'x' * LONGEST_TITLE}</title>", ""),
        (f"<head>{' ' * LONGEST_HEAD}<title>too far down</title>", ""),
    ],
)
def test_title(html: str, title: str) -> None:
    """A title that is not found is none: its page is read then."""
    assert title_of(html.encode()) == title.encode()


@given(st.binary(max_size=200))
def test_any_bytes_may_be_asked_for_a_title(body: bytes) -> None:
    assert len(title_of(b"<title>" + body + b"</title>")) <= len(body)
