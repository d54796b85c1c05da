"""Serve a site rich in links on 127.0.0.1, from a process of its own, so that its CPU time is not the crawler's.

    python benchmarks/linksite.py --dir /usr/share/doc/python3.11/html
    python benchmarks/linksite.py --pages 2000 --links 150

The first line on stdout is the URL to start from. The server ends at the end of its stdin, so it cannot outlive the
benchmark that started it. It makes all pages before the first request, so that no crawl is served more slowly
than another.
"""

from __future__ import annotations

import argparse
import mimetypes
import posixpath
import random
import sys
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

    Find = Callable[[str], bytes | None]
    """Returns the page at a path; None if there is none."""


def directory_pages(directory: Path) -> tuple[list[str], Find]:
    """Return the paths of the HTML files in *directory*, the start first, and what finds all files there."""
    starts = [name for name in ("/index.html", "/en/index.html") if (directory / name[1:]).is_file()]
    if not starts:
        sys.exit(f"{directory} has no index.html to start from")

    def find(path: str) -> bytes | None:
        # Textually, not by resolving: Debian's documentation links to scripts outside of its directory.
        clean = posixpath.normpath("/" + unquote(path).lstrip("/"))
        file = directory / clean[1:] / ("index.html" if path.endswith("/") else "")
        return file.read_bytes() if "\0" not in clean and file.is_file() else None

    return starts + [f"/{file.relative_to(directory)}" for file in directory.rglob("*.html")], find


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
        server: Any = self.server
        path = urlsplit(self.path).path
        body = server.find(path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        content_type = "text/html" if path.endswith("/") else mimetypes.guess_type(path)[0]
        self.send_header("Content-Type", content_type or "text/plain")
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class LinkSite(ThreadingHTTPServer):
    """Serves the pages that *find* finds."""

    request_queue_size = 128

    def __init__(self, find: Find) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.find = find


def main() -> None:
    """Read the arguments, and serve until the end of standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="serve the HTML tree in this directory")
    parser.add_argument("--pages", type=int, default=1000, help="without --dir: how many (default: %(default)s)")
    parser.add_argument("--links", type=int, default=150, help="without --dir: how many links each page has")
    options = parser.parse_args()
    paths, find = directory_pages(options.dir) if options.dir else generated_pages(options.pages, options.links)
    find = cache(find)
    for path in paths:
        find(path)
    with LinkSite(find) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_port}{paths[0]}", flush=True)
        while sys.stdin.buffer.read(4096):
            pass
        server.shutdown()


if __name__ == "__main__":
    main()
