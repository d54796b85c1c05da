"""What each raw ``href`` of a site came to, so that the same link on the next page costs a look-up.

On a link-rich site nearly every link is on a hundred pages, and resolving, quoting and checking it takes 25
microseconds each time. Knows neither Scrapy's extractors nor the filter: the caller passes the function that turns an
``href`` into a URL, and the one that makes the fingerprint.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import urlparse, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

MEMORY_BYTES = 32 * 1024 * 1024
"""Most bytes of one memory, some 60,000 links; beyond it, the folders not visited for longest are forgotten."""

_ENTRY_BYTES = 320
"""Bytes of one link besides the characters of its two strings (on average 250 over 45,000 links of one site)."""

_LONGEST = 2083
"""Most characters of an ``href`` that is remembered. Longer ones are mostly ``data:`` and ``javascript:``."""

_TABLE_BYTES = 700
"""Bytes of a folder's table without links, with its place among the others."""

_MOST_ENDINGS = 200
"""Most endings of names remembered for a site."""

_MOST_PAGES = 20_000
"""Most pages of a site known to all of its folders, 8 MiB; each folder keeps those it links to, whatever happens."""

_WEB = ("http", "https")

_HTML_SPACE = " \t\n\r\f"

# Nothing in such a fragment, or name of a file, is changed by joining and quoting.
_is_plain_fragment = re.compile(r"[A-Za-z0-9._\-]+").fullmatch
_are_plain_fragments = re.compile(r"[A-Za-z0-9._\-]*").fullmatch
_match_plain_path = re.compile(r"((?:[A-Za-z0-9._~\-/:]*/)?)([A-Za-z0-9_~\-][A-Za-z0-9._~\-]*)").fullmatch

_match_below = re.compile(r"((?:\.\./)*)((?:[A-Za-z0-9_~\-][A-Za-z0-9._~\-]*/)+)").fullmatch
_match_origin = re.compile(r"https?://[a-z0-9.\-]+(?::[0-9]+)?(?=[/?#])").match


class Known:
    """What an ``href`` came to, together with those that differ from it in their fragment only."""

    __slots__ = ("fingerprint", "is_wanted", "is_within_limits", "link_url", "seen_in", "takes_fragments", "url")

    def __init__(self, url: str, fingerprint: bytes | None, link_url: str | None = None) -> None:
        self.url = url
        self.link_url = url if link_url is None else link_url
        """The URL of the link that comes out."""
        self.fingerprint = fingerprint
        """None if none can be made: the link passes, and its request fails where the spider sees it."""
        self.seen_in: int | None = None
        """The epoch of the filter in which it was seen."""
        self.is_within_limits = False
        """Whether the limits of the loop guard are known to allow it."""
        self.is_wanted = True
        """Whether it is wanted without a fragment; if not, it may be wanted with one."""
        self.takes_fragments: bool | None = False
        """Whether a plain fragment passes unchanged from the ``href`` to the URL; None: not tried yet."""

    @classmethod
    def of(cls, url: str, fingerprint_url: Callable[[str], bytes] | None, link_url: str | None = None) -> Known:
        """Return what is known of a link to *url*, which comes out as *link_url*."""
        if fingerprint_url is None:
            return cls(url, None, link_url)
        try:
            return cls(url, fingerprint_url(url if link_url is None else link_url), link_url)
        except Exception:  # its request fails, or not, as without us
            return cls(url, None, link_url)


def _unwanted(*, takes_fragments: bool) -> Known:
    known = Known("", None)
    known.is_wanted = False
    known.takes_fragments = takes_fragments
    return known


_UNWANTED = _unwanted(takes_fragments=False)
_UNWANTED_PAGE = _unwanted(takes_fragments=True)
"""A page that is not wanted, whatever the fragment."""


class Found(NamedTuple):
    """A link that may be new."""

    place: int
    """Index of its ``href`` among those given."""
    url: str
    """Its URL, with its own fragment."""
    known: Known
    """What is known of it, and of others that have the same fingerprint."""


@dataclass
class Stem:
    """What the directory in front of a file's name came to, if the name itself stays unchanged."""

    url: str
    """Its URL, with the slash; empty if each ``href`` in that directory must be resolved by itself."""
    table: Table | None
    """Where they can be remembered."""
    wanted: dict[str, bool] = field(default_factory=dict)
    """Whether names of files are wanted, by what they have from their first dot on."""


class Table(dict[str, Known]):
    """What the hrefs of one folder, or of one site, came to."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = _TABLE_BYTES
        self.stems: dict[str, Stem] = {}
        """By the directory in the ``href``."""
        self.wanted: dict[str, bool] = {}
        """Of a site: whether names of files are wanted there, by what they have from their first dot on."""
        self.pages: dict[str, Known] = {}
        """Of a site: what is known of the pages it links to, by URL; each of its folders spells their hrefs anew."""
        self.pages_nbytes = 0
        """How many of the bytes are those of the pages."""


class Page:
    """One page's view of the memory."""

    __slots__ = ("_context", "_in_folder", "_in_origin", "_memory", "_on_page", "_root")

    def __init__(
        self, memory: HrefMemory, in_folder: Table, in_origin: Table, root: str, context: tuple[str, str, str]
    ) -> None:
        self._in_folder = in_folder
        self._in_origin = in_origin
        self._on_page = Table()  # for hrefs that mean something else on the next page
        self._memory = memory
        self._root = root
        self._context = context

    def sift(
        self, raws: Sequence[str | None], certain: int, *, is_unique: bool, names_seen: bool = False
    ) -> tuple[list[Found], list[str], int]:
        """Return those of *raws* that may be new, URLs seen in the epoch *certain*, and how many more were seen then.

        Leaves out None, what nobody wants, and, if *is_unique*, all links to a URL but the first. With *names_seen*
        the URLs are those of all that were seen.
        """
        memory = self._memory
        if names_seen or not memory.shares:
            found, seen = self._sift_each(enumerate(raws), certain, is_unique=is_unique)
            return found, seen, 0
        # Most links of most pages were seen before, so hrefs are counted by the page they lead to, and looked at one
        # by one only where something is left to ask.
        hrefs = cast("dict[str, None]", dict.fromkeys(raws))
        hrefs.pop(None, None)  # type: ignore[call-overload] # here they go
        odd = self._take_odd(hrefs)
        if is_unique:
            heads = [raw.partition("#")[0] for raw in hrefs]
        else:
            heads = [raw.partition("#")[0] for raw in raws if raw is not None and raw not in odd]
        in_folder, in_origin, on_page = self._in_folder.get, self._in_origin.get, self._on_page.get
        n_seen = 0
        seen_heads: dict[str, list[str]] = {}
        repeated: dict[str, str] = {}
        doubtful: set[str] = set()
        for head, n in Counter(heads).items():
            at = head or "#"
            known = in_folder(at) or in_origin(at) or on_page(at) or self._learn(at)
            if known is _UNWANTED_PAGE:
                continue
            if not known.takes_fragments and not (
                (n == 1 and head in hrefs and "#" not in known.url)
                or (known.takes_fragments is None and self._takes_fragments(known, at))
            ):
                doubtful.add(head)
            elif not known.is_wanted:
                continue
            elif known.seen_in != certain:
                doubtful.add(head)
            else:
                n_seen += n
                url = known.link_url
                same = seen_heads.get(url)
                if same is None:
                    seen_heads[url] = [head]
                else:
                    repeated[same[0]] = repeated[head] = url
                    same.append(head)
        if is_unique:
            if not memory.keeps_fragments:
                n_seen = len(seen_heads)
            elif repeated:
                pairs = [pair for pair in zip(hrefs, heads, strict=True) if pair[1] in repeated]
                n_seen -= len(pairs) - len({(repeated[head], raw.partition("#")[2]) for raw, head in pairs})
        if not doubtful and not odd:
            return [], [], n_seen
        rest = odd.union([raw for raw in hrefs if raw.partition("#")[0] in doubtful]) if doubtful else odd
        if "" in doubtful:
            rest.update(("", "#"))
        found, seen = self._sift_each(
            [(place, raw) for place, raw in enumerate(raws) if raw in rest], certain, is_unique=is_unique
        )
        if is_unique and seen_heads:
            found = [one for one in found if not self._is_among(one.url, hrefs, seen_heads)]
            seen = [url for url in seen if not self._is_among(url, hrefs, seen_heads)]
        return found, seen, n_seen

    def _take_odd(self, hrefs: dict[str, None]) -> set[str]:
        """Take those out of *hrefs* whose fragment may matter, or may be changed by joining and quoting.

        Of the two that mean the page itself, leave the empty one.
        """
        odd: set[str] = set()
        if "" in hrefs and not self._is_plain:
            odd.add("")
        if self._memory.fits is not None:
            odd.update([raw for raw in hrefs if "#" in raw])
        else:
            if "#" in hrefs and not odd:
                del hrefs["#"]
                hrefs[""] = None
            fragments = [raw.partition("#")[2] for raw in hrefs]
            n_marks = "\n".join(hrefs).count("#")
            if n_marks != len(fragments) - fragments.count("") or not _are_plain_fragments("".join(fragments)):
                odd.update([raw for raw in hrefs if "#" in raw and not _is_plain_fragment(raw.partition("#")[2])])
        for raw in odd:
            del hrefs[raw]
        return odd

    def _is_among(self, url: str, hrefs: dict[str, None], heads: dict[str, list[str]]) -> bool:
        """Whether one of *hrefs* with one of *heads*, which are given by their URL, has this *url*."""
        page, mark, fragment = url.partition("#")
        same = heads.get(page)
        if same is None:
            return False
        return not self._memory.keeps_fragments or any(f"{head}{mark}{fragment}" in hrefs for head in same)

    @property
    def _is_plain(self) -> bool:
        """Whether the page's base URL has nothing but a plain path: then ``""`` and ``"#"`` mean the same."""
        return _match_plain_path(self._context[0]) is not None

    def _sift_each(
        self, places: Iterable[tuple[int, str | None]], certain: int, *, is_unique: bool
    ) -> tuple[list[Found], list[str]]:
        """Return what may be new and the URLs of all that were seen, of hrefs with their *places*."""
        in_folder, in_origin, on_page = self._in_folder.get, self._in_origin.get, self._on_page.get
        shares, fits, keeps_fragments = self._memory.shares, self._memory.fits, self._memory.keeps_fragments
        had: set[str] = set()
        urls: set[str] = set()
        found: list[Found] = []
        seen: list[str] = []
        for place, raw in places:
            if raw is None or raw in had:
                continue
            if is_unique:
                had.add(raw)
            head, mark, fragment = raw.partition("#") if shares else (raw, "", "")
            head = head or mark  # "" is the page with the fragment that its own URL may have
            known = in_folder(head) or in_origin(head) or on_page(head) or self._learn(head)
            if not mark:
                if not known.is_wanted:
                    continue
                url = known.link_url
            elif (known.takes_fragments or self._takes_fragments(known, head)) and _is_plain_fragment(fragment):
                if known is _UNWANTED_PAGE or (fits is not None and not fits(f"{known.url}#{fragment}")):
                    continue
                url = f"{known.link_url}#{fragment}" if keeps_fragments else known.link_url
            else:
                known = in_folder(raw) or in_origin(raw) or on_page(raw) or self._learn(raw)
                if not known.is_wanted:
                    continue
                url = known.link_url
            if is_unique:
                if url in urls:
                    continue
                urls.add(url)
            if known.seen_in == certain:
                seen.append(url)
            else:
                found.append(Found(place, url, known))
        return found, seen

    def _learn(self, raw: str) -> Known:
        """Resolve *raw*, and remember the result if it is the same for every page of the folder or site."""
        match = _match_plain_path(raw)
        if match and len(raw) <= _LONGEST:  # another spelling of a page that is known takes a microsecond
            stem = self._in_folder.stems.get(match[1]) or self._in_origin.stems.get(match[1])
            if stem is not None and stem.table is not None and stem.url:
                url = stem.url + match[2]
                page = self._in_origin.pages.get(url)
                if page is not None:
                    stem.table[raw] = page
                    self._count(stem.table, raw, url)
                    return page
        if raw == "#" or (not raw and self._is_plain):  # the page itself, which is remembered by its URL like others
            known, table = self._resolved(self._context[0].partition("#")[0])[0], None
        else:
            known, table = self._resolved(raw)
        if table is None or len(raw) > _LONGEST:
            self._on_page[raw] = known
        else:
            table[raw] = known
            self._count(table, raw, known.url)
        return known

    def _resolved(self, raw: str) -> tuple[Known, Table | None]:
        """Return what *raw* comes to, and where that can be remembered."""
        memory = self._memory
        match = _match_origin(raw)
        if match:
            root = f"{match[0]}/"
            stem = self._in_origin.stems.get(root) or self._stem(root)
            if stem.url and not self._is_wanted(stem, ""):
                return _UNWANTED_PAGE, stem.table
        match = _match_plain_path(raw)
        if match:
            stem = self._stem(match[1])
            if stem.url:
                return self._named(stem, match[2]), stem.table
        url = memory.resolve(raw, *self._context)
        if url is None:
            return memory.unresolved, None
        table = self._table(raw)
        if (memory.fits is None or memory.fits(url)) and memory.is_wanted(url):
            known = memory.known(url)
            known.takes_fragments = None if memory.shares else False
            return known, table
        return _UNWANTED, table

    def _named(self, stem: Stem, name: str) -> Known:
        """Return what is known of the file *name* in the directory *stem*."""
        memory = self._memory
        dot = name.find(".")
        if not self._is_wanted(stem, name[dot:] if dot >= 0 else ""):
            return _UNWANTED_PAGE
        url = stem.url + name
        site = self._in_origin
        known = site.pages.get(url)
        if known is None:
            known = memory.known(url)
            known.takes_fragments = memory.shares
            known.is_wanted = memory.fits is None or memory.fits(url)
            if len(site.pages) >= _MOST_PAGES:
                site.pages.clear()
                site.nbytes -= site.pages_nbytes
                memory.nbytes -= site.pages_nbytes
                site.pages_nbytes = 0
            site.pages[url] = known
            site.pages_nbytes += self._count(site, "", url)
        return known

    def _is_wanted(self, stem: Stem, ending: str) -> bool:
        is_wanted = stem.wanted.get(ending)
        if is_wanted is None:
            if len(stem.wanted) >= _MOST_ENDINGS:
                stem.wanted.clear()
            is_wanted = stem.wanted[ending] = self._memory.is_wanted(f"{stem.url}x{ending}")
        return is_wanted

    def _stem(self, directory: str) -> Stem:
        stem = self._in_folder.stems.get(directory) or self._in_origin.stems.get(directory)
        if stem is not None:
            return stem
        stem = self._on_page.stems.get(directory)
        if stem is not None:
            return stem
        stem = self._new_stem(directory)
        table = self._on_page if stem.table is None or len(directory) > _LONGEST else stem.table
        table.stems[directory] = stem
        if table is not self._on_page:
            self._count(table, directory, stem.url)
        return stem

    def _new_stem(self, directory: str) -> Stem:
        match = _match_below(directory)
        if match:
            above = self._stem(match[1])
            if above.url:
                return Stem(above.url + match[2], above.table, above.wanted)
        url, table = self._memory.resolve(f"{directory}x", *self._context), self._table(f"{directory}x")
        if url is None or not _ends_in_path(url):
            return Stem("", table)
        return Stem(url[:-1], table, self._in_origin.wanted if url.startswith(self._root) else {})

    def _takes_fragments(self, known: Known, head: str) -> bool:
        if known.takes_fragments is None:
            with_fragment = self._memory.resolve("#x" if head == "#" else f"{head}#x", *self._context)
            known.takes_fragments = with_fragment == f"{known.url}#x"
        return known.takes_fragments

    def _count(self, table: Table, raw: str, url: str) -> int:
        nbytes = _ENTRY_BYTES + (len(raw) if raw.isascii() else 4 * len(raw)) + len(url)
        table.nbytes += nbytes
        self._memory.nbytes += nbytes
        return nbytes

    def _table(self, raw: str) -> Table | None:
        """Return where *raw* can be remembered: there, the rest of the page's URL must not matter to it."""
        if raw != raw.strip(_HTML_SPACE):
            return None  # how it is stripped depends on the resolver and on Python
        scheme, host, path, *_ = urlparse(raw)  # the parts that urljoin() looks at
        if scheme in ("http", "https"):
            return self._in_origin if host else None  # "http:x" is relative to a page with the same scheme
        if scheme or host or path[:1] == "/":
            return self._in_origin
        return self._in_folder if path else None


def _ends_in_path(url: str) -> bool:
    """Whether *url* is one of the web, and what it ends in, an ``x``, is the last segment of its path."""
    scheme, netloc, path, query, fragment = urlsplit(url)
    return scheme in _WEB and bool(netloc) and path.endswith("/x") and not query and not fragment and url[-1] == "x"


class HrefMemory:
    """What raw hrefs came to on the pages of one crawl, within :data:`MEMORY_BYTES` and the links of one page.

    resolve           makes a URL, or None, of a raw href, the page's base URL, its URL and its encoding, and of nothing
                      else. It joins and quotes as the web does: a plain file name, or a plain fragment, comes out
                      unchanged.
    fingerprint_url   the fingerprint of a URL.
    is_wanted         whether a URL is asked for. Must not depend on the fragment; for a URL that ends in its path, only
                      on the site and on the file's name from its first dot on. If no name without a dot is wanted on
                      a site, nothing there is.
    fits              whether a URL with its fragment is asked for, in addition to *is_wanted*. None: all are.
    shares            whether URLs that differ only in their fragment certainly have one fingerprint.
    finish            turns a wanted URL into the one that comes out, without its fragment. None: left as it is.
    passes_unresolved whether hrefs of which no URL can be made are wanted.
    """

    def __init__(
        self,
        resolve: Callable[[str, str, str, str], str | None],
        fingerprint_url: Callable[[str], bytes],
        *,
        is_wanted: Callable[[str], bool] = lambda _: True,
        fits: Callable[[str], bool] | None = None,
        shares: bool = False,
        finish: Callable[[str], str] | None = None,
        passes_unresolved: bool = False,
    ) -> None:
        self.resolve = resolve
        self.fingerprint_url = fingerprint_url
        self.is_wanted = is_wanted
        self.fits = fits
        self.shares = shares
        self.keeps_fragments = finish is None
        self.unresolved = Known("", None) if passes_unresolved else _UNWANTED
        self.nbytes = 0
        """What is remembered, in bytes, as estimated when it was learned."""
        self._finish = finish
        self._tables: OrderedDict[Hashable, Table] = OrderedDict()

    def known(self, url: str) -> Known:
        """Return what is known of a link to *url*, which is wanted."""
        return Known.of(url, self.fingerprint_url, None if self._finish is None else self._finish(url))

    def page(self, base: str, url: str, encoding: str) -> Page | None:
        """Return the view of a page with this base URL, URL and encoding; None for what is not on the web.

        Forgets the folders not visited for longest if there is too much.
        """
        try:
            parts = urlsplit(base)
            own = parts if url == base else urlsplit(url)
        except ValueError:
            return None
        if not (parts.scheme in _WEB and own.scheme in _WEB and parts.netloc):
            return None
        while self.nbytes > MEMORY_BYTES:
            _, table = self._tables.popitem(last=False)
            self.nbytes -= table.nbytes
        # Joining compares schemes, and quoting uses the encoding.
        origin = (parts.scheme, parts.netloc, own.scheme, encoding)
        root = f"{parts.scheme}://{parts.netloc}/"
        folder = parts.path[: parts.path.rfind("/") + 1]
        return Page(self, self._use((*origin, folder)), self._use(origin), root, (base, url, encoding))

    def _use(self, context: Hashable) -> Table:
        table = self._tables.get(context)
        if table is None:
            table = self._tables[context] = Table()
            self.nbytes += table.nbytes
        else:
            self._tables.move_to_end(context)
        return table
