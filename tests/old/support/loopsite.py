"""A website on loopback with one endless calendar beside honest sections, which counts what it was asked for.

    with LoopSite() as site:
        crawl(site.url("/"))
        assert site.hits("/good/") == LoopSite.GOOD

``/``             links to everything below.
``/good/<i>``     GOOD pages of prose, each of its own.
``/list/<i>``     LISTS pages without any text of their own; each leads to two of ``/record/<j>``, prose again, which
                  nothing else leads to.
``/calendar/<n>`` months without events, for ever, with their DAYS ``/calendar/<n>/<d>``. After :meth:`LoopSite.fill`
                  every month has its own events.
``/archive``      leads to ``/good/0`` and to OLD addresses ``/old/<i>`` that all have moved there. Nothing leads to it.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

WORDS = [
    a + b + c for a in ("ba", "do", "fi", "gu", "ke", "lo", "mi") for b in ("ran", "tel", "vis", "nor") for c in "aeiou"
]


def prose(*key: object, words: int = 40) -> str:
    rng = random.Random(repr(key))
    return " ".join(rng.choice(WORDS) for _ in range(words))


def page(title: str, text: str, links: list[str]) -> bytes:
    anchors = "\n".join(f'<li><a href="{link}">link</a></li>' for link in links)
    return (
        f"<html><title>{title}</title><body><h1>{title}</h1>\n<p>{text}</p>\n<ul>{anchors}</ul></body></html>".encode()
    )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: _Server

    def do_GET(self) -> None:
        body = self.server.site._respond(self.path)
        if self.path.startswith("/old/"):
            self.send_response(301)
            self.send_header("Location", "/good/0")
        else:
            self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    site: LoopSite

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a crawler killed in the middle of a page breaks its connections


class LoopSite:
    GOOD = 60
    LISTS = 40
    DAYS = 10
    OLD = 60

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._is_filled = False

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.site = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    def fill(self) -> None:
        """From now on, every month has events."""
        self._is_filled = True

    def hits(self, beginning: str = "/") -> int:
        """Different paths with this *beginning* that were asked for."""
        with self._changed:
            return sum(path.startswith(beginning) for path in self._asked)

    def asked(self) -> Counter[str]:
        """How often each path was asked for."""
        with self._changed:
            return Counter(self._asked)

    def wait_for_hits(self, n: int, beginning: str = "/", timeout: float = 60) -> None:
        with self._changed:
            enough = self._changed.wait_for(
                lambda: sum(path.startswith(beginning) for path in self._asked) >= n, timeout
            )
        assert enough, f"the site was not asked {n} times for {beginning} within {timeout} s"

    def _respond(self, path: str) -> bytes:
        with self._changed:
            self._asked[path] += 1
            self._changed.notify_all()
        kind, *rest = path.strip("/").split("/")
        if not kind:
            sections = [*(f"/good/{i}" for i in range(self.GOOD)), *(f"/list/{i}" for i in range(self.LISTS))]
            return page("home", "Everything that there is", [*sections, "/calendar/0"])
        if kind == "archive":
            return page("archive", "What has moved", ["/good/0", *(f"/old/{i}" for i in range(self.OLD))])
        if kind == "old":
            return b""
        number = int(rest[0])
        if kind == "list":
            return page("list", "", [f"/record/{2 * number}", f"/record/{2 * number + 1}"])
        if kind == "calendar":
            text = prose("events", *rest) if self._is_filled else "There are no events"
            days = [f"/calendar/{number}/{day}" for day in range(1, self.DAYS + 1)]
            return page(f"Month {number}", text, [f"/calendar/{number + 1}", *days] if len(rest) == 1 else [])
        return page(kind, prose(*rest, kind), [])
