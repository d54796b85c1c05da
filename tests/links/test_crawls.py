"""Whole crawls of a small site, each in a process of its own."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from scrapy.spiders import CrawlSpider, Rule

from scrapy_bloom.links.extractor import UnseenLinkExtractor, UnseenLinks
from tests.support import crawls
from tests.support.crawls import FollowSpider, crawl
from tests.support.engine import OUR_FILTER, OURS

PAGES = 40
SPELLINGS = ["/{0}/{1}.html", "../{0}/{1}.html", "../{0}/{1}.html#x", "/%6{2}/{1}.html#y"]


class Site(crawls.Site):
    """Pages in four folders, each linked to in several spellings, and all of them reached from the first."""

    def answer(self, path: str) -> list[str]:
        number = int(path.rpartition("/")[2].partition(".")[0])
        others = [*range(2 * number + 1, min(2 * number + 3, PAGES)), *range(number % 7, PAGES, 7)]
        return [*(SPELLINGS[(number + other) % 4].format(*of_page(other)) for other in others), "#top"]


def of_page(number: int) -> tuple[str, int, int]:
    """Return the folder of a page, its number, and the last digit of the escape that stands for the folder."""
    return "abcd"[number % 4], number, number % 4 + 1


class Ours(FollowSpider, CrawlSpider):
    rules = (Rule(UnseenLinkExtractor(), callback="note", follow=True),)

    def note(self, response: Any) -> None:
        pass


class Asking(UnseenLinks, FollowSpider):
    def parse(self, response: Any) -> Iterator[Any]:
        yield from response.follow_all(self.unseen_links(response.css("a"), response))


@pytest.mark.parametrize(
    ("spider", "settings"),
    [
        (Asking, OURS),
        pytest.param(Ours, {"DUPEFILTER_CLASS": OUR_FILTER}, marks=pytest.mark.slow),
        pytest.param(Ours, {}, marks=pytest.mark.slow),
    ],
)
def test_every_page_is_fetched(tmp_path: Path, spider: type, settings: dict[str, Any]) -> None:
    """In the rules of a CrawlSpider and in callbacks, with our filter or Scrapy's, all pages are fetched, and once."""
    own = {"SPIDER": f"{__name__}.{spider.__name__}", "START": ["/a/0.html"]}
    own |= {"JOBDIR": str(tmp_path / "job")} if settings is OURS else {}
    with Site({}) as site:
        outcome = crawl(site, tmp_path, {**settings, **own})
    # The start page is a link, too: an unfiltered request is not remembered.
    pages = ["/a/0.html", *("/{}/{}.html".format(*of_page(number)) for number in range(PAGES))]
    assert Counter(map(unquote, site.hits.elements())) == Counter(pages)
    assert "ERROR" not in outcome.log
    assert (outcome.stats.get("bloom/links_dropped", 0) > PAGES) is bool(settings)
