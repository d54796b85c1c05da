"""What is left out of a page's text has been yielded before, whatever stands around it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.loops.page_text import WINDOW_BYTES, PageText

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
