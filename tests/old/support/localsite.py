"""A small website on loopback for crawls in tests: deterministic, densely linked, and it counts what it was asked for.

    with LocalSite(pages=300) as site:
        crawl(site.url("/page/0"))
        assert site.hits("/page/7") == 1

It knows nothing of Scrapy. Paths, all of them deterministic:

``/page/<i>``             HTML of page *i*, i in [0, pages), linking to others (see :meth:`LocalSite.links_of`). Query
                          and fragment are ignored, so every spelling of a link leads to the same page.
``/redirect/<i>``         302 to page *i*.
``/flaky/<i>``            503 to the first *flaky_failures* requests, then page *i*.
``/dropped/<i>``          hangs up on the first *flaky_failures* requests without an answer, then page *i*.
``/form``                 HTML with a POST form, whose target is ``/submit``.
``/submit``               answers a POST with page *i* for the form field ``i``; 405 to a GET.
``/held/<name>``          answers page 0 only after :meth:`LocalSite.release` (``name``).
anything else             404.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from bisect import bisect_right
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

PATIENCE = 60.0
"""Seconds after which a wait for a condition is given up as failed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # status, headers and body leave in one packet
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._answer(b"")

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _answer(self, body: bytes) -> None:
        status, headers, page = self.server.site._respond(self.command, self.path, body)
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that server_close() waits for them and no socket outlives the test
    request_queue_size = 128
    site: LocalSite

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        with self._lock:
            self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a crawler killed in the middle of a page breaks its connections; that is what it is here for


class LocalSite:
    """A website on ``127.0.0.1`` at a free port, up between ``with`` and its end.

    pages           number of pages N of ``/page/<i>``; every one is reachable from page 0.
    links_per_page  links to other pages on each page, besides the two that keep everything reachable.
    redirects, flaky, dropped  how many pages besides their plain link are linked as ``/redirect/<i>``, ``/flaky/<i>``
                    and ``/dropped/<i>``: those with i in [0, n), from page i + 1.
    flaky_failures  failures before the first 200 of each ``/flaky/<i>`` and ``/dropped/<i>``.
    delay           seconds that each answer takes.
    body            bytes of filler text per page.
    seed            of the links.
    hosts           if not 0, page i is linked to under the host ``h<i % hosts>.site.example``, for crawls that have
                    this site for their proxy (``http_proxy``).
    """

    def __init__(
        self,
        *,
        pages: int = 100,
        links_per_page: int = 20,
        redirects: int = 0,
        flaky: int = 0,
        dropped: int = 0,
        flaky_failures: int = 1,
        delay: float = 0.0,
        body: int = 0,
        seed: int = 0,
        hosts: int = 0,
    ) -> None:
        self.pages = pages
        self.links_per_page = links_per_page
        self.redirects = redirects
        self.flaky = flaky
        self.dropped = dropped
        self.flaky_failures = flaky_failures
        self.delay = delay
        self.seed = seed
        self.hosts = hosts
        self._filler = "x" * body
        self._served: Counter[str] = Counter()
        self._asked: list[str] = []
        self._arrivals: list[float] = []
        self._changed = threading.Condition()
        self._released: set[str] = set()
        self._closing = False
        self._html: dict[int, bytes] = {}

    # -- up and down ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._server = _Server()
        self._server.site = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "/page/0") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    # -- what there is -------------------------------------------------------------------------------------------

    def neighbours(self, i: int) -> Sequence[int]:
        """The pages that page *i* links to: two that make all reachable, then *links_per_page* drawn ones."""
        rng = random.Random(self.seed * 1_000_003 + i)
        tree = [j for j in (2 * i + 1, 2 * i + 2) if j < self.pages]
        return tree + [rng.randrange(self.pages) for _ in range(self.links_per_page)]

    def links_of(self, i: int) -> list[str]:
        """The links on page *i* as they are spelled there: parameters in changing order, now and then a fragment."""
        rng = random.Random(self.seed * 7_000_003 + i)
        links = []
        for j in self.neighbours(i):
            pairs = [("part", str(j % 7)), ("of", "site"), ("q", "a b")]
            rng.shuffle(pairs)
            fragment = f"#part-{rng.randrange(9)}" if rng.random() < 0.3 else ""
            origin = f"http://h{j % self.hosts}.site.example" if self.hosts else ""
            links.append(f"{origin}/page/{j}?{urlencode(pairs)}{fragment}")
        if 0 < i <= self.redirects:
            links.append(f"/redirect/{i - 1}")
        if 0 < i <= self.flaky:
            links.append(f"/flaky/{i - 1}")
        if 0 < i <= self.dropped:
            links.append(f"/dropped/{i - 1}")
        return links

    def html_of(self, i: int) -> bytes:
        if i not in self._html:
            anchors = "\n".join(f'<a href="{link.replace("&", "&amp;")}">to</a>' for link in self.links_of(i))
            self._html[i] = (
                f"<html><head><title>page {i}</title></head><body>\n{anchors}\n<p>{self._filler}</p></body></html>"
            ).encode()
        return self._html[i]

    # -- what was asked for --------------------------------------------------------------------------------------

    def hits(self, path: str | None = None) -> int:
        """Requests that arrived for *path* (without query and fragment; ``"POST /submit?i=3"`` for a form sent with
        i = 3), or for all together. Counted on arrival, before the answer."""
        with self._changed:
            return len(self._asked) if path is None else self._served[path]

    def all_hits(self) -> Counter[str]:
        with self._changed:
            return Counter(self._served)

    def hits_since(self, moment: float) -> int:
        """Requests that arrived after *moment* on the clock of ``time.monotonic()``."""
        with self._changed:
            return len(self._arrivals) - bisect_right(self._arrivals, moment)

    def order(self) -> list[str]:
        """The paths in the order they arrived."""
        with self._changed:
            return list(self._asked)

    def missing_pages(self) -> list[int]:
        """The pages that nobody has asked for yet."""
        with self._changed:
            return [i for i in range(self.pages) if not self._served[f"/page/{i}"]]

    def forget_hits(self) -> None:
        with self._changed:
            self._served.clear()
            self._asked.clear()
            self._arrivals.clear()

    def wait_for_hits(self, n: int, path: str | None = None, timeout: float = PATIENCE) -> None:
        """Return once *n* requests arrived (for *path*, or in all); AssertionError after *timeout* seconds."""
        with self._changed:
            enough = self._changed.wait_for(
                lambda: (len(self._asked) if path is None else self._served[path]) >= n, timeout
            )
        assert enough, f"the site was not asked {n} times for {path or 'anything'} within {timeout} s"

    def release(self, name: str) -> None:
        """Let ``/held/<name>`` answer, now and from now on."""
        with self._changed:
            self._released.add(name)
            self._changed.notify_all()

    # -- answers -------------------------------------------------------------------------------------------------

    def _respond(self, method: str, target: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(target)
        kind, _, name = parts.path.lstrip("/").partition("/")
        key = parts.path
        if method == "POST":
            key = f"POST {parts.path}?{urlencode(sorted(parse_qsl(body.decode())))}"
        with self._changed:
            self._served[key] += 1
            count = self._served[key]
            self._asked.append(key)
            self._arrivals.append(time.monotonic())
            self._changed.notify_all()
            if kind == "held":
                self._changed.wait_for(lambda: name in self._released or self._closing, PATIENCE)
        if self.delay:
            time.sleep(self.delay)
        if kind == "held":
            return 200, {}, self.html_of(0)
        if kind == "form":
            return 200, {}, b'<form method="post" action="/submit"><input name="i" value="0"></form>'
        if kind == "submit":
            if method != "POST":
                return 405, {"Allow": "POST"}, b"POST only"
            return 200, {}, self.html_of(int(parse_qs(body.decode())["i"][0]))
        if not (name.isdigit() and int(name) < self.pages):
            return 404, {}, b"no such page"
        if kind == "page":
            return 200, {}, self.html_of(int(name))
        if kind == "redirect":
            return 302, {"Location": f"/page/{name}"}, b""
        if kind in {"flaky", "dropped"}:
            if count <= self.flaky_failures:
                return (503, {}, b"try again") if kind == "flaky" else (0, {}, b"")
            return 200, {}, self.html_of(int(name))
        return 404, {}, b"no such page"
