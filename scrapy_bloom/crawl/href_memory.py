"""What each raw ``href`` of a site came to, so that the same link on the next page costs a look-up.

On a link-rich site nearly every link stands on a hundred pages, and resolving, quoting and checking it takes 25
microseconds each time. Knows neither Scrapy's extractors nor the filter: it is given the function that turns an
``href`` into a URL, and the one that makes the fingerprint.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlparse, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

MEMORY_BYTES = 32 * 1024 * 1024
"""What one memory may take, some 70,000 links; past it, the folders not visited for longest are forgotten."""

_ENTRY_BYTES = 320
"""Of one link besides its two strings: the object, its fingerprint, its place in the table (measured 290 to 330)."""

_LONGEST = 2083
"""Characters of an ``href`` that is remembered. Longer ones are ``data:`` and ``javascript:`` as a rule."""

_TABLE_BYTES = 700
"""Of a folder's table without any links, with its place among the others."""

_WEB = ("http", "https")

_HTML_SPACE = " \t\n\r\f"

_is_plain_fragment = re.compile(r"[A-Za-z0-9._\-]+").fullmatch


class Known:
    """What an ``href`` came to."""

    __slots__ = ("fingerprint", "is_within_limits", "seen_in", "url")

    def __init__(self, url: str, fingerprint: bytes | None) -> None:
        self.url = url
        self.fingerprint = fingerprint
        """None if it cannot be made: the link passes, and its request fails where the spider sees it."""
        self.seen_in: int | None = None
        """The epoch of the filter in which it was seen."""
        self.is_within_limits = False
        """Whether the limits of the loop guard are known to allow it."""

    @classmethod
    def of(cls, url: str, fingerprint_url: Callable[[str], bytes] | None) -> Known:
        """Return what is known of a link to *url*."""
        if fingerprint_url is None:
            return cls(url, None)
        try:
            return cls(url, fingerprint_url(url))
        except Exception:  # let its request fail, or not, as it would without us
            return cls(url, None)


UNWANTED = Known("", None)
"""For an ``href`` that is no link, or not a wanted one."""


@dataclass
class Template:
    """What hrefs come to that differ in their fragment only."""

    url: str
    """Up to where the fragment begins; empty if each of them has to be resolved by itself."""
    is_wanted: bool
    """Whether they are wanted, where fragments do not matter to that."""
    table: Table | None
    """Where they can be remembered."""
    newest: Known | None = None
    """The one of them that was wanted last. All are the same page: one fingerprint, seen or not."""

    def known(self, url: str, fingerprint_url: Callable[[str], bytes]) -> Known:
        """Return what is known of one that came to *url*."""
        newest = self.newest
        if newest is None:
            known = Known.of(url, fingerprint_url)
        else:
            known = Known(url, newest.fingerprint)
            known.seen_in = newest.seen_in
        self.newest = known
        return known


class Table(dict[str, Known]):
    """What the hrefs of one folder, or of one site, came to."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = _TABLE_BYTES
        self.templates: dict[str, Template] = {}
        """By what is in front of the fragment."""


class Page:
    """One page's view of the memory.

    A raw ``href`` is looked up in ``in_folder`` and ``in_origin``; it can only be in one of them. What is in neither
    is given to :meth:`learn`.
    """

    __slots__ = ("_context", "_memory", "_templates", "in_folder", "in_origin")

    def __init__(self, memory: HrefMemory, in_folder: Table, in_origin: Table, context: tuple[str, str, str]) -> None:
        self.in_folder = in_folder
        self.in_origin = in_origin
        self._memory = memory
        self._context = context
        self._templates: dict[str, Template] = {}  # of hrefs that belong to no table

    def learn(self, raw: str) -> Known:
        """Resolve *raw*, and remember the result if it is the same for every page of the folder or site."""
        memory = self._memory
        # A page has many links that differ in their fragment only. One in which nothing needs quoting comes out of
        # joining and quoting as it went in, behind whatever the rest has become.
        head, mark, fragment = raw.partition("#")
        template = self._template(head) if mark and _is_plain_fragment(fragment) else None
        url: str | None
        if template is not None and template.url:
            url, is_wanted, table = template.url + fragment, template.is_wanted, template.table
            if memory.fragments_matter:
                is_wanted = memory.is_wanted(url)
        else:
            template = None
            url = memory.resolve(raw, *self._context)
            if url is None:
                return UNWANTED
            is_wanted, table = memory.is_wanted(url), self._table(raw)
        if not is_wanted:
            known = UNWANTED
        elif template is not None and memory.shares:
            known = template.known(memory.finish(url), memory.fingerprint_url)
        else:
            known = Known.of(memory.finish(url), memory.fingerprint_url)
        if table is not None and len(raw) <= _LONGEST:
            table[raw] = known
            self._count(table, raw, known.url)
        return known

    def _template(self, head: str) -> Template:
        found = self._templates.get(head) or self.in_folder.templates.get(head) or self.in_origin.templates.get(head)
        if found is not None:
            return found
        memory = self._memory
        url = memory.resolve(f"{head}#x", *self._context)
        if url is None or not url.endswith("#x"):
            template = Template("", is_wanted=False, table=None)
        else:
            template = Template(url[:-1], memory.is_wanted(url), self._table(head))
        if template.table is None or len(head) > _LONGEST:
            self._templates[head] = template
        else:
            template.table.templates[head] = template
            self._count(template.table, head, template.url)
        return template

    def _count(self, table: Table, *texts: str) -> None:
        nbytes = _ENTRY_BYTES
        for text in texts:
            nbytes += sys.getsizeof(text)
        table.nbytes += nbytes
        self._memory.nbytes += nbytes

    def _table(self, raw: str) -> Table | None:
        """Return where *raw* can be remembered: there, the rest of the page's URL must not matter to it."""
        if raw != raw.strip(_HTML_SPACE):
            return None  # what strips it depends on the resolver and on Python
        scheme, host, path, *_ = urlparse(raw)  # the parts that urljoin() looks at
        if scheme in ("http", "https"):
            return self.in_origin if host else None  # "http:x" is relative to a page with the same scheme
        if scheme or host or path[:1] == "/":
            return self.in_origin
        return self.in_folder if path else None


class HrefMemory:
    """What raw hrefs came to on the pages of one crawl, within :data:`MEMORY_BYTES` and the links of one page.

    resolve           makes a URL, or None, of a raw href, the page's base URL, its URL and its encoding. Nothing else
                      may matter to it.
    fingerprint_url   the fingerprint of a URL.
    is_wanted         whether a URL is asked for. Nothing else may matter to it.
    fragments_matter  whether the fragment of a URL may matter to *is_wanted*.
    shares            whether URLs that differ in their fragment only have one fingerprint for certain.
    finish            what is done with a URL that is wanted.
    """

    def __init__(
        self,
        resolve: Callable[[str, str, str, str], str | None],
        fingerprint_url: Callable[[str], bytes],
        *,
        is_wanted: Callable[[str], bool] = lambda _: True,
        fragments_matter: bool = False,
        shares: bool = False,
        finish: Callable[[str], str] = lambda url: url,
    ) -> None:
        self.resolve = resolve
        self.fingerprint_url = fingerprint_url
        self.is_wanted = is_wanted
        self.fragments_matter = fragments_matter
        self.shares = shares
        self.finish = finish
        self.nbytes = 0
        """What is remembered, in bytes, as estimated when it was learned."""
        self._tables: OrderedDict[Hashable, Table] = OrderedDict()

    def page(self, base: str, url: str, encoding: str) -> Page | None:
        """Return the view of a page with this base URL, URL and encoding; None for what is not on the web.

        Forgets the folders not visited for longest if there is too much.
        """
        try:
            parts, own = urlsplit(base), urlsplit(url)
        except ValueError:
            return None
        if not (parts.scheme in _WEB and own.scheme in _WEB and parts.netloc):
            return None
        while self.nbytes > MEMORY_BYTES:
            _, table = self._tables.popitem(last=False)
            self.nbytes -= table.nbytes
        # Joining compares schemes, and quoting uses the encoding.
        origin = (parts.scheme, parts.netloc, own.scheme, encoding)
        folder = parts.path[: parts.path.rfind("/") + 1]
        return Page(self, self._use((*origin, folder)), self._use(origin), (base, url, encoding))

    def _use(self, context: Hashable) -> Table:
        table = self._tables.get(context)
        if table is None:
            table = self._tables[context] = Table()
            self.nbytes += table.nbytes
        else:
            self._tables.move_to_end(context)
        return table
