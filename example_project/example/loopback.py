"""Serve the maze from within the crawl, on a free port of 127.0.0.1, and send its requests there.

The port is another one on every run. If it were part of the URLs, a resumed crawl would find that every URL is new.
So the URLs say ``http://maze.example/...`` everywhere in Scrapy, in the duplicate filter and in the job directory
too, and only the download is told where to connect, in the way Scrapy has for that: the server is its HTTP proxy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.web.resource import Resource
from twisted.web.server import Site

from example.site import Page, calendar_page, page_address

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.statscollectors import StatsCollector
    from twisted.internet.interfaces import IListeningPort
    from twisted.web.http import Request as ServedRequest


class LoopbackSite:
    """Downloader middleware for spiders with a ``site``: serves it while the spider is open.

    A spider whose ``served_at`` names a server uses that one instead, as the workers of a fleet do.
    """

    def __init__(self, crawler: Crawler):
        self._crawler = crawler
        self._listening: IListeningPort | None = None
        self._proxy = ""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> LoopbackSite:
        """Build the middleware; the server starts when the spider opens."""
        middleware = cls(crawler)
        crawler.signals.connect(middleware.spider_opened, signals.spider_opened)
        crawler.signals.connect(middleware.spider_closed, signals.spider_closed)
        return middleware

    def spider_opened(self, spider: Spider) -> None:
        """Start the server on a port that the system picks."""
        if spider.served_at:
            self._proxy = spider.served_at
            return
        from twisted.internet import reactor  # only now: importing it installs one, and the choice is Scrapy's

        server = _Server(_Pages(spider.site, self._crawler.stats))
        self._listening = reactor.listenTCP(0, server, interface="127.0.0.1")
        self._proxy = f"http://127.0.0.1:{self._listening.getHost().port}"

    async def spider_closed(self) -> None:
        """Stop listening."""
        if self._listening:
            await maybe_deferred_to_future(self._listening.stopListening())

    def process_request(self, request: Request, spider: Spider | None = None) -> None:  # noqa: ARG002 - 2.13 passes it
        """Have *request* downloaded from the server, whatever host its URL names."""
        request.meta["proxy"] = self._proxy


class _Server(Site):
    noisy = False

    def log(self, request: ServedRequest) -> None:
        """Keep the access log out of the crawl's log."""


class _Pages(Resource):
    isLeaf = True  # noqa: N815 - Twisted's name

    def __init__(self, site: dict[str, Page], stats: StatsCollector):
        super().__init__()
        self._site = site
        self._stats = stats
        self._served: set[str] = set()

    def render_GET(self, request: ServedRequest) -> bytes:  # noqa: N802 - Twisted's name
        address = page_address(request.uri.decode("ascii"))
        if address == "/robots.txt":
            request.setHeader("Content-Type", "text/plain")
            return b"User-agent: *\nAllow: /\n"
        page = self._site.get(address) or calendar_page(address)
        if page is None:
            request.setResponseCode(404)
            return b"No such page"
        self._served.add(address)
        self._stats.inc_value("site/requests")
        self._stats.set_value("site/pages", len(self._served))
        return page.body.encode()
