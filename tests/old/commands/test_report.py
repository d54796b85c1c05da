"""``scrapy bloom report``: one page, looked at in a real browser, that no crawled URL can turn against its reader."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import threading
import time
from contextlib import closing, contextmanager
from functools import partial
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom.old.commands.command_line import main
from scrapy_bloom.old.commands.info import info
from scrapy_bloom.old.commands.terminal import OK, USAGE
from scrapy_bloom.old.files.figures import FIGURES_NAME, Figures, FiguresFile
from scrapy_bloom.old.loops.parked import guard_file
from tests.old.support.crawling import start_crawl
from tests.old.support.localsite import LocalSite
from tests.old.support.schedulers import opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOSTILE = "http://x/</bdi><script>top.hacked=1</script><img src=x onerror=top.hacked=1>\"'&\u202e\x00" + "a" * 3000


@pytest.fixture
def job(guarded_job: Path) -> Path:
    """A job with figures of three runs, pending requests of many hosts, and verdicts; with hostile names among them."""
    file = FiguresFile(guarded_job / FIGURES_NAME)
    assert file.last is not None
    began = file.last.time
    for minute in range(1, 200):
        run = 2 + minute // 100
        pending = 9000 - (minute - 100) ** 2 // 2
        file.append(
            Figures(
                began + 60 * minute,
                run,
                400 * minute,
                30 * minute**2,
                390 * minute,
                minute,
                2 * minute,
                3,
                pending,
                77,
                10**6,
                1e-4,
            )
        )
    with opened(guarded_job.with_name("other")) as calls:
        for number in range(40):
            calls.push(*(Request(f"http://host-{number}.example/{page}") for page in range(41 - number)))
    shutil.copy(guarded_job.with_name("other") / "requests.frontier", guarded_job)
    with closing(sqlite3.connect(guarded_job / "requests.frontier")) as database, database:
        database.execute("UPDATE lanes SET key = replace(key, 'host-0.example', ?)", (HOSTILE,))
    with closing(sqlite3.connect(guard_file(guarded_job))) as database, database:
        database.execute("UPDATE accounts SET shape = ? || id, example = ?", (HOSTILE, HOSTILE))
    return guarded_job


class Elements(HTMLParser):
    """The names of all elements of a page, and the values of their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += attrs


@pytest.mark.slow
def test_a_report_says_what_was_crawled(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures, pictures, hosts and verdicts are on it; it is one file that refers to nothing else, and nothing hostile
    becomes an element."""
    page = tmp_path / "report.html"
    assert main(["report", str(job), "-o", str(page), "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == {"output": str(page)}
    text = page.read_text(encoding="utf-8")
    found = Elements(text)
    assert not found.names & {"script", "img", "a", "link", "iframe", "object", "form", "base"}
    assert not {name for name, _ in found.attributes} & {"src", "onerror", "onclick", "onload"}
    for name, value in found.attributes:
        if name.endswith("href"):
            assert value is not None
            assert value.startswith("#"), value
    assert not re.search(r"url\((?!#)|@import", text)
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    shown = unescape(re.sub(r"<[^>]*>", "", text))
    for expected in (
        "860 pending requests for 40 hosts",
        "</bdi><script>top.hacked",
        "host-1.example",
        "3 runs from",
        "77,610",
    ):
        assert expected in shown
    assert "\u202e" not in text
    assert text.count("<svg") == 6


@pytest.mark.slow
def test_a_report_of_a_crawl_that_runs_and_of_one_that_was_killed(tmp_path: Path) -> None:
    """It says so and changes nothing, and the figures and pending requests of a killed crawl are there."""
    job = tmp_path / "job"
    with LocalSite(pages=2000) as site:
        # Nobody reads its log until it ends, and a crawl whose log is not read stands still.
        quiet = {"LOG_LEVEL": "WARNING"}
        running = start_crawl(site.url("/page/0"), {"ADDONS": {"scrapy_bloom.Addon": 300}, "JOBDIR": str(job), **quiet})
        while not ((job / FIGURES_NAME).exists() and info(str(job))["pending"]):  # committed, so that a kill leaves it
            assert running.process.poll() is None
            time.sleep(0.01)
        assert main(["report", str(job), "-o", str(tmp_path / "running.html")]) == OK
        running.process.kill()
        running.process.communicate()
    before = {path: path.stat().st_mtime_ns for path in job.rglob("*")}
    assert main(["report", str(job), "-o", str(tmp_path / "killed.html")]) == OK
    assert {path: path.stat().st_mtime_ns for path in job.rglob("*")} == before
    assert "A crawl is running." in (tmp_path / "running.html").read_text(encoding="utf-8")
    killed = (tmp_path / "killed.html").read_text(encoding="utf-8")
    assert re.search(r"Not closed by its last crawl\. 1 run(,| from) ", killed)
    assert re.search(r"[1-9]\d* pending requests for 1 hosts?\.", killed)


def test_no_job_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And no page."""
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html")]) == USAGE
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve the files of *directory* and yield its URL; a page may look into another one only on the same host."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


FRAME = """<!DOCTYPE html><meta charset="utf-8"><title>frames</title>
<iframe src="report.html" width="400" height="900"></iframe>
<iframe src="report.html" width="1280" height="900"></iframe>
<pre></pre>
<script>
onload = () => {
  const seen = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement;
    const colour = element => frame.contentWindow.getComputedStyle(element);
    const cut = [...page.querySelectorAll("svg")].flatMap(svg => {
      const box = svg.getBoundingClientRect();
      return [...svg.querySelectorAll("text")].filter(text => {
        const own = text.getBoundingClientRect();
        return own.right > box.right + 1 || own.left < box.left - 1 || own.top < box.top - 1
          || own.bottom > box.bottom + 1;
      }).map(text => text.textContent);
    });
    const small = [...page.querySelectorAll("svg text")].filter(text => text.getBoundingClientRect().height < 8);
    return {
      over: root.scrollWidth - root.clientWidth, cut, small: small.length,
      pictures: page.querySelectorAll("svg").length,
      columns: new Set([...page.querySelectorAll("figure")].map(each => each.getBoundingClientRect().left)).size,
      paper: colour(page.body).backgroundColor, ink: colour(page.body).color,
      drawn: colour(page.querySelector("svg text")).fill,
      hacked: String(window.hacked),
    };
  });
  document.querySelector("pre").textContent = JSON.stringify(seen);
};
</script>
"""


def looked_at(directory: Path, *options: str) -> list[dict[str, Any]]:
    """Return what Chromium says of ``report.html`` in *directory* at a width of 400 and of 1280 pixels."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium")
    (directory / "frame.html").write_text(FRAME, encoding="utf-8")
    with served(directory) as url:
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={directory / 'profile'}",
            *options,
        ]
        dumped = subprocess.run(
            [*command, "--dump-dom", f"{url}/frame.html"], capture_output=True, text=True, check=True, timeout=120
        ).stdout
    (text,) = re.findall(r"<pre>(.*?)</pre>", dumped, flags=re.DOTALL)
    seen: list[dict[str, Any]] = json.loads(unescape(text))
    return seen


def luminance(colour: str) -> float:
    """Return the relative luminance of ``rgb(r, g, b)``, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.slow
def test_the_report_in_a_browser(job: Path, tmp_path: Path) -> None:
    """On a telephone and on a desk, by day and by night: nothing is wider than the page, no label is cut off, text can
    be read on its ground, and no script of a crawled URL has run."""
    directory = tmp_path / "served"
    directory.mkdir()
    assert main(["report", str(job), "-o", str(directory / "report.html")]) == OK
    by_day, by_night = looked_at(directory), looked_at(directory, "--force-dark-mode")
    for seen in (*by_day, *by_night):
        assert (seen["over"], seen["cut"], seen["small"], seen["hacked"]) == (0, [], 0, "undefined")
        assert seen["pictures"] == 6
        assert seen["drawn"] == seen["ink"]
        light, dark = sorted(map(luminance, (seen["ink"], seen["paper"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 7
    assert [seen["columns"] for seen in by_day] == [1, 2]
    assert luminance(by_night[0]["paper"]) < 0.1 < luminance(by_day[0]["paper"])
