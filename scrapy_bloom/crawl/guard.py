"""The loop guard of a crawl: the limits of URLs, and the share of the crawl that each kind of URLs gets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from scrapy_bloom.errors import counted
from scrapy_bloom.loops.limits import allowed_by, objection_by
from scrapy_bloom.loops.novelty import NOTHING, Novelty
from scrapy_bloom.loops.share import Mark, Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scrapy_bloom.frontier.page import Page
    from scrapy_bloom.loops.kinds import Node
    from scrapy_bloom.loops.limits import LoopOptions, Objection
    from scrapy_bloom.loops.novelty import Answer

logger = logging.getLogger(__name__)

ALIASES_SHOWN = 10
FINGERPRINT_BYTES = 8
"""Bytes of its fingerprint that each pending request keeps in its row: enough to count the links to its page."""


class LoopGuard:
    """What one crawl knows of the kinds of its URLs.

    *options* are the limits, and what is let through; a false value: the guard is off. *add* remembers a piece of a
    page, and returns whether it is new. None: the guard only limits URLs, as in a fleet.
    """

    def __init__(self, options: LoopOptions | Literal[False], add: Callable[[bytes], bool] | None = None) -> None:
        self.objection: Callable[[str], Objection | None] = objection_by(options) if options else lambda _: None
        """Returns the limit that a URL exceeds; None if there is none."""
        self._is_allowed = allowed_by(options) if options else None
        self._novelty = None if add is None else Novelty(add)
        self.share = None if add is None else Share(add)
        """Shares the crawl among kinds of URLs; None: requests come in their order."""

    def counting(self, add: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
        """Return *add*, which remembers the fingerprint of a request, so that it counts the request as a link, too."""
        if self.share is None:
            return add
        links = self.share.links

        def count_and_add(fingerprint: bytes) -> bool:
            links.add(fingerprint)
            return add(fingerprint)

        return count_and_add

    def count_links(self, fingerprints: Iterable[bytes]) -> None:
        """Count links to pages that were asked for before, by the *fingerprints* of their requests."""
        if self.share is not None:
            for fingerprint in fingerprints:
                self.share.links.add(fingerprint)

    def mark(self, url: str, parent: Page | None, fingerprint: bytes | None) -> Mark | None:
        """Return the mark of a request for *url*, which is about to be queued, and to which *parent* led.

        Its links are counted by *fingerprint*; None: it has none.
        """
        if self.share is None or self._is_allowed is None:
            return None
        if parent is not None and parent.mark is not None and url == parent.url:
            return parent.mark  # a retry, or the like: no other page
        if self._is_allowed(url):
            return Mark("")
        return self.share.mark(url, None if parent is None else parent.mark, (fingerprint or b"")[:FINGERPRINT_BYTES])

    def judge(self, page: Page, answer: Answer | None) -> None:
        """Learn what *answer*, a response to *page*, brought; None: it tells nothing."""
        if page.mark is None or self._novelty is None or self.share is None:
            return
        brought = NOTHING if answer is None else self._novelty.brought(answer)
        page.is_judged = True
        if page.mark.lane:
            self.share.page_done(page.mark, brought, page.url)

    def done(self, page: Page) -> None:
        """Note that the engine is done with *page*: without an answer, it has brought nothing."""
        if self.share is not None and not page.is_judged and page.mark is not None and page.mark.lane:
            self.share.page_done(page.mark, NOTHING, page.url)

    def log_aliases(self, url_rules: Sequence[str]) -> None:
        """Log which parts of URLs do not matter, and which rules, beside the crawl's own *url_rules*, drop them."""
        believed = self.share.aliases.believed() if self.share is not None else ()
        aliases = sorted(believed, key=lambda alias: alias.other - alias.same)
        if not aliases:
            return
        rules = [rule for alias in aliases if (rule := alias.rule()) and rule not in url_rules]
        logger.info(
            "The loop guard has found %s of URLs that make no difference: %s.%s",
            counted(len(aliases), "part"),
            "; ".join(
                f"{alias.describe()} on {alias.host} ({alias.same:,} of {alias.same + alias.other:,} pairs of pages "
                "showed the same)"
                for alias in aliases[:ALIASES_SHOWN]
            ),
            f" A new job fetches such pages once with BLOOM_URL_RULES = {[*url_rules, *rules]}" if rules else "",
        )

    def log_left(self, groups: Iterable[Node], *, stays: bool) -> int:
        """Log what is left of *groups* when the guard ends the crawl, and whether it *stays* in a job's queue.

        Return how many requests are left.
        """
        kinds = self.share.report(groups) if self.share is not None else []
        left = sum(waiting for _, waiting, _ in kinds)
        logger.warning(
            "The loop guard ends the crawl: the last pages of each host, at least 1,000 and at least half of all its "
            "pages, have brought nothing new. Left: %s of %s; %s. Most: %s",
            counted(left, "pending request"),
            counted(len(kinds), "kind"),
            "they stay in the job, and a run with BLOOM_LOOP_GUARD = False fetches them"
            if stays
            else "without a JOBDIR they are lost, and a crawl with BLOOM_LOOP_GUARD = False fetches them",
            ", ".join(f"{kind} ({waiting:,}{example and f', as {example}'})" for kind, waiting, example in kinds[:5]),
        )
        return left
