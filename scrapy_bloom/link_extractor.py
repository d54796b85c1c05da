""":class:`UnseenLinkExtractor`: a ``LinkExtractor`` that asks the filter before it does its work.

On a link-rich site Scrapy's extractor resolves, quotes and checks the same links on every page, only for the filter to
drop them. This one remembers what each raw ``href`` came to and whether it was seen, and does the work for the others.

Knows Scrapy's extractor. Does not know the filter, nor which crawl it works for: the response leads it there.
"""

from __future__ import annotations

import logging
from inspect import signature
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin
from weakref import WeakKeyDictionary

from lxml import etree  # type: ignore[import-untyped] # its stubs are a package of their own
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.misc import arg_to_iter, rel_has_nofollow
from scrapy.utils.response import get_base_url
from w3lib.html import strip_html5_whitespace
from w3lib.url import canonicalize_url, safe_url_string

from scrapy_bloom.crawl.crawl_links import crawl_of
from scrapy_bloom.crawl.href_memory import UNWANTED, HrefMemory, Known
from scrapy_bloom.url.fingerprint import fingerprint_url as plain_fingerprint_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy.http import TextResponse

    from scrapy_bloom.crawl.crawl_links import CrawlLinks
    from scrapy_bloom.crawl.href_memory import Page

logger = logging.getLogger(__name__)

_text_of = etree.XPath("string()")

_PLAIN = LinkExtractor().link_extractor

_REMEMBERED = ("_link_allowed", "_process_links", "_extract_links")
"""Methods of Scrapy's extractor whose work is remembered here, unless a subclass has its own."""

_NO_NAME = "no name of an element"

_ODD_LINK = Link("http://a/?b&a=1#c")
"""Not canonical, to see whether an extractor tells links apart by the URL as it is."""


def _itself(url: str) -> str:
    return url


class UnseenLinkExtractor(LinkExtractor):
    """Scrapy's ``LinkExtractor`` without the links that were seen before; takes all its arguments.

    In a spider with :class:`~scrapy_bloom.UnseenLinks`, in a rule or in a callback::

        rules = [Rule(UnseenLinkExtractor(allow="/docs/"), follow=True)]

    The links that come out are those that ``LinkExtractor`` and ``unseen_links()`` would give, in the same order and
    with the same text, and as many are counted as filtered. What it remembers is kept apart for each crawl and takes
    at most 32 MiB. With ``process_value`` or ``restrict_text`` nothing is remembered, and it is only as fast as those
    two. Without the mixin, or with a filter that cannot answer, it is Scrapy's extractor.

    For links that become plain GET requests to their own URL: see ``UnseenLinks``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = signature(LinkExtractor).bind(*args, **kwargs)
        given.apply_defaults()
        for name in ("tags", "attrs"):
            given.arguments[name] = tuple(arg_to_iter(given.arguments[name]))  # it may be an iterator
        super().__init__(*given.args, **given.kwargs)
        scan_tag, scan_attr = self._scans = self.link_extractor.scan_tag, self.link_extractor.scan_attr
        self._tags = sorted(filter(scan_tag, given.arguments["tags"]))
        self._attrs = set(filter(scan_attr, given.arguments["attrs"]))
        self._takes_any = scan_tag(_NO_NAME) or scan_attr(_NO_NAME)  # "*", since Scrapy 2.17
        self._only_attr = next(iter(self._attrs)) if len(self._attrs) == 1 else None
        self._memories: WeakKeyDictionary[CrawlLinks, tuple[object, HrefMemory]] = WeakKeyDictionary()
        self._has_warned = False

    def extract_links(self, response: TextResponse) -> list[Link]:
        """Return the links of *response* that were not seen before, as ``LinkExtractor.extract_links()`` would."""
        crawl = crawl_of(response)
        if crawl is None:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "UnseenLinkExtractor was given %s, of no crawl whose spider has scrapy_bloom.UnseenLinks as its "
                    "first base class: it extracts all links, as Scrapy's LinkExtractor does.",
                    response,
                )
            return super().extract_links(response)
        if crawl.filter is None:
            return super().extract_links(response)
        fingerprint_url = crawl.fingerprint_url
        page = self._page(response, crawl, fingerprint_url) if self._remembers and fingerprint_url else None
        if page is None:
            links = super().extract_links(response)
            return crawl.unseen(links, [Known.of(link.url, fingerprint_url) for link in links])
        elements, knowns = self._found(response, page)
        return [
            Link(known.url, _text_of(element) or "", nofollow=rel_has_nofollow(element.get("rel")))
            for element, known in crawl.unseen(list(zip(elements, knowns, strict=True)), knowns)
        ]

    def _found(self, response: TextResponse, page: Page) -> tuple[list[Any], list[Known]]:
        """Return the elements with links of *page* that are asked for, in order, and what is known of them."""
        in_folder, in_origin = page.in_folder.get, page.in_origin.get
        is_unique = self.link_extractor.unique
        urls: set[str] = set()
        elements, knowns = [], []
        for element, value in self._values(response):
            known = in_folder(value) or in_origin(value) or page.learn(value)
            if known is UNWANTED:
                continue
            if is_unique:
                if known.url in urls:
                    continue
                urls.add(known.url)
            elements.append(element)
            knowns.append(known)
        return elements, knowns

    def _values(self, response: TextResponse) -> Iterator[tuple[Any, str]]:
        """Yield the attributes that may be links, each with its element, in the order of Scrapy's extractor."""
        if self.restrict_xpaths:
            parts = [part for xpath in self.restrict_xpaths for part in response.xpath(xpath)]
        else:
            parts = [response.selector]
        for part in parts:
            if self._takes_any or part.type != "html":  # outside of HTML, names have namespaces
                for element, _, value in self.link_extractor._iter_links(part.root):
                    yield element, value
            elif self._tags:  # iter() without names yields all elements
                for element in part.root.iter(*self._tags):
                    if self._only_attr is not None:
                        value = element.get(self._only_attr)
                        if value is not None:
                            yield element, value
                    else:
                        for name, value in element.items():
                            if name in self._attrs:
                                yield element, value

    @property
    def _remembers(self) -> bool:
        """Whether what a raw value comes to is the same on every page, and as Scrapy's own code has it."""
        inner = self.link_extractor
        return (
            not self.restrict_text
            and inner.process_attr is _PLAIN.process_attr
            and type(inner) is type(_PLAIN)
            and (inner.scan_tag, inner.scan_attr) == self._scans
            and inner.link_key(_ODD_LINK) == _ODD_LINK.url  # else, before Scrapy 2.18, with canonicalize=True
            and all(getattr(type(self), name) is getattr(LinkExtractor, name) for name in _REMEMBERED)
        )

    def _page(self, response: TextResponse, crawl: CrawlLinks, fingerprint_url: Callable[[str], bytes]) -> Page | None:
        arguments = (
            tuple(self.allow_res),
            tuple(self.deny_res),
            frozenset(self.allow_domains),
            frozenset(self.deny_domains),
            frozenset(self.deny_extensions),
            self.canonicalize,
            self.link_extractor.strip,
        )
        found = self._memories.get(crawl)
        if found is None or found[0] != arguments:
            found = self._memories[crawl] = (
                arguments,
                HrefMemory(
                    self._resolve,
                    fingerprint_url,
                    is_wanted=lambda url: self._link_allowed(Link(url)),
                    fragments_matter=bool(self.allow_res or self.deny_res),
                    shares=fingerprint_url is plain_fingerprint_url,
                    finish=canonicalize_url if self.canonicalize else _itself,
                ),
            )
        return found[1].page(get_base_url(response), response.url, response.encoding)

    def _resolve(self, value: str, base: str, page_url: str, encoding: str) -> str | None:
        """Return the URL that Scrapy's extractor makes of *value*, None where it skips that."""
        try:
            url = urljoin(base, strip_html5_whitespace(value) if self.link_extractor.strip else value)
            url = safe_url_string(url, encoding=encoding)
        except ValueError:
            return None
        return urljoin(page_url, url)
