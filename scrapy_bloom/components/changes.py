"""Translates between Scrapy and :mod:`~scrapy_bloom.crawl.changes`: digests of items, requests and code; validators."""

# ruff: noqa: ARG002 - the arguments of the middleware are those that Scrapy passes

from __future__ import annotations

import inspect
import logging
import pickle
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import scrapy
from itemadapter import ItemAdapter
from scrapy import signals
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.serialize import ScrapyJSONEncoder

from scrapy_bloom.components import serialize
from scrapy_bloom.components.spider_crawl import CURRENT, ITEM, NotModified, crawl_of
from scrapy_bloom.crawl.changes import SWEPT_AT_ONCE, Changes
from scrapy_bloom.frontier.order import MARK, OF_THE_LAST_TRY
from scrapy_bloom.frontier.page import UNKNOWN
from scrapy_bloom.signals import item_gone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Iterator

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

    from scrapy_bloom.crawl.changes import GivenItem, PageChanges
    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.job.store import JobStore
    from scrapy_bloom.settings import ChangesOptions
    from scrapy_bloom.url.fingerprint import Fingerprints

logger = logging.getLogger(__name__)

_NOT_OF_THE_PAGE = {*OF_THE_LAST_TRY, "is_start_request", "download_timeout", "download_slot", "redirect_times"}
"""Keys of ``meta`` that tell how a request was made, and not what its page is."""
_HEADERS = {"E": "If-None-Match", "M": "If-Modified-Since"}
_CONDITIONAL = {b"If-None-Match", b"If-Modified-Since", b"If-Match", b"If-Unmodified-Since", b"If-Range", b"Range"}


class _Encoder(ScrapyJSONEncoder):
    """Scrapy's JSON, in which equal sets are equal, and which also holds the bytes of requests."""

    def default(self, o: Any) -> Any:
        if isinstance(o, (set, frozenset)):
            return {"set": sorted(map(self.encode, o))}
        return {"bytes": o.hex()} if isinstance(o, bytes) else super().default(o)


_encode = _Encoder(sort_keys=True).encode


def digest_of(*values: Any) -> int:
    """Return a digest of *values* as JSON, of 48 bits: of 28 million cycles with 10 million changes, one misses one.

    Raises TypeError if JSON cannot hold them.
    """
    return int.from_bytes(blake2b(_encode(values).encode(), digest_size=6).digest(), "big")


def code_digest(spider: Spider) -> int:
    """Return a digest of the source of the class of *spider* and its bases outside of Scrapy, and of Scrapy's version.

    0, with an INFO, if there is no source.
    """
    try:
        sources = [
            inspect.getsource(cls)
            for cls in type(spider).__mro__
            if cls.__module__.split(".")[0] not in {"builtins", "scrapy"}
        ]
    except (OSError, TypeError) as error:
        logger.info(
            "The source of %s cannot be read (%s): all pages are asked for in full", type(spider).__name__, error
        )
        return 0
    return digest_of(scrapy.__version__, sources)


def request_digest(stored: bytes, code: int, ignored: Collection[str]) -> int:
    """Return a digest of the *stored* request and of the *code* that processes its page; 0 if one has none.

    It leaves out the keys *ignored* of ``meta`` and the Referer, which depend on which of many links came first.
    """
    try:
        attributes = pickle.loads(stored)  # noqa: S301 - as every request of the job
        for name in (MARK, "dont_filter", "priority"):
            attributes.pop(name, None)
        attributes["meta"] = {key: value for key, value in attributes.get("meta", {}).items() if key not in ignored}
        headers = attributes.pop("headers", {})
        headers.pop(b"Referer", None)
        return code and digest_of(attributes, sorted(headers.items()), code)
    except Exception:  # of values in meta
        return 0


def validator_of(response: Response) -> str:
    """Return the validator in the headers of *response*, as the job keeps it; "" if it has none."""
    for kind, name in (("E", "ETag"), ("M", "Last-Modified")):
        if value := response.headers.get(name):
            return kind + value.decode("latin-1")
    return ""


def schemes_of_scrapy(settings: BaseSettings) -> set[str]:
    """Return the schemes of URLs that Scrapy itself downloads, without a cache of its own."""
    if settings.getbool("HTTPCACHE_ENABLED"):
        return set()
    handlers = settings.getwithbase("DOWNLOAD_HANDLERS").items()
    return {scheme for scheme, path in handlers if str(getattr(path, "__module__", path)).startswith("scrapy.")}


class SpiderChanges(Changes):
    """The changes of the crawl of *crawler*, whose job is *store*, by its requests and items."""

    def __init__(self, crawler: Crawler, store: JobStore, options: ChangesOptions, fingerprints: Fingerprints) -> None:
        spider, stats = crawler.spider, crawler.stats
        assert spider is not None and stats is not None  # noqa: S101, PT018 - the engine opens the scheduler with both
        super().__init__(store.database, store.state.cycle, lambda name: stats.inc_value(f"bloom/changes/{name}"))
        self._crawler, self._spider, self._stats, self._store = crawler, spider, stats, store
        self._of_request = fingerprints.of_request
        self._options, self._code = options, digest_of(options.code) if options.code else code_digest(spider)
        self._swept = self.unmade()
        self._asked_again: set[bytes] = set()  # fingerprints of start requests that each run of the cycle makes
        has_limit = crawler.settings.getint("DEPTH_LIMIT") > 0  # then the links of a page depend on its depth
        self._ignored = _NOT_OF_THE_PAGE if has_limit else {*_NOT_OF_THE_PAGE, "depth"}

    def hand_out(self, page: Page) -> None:
        """Give *page*, whose request is about to be made, what earlier cycles know of it."""
        request, stored = page.request, page.body
        fingerprint = self._fingerprint(request)
        page.changes = self.page(
            fingerprint,
            0 if stored is None else request_digest(stored, self._code, self._ignored),
            stored or pickle.dumps({"url": request.url}),
            is_filtered=stored is not None and not request.dont_filter,
            is_asked_again=fingerprint in self._asked_again and bool(request.meta.get("is_start_request")),
        )

    def note_start(self, request: Request) -> None:
        """Note that ``start()`` asks for *request* without the filter, which it does in each run of a cycle."""
        if self._store.is_resumed:
            self._asked_again.add(self._fingerprint(request))

    def _fingerprint(self, request: Request) -> bytes:
        try:
            return self._of_request(request)
        except Exception:  # of a fingerprinter of the user's: the filter lets the request through, too
            return b"URL " + request.url.encode()

    def takes(self, page: Page, item: Any) -> bool:
        """Return whether *item*, which *page* has given, is new or changed, and goes on to the pipelines."""
        ITEM.set(None)
        if not ItemAdapter.is_item(item):  # Scrapy logs an error, unless it is None
            return True
        try:
            given = self._compared(page, item)
        except Exception:  # a type that JSON does not take, or whatever an item of the user's raises: it goes on
            self.count("not_compared")
            return True
        if given is None:
            return False
        ITEM.set(given)
        return True

    def _compared(self, page: Page, item: Any) -> GivenItem | None:
        """Return what *item* changes, and set the field that says so; None if it is the same."""
        options, kind, adapter = self._options, type(item).__qualname__, ItemAdapter(item)
        ignored = {*options.ignore, options.field}
        digest = digest_of({name: value for name, value in adapter.items() if name not in ignored})
        has_key = bool(options.key) and all(name in adapter for name in options.key)
        key = _encode([adapter[name] for name in options.key]) if has_key else None
        given = self.compare(page.changes, kind, digest, key)
        if given is not None and (isinstance(item, dict) or options.field in adapter.field_names()) and options.field:
            with suppress(Exception):  # it is frozen
                adapter[options.field] = given.change.name.lower()
        return given

    def sweep(self) -> bool:
        """Enqueue requests of earlier cycles that this one has not made; return whether any can be fetched then."""
        for number, stored in enumerate(self._swept, start=1):
            try:
                request, _ = serialize.loads(stored, self._spider)
            except Exception:  # whatever unpickling or the user's classes raise
                self.count("unreadable")
                logger.info("A request of an earlier cycle cannot be read: its items are unknown", exc_info=True)
                continue
            self._crawler.engine.crawl(request)
            if number >= SWEPT_AT_ONCE and len(self._store):
                break
        return len(self._store) > 0 and not self._store.is_over()

    def end(self) -> None:
        """End the cycle, in which nothing is pending; set the stats, and report what is gone."""
        cycle = self.end_cycle()
        for name in ("new", "changed", "same", "gone", "unknown", "not_modified"):
            self._stats.set_value(f"bloom/changes/{name}", getattr(cycle, name))
        for url, label in self.gone():
            self._crawler.signals.send_catch_log(item_gone, url=url, label=label)


class ChangesMiddleware:
    """Downloader and spider middleware.

    Next to the downloader, it asks whether a page is as it was in the last cycle. Next to the spider, it notes which
    pages their callbacks processed as a whole: another spider middleware may have handled an exception.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler, self._schemes = crawler, schemes_of_scrapy(crawler.settings)
        self._stats: Any = crawler.stats

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the middleware of *crawler*."""
        return cls(crawler)

    def _known(self, request: Request | None = None) -> PageChanges | None:
        """Return what is known of the page of *request*, or of the present call, if there is such a page."""
        if (crawl := crawl_of(self._crawler)) is None:
            return None
        page = crawl.current() if request is None else crawl.of_request(request)
        return None if page is None else page.changes

    # -- next to the downloader ----------------------------------------------------------------------------------------

    def process_request(self, request: Request, spider: Spider | None = None) -> None:
        """Add a validator to *request*, if its page need not be answered in full."""
        if (known := self._known(request)) is not None:
            validator = known.validator
            is_plain = request.method == "GET" and _CONDITIONAL.isdisjoint(request.headers)
            may_have_one = urlparse_cached(request).scheme in self._schemes and not request.meta.get("bloom_refetch")
            if validator and is_plain and may_have_one:
                request.headers[_HEADERS[validator[0]]] = validator[1:]
                known.is_conditional = True
            return
        parent = CURRENT.get()  # of engine.download()
        if parent is not None and parent.result is not UNKNOWN and (known := self._known()) is not None:
            known.needs_answer = True  # in its callback or a pipeline

    def process_response(self, request: Request, response: Response, spider: Spider | None = None) -> Response:
        """Note *response*; end here with NotModified if it says that the page is as it was."""
        if (known := self._known(request)) is None:
            return response
        known.is_not_modified = _takes_off(known, request) and response.status == 304
        if known.is_not_modified:
            self._stats.inc_value("bloom/changes/not_modified")
            cookies = self._crawler.get_downloader_middleware(CookiesMiddleware)
            if b"Set-Cookie" in response.headers and cookies is not None:
                before_2_14 = [self._crawler.spider] if scrapy.version_info < (2, 14) else []
                cookies.process_response(request, response, *before_2_14)
            response.request = request
            self._crawler.signals.send_catch_log(  # counts for CLOSESPIDER_PAGECOUNT, and in the stats of Scrapy
                signals.response_received, response=response, request=request, spider=self._crawler.spider
            )
            raise NotModified
        if not {"dataloss", "partial"} & set(response.flags):
            known.status = response.status
            known.row = known.row._replace(size=len(response.body), validator=validator_of(response))
        return response

    def process_exception(self, request: Request, exception: Exception, spider: Spider | None = None) -> None:
        """Take the validator off *request*, which was not answered."""
        if (known := self._known(request)) is not None:
            _takes_off(known, request)

    # -- next to the spider --------------------------------------------------------------------------------------------

    def process_spider_input(self, response: Response, spider: Spider | None = None) -> None:
        """Note that the callback gets *response*."""
        if (known := self._known()) is not None:
            known.status, known.callback = response.status, "given"

    def process_spider_exception(self, response: Response, exception: Exception, spider: Spider | None = None) -> None:
        """Note that the callback raised *exception*, or was not given *response*, whatever others make of that."""
        if (known := self._known()) is not None:
            known.callback = ""

    def process_spider_output(
        self, response: Response, result: Iterable[Any], spider: Spider | None = None
    ) -> Iterator[Any]:
        """Yield *result*, and note that it has ended."""
        yield from result
        self._processed()

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        """Yield *result*, and note that it has ended."""
        async for output in result:
            yield output
        self._processed()

    def _processed(self) -> None:
        if (known := self._known()) is not None and known.callback:
            known.callback = "ended"


def _takes_off(known: PageChanges, request: Request) -> bool:
    """Take a validator of ours off *request*, which asked for the page; return whether it had one."""
    is_conditional, known.is_conditional = known.is_conditional, False
    for name in _HEADERS.values() if is_conditional else ():
        request.headers.pop(name, None)
    return is_conditional
