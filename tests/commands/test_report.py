"""``report``: one page, looked at in a real browser, that no crawled URL can turn against its reader."""

import json
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.commands.terminal import OK
from scrapy_bloom.crawl.estimate import Left, left_in_words
from scrapy_bloom.frontier.order import LaneKey
from scrapy_bloom.job.database import NAME
from scrapy_bloom.job.records import Figures
from tests.commands.conftest import Answer, reopened
from tests.support.engine import opened

HOSTILE = "http://x/</bdi><script>top.hacked=1</script><img src=x onerror=top.hacked=1>\"'&\u202e" + "a" * 3000


@pytest.fixture
def page(job: Path) -> Path:
    """The report of a job with figures of three runs, many hosts, and hostile names."""
    with closing(sqlite3.connect(job / "requests.bloom" / NAME)) as database, database:
        rows = [
            Figures(1e9 + 60 * n, 1 + n // 100, 400 * n, 30 * n * n, 390 * n, n, 2 * n, 3, 9000 - 40 * n, 10**6, 1e-4)
            for n in range(200)
        ]
        database.executemany(f"INSERT INTO figures VALUES ({','.join('?' * len(Figures._fields))})", rows)
        for number in range(40):
            slot = HOSTILE if number == 0 else f"host-{number}.example"
            key = LaneKey(slot, 0, kind=HOSTILE if number % 2 else "")
            database.execute("INSERT INTO lane VALUES (?, ?, ?, ?, ?, ?)", (key.id(), *key, 99 - number))
    written = job / "report.html"
    assert main(["report", str(job), "-o", str(written)]) == OK
    return written


class Elements(HTMLParser):
    """The names of all elements of a page, and the names and values of their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += attrs


def test_a_page_refers_to_nothing_and_obeys_nobody(page: Path) -> None:
    """It is one file without links and scripts, and a hostile name becomes neither element nor attribute."""
    text = page.read_text(encoding="utf-8")
    found = Elements(text)
    assert not found.names & {"script", "img", "a", "link", "iframe", "object", "form", "base"}
    assert not {name for name, _ in found.attributes} & {"src", "href", "style", "onerror", "onclick", "onload"}
    assert not re.search(r"url\(|@import", text)
    assert "\u202e" not in text
    assert "</bdi><script>top.hacked" in unescape(re.sub(r"<[^>]*>", "", text))


def test_a_page_has_what_info_has(page: Path, answer: Answer) -> None:
    """The figures, pictures over time, the busiest hosts, and kinds of URLs with an example."""
    text = page.read_text(encoding="utf-8")
    _, found = answer("info", page.parent)
    shown = unescape(re.sub(r"<[^>]*>", "", text))
    assert all(
        f"{found[name]:,}" in shown for name in ("urls", "pages", "pending", "duplicates", "errors_with_retries")
    )
    left = left_in_words(Left(found["left_at_least"], found["left_at_most"]), found["pages_per_minute"])
    assert all(words.removesuffix(" pages left") in shown for words in left)
    assert "host-1.example" in shown
    assert text.count("<svg") == 3


def test_a_page_says_why_the_crawl_ended_and_how_many_items_it_gave(job: Path, left: Path, answer: Answer) -> None:
    """A job that was closed names the reason and its files of items. Tables without rows are left out, and so are
    pictures if the crawl was killed before it had kept figures."""
    written = job / "report.html"
    assert answer("report", job, "-o", written) == (OK, {"written": str(written)})
    shown = unescape(re.sub(r"<[^>]*>", "|", written.read_text(encoding="utf-8")))
    items = len(Path(f"{left}.jl").read_text().splitlines())
    assert "Ended: closespider_pagecount." in shown
    assert f"|Items||{items}|in 1 file|" in shown
    assert "Files of items" in shown
    assert "kinds of URLs" not in shown
    assert "Changes from cycle" not in shown
    with closing(sqlite3.connect(job / "requests.bloom" / NAME)) as database, database:
        database.execute("DELETE FROM lane")
        database.execute("DELETE FROM figures")
    answer("report", job, "-o", written)
    assert not re.search("busiest hosts|<svg", written.read_text(encoding="utf-8"))


def test_beside_a_crawl_what_is_in_flight_is_told_apart(tmp_path: Path, answer: Answer) -> None:
    """The requests that a running crawl has handed out are not pending any more."""
    with opened(tmp_path / "job") as engine:
        engine.push(*(Request(f"http://a.example/{number}") for number in range(10)))
        assert all(engine.start() for _ in range(3))
        engine.commit()
        answer("report", tmp_path / "job", "-o", tmp_path / "page")
    shown = unescape(re.sub(r"<[^>]*>", "|", (tmp_path / "page").read_text(encoding="utf-8")))
    assert "A crawl is running." in shown
    assert "|Pending||7|and 3 in flight|" in shown


def test_a_later_run_forgets_why_one_ended(job: Path, answer: Answer) -> None:
    """A run that goes on, or is killed, has no reason yet."""
    assert answer("info", job)[1]["finish_reason"] == "closespider_pagecount"
    with reopened(job) as engine:
        engine.commit()
        assert answer("info", job)[1]["finish_reason"] is None


LOOK = Path(__file__).with_name("look.html").read_text(encoding="utf-8")
"""Shows a page in two frames, and says how it looks there."""


def looked_at(page: Path, *options: str) -> list[dict[str, Any]]:
    """Return what Chromium says of *page* at a width of 400 and of 1280 pixels."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium")
    text = json.dumps(page.read_text(encoding="utf-8")).replace("<", "\\u003c")
    look = page.with_name("look.html")
    look.write_text(LOOK.replace("PAGE", text), encoding="utf-8")
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.with_name('profile')}"]
    command = [browser, *quiet, *options, "--dump-dom", look.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180).stdout
    (found,) = re.findall(r"<pre>(.*?)</pre>", dumped, flags=re.DOTALL)
    seen: list[dict[str, Any]] = json.loads(unescape(found))
    return seen


def luminance(colour: str) -> float:
    """Return the relative luminance of ``rgb(r, g, b)``, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.slow
def test_the_page_in_a_browser(page: Path) -> None:
    """On a telephone and on a desk, by day and by night: nothing is wider than the page, text can be read on its
    ground, and no script of a crawled URL has run."""
    by_day, by_night = looked_at(page), looked_at(page, "--force-dark-mode")
    for seen in (*by_day, *by_night):
        assert (seen["over"], seen["small"], seen["hacked"]) == (0, 0, "undefined")
        assert seen["drawn"] == seen["ink"]
        light, dark = sorted(map(luminance, (seen["ink"], seen["paper"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 7
    assert [seen["columns"] for seen in by_day] == [1, 2]
    assert luminance(by_night[0]["paper"]) < 0.1 < luminance(by_day[0]["paper"])
