"""Answer the requests of a crawl from the site with traps, in the process of the crawl and without a socket.

Connections would cost several times what the pages do, and a crawl of a hundred thousand of them is to be measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.http import HtmlResponse, Response

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler


class TrapServer:
    """Downloader middleware: answers for the spider's ``site``, with 404 where that has no page.

    The name of the page's section goes into ``request.meta["section"]``, where the spider finds it.
    """

    def __init__(self, crawler: Crawler):
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> TrapServer:
        """Build the middleware."""
        return cls(crawler)

    def process_request(self, request: Request, spider: Spider | None = None) -> Response:  # noqa: ARG002 - 2.13 passes it
        """Return the page."""
        found = self._crawler.spider.site.serve(request.url)
        if found is None:
            return Response(request.url, status=404)
        section, answer = found
        request.meta["section"] = section.name
        headers = {"Content-Type": answer.content_type}
        return HtmlResponse(request.url, headers=headers, body=answer.body.encode(), request=request)
