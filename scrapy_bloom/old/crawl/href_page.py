"""One page's view of what the hrefs of its site came to: :class:`Page` looks them up, and learns those not known yet.

Knows how an ``href`` is joined with the URL of its page, and which part of that URL it depends on. Does not know how
many hrefs the page has, nor which of them are dropped (``href_sift``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlparse, urlsplit

from scrapy_bloom.old.crawl.href_memory import UNWANTED, UNWANTED_PAGE, Stem

if TYPE_CHECKING:
    from scrapy_bloom.old.crawl.href_memory import HrefMemory, Known, Table

_LONGEST = 2083
"""Most characters of an ``href`` that is remembered. Longer ones are mostly ``data:`` and ``javascript:``."""

_MOST_ENDINGS = 200
"""Most endings of names remembered for a site."""

_WEB = ("http", "https")

_HTML_SPACE = " \t\n\r\f"

# Nothing in such a path is changed by joining and quoting.
_match_plain_path = re.compile(r"((?:[A-Za-z0-9._~\-/:]*/)?)([A-Za-z0-9_~\-][A-Za-z0-9._~\-]*)").fullmatch
_match_plain_url = re.compile(
    r"(https?)://([a-z0-9.\-]+(?::[0-9]+)?)(/(?:[A-Za-z0-9_~\-][A-Za-z0-9._~\-]*/)*)(?:[A-Za-z0-9_~\-][A-Za-z0-9._~\-]*)?"
).fullmatch

_match_below = re.compile(r"((?:\.\./)*)((?:[A-Za-z0-9_~\-][A-Za-z0-9._~\-]*/)+)").fullmatch
_match_origin = re.compile(r"https?://[a-z0-9.\-]+(?::[0-9]+)?(?=[/?#])").match


class Page:
    """One page's view of the memory."""

    __slots__ = ("_context", "_in_folder", "_in_origin", "_on_page", "_root", "_stems", "is_plain", "memory")

    def __init__(
        self,
        memory: HrefMemory,
        in_folder: Table,
        in_origin: Table,
        root: str,
        context: tuple[str, str, str],
        *,
        is_plain: bool,
    ) -> None:
        self.memory = memory
        self._in_folder = in_folder
        self._in_origin = in_origin
        self._on_page: dict[str, Known] = {}
        """What hrefs came to that mean something else on the next page."""
        self._stems: dict[str, Stem] = {}
        """Directories likewise."""
        self._root = root
        self._context = context
        self.is_plain = is_plain
        """Whether the base URL has nothing but a plain path: then ``""`` and ``"#"`` mean the same."""

    @property
    def tables(self) -> tuple[dict[str, Known], dict[str, Known], dict[str, Known]]:
        """What is known of hrefs, for the folder, the site and the page; what none of them has is to be learned."""
        return self._in_folder, self._in_origin, self._on_page

    def learn(self, raw: str) -> Known:
        """Resolve *raw*, and remember the result if it is the same for every page of the folder or site."""
        known, table = self._resolved(raw)
        if table is None or len(raw) > _LONGEST:
            self._on_page[raw] = known
        else:
            self.memory.remember(table, raw, known)
        return known

    def takes_fragments(self, known: Known, head: str) -> bool:
        """Whether a plain fragment behind *head*, which came to *known*, is that of the URL."""
        if known.takes_fragments is None:
            with_fragment = self.memory.resolve("#x" if head == "#" else f"{head}#x", *self._context)
            known.takes_fragments = with_fragment == f"{known.url}#x"
        return known.takes_fragments

    def _resolved(self, raw: str) -> tuple[Known, Table | None]:
        """Return what *raw* comes to, and where that can be remembered."""
        if raw == "#" or (not raw and self.is_plain):  # the page itself, which is remembered by its URL like others
            raw = self._context[0].partition("#")[0]
            return self._in_origin.pages.get(raw) or self._resolved(raw)[0], None
        match = _match_origin(raw)
        if match:
            root = f"{match[0]}/"
            stem = self._in_origin.stems.get(root) or self._stem(root)
            if stem.url and not self._is_wanted(stem, ""):
                return UNWANTED_PAGE, stem.table
        match = _match_plain_path(raw)
        if match:
            stem = self._stem(match[1])
            if stem.url:
                return self._named(stem, match[2]), stem.table
        memory = self.memory
        url = memory.resolve(raw, *self._context)
        if url is None:
            return memory.unresolved, None
        table = self._table(raw)
        if (memory.fits is None or memory.fits(url)) and memory.is_wanted(url):
            known = memory.known(url)
            known.takes_fragments = None if memory.shares else False
            return known, table
        return UNWANTED, table

    def _named(self, stem: Stem, name: str) -> Known:
        """Return what is known of the file *name* in the directory *stem*."""
        url = stem.url + name
        known = self._in_origin.pages.get(url)
        if known is None:
            dot = name.find(".")
            if not self._is_wanted(stem, name[dot:] if dot >= 0 else ""):
                return UNWANTED_PAGE
            memory = self.memory
            known = memory.known(url)
            known.takes_fragments = memory.shares
            known.is_wanted = memory.fits is None or memory.fits(url)
            memory.remember_page(self._in_origin, known)
        return known

    def _is_wanted(self, stem: Stem, ending: str) -> bool:
        is_wanted = stem.wanted.get(ending)
        if is_wanted is None:
            if len(stem.wanted) >= _MOST_ENDINGS:
                stem.wanted.clear()
            is_wanted = stem.wanted[ending] = self.memory.is_wanted(f"{stem.url}x{ending}")
        return is_wanted

    def _stem(self, directory: str) -> Stem:
        stem = (
            self._in_folder.stems.get(directory) or self._in_origin.stems.get(directory) or self._stems.get(directory)
        )
        if stem is None:
            stem = self._new_stem(directory)
            if stem.table is None or len(directory) > _LONGEST:
                self._stems[directory] = stem
            else:
                stem.table.stems[directory] = stem
                self.memory.count(stem.table, directory, stem.url)
        return stem

    def _new_stem(self, directory: str) -> Stem:
        match = _match_below(directory)
        if match:
            above = self._stem(match[1])
            if above.url:
                return Stem(above.url + match[2], above.table, above.wanted)
        url, table = self.memory.resolve(f"{directory}x", *self._context), self._table(f"{directory}x")
        if url is None or not _ends_in_path(url):
            return Stem("", table)
        return Stem(url[:-1], table, self._in_origin.wanted if url.startswith(self._root) else {})

    def _table(self, raw: str) -> Table | None:
        """Return where *raw* can be remembered: there, the rest of the page's URL must not matter to it."""
        if raw != raw.strip(_HTML_SPACE):
            return None  # how it is stripped depends on the resolver and on Python
        scheme, host, path, *_ = urlparse(raw)  # the parts that urljoin() looks at
        if scheme in _WEB:
            return self._in_origin if host else None  # "http:x" is relative to a page with the same scheme
        if scheme or host or path[:1] == "/":
            return self._in_origin
        return self._in_folder if path else None


def page_of(memory: HrefMemory, base: str, url: str, encoding: str) -> Page | None:
    """Return the view of a page with this *base* URL, *url* and *encoding*; None for what is not on the web.

    Forgets the folders not visited for longest if there is too much.
    """
    plain = _match_plain_url(base)
    if plain and url == base:  # urlsplit() would take 5 microseconds
        scheme, host, folder = plain.groups()
        own_scheme = scheme
    else:
        try:
            scheme, host, path, *_ = urlsplit(base)
            own_scheme = urlsplit(url).scheme
        except ValueError:
            return None
        if not (scheme in _WEB and own_scheme in _WEB and host):
            return None
        folder = path[: path.rfind("/") + 1]
    memory.make_room()
    # Joining compares schemes, and quoting uses the encoding.
    origin = (scheme, host, own_scheme, encoding)
    tables = memory.table((*origin, folder)), memory.table(origin)
    return Page(memory, *tables, f"{scheme}://{host}/", (base, url, encoding), is_plain=plain is not None)


def _ends_in_path(url: str) -> bool:
    """Whether *url* is one of the web, and what it ends in, an ``x``, is the last segment of its path."""
    scheme, netloc, path, query, fragment = urlsplit(url)
    return scheme in _WEB and bool(netloc) and path.endswith("/x") and not query and not fragment and url[-1] == "x"
