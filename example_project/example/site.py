"""A made-up site of 300 pages, and a server for it in the crawl's own process: no internet is needed."""

from __future__ import annotations

import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from scrapy import signals

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

PAGES = 300
HOME = "http://maze.example/shop?item=0&size=0"
"""The first page. Names in ``.example`` exist in no DNS (RFC 2606), so nothing of this leaves the machine."""


def html_of(item: int) -> str:
    """Return the page of *item*. Its links lead to two further pages and to ten picked at random, mostly seen before.

    A link's parameters stand in any order, and some links have a fragment: the same page in other words.
    """
    rng = random.Random(item)  # noqa: S311 - the same site on every run is the point
    targets = [child for child in (2 * item + 1, 2 * item + 2) if child < PAGES] + rng.choices(range(PAGES), k=10)
    links = []
    for target in targets:
        query = [f"item={target}", f"size={target % 7}"]
        rng.shuffle(query)
        links.append(f'<li><a href="/shop?{"&amp;".join(query)}{rng.choice(["", "#reviews"])}">Item {target}</a></li>')
    return f"<!DOCTYPE html>\n<title>Item {item}</title>\n<h1>Item {item}</h1>\n<ul>{''.join(links)}</ul>\n"


class Handler(BaseHTTPRequestHandler):
    """Answers requests for pages."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send the page of the item that the URL names."""
        body = html_of(int(parse_qs(urlsplit(self.path).query)["item"][0])).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the access log off the screen."""


class LocalSite:
    """A downloader middleware that serves the site on a free port of 127.0.0.1, and is the proxy to it.

    So the site has the same URLs in every run, whichever the port, and a crawl can be resumed.
    """

    def __init__(self) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> LocalSite:
        """Serve until the spider is closed."""
        site = cls()
        crawler.signals.connect(site.close, signals.spider_closed)
        return site

    def close(self) -> None:
        """End the server."""
        self.server.shutdown()
        self.server.server_close()

    def process_request(self, request: Request, spider: object = None) -> None:  # noqa: ARG002 - for Scrapy 2.13
        """Send *request* to the site."""
        request.meta["proxy"] = f"http://127.0.0.1:{self.server.server_port}"
