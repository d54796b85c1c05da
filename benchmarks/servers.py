"""Servers on 127.0.0.1 for crawls in processes of their own: of pages, from a thread of this process, and Redis."""

from __future__ import annotations

import mimetypes
import posixpath
import random
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from typing_extensions import Self

Find = Callable[[str], bytes | None]
"""Returns the page at a path; None if there is none."""


def files_in(directory: Path) -> Find:
    """Return what finds the files in *directory*."""

    def find(path: str) -> bytes | None:
        # Textually, not by resolving: Debian's documentation links to scripts outside of its directory.
        clean = posixpath.normpath("/" + unquote(path).lstrip("/"))
        file = directory / clean[1:] / ("index.html" if path.endswith("/") else "")
        return file.read_bytes() if "\0" not in clean and file.is_file() else None

    return find


def directory_pages(directory: Path) -> tuple[list[str], Find]:
    """Return the paths of the HTML files in *directory*, the start first, and what finds all files there."""
    starts = [name for name in ("/index.html", "/en/index.html") if (directory / name[1:]).is_file()]
    if not starts:
        sys.exit(f"{directory} has no index.html to start from")
    return starts + [f"/{file.relative_to(directory)}" for file in directory.rglob("*.html")], files_in(directory)


def generated_pages(pages: int, links: int) -> tuple[list[str], Find]:
    """Return the paths of *pages* pages with *links* links each, the same each time, and what finds them.

    Page n links to 2n + 1 and 2n + 2, so that all are reached from page 0, and else to pages picked at random.
    """
    numbers = {f"/page/{number}.html": number for number in range(pages)}

    def find(path: str) -> bytes | None:
        number = numbers.get(path)
        if number is None:
            return None
        rng = random.Random(number)
        children = [child for child in (2 * number + 1, 2 * number + 2) if child < pages]
        targets = children + rng.choices(range(pages), k=max(0, links - len(children)))
        listed = "\n".join(f'<li><a href="/page/{target}.html">Page {target}</a></li>' for target in targets)
        return f"<!DOCTYPE html>\n<title>Page {number}</title>\n<ul>\n{listed}\n</ul>\n".encode()

    return list(numbers), find


class Handler(BaseHTTPRequestHandler):
    """Answers GET over connections that are kept."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer leaves in one piece

    def do_GET(self) -> None:
        """Answer with the page at the path."""
        site: Any = self.server
        path = urlsplit(self.path).path
        body = site.find(path)
        tag = f'"{sha256(body).hexdigest()[:16]}"' if body and site.has_tags else ""
        status = 404 if body is None else 304 if tag and self.headers["If-None-Match"] == tag else 200
        sent = body or b"" if status == 200 else b""
        site.statuses[status] += 1
        site.bytes_sent += len(sent)
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        content_type = "text/html" if path.endswith("/") else mimetypes.guess_type(path)[0]
        self.send_header("Content-Type", content_type or "text/plain")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Site(ThreadingHTTPServer):
    """Serves what *find* finds from a thread of this process; with an ``ETag`` each, if it *has_tags*."""

    request_queue_size = 128

    def __init__(self, find: Find, *, has_tags: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.find, self.has_tags = find, has_tags
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.statuses: Counter[int] = Counter()
        self.bytes_sent = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of crawls that are killed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


@contextmanager
def served(paths: list[str], find: Find) -> Iterator[str]:
    """Serve what *find* finds, and yield the URL of the first of *paths*.

    All pages are made before the first request, so that no crawl is served more slowly than another.
    """
    find = cache(find)
    for path in paths:
        find(path)
    with Site(find) as site:
        yield site.url + paths[0]


@contextmanager
def redis_server() -> Iterator[tuple[str, Any]]:
    """Run a Redis server without persistence on a free port; yield its URL and a client."""
    from redis import Redis
    from redis.backoff import ConstantBackoff
    from redis.retry import Retry

    from scrapy_bloom.fleet.own_server import server_executable  # not of the old version that a process measures

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        command = [server_executable(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
        patience = Retry(ConstantBackoff(0.02), 1_000)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                with Redis(port=port, protocol=2, retry=patience) as client:
                    client.ping()
                    yield f"redis://127.0.0.1:{port}", client
            finally:
                process.kill()
