"""A small site on loopback that counts what it is asked for.

The address of a page says how it behaves: ``/r/busy2/7`` is busy the first two times.
"""

import asyncio
import functools
import threading
from collections import Counter
from urllib.parse import parse_qs, urlsplit

from typing_extensions import Self

ITEMS = 30
HTML = {"Content-Type": "text/html"}
Answer = tuple[int, dict[str, str], str]
"""Status, further headers and body. Status 0 hangs up."""


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all sites, which runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="zoo sites").start()
    return loop


class Site:
    """Serves between ``with`` and its end."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        """Seconds before an answer."""
        self.hits: Counter[str] = Counter()
        """Requests by method, target and body."""
        self.session = "1"
        """Cookies of another session are not accepted."""

    @property
    def total(self) -> int:
        return sum(self.hits.copy().values())

    def __enter__(self) -> Self:
        start = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, _loop()).result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        _loop().call_soon_threadsafe(self._server.close)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            method, target, _ = (await reader.readline()).decode("latin-1").split(" ", 2)
            headers = {}
            while head := (await reader.readline()).decode("latin-1").strip():
                name, _, value = head.partition(":")
                headers[name.lower()] = value.strip()
            body = (await reader.readexactly(int(headers.get("content-length", 0)))).decode()
            name = f"{method} {target} {body}".strip()
            self.hits[name] += 1
            status, more, text = self.answer(target, headers, body, self.hits[name])
            await asyncio.sleep(self.delay)
            if status:  # a connection that is kept would be tried again by Twisted after a hang-up
                lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(text.encode())}", "Connection: close"]
                lines += [f"{name}: {value}" for name, value in more.items()]
                writer.write(("\r\n".join([*lines, "", ""]) + text).encode())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass  # the crawl was killed
        writer.close()

    def answer(self, target: str, headers: dict[str, str], body: str, hit: int) -> Answer:
        """Answer the *hit*-th request of its kind, counted from 1."""
        parts = urlsplit(target)
        form = parse_qs(f"{parts.query}&{body}")
        _, kind, *rest = parts.path.split("/")
        number = rest[-1] if rest else ""
        cookies = headers.get("cookie", "")
        if kind in STATIC:
            return STATIC[kind](number)
        if kind == "r":
            return behave(rest[0], number if number != "form" else form["n"][0], hit)
        if kind == "login":
            return 200, {**HTML, "Set-Cookie": f"sid={self.session}; Path=/"}, "<p>welcome"
        if kind == "private" and f"sid={self.session}" not in cookies:
            return 200, HTML, "<p>please log in"
        if kind == "task":
            return 200, HTML, f"<h1>{headers.get('x-task', '')}</h1>"
        if kind == "robots.txt":
            return 200, {"Content-Type": "text/plain"}, "User-agent: *\nDisallow: /item/3\n"
        return 200, HTML, f"<h1>{number}</h1>"


def _links(targets: object) -> str:
    return "".join(f"<a href={target}>{target}</a>" for target in targets)  # type: ignore[attr-defined]


STATIC = {
    "": lambda _: (200, HTML, _links(f"/list/{page}" for page in range(3))),
    "list": lambda n: (200, HTML, _links(f"/item/{i}" for i in range(int(n) * 10, int(n) * 10 + 10))),
    "ring": lambda n: (200, HTML, f"<h1>{n}</h1>" + _links(f"/ring/{i}" for i in range(ITEMS))),
    "next": lambda n: (200, HTML, f"<h1>{n}</h1>" + _links([f"/next/{int(n) + 1}"] if int(n) < ITEMS else [])),
    "gone": lambda _: (404, HTML, "gone"),
    "shut": lambda _: (503, HTML, "closed for ever"),
    "dead": lambda _: (0, {}, ""),
}


def behave(behaviour: str, number: str, hit: int) -> Answer:
    """Answer for a page of a random spider: its *behaviour* is a word and perhaps a number."""
    word = behaviour.rstrip("0123456789")
    count = int(behaviour[len(word) :] or 0)
    if word == "busy" and hit <= count:
        return 503, HTML, "busy"
    if word == "hang" and hit <= count:
        return 0, {}, ""
    if word == "moved":
        return 302, {"Location": f"/r/ok/{count}"}, ""
    return {"shut": 503, "gone": 404, "dead": 0}.get(word, 200), HTML, f"<h1>{number}</h1>"
