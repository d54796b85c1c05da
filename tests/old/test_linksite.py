from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "linksite.py"


class Served:
    def __init__(self, process: subprocess.Popen[str]):
        self._process = process
        self.url = process.stdout.readline().strip()
        parts = urlsplit(self.url)
        self.start = parts.path
        self._connection = HTTPConnection(parts.hostname, parts.port, timeout=30)

    def get(self, path: str, method: str = "GET") -> tuple[int, str | None, bytes]:
        self._connection.request(method, path)
        with self._connection.getresponse() as response:
            return response.status, response.getheader("Content-Type"), response.read()

    def close(self) -> None:
        self._connection.close()

    def end(self) -> dict[str, int]:
        self.close()
        output, _ = self._process.communicate(timeout=30)  # closes stdin
        assert self._process.returncode == 0
        return json.loads(output)


@contextmanager
def linksite(*arguments: str) -> Iterator[Served]:
    pipe = subprocess.PIPE
    argv = [sys.executable, str(SCRIPT), "--port", "0", *arguments]
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        served = Served(process)
        try:
            yield served
        finally:
            served.close()
            process.kill()


def test_generated_pages_are_rich_in_links_and_lead_to_all_pages() -> None:
    """Every page has the links asked for, all pages are reached over one connection, and the server ends with stdin."""
    with linksite("--pages", "40", "--links", "25") as server:
        reached, queue = {server.start}, [server.start]
        while queue:
            status, kind, body = server.get(queue.pop())
            links = re.findall(r'href="([^"]*)"', body.decode())
            assert (status, kind, len(links)) == (200, "text/html", 25)
            queue += set(links) - reached
            reached |= set(links)
        assert len(reached) == 40
        assert server.get("/page/40.html")[0] == 404
        assert server.get("/page/00.html")[0] == 404
        assert server.end() == {"requests": 42, "different_pages": 40}


def test_a_directory_is_served_and_nothing_above_it(tmp_path: Path) -> None:
    """Files below the directory are found, with their types; paths that climb out of it are not."""
    (tmp_path / "secret.html").write_text("secret", encoding="utf-8")
    root = tmp_path / "html"
    (root / "a b").mkdir(parents=True)
    (root / "index.html").write_text("<a href='a%20b/'>x</a>", encoding="utf-8")
    (root / "a b" / "index.html").write_text("inner", encoding="utf-8")
    (root / "style.css").write_text("p {}", encoding="utf-8")
    with linksite("--dir", str(root), "--warm") as server:
        assert server.start == "/index.html"
        assert server.get("/index.html?q=1") == (200, "text/html", b"<a href='a%20b/'>x</a>")
        assert server.get("/a%20b/") == (200, "text/html", b"inner")
        assert server.get("/style.css") == (200, "text/css", b"p {}")
        assert server.get("/index.html", method="HEAD") == (200, "text/html", b"")
        assert server.get("/../secret.html")[0] == 404
        assert server.get("/%2e%2e/secret.html")[0] == 404
        assert server.end() == {"requests": 6, "different_pages": 3}


def test_a_part_of_a_directory_is_closed_in_itself(tmp_path: Path) -> None:
    """Of the first pages that a crawl comes to, none has a link to one that is left out; else they are as they were."""
    kept = """<a href='#top'>x</a> <a class="x" href="b/b.html#y">b</a> <a href="http://else.example/c.html">e</a>"""
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text(f'{kept} <a href="c.html">c</a> <a href="c.txt">t</a>', encoding="utf-8")
    (tmp_path / "b" / "b.html").write_text(
        '<a href="../index.html?q">i</a> <a href="../c.html">c</a>', encoding="utf-8"
    )
    (tmp_path / "c.html").write_text("left out", encoding="utf-8")
    with linksite("--dir", str(tmp_path), "--pages", "2", "--warm") as server:
        left_out = ' <a data-left-out="c.html">c</a> <a data-left-out="c.txt">t</a>'
        assert server.get("/index.html")[2].decode() == kept + left_out
        assert re.findall(rb" href=.([^'\"]*)", server.get("/b/b.html")[2]) == [b"../index.html?q"]
        assert server.get("/c.html")[0] == 404
