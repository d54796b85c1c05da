"""A small site on loopback that counts what it is asked for.

The address of a page says how it behaves: ``/r/busy2/7`` is busy the first two times.
"""

import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.support import crawls
from tests.support.crawls import Reply, html

ITEMS = 30


class Site(crawls.Site):
    """Counts requests by method, target and body, and answers after *delay* seconds."""

    def __init__(self, delay: float) -> None:
        super().__init__({})
        self.delay = delay
        self.session = "1"
        """Cookies of another session are not accepted."""

    @property
    def total(self) -> int:
        with self.asked:
            return self.hits.total()

    def take(self, request: BaseHTTPRequestHandler, body: str) -> Reply:
        hit = self.count(f"{request.command} {request.path} {body}".strip())
        reply = self.page(request.path, request.headers, body, hit)
        time.sleep(self.delay)
        reply.headers["Connection"] = "close"  # one that is kept would be tried again by Twisted after a hang-up
        return reply

    def page(self, target: str, headers: Mapping[str, str], body: str, hit: int) -> Reply:
        """Answer the *hit*-th request of its kind, counted from 1."""
        parts = urlsplit(target)
        form = parse_qs(f"{parts.query}&{body}")
        _, kind, *rest = parts.path.split("/")
        number = rest[-1] if rest else ""
        if kind in STATIC:
            return STATIC[kind](number)
        if kind == "r":
            return behave(rest[0], number if number != "form" else form["n"][0], hit)
        if kind == "login":
            return Reply(headers={"Set-Cookie": f"sid={self.session}; Path=/"}, body=b"<p>welcome")
        if kind == "private" and f"sid={self.session}" not in headers.get("Cookie", ""):
            return Reply(body=b"<p>please log in")
        if kind == "task":
            return heading(headers.get("X-Task", ""))
        if kind == "robots.txt":
            return Reply(headers={"Content-Type": "text/plain"}, body=b"User-agent: *\nDisallow: /item/3\n")
        return heading(number)


def heading(text: str, *links: str) -> Reply:
    return Reply(body=f"<h1>{text}</h1>".encode() + html(links))


STATIC = {
    "": lambda _: Reply(body=html([f"/list/{page}" for page in range(3)])),
    "list": lambda n: Reply(body=html([f"/item/{i}" for i in range(int(n) * 10, int(n) * 10 + 10)])),
    "ring": lambda n: heading(n, *(f"/ring/{i}" for i in range(ITEMS))),
    "next": lambda n: heading(n, *([f"/next/{int(n) + 1}"] if int(n) < ITEMS else [])),
    "gone": lambda _: Reply(404),
    "shut": lambda _: Reply(503),
    "dead": lambda _: Reply(0),
}


def behave(behaviour: str, number: str, hit: int) -> Reply:
    """Answer for a page of a random spider: its *behaviour* is a word and perhaps a number."""
    word = behaviour.rstrip("0123456789")
    count = int(behaviour[len(word) :] or 0)
    if word in {"busy", "hang"} and hit <= count:
        return Reply(503 if word == "busy" else 0)
    if word == "moved":
        return Reply(302, headers={"Location": f"/r/ok/{count}"})
    reply = heading(number)
    reply.status = {"shut": 503, "gone": 404, "dead": 0}.get(word, 200)
    return reply
