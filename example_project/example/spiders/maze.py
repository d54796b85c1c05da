"""An ordinary spider: it takes an item from each page and follows all links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider

from example.site import HOME, PAGES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from scrapy.http import Response


class MazeSpider(Spider):
    """Crawls the example's site, and says at the end which of its pages have come."""

    name = "maze"
    state: dict[str, Any]

    async def start(self) -> AsyncIterator[Request]:
        """Begin with the first page. Unlike ``start_urls``, it goes through the filter: links lead back to it."""
        if not hasattr(self, "state"):
            self.state = {}  # with JOBDIR, Scrapy has set it, and it comes back in the next run, even after a kill
        yield Request(HOME)

    def parse(self, response: Response) -> Iterator[Any]:
        """Take the item, and follow the links. Which of them are new is for the filter to say."""
        title = response.css("h1::text").get()
        self.state.setdefault("titles", []).append(title)
        yield {"title": title, "url": response.url}
        yield from response.follow_all(css="a")

    def closed(self, reason: str) -> None:
        """Say which pages have come, in all runs of this job."""
        titles = self.state.get("titles", [])
        missing, again = PAGES - len(set(titles)), len(titles) - len(set(titles))
        if missing:
            self.logger.info("%s: %d of %d pages of the site", reason, PAGES - missing, PAGES)
        else:
            times = f"{again} of them again" if again else "each once"
            self.logger.info("%s: all %d pages of the site, %s", reason, PAGES, times)
