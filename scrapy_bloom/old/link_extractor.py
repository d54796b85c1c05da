""":class:`UnseenLinkExtractor`: a ``LinkExtractor`` that asks the filter before it does its work.

On a link-rich site Scrapy's extractor resolves, quotes and checks the same links on every page, only for the filter to
drop them. This one remembers what each raw ``href`` came to and whether it was seen, and works on new ones only. A page
that nobody has parsed is parsed for a new link only.

Knows Scrapy's extractor. Does not know the filter, nor its crawl: it finds both through the response.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from copy import copy
from inspect import signature
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin
from weakref import WeakKeyDictionary

from lxml import etree  # type: ignore[import-untyped] # its stubs are a package of their own
from lxml.html import HtmlElementClassLookup, HTMLParser  # type: ignore[import-untyped] # likewise
from scrapy.http import HtmlResponse, TextResponse
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.misc import arg_to_iter, rel_has_nofollow
from scrapy.utils.response import get_base_url
from w3lib.html import strip_html5_whitespace
from w3lib.url import canonicalize_url, safe_url_string

from scrapy_bloom.old.crawl.crawl_links import crawl_of
from scrapy_bloom.old.crawl.href_memory import HrefMemory, Known
from scrapy_bloom.old.crawl.href_page import page_of
from scrapy_bloom.old.crawl.href_sift import Found, sift
from scrapy_bloom.old.crawl.href_tags import HrefTags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from parsel import Selector

    from scrapy_bloom.old.crawl.crawl_links import Answer, CrawlLinks
    from scrapy_bloom.old.crawl.href_page import Page

logger = logging.getLogger(__name__)

_text_of = etree.XPath("string()")
_get_attribute = etree._Element.get

_HTML_CLASSES = HtmlElementClassLookup()
"""Which classes elements of a page have, as every parser of HTML is born with."""

_PLAIN = LinkExtractor().link_extractor

_REMEMBERED = ("_link_allowed", "_process_links", "_extract_links")
"""Methods of Scrapy's extractor whose work is remembered here, unless a subclass has its own."""

_NO_NAME = "no name of an element"

_ODD_LINK = Link("http://a/?b&a=1#c")
"""A URL that is not canonical: shows whether an extractor compares raw or canonical URLs."""


def _is_unparsed(response: TextResponse) -> bool:
    """Whether nobody has parsed the page, who might have changed its links then."""
    return (
        isinstance(response, HtmlResponse)
        and getattr(response, "_cached_selector", response) is None
        and type(response).selector is TextResponse.selector
        and type(response).text is TextResponse.text
    )


@contextmanager
def _plain_elements(parts: list[Selector]) -> Iterator[None]:
    """Let lxml make elements of its own class while a page is walked over.

    For each element that it comes to, it would ask the page's parser, in Python, for a class, which takes a third of
    the walk. The parser is that of this page alone.
    """
    root = parts[0].root if parts and parts[0].type == "html" else None
    parser = root.getroottree().parser if isinstance(root, etree._Element) else None
    if type(parser) is not HTMLParser:
        yield
        return
    parser.set_element_class_lookup(None)  # type: ignore[union-attr] # it is no None
    try:
        yield
    finally:
        parser.set_element_class_lookup(_HTML_CLASSES)  # type: ignore[union-attr] # likewise


class UnseenLinkExtractor(LinkExtractor):
    """Scrapy's ``LinkExtractor`` without the links that were seen before; takes all its arguments.

    In a spider with :class:`~scrapy_bloom.UnseenLinks`, in a rule or in a callback::

        rules = [Rule(UnseenLinkExtractor(allow="/docs/"), follow=True)]

    The links that come out are those that ``LinkExtractor`` and ``unseen_links()`` would give, in the same order and
    with the same text, and as many are counted as filtered. A page that nobody has parsed yet is parsed only if it may
    have one of them. What it remembers is kept apart for each crawl and takes at most 33 MiB. With ``process_value`` or
    ``restrict_text`` nothing is remembered, and it is only as fast as those two. Without the mixin, or with a filter
    that cannot answer, it is Scrapy's extractor.

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
        name = self._only_attr or ""
        self._only_attr_name = name.encode() if name.isascii() else name  # lxml encodes a str for each element anew
        self._has_usual_elements = self._tags == ["a", "area"] and self._only_attr == "href" and not self._takes_any
        self._memories: WeakKeyDictionary[CrawlLinks, tuple[object, HrefMemory | None]] = WeakKeyDictionary()
        self._of_tags: WeakKeyDictionary[CrawlLinks, HrefTags] = WeakKeyDictionary()
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
        memory = self._memory(crawl, fingerprint_url) if fingerprint_url else None
        page = page_of(memory, get_base_url(response), response.url, response.encoding) if memory else None
        if page is None:
            links = super().extract_links(response)
            found = [Found(place, link.url, Known.of(link.url, fingerprint_url)) for place, link in enumerate(links)]
            return [links[one.place] for one in crawl.unseen(found)]
        tags = self._of_tags.setdefault(crawl, HrefTags())
        answers: dict[Known, Answer] = {}
        is_read = tags.likely_pay and self._has_usual_elements and not self.restrict_xpaths and _is_unparsed(response)
        hrefs = tags.read(response.body, response.encoding) if is_read else None
        if hrefs is not None:
            found, seen, n_more = self._sift(page, hrefs.shown, crawl)
            hidden = self._sift(page, hrefs.hidden, crawl)[0] if hrefs.hidden else []
            answers = crawl.ask([one.known for one in (*found, *hidden)])
            if all(answer.is_seen for answer in answers.values()):
                tags.saved_parsing()
                crawl.unseen(found, seen, n_more, answers)
                return []
        parts = self._parts(response)
        found, seen, n_more = self._sift(page, self._values(parts), crawl)
        unseen = crawl.unseen(found, seen, n_more, answers)
        tags.had_to_parse(has_new=bool(unseen), was_read=is_read)
        if not unseen:
            return []
        links, at = [], 0
        with _plain_elements(parts):
            elements = self._elements(parts)
            for place, url, _ in unseen:
                element = next(islice(elements, place - at, None))
                at = place + 1
                text = _text_of(element) if len(element) else element.text  # an XPath takes 5 microseconds
                links.append(Link(url, text or "", nofollow=rel_has_nofollow(element.get("rel"))))
        return links

    def _sift(self, page: Page, values: list[str | None], crawl: CrawlLinks) -> tuple[list[Found], list[str], int]:
        is_unique = self.link_extractor.unique
        return sift(page, values, crawl.certain, is_unique=is_unique, names_seen=crawl.is_debugging)

    def _parts(self, response: TextResponse) -> list[Selector]:
        if self.restrict_xpaths:
            return [part for xpath in self.restrict_xpaths for part in response.xpath(xpath)]
        return [response.selector]

    def _attributes(self, parts: list[Selector]) -> Iterator[tuple[Any, str | None]]:
        """Yield each attribute of *parts* that may be a link behind its element, in the order of Scrapy's extractor."""
        for part in parts:
            if self._takes_any or part.type != "html":  # outside of HTML, names have namespaces
                for element, _, value in self.link_extractor._iter_links(part.root):
                    yield element, value
            elif self._tags:  # iter() without names yields all elements
                for element in part.root.iter(*self._tags):
                    if self._only_attr is not None:
                        yield element, element.get(self._only_attr)
                    else:
                        for name, value in element.items():
                            if name in self._attrs:
                                yield element, value

    def _elements(self, parts: list[Selector]) -> Iterator[Any]:
        """Yield the element of each attribute, in the same order."""
        if self._has_one_attribute(parts):
            yield from parts[0].root.iter(*self._tags)
        else:
            for element, _ in self._attributes(parts):
                yield element

    def _values(self, parts: list[Selector]) -> list[str | None]:
        """Return the attributes without their elements: keeping those takes three times as long as the walk."""
        if not self._has_one_attribute(parts):
            return [value for _, value in self._attributes(parts)]
        with _plain_elements(parts):
            return list(map(_get_attribute, parts[0].root.iter(*self._tags), repeat(self._only_attr_name)))

    def _has_one_attribute(self, parts: list[Selector]) -> bool:
        """Whether each element of certain names has one value, which may be None."""
        return (
            len(parts) == 1 and parts[0].type == "html" and bool(self._tags and self._only_attr) and not self._takes_any
        )

    def _memory(self, crawl: CrawlLinks, fingerprint_url: Callable[[str], bytes]) -> HrefMemory | None:
        """Return the memory for *crawl*; None if results may differ from page to page."""
        inner = self.link_extractor
        arguments = (
            self.allow_res,
            self.deny_res,
            self.allow_domains,
            self.deny_domains,
            self.deny_extensions,
            self.restrict_text,
            self.canonicalize,
            (inner, inner.strip, inner.process_attr, inner.link_key, inner.scan_tag, inner.scan_attr),
        )
        found = self._memories.get(crawl)
        if found is None or found[0] != arguments:
            # The lists may be changed in place.
            copies = tuple(copy(argument) if isinstance(argument, (list, set)) else argument for argument in arguments)
            memory = self._new_memory(fingerprint_url, shares=crawl.ignores_fragments) if self._remembers else None
            found = self._memories[crawl] = copies, memory
        return found[1]

    @property
    def _remembers(self) -> bool:
        """Whether a raw value comes to the same on every page, by Scrapy's own code."""
        inner = self.link_extractor
        return (
            not self.restrict_text
            and inner.process_attr is _PLAIN.process_attr
            and type(inner) is type(_PLAIN)
            and (inner.scan_tag, inner.scan_attr) == self._scans
            and inner.link_key(_ODD_LINK) == _ODD_LINK.url  # else, before Scrapy 2.18, with canonicalize=True
            and all(getattr(type(self), name) is getattr(LinkExtractor, name) for name in _REMEMBERED)
            and all(re.fullmatch(r"\.[^/]*", extension) for extension in self.deny_extensions)
        )

    def _new_memory(self, fingerprint_url: Callable[[str], bytes], *, shares: bool) -> HrefMemory:
        allow, deny = list(self.allow_res), list(self.deny_res)

        def fits(url: str) -> bool:
            return (not allow or any(one.search(url) for one in allow)) and not any(one.search(url) for one in deny)

        of_pages = copy(self)
        of_pages.allow_res, of_pages.deny_res = [], []
        return HrefMemory(
            self._resolve,
            fingerprint_url,
            is_wanted=lambda url: of_pages._link_allowed(Link(url)),
            fits=fits if allow or deny else None,
            shares=shares,
            finish=canonicalize_url if self.canonicalize else None,
        )

    def _resolve(self, value: str, base: str, page_url: str, encoding: str) -> str | None:
        """Return the URL that Scrapy's extractor makes of *value*, None if it skips it."""
        try:
            url = urljoin(base, strip_html5_whitespace(value) if self.link_extractor.strip else value)
            url = safe_url_string(url, encoding=encoding)
        except ValueError:
            return None
        return urljoin(page_url, url)
