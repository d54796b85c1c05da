"""Serve a site rich in links on 127.0.0.1, from a process of its own, so that its CPU time is not the crawler's.

    python benchmarks/linksite.py --dir /usr/share/doc/python3.11/html
    python benchmarks/linksite.py --pages 2000 --links 150

The first line on stdout is the URL to start from. The server ends at the end of its stdin, so it cannot outlive the
benchmark that started it, and then prints one line of JSON: requests served, and different pages among them. With
--warm it makes all pages before the first request, so that of two crawls neither is served more slowly.
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
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urljoin, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

Find = "Callable[[str], tuple[bytes, str] | None]"
"""Returns the bytes and the content type of the page at a path; None if there is none."""

_HREF = re.compile(rb"""(<a\s[^>]*?)href=(["'])(.*?)\2""", re.IGNORECASE)


def directory_pages(directory: Path, pages: int | None) -> tuple[list[str], Find]:
    """Return the paths of the HTML files in *directory*, the start first, and what finds them.

    With *pages*, only so many, the first that a crawl comes to; links to the others are taken off.
    """
    starts = [name for name in ("/index.html", "/en/index.html") if (directory / name[1:]).is_file()]
    if not starts:
        sys.exit(f"{directory} has no index.html to start from")

    def read(path: str) -> bytes | None:
        # Textually, not by resolving: Debian's documentation links to scripts outside of its directory.
        clean = posixpath.normpath("/" + unquote(path).lstrip("/"))
        file = directory / clean[1:] / ("index.html" if path.endswith("/") else "")
        return file.read_bytes() if "\0" not in clean and file.is_file() else None

    def targets(path: str, body: bytes) -> list[str]:
        hrefs = (match[3].decode("utf-8", "replace") for match in _HREF.finditer(body))
        return [urlsplit(urljoin(path, href)).path for href in hrefs if "//" not in href]

    served = starts
    if pages is None:
        served += sorted({f"/{file.relative_to(directory)}" for file in directory.rglob("*.html")} - set(starts))
    for path in served:  # grows
        if pages is None or len(served) >= pages:
            break
        body = read(path) or b""
        found = (target for target in targets(path, body) if target.endswith(".html") and read(target) is not None)
        served += [target for target in dict.fromkeys(found) if target not in served][: pages - len(served)]
    inside = None if pages is None else frozenset(served)

    def find(path: str) -> tuple[bytes, str] | None:
        body, is_page = read(path), path.endswith((".html", "/"))
        if body is None or (inside is not None and is_page and path not in inside):
            return None

        def only_inside(match: re.Match[bytes]) -> bytes:
            target = urlsplit(urljoin(path, match[3].decode("utf-8", "replace"))).path
            return match[0] if b"//" in match[3] or target in (inside or ()) else match[1]

        body = _HREF.sub(only_inside, body) if inside is not None and is_page else body
        return body, mimetypes.guess_type("x.html" if is_page else path)[0] or "application/octet-stream"

    return served, find


def generated_pages(pages: int, links: int) -> tuple[list[str], Find]:
    """Return the paths of *pages* pages with *links* links each, the same each time, and what finds them.

    Page n links to 2n + 1 and 2n + 2, so that all are reached from page 0, and else to pages picked at random.
    """
    numbers = {f"/page/{number}.html": number for number in range(pages)}

    def find(path: str) -> tuple[bytes, str] | None:
        number = numbers.get(path)
        if number is None:
            return None
        rng = random.Random(number)
        children = [child for child in (2 * number + 1, 2 * number + 2) if child < pages]
        targets = children + rng.choices(range(pages), k=max(0, links - len(children)))
        listed = "\n".join(f'<li><a href="/page/{target}.html">Page {target}</a></li>' for target in targets)
        return f"<!DOCTYPE html>\n<title>Page {number}</title>\n<ul>\n{listed}\n</ul>\n".encode(), "text/html"

    return list(numbers), find


class Connection(asyncio.Protocol):
    """One connection: GET and HEAD, keep-alive, pipelining, which is what a crawler needs."""

    def __init__(self, respond: Callable[[str], bytes]):
        self._respond = respond
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to answer on."""
        self._transport = cast("asyncio.Transport", transport)  # what a TCP server hands over

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete; GET and HEAD end at the first empty line."""
        *requests, self._received = (self._received + data).split(b"\r\n\r\n")
        for head in requests:
            method, target, _ = head.decode("latin-1").split("\r\n")[0].split(" ")
            answer = self._respond(urlsplit(target).path)
            self._transport.write(answer if method == "GET" else answer[: answer.index(b"\r\n\r\n") + 4])
            if b"connection: close" in head.lower():
                self._transport.close()


async def serve(start: str, respond: Callable[[str], bytes]) -> None:
    """Serve until stdin ends."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wait_for_end_of_stdin() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        loop.call_soon_threadsafe(ended.set)

    listening = await loop.create_server(lambda: Connection(respond), "127.0.0.1", 0)
    # A daemon thread, because epoll refuses files, and stdin may be one, or /dev/null.
    threading.Thread(target=wait_for_end_of_stdin, daemon=True).start()
    print(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}{start}", flush=True)
    await ended.wait()
    listening.close()


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="serve the HTML tree in this directory")
    parser.add_argument("--pages", type=int, help="how many to generate (default: 1000), or of DIR (default: all)")
    parser.add_argument("--links", type=int, default=150, help="without --dir: how many links each page has")
    parser.add_argument("--warm", action="store_true", help="make all pages before the first request")
    options = parser.parse_args()
    if options.dir:
        paths, find = directory_pages(options.dir, options.pages)
    else:
        paths, find = generated_pages(options.pages or 1000, options.links)
    seen: list[str] = []

    @cache
    def answer(path: str) -> bytes:
        found = find(path)
        status, (body, content_type) = ("200 OK", found) if found else ("404 Not Found", (b"Not found", "text/plain"))
        head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode("ascii") + body

    def respond(path: str) -> bytes:
        seen.append(path)
        return answer(path)

    if options.warm:
        for path in paths:
            answer(path)
    asyncio.run(serve(paths[0], respond))
    pages = {path for path in seen if find(path) is not None}
    print(json.dumps({"requests": len(seen), "different_pages": len(pages)}), flush=True)


if __name__ == "__main__":
    main()
