"""Serve a site rich in links on 127.0.0.1, from a process of its own, so that its CPU time is not the crawler's.

    python benchmarks/linksite.py --port 0 --dir /usr/share/doc/python3.11/html
    python benchmarks/linksite.py --port 0 --pages 2000 --links 150

The first line on stdout is the URL to start from. The server ends at the end of its stdin, so it cannot outlive the
benchmark that started it, and then prints one line of JSON: requests served, and different pages among them.

It speaks as much HTTP/1.1 as a crawler needs: GET and HEAD, keep-alive, pipelining. Pages are read or made when first
asked for, and kept in memory; with --warm before the first request, so that of two crawls compared neither is served
by a slower server than the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import mimetypes
import posixpath
import random
import re
import sys
import threading
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

Found = tuple[bytes, str]
"""A page: its bytes and its content type."""


_LINK = re.compile(
    rb"""(?P<before><a\s[^>]*?)href=(?P<quoted>(?P<quote>["'])(?P<target>.*?)(?P=quote))""", re.IGNORECASE
)


class DirectoryPages:
    """The files below a directory; a path that ends in a slash is the ``index.html`` there.

    With *pages*, of the HTML files only that many, the first that a crawl comes to, and in them no links to any others:
    these would be fetched, too, for a short "Not found".
    """

    def __init__(self, directory: Path, pages: int | None = None):
        self._directory = directory
        starts = [name for name in ("/index.html", "/en/index.html") if (directory / name[1:]).is_file()]
        if not starts:
            raise SystemExit(f"{directory} has no index.html to start from")
        self.start = starts[0]
        self._served: set[str] | None = None
        if pages is not None:
            self._served = set(self._nearest(pages))

    def find(self, path: str) -> Found | None:
        """Return the file at the URL path *path*, None if there is none."""
        # Textually, not by resolving: Debian's documentation links to scripts outside of its directory.
        clean = posixpath.normpath("/" + unquote(path).lstrip("/"))
        file = self._directory / clean[1:]
        if path.endswith("/"):
            file /= "index.html"
        if "\0" in clean or not file.is_file():
            return None
        if self._served is not None and file.suffix == ".html" and self._path_of(file) not in self._served:
            return None
        body = file.read_bytes()
        if self._served is not None and file.suffix == ".html":
            body = _LINK.sub(lambda match: self._only_inside(match, clean), body)
        return body, mimetypes.guess_type(file.name)[0] or "application/octet-stream"

    def _only_inside(self, link: re.Match[bytes], path: str) -> bytes:
        """Return *link*, which is on the page at *path*, without its target if that is here but not served."""
        target = re.split("[?#]", unquote(link["target"].decode("utf-8", "replace")))[0]
        if not target or ":" in target or target.startswith("//"):
            return link[0]
        if target.endswith("/"):
            target += "index.html"
        if posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) in (self._served or ()):
            return link[0]
        return link["before"] + b"data-left-out=" + link["quoted"]

    def paths(self) -> list[str]:
        """Return the paths of all HTML pages."""
        if self._served is not None:
            return sorted(self._served)
        return [self._path_of(file) for file in sorted(self._directory.rglob("*.html"))]

    def _path_of(self, file: Path) -> str:
        return f"/{file.relative_to(self._directory)}"

    def _nearest(self, pages: int) -> list[str]:
        """Return the paths of the first *pages* HTML files, breadth first."""
        found = [self.start]
        for path in found:  # grows
            page = self.find(path)
            for href in re.findall(rb'<a [^>]*href="([^"#?:]+\.html)', page[0] if page else b""):
                target = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(href.decode())))
                if len(found) == pages:
                    return found
                if target not in found and self.find(target) is not None:
                    found.append(target)
        return found


class GeneratedPages:
    """*pages* pages with *links* links and *words* words of text each, the same for the same *seed*.

    Page n links to 2n + 1 and 2n + 2, so that all are reached from page 0, and else to pages picked at random. In a
    full crawl one link in *links* is to a page not seen before.
    """

    start = "/page/0.html"

    def __init__(self, pages: int, links: int, seed: int = 1, words: int = 0):
        self._words = words
        self._pages = pages
        self._links = links
        self._seed = seed

    def find(self, path: str) -> Found | None:
        """Return the page at the URL path *path*, None if there is none."""
        digits = path.removeprefix("/page/").removesuffix(".html")
        number = int(digits) if digits.isdecimal() else self._pages
        if number >= self._pages or path != f"/page/{number}.html":
            return None
        return self._html(number).encode(), "text/html"

    def paths(self) -> list[str]:
        """Return the paths of all pages."""
        return [f"/page/{number}.html" for number in range(self._pages)]

    def _html(self, number: int) -> str:
        rng = random.Random(f"{self._seed}-{number}")
        children = [child for child in (2 * number + 1, 2 * number + 2) if child < self._pages]
        targets = children + rng.choices(range(self._pages), k=max(0, self._links - len(children)))
        links = "\n".join(f'<li><a href="/page/{target}.html">Page {target}</a></li>' for target in targets)
        drawn = "".join(rng.choices("aeioulnrst  ", k=6 * self._words))
        text = "".join(f"<p>{drawn[at : at + 300]}</p>\n" for at in range(0, len(drawn), 300))
        return f"<!DOCTYPE html>\n<title>Page {number}</title>\n{text}<ul>\n{links}\n</ul>\n"


class Server:
    """Answers requests for pages and counts them."""

    def __init__(self, pages: DirectoryPages | GeneratedPages):
        self._pages = pages
        self._answers: dict[str, bytes] = {}
        self.requests = 0
        self.seen: set[str] = set()

    def warm(self) -> None:
        """Make the answers to all pages now rather than when they are first asked for."""
        for path in self._pages.paths():
            self._answer(path)

    def respond(self, method: str, target: str) -> bytes:
        """Return the whole HTTP response to one request."""
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.NOT_IMPLEMENTED, b"", "text/plain")
        path = urlsplit(target).path
        answer = self._answer(path)
        self.requests += 1
        if answer is None:
            answer = _response(HTTPStatus.NOT_FOUND, b"Not found\n", "text/plain")
        else:
            self.seen.add(path)
        return answer if method == "GET" else answer[: answer.index(b"\r\n\r\n") + 4]

    def _answer(self, path: str) -> bytes | None:
        if path not in self._answers:
            found = self._pages.find(path)
            if found is None:
                return None
            self._answers[path] = _response(HTTPStatus.OK, *found)
        return self._answers[path]


def _response(status: HTTPStatus, body: bytes, content_type: str) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


class Connection(asyncio.Protocol):
    """One connection: cuts the stream into requests and answers each."""

    def __init__(self, respond: Callable[[str, str], bytes]):
        self._respond = respond
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to answer on."""
        self._transport = cast("asyncio.Transport", transport)  # what a TCP server hands over

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete; GET and HEAD end at the first empty line."""
        *requests, self._received = (self._received + data).split(b"\r\n\r\n")
        for head in requests:
            line, *headers = head.decode("latin-1").split("\r\n")
            parts = line.split(" ")
            if len(parts) != 3:
                self._transport.close()
                return
            self._transport.write(self._respond(parts[0], parts[1]))
            asked_to_close = any(header.lower().replace(" ", "") == "connection:close" for header in headers)
            if asked_to_close or parts[2] == "HTTP/1.0":
                self._transport.close()
                return


async def serve(server: Server, start: str, port: int) -> None:
    """Serve until stdin ends."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def wait_for_end_of_stdin() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        loop.call_soon_threadsafe(ended.set)

    listening = await loop.create_server(lambda: Connection(server.respond), "127.0.0.1", port)
    # A daemon thread, because epoll refuses files, and stdin may be one, or /dev/null.
    threading.Thread(target=wait_for_end_of_stdin, daemon=True).start()
    print(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}{start}", flush=True)
    await ended.wait()
    listening.close()


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--dir", type=Path, help="serve the HTML tree in this directory")
    parser.add_argument(
        "--pages",
        type=int,
        help="how many pages to generate (default: 1000), or how many of DIR to serve (default: all)",
    )
    parser.add_argument("--links", type=int, default=150, help="without --dir: how many links each page has")
    parser.add_argument("--words", type=int, default=0, help="without --dir: how many words of text each page has")
    parser.add_argument("--warm", action="store_true", help="make all pages before the first request")
    arguments = parser.parse_args()
    pages = (
        DirectoryPages(arguments.dir, arguments.pages)
        if arguments.dir
        else GeneratedPages(arguments.pages or 1000, arguments.links, words=arguments.words)
    )
    server = Server(pages)
    if arguments.warm:
        server.warm()
    asyncio.run(serve(server, pages.start, arguments.port))
    print(json.dumps({"requests": server.requests, "different_pages": len(server.seen)}), flush=True)


if __name__ == "__main__":
    main()
