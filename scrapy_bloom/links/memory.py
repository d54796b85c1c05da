"""Finds the new links of a page, and remembers the raw text of the others.

Nearly every link of a site is on a hundred pages. Making its URL and asking the filter takes 20 microseconds; finding
its text in a set takes a hundredth of that.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from w3lib.url import safe_url_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from scrapy_bloom.crawl.crawl import Decisions
    from scrapy_bloom.url.fingerprint import Fingerprints

MOST_KNOWN = 200_000
"""Links remembered, some 30 MB; past that, all are forgotten and learned anew."""

LINKS_OF_A_PLACE = 5
"""A site or a folder counts as so many links: it takes some 0.7 kB, and each page may be a folder of its own."""

_split_base = re.compile(r"([a-z][a-z0-9+.\-]*://[^/?#]*)([^?#]*/)?").match

# Links that lead to the same URL from every page of a site, and from every page of a folder. Other links, such as
# "?page=2" and "#top", depend on the page. So may links with spaces and control characters: some of these are removed.
_is_of_site = re.compile(r"/(?!/)[^\x00-\x20]*|(?:https?:)?//[A-Za-z0-9][^\x00-\x20]*").fullmatch
_is_of_folder = re.compile(r"(?!https?:)[a-z0-9_.~%\-][^\x00-\x20]*", re.IGNORECASE).fullmatch

# A directory, and behind it text that neither joining nor quoting changes, if the page's encoding extends ASCII.
_SEGMENT = r"[A-Za-z0-9_~\-][A-Za-z0-9_~\-.]*"
_PLAIN = r"[A-Za-z0-9_~\-./=&]+"
_ASCII = "".join(map(chr, range(33, 127)))
_match_plain = re.compile(
    r"((?:\.\./)*|(?:https?://[a-z0-9.\-]+(?::[0-9]+)?)?/)"
    rf"({_SEGMENT}(?:/{_SEGMENT})*/?(?:\?{_PLAIN})?(?:#{_PLAIN})?)"
).fullmatch


@dataclass(frozen=True)
class _Place:
    """A site, or one of its folders, and the links that mean the same on all of its pages."""

    seen: dict[str, bytes] = field(default_factory=dict)
    """The fingerprint of the request of each link that was seen, by the text of the link."""
    unwanted: set[str] = field(default_factory=set)
    directories: dict[str, str] = field(default_factory=dict)
    """The URL of each directory that links begin with, by the text of the directory in the link."""


class LinkMemory:
    """Remembers the raw links on the pages of one crawl."""

    def __init__(self, is_wanted: Callable[[str], bool] = lambda _url: True) -> None:
        """Create an empty memory. *is_wanted* returns whether the caller wants the link to a URL."""
        self._is_wanted = is_wanted
        self._places: dict[tuple[str, ...], _Place] = {}
        self._size = 0
        self._epoch: tuple[int, ...] = ()

    def new(
        self, links: Iterable[str], base: str, encoding: str, decisions: Decisions, fingerprints: Fingerprints
    ) -> set[str]:
        """Return the raw *links* of a page that are wanted and were not seen; count the links that were seen.

        Links that cannot be checked count as new. Links that were seen are votes for their pages: the loop guard counts
        them as it counts duplicate requests.

        Args:
            links: The text of each, without white space around it.
            base: The URL that they are relative to.
            encoding: The encoding of the page, in which queries are quoted.
            decisions: Those of the crawl, in every call the same. The memory does not keep the crawl alive.
            fingerprints: How the crawl makes fingerprints.

        """
        of_url, parts = fingerprints.of_url, _split_base(base)
        if of_url is None or parts is None:
            return set(links)
        self._forget_outdated(decisions.epoch)
        site = self._place(parts[1], encoding)
        folder = self._place(parts[1], parts[2] or "/", encoding)

        wanted = set(links) - site.unwanted - folder.unwanted
        fresh = wanted.difference(site.seen).difference(folder.seen)
        votes = [site.seen.get(link) or folder.seen[link] for link in wanted.difference(fresh)]
        is_ascii = _ASCII.encode(encoding) == _ASCII.encode()
        shares = is_ascii and fingerprints.ignore_fragments  # one fingerprint for all fragments of a page
        if fresh and shares:
            page_fingerprint = _fingerprint_if_seen(base, of_url, decisions)
            of_fragments = self._seen_without_fragment(fresh, page_fingerprint, site, folder)
            fresh, votes = fresh - of_fragments.keys(), [*votes, *of_fragments.values()]
        urls: dict[str, str] = {}
        of_links: list[bytes] = []
        for link in fresh:
            with suppress(Exception):  # it is not a URL, or a user's own rule fails on it
                url = _joined(link, base, encoding, folder if is_ascii else None)
                of_links.append(of_url(url))
                urls[link] = url
        unseen: dict[str, str] = {}
        for (link, url), fingerprint, is_seen in zip(urls.items(), of_links, decisions.seen(of_links), strict=True):
            if is_seen:
                for seen in {link, link.partition("#")[0]} if shares else {link}:
                    self._remember(seen, fingerprint, site, folder)
                votes.append(fingerprint)
            else:
                unseen[link] = url
        decisions.note_dropped(votes)
        return (fresh - urls.keys()) | self._allowed(unseen, decisions, site, folder)

    def _forget_outdated(self, epoch: tuple[int, ...]) -> None:
        """Begin anew if a seen link may have become new since, or if too much is remembered."""
        if self._epoch != epoch or self._size > MOST_KNOWN:
            self._places, self._size, self._epoch = {}, 0, epoch

    def _seen_without_fragment(
        self, links: Iterable[str], page_fingerprint: bytes | None, site: _Place, folder: _Place
    ) -> dict[str, bytes]:
        """Return those *links* with a fragment whose page was seen, each with the fingerprint of that page.

        *page_fingerprint* is the fingerprint of the page that contains the links, if that was seen.
        """
        seen = {}
        for link in links:
            head, mark, _ = link.partition("#")
            fingerprint = (site.seen.get(head) or folder.seen.get(head) if head else page_fingerprint) if mark else None
            if fingerprint is not None:
                seen[link] = fingerprint
                self._remember(link, fingerprint, site, folder)
        return seen

    def _allowed(self, unseen: Mapping[str, str], decisions: Decisions, site: _Place, folder: _Place) -> set[str]:
        """Return those links of *unseen*, URLs by link, that are wanted and within the limits of the loop guard."""
        wanted = {link: url for link, url in unseen.items() if self._is_wanted(url)}
        within = decisions.within_limits([*wanted.values()])
        allowed = {link for link, is_within in zip(wanted, within, strict=True) if is_within}
        for link in unseen.keys() - allowed:
            self._remember(link, None, site, folder)
        return allowed

    def _place(self, *key: str) -> _Place:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place()
            self._size += LINKS_OF_A_PLACE
        return place

    def _remember(self, link: str, fingerprint: bytes | None, site: _Place, folder: _Place) -> None:
        """Remember *link* as seen by the *fingerprint* of its request, or without one as unwanted."""
        place = site if _is_of_site(link) else folder if _is_of_folder(link) else None
        if place is not None and fingerprint is None:
            place.unwanted.add(link)
        elif place is not None and fingerprint is not None:
            place.seen[link] = fingerprint
        self._size += 1


def _joined(link: str, base: str, encoding: str, folder: _Place | None) -> str:
    """Return the URL of *link* as Scrapy makes it; ValueError if there is none. In a *folder*, much faster."""
    match = _match_plain(link)
    if match is None or folder is None:
        return _resolved(link, base, encoding)
    directory = folder.directories.get(match[1])
    if directory is None:
        directory = _resolved(match[1] + "x", base, encoding).removesuffix("x")
        folder.directories[match[1]] = directory
    return directory + match[2]


def _resolved(link: str, base: str, encoding: str) -> str:
    """Return the URL of *link*, resolved twice as Scrapy does: above a root, Python 3.13.0 gives "file:x" first."""
    return urljoin(base, safe_url_string(urljoin(base, link), encoding=encoding))


def _fingerprint_if_seen(url: str, of_url: Callable[[str], bytes], decisions: Decisions) -> bytes | None:
    try:
        fingerprint = of_url(url)
    except Exception:  # of a user's own rule
        return None
    return fingerprint if decisions.seen([fingerprint])[0] else None
