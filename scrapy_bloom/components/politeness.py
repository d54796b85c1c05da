"""PolitenessMiddleware: hosts get the pauses that they ask for, while others go on.

Scrapy alone retries a 429 at once: it knows neither Retry-After (scrapy#3849) nor Crawl-delay (scrapy#892).
"""

from __future__ import annotations

import logging
import time
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from protego import Protego
from scrapy import Request, signals
from scrapy.exceptions import NotConfigured
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.httpobj import urlparse_cached

from scrapy_bloom.components.hooks import DOWNLOADER_SLOTS
from scrapy_bloom.components.spider_crawl import crawl_of
from scrapy_bloom.frontier.store import LONGEST_PAUSE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger(__name__)

LOGGED = 10  # hosts with a pause, and hosts with a delay, that the log names


class PolitenessMiddleware:
    """For ``DOWNLOADER_MIDDLEWARES``, next to the downloader; the add-on sets it. It works with a scheduler of ours.

    After an answer with ``Retry-After``, the slot of its request gets no request before that time: if the status is 429
    or 503, and Scrapy retries it (``RETRY_HTTP_CODES``). What the downloader has not sent yet goes back to the queue.
    With ``ROBOTSTXT_OBEY``, Crawl-delay is the least delay of the slots of its host.
    """

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        retried = settings.getlist("RETRY_HTTP_CODES") if settings.getbool("RETRY_ENABLED") else []
        self._statuses = {429, 503}.intersection(map(int, retried))
        self._user_agent = str(settings["ROBOTSTXT_USER_AGENT"] or settings["USER_AGENT"])
        self._obeys = settings.getbool("ROBOTSTXT_OBEY")
        if not self._statuses and not self._obeys:
            raise NotConfigured
        self._crawler = crawler
        self._stats: Any = crawler.stats
        self._delays: dict[str, float] = {}  # of robots.txt, by host
        self._known: set[str] = set()  # slots that were paused at the last response
        self._taken_off: set[Request] = set()  # requests on their way from the downloader's queue to ours
        self._logged = 0
        self._paused: Mapping[str, float] = {}
        crawler.signals.connect(self._begin, signal=signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware of *crawler*. Raises NotConfigured if its settings leave nothing to do."""
        return cls(crawler)

    def _begin(self) -> None:
        """Listen, after AutoThrottle, which does so when the spider is opened, too."""
        crawl, connect = crawl_of(self._crawler), self._crawler.signals.connect
        if crawl is None or not crawl.core.keeps_requests or DOWNLOADER_SLOTS in crawl.missing_hooks:
            return
        self._crawl, self._store = crawl, crawl.store
        self._paused = crawl.store.paused
        connect(self._response_downloaded, signal=signals.response_downloaded)
        connect(self._response_received, signal=signals.response_received)
        connect(self._keep_delay, signal=signals.request_reached_downloader)

    def process_request(self, request: Request, spider: Spider | None = None) -> Request | None:  # noqa: ARG002 - Scrapy 2.13 passes it
        """Give *request* back to the queue if its slot is paused."""
        return self._crawl.give_back(request) if self._waits(request) else None

    def process_exception(
        self,
        request: Request,
        exception: Exception,  # noqa: ARG002 - CancelledError, if the request was taken off
        spider: Spider | None = None,  # noqa: ARG002 - likewise
    ) -> Request | None:
        """Give *request* back to the queue if it was taken off the downloader's."""
        if request not in self._taken_off:
            return None
        self._taken_off.discard(request)
        return self._crawl.give_back(request)

    def _waits(self, request: Request) -> bool:
        """Return whether *request* is of a paused slot, and of our queue: robots.txt, for example, is not."""
        page = self._crawl.of_request(request) if self._paused else None
        return page is not None and page.slot in self._paused

    def _give_back(self) -> None:
        """Take the requests of paused slots off the downloader's queues."""
        engine: Any = self._crawler.engine
        for slot in list(engine.downloader.slots.values()):
            for entry in [entry for entry in slot.queue if self._waits(entry[0])]:
                request, deferred = entry
                slot.queue.remove(entry)
                self._taken_off.add(request)
                deferred.cancel()

    def _response_downloaded(self, response: Response, request: Request) -> None:
        """Look at *response* before the downloader sends the next request."""
        self._keep_delay(request)
        self._known.intersection_update(self._paused)
        if response.status in self._statuses and b"Retry-After" in response.headers:
            self._pause(request, seconds_of(response.headers[b"Retry-After"] or b""))
        paused = set(self._paused)  # other workers of a fleet may have begun some
        if paused - self._known:
            self._give_back()
        self._known = paused

    def _pause(self, request: Request, seconds: float) -> None:
        """Pause the slot of *request*. It has none if hosts have no queues of their own."""
        page, until = self._crawl.of_request(request), time.time() + seconds
        if page is None or not page.slot or not seconds or until <= self._paused.get(page.slot, 0):
            return
        if page.slot not in self._paused:
            self._stats.inc_value("bloom/pauses")
            self._log("%s asks for a pause of %.0f s: it gets no request until then, others go on", page.slot, seconds)
        self._store.pause(page.slot, until)

    def _response_received(self, response: Response, request: Request) -> None:
        """Read the Crawl-delay, if *response* is a robots.txt that Scrapy has asked for."""
        first = Request(request.meta.get("redirect_urls", [request.url])[0])
        host = urlparse_cached(first).hostname
        is_robots = request.callback is NO_CALLBACK and urlparse_cached(first).path == "/robots.txt"
        if not self._obeys or not is_robots or not host or response.status != 200:
            return
        delay = Protego.parse(response.body.decode(errors="replace")).crawl_delay(self._user_agent)
        if delay is not None and delay > 0:
            self._delays[host] = delay = min(delay, LONGEST_PAUSE)
            self._store.space_out(host, delay)
            self._log("robots.txt of %s asks for %.3g s between two requests (Crawl-delay)", host, delay)

    def _keep_delay(self, request: Request) -> None:
        """Set the delay of a slot, which the downloader may have made anew, and AutoThrottle may have shortened."""
        if not self._delays:
            return
        delay, name = self._delays.get(urlparse_cached(request).hostname or ""), request.meta.get("download_slot")
        engine: Any = self._crawler.engine
        slot = engine.downloader.slots.get(name)
        if delay is None or slot is None or slot.delay >= 2 * delay:  # Scrapy's jitter may halve it
            return
        slot.delay = max(slot.delay, delay)
        if hasattr(slot, "jitter"):
            slot.jitter = 0.0
        else:  # Scrapy 2.13
            slot.randomize_delay = False

    def _log(self, message: str, host: str, seconds: float) -> None:
        self._logged += 1
        if self._logged <= LOGGED:
            more = ". No more hosts are shown" if self._logged == LOGGED else ""
            logger.info(message + "%s", host, seconds, more)


def seconds_of(retry_after: bytes) -> float:
    """Return the seconds that the header ``Retry-After`` asks for, as a number or a date, LONGEST_PAUSE at most.

    It is 0 if it asks for nothing.

    https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
    """
    text = retry_after.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_PAUSE)
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=timezone.utc)
    return min(max(0.0, date.timestamp() - time.time()), LONGEST_PAUSE)
