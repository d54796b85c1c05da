"""A whole crawl of a site rich in links: Scrapy, UnseenLinks, UnseenLinkExtractor, and the floor below all of them.

The floor is what Scrapy leaves: the same pages fetched and parsed, no link followed. The site is served on 127.0.0.1
by another process (``linksite.py``), and every crawl runs in a process of its own, one after the other. Links to
anywhere else are dropped when they are extracted, so nothing else is looked up or contacted. All must fetch the same
pages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks import measure

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

SCRAPY, ALONE = "Scrapy", "BloomDupeFilter alone"
ASKING, EXTRACTOR, FLOOR = "UnseenLinks", "UnseenLinkExtractor", "the floor: no links followed"
HREFS = "UnseenLinks, given hrefs"
"""What takes the place of the extractor with ``--css``."""
CSS_FLOOR = "the floor, with response.css()"
"""With ``--css``: the floor of whoever finds links that way, which takes longer than what we do with them."""
FOLLOWING = "the same links from a list"
"""With ``--following``: an extractor that takes no time. What it is above the floor, no extractor can save."""

BLOOM = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}
SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    SCRAPY: ("LinkSpider", {}),
    ALONE: ("LinkSpider", BLOOM),
    ASKING: ("AskingSpider", BLOOM),
    EXTRACTOR: ("ExtractorSpider", BLOOM),
    FLOOR: ("FloorSpider", BLOOM),
    CSS_FLOOR: ("CssFloorSpider", BLOOM),
    FOLLOWING: ("FollowingSpider", BLOOM),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--html", type=Path, metavar="DIR", help="crawl this folder with HTML files")
    parser.add_argument(
        "--pages", type=int, help="how many generated pages (default: 400), or how many of DIR (default: all)"
    )
    parser.add_argument("--links", type=int, default=150, help="with that many links each (default: %(default)s)")
    parser.add_argument("--css", action="store_true", help='take links by response.css("a::attr(href)")')
    parser.add_argument(
        "--canonicalize", action="store_true", help="give all extractors canonicalize=True: no link for each fragment"
    )
    parser.add_argument(
        "--following", action="store_true", help="crawl with the links that ours found, and no extractor, too"
    )
    parser.add_argument("--rounds", type=int, default=3, help="crawls of each kind (default: %(default)s)")
    parser.add_argument(
        "--pairs", type=int, default=8, help="more crawls of ours and of the floor, in turns (default: %(default)s)"
    )
    parser.add_argument(
        "--parse", action="store_true", help="let every spider parse its pages, as one that takes items from them does"
    )
    parser.add_argument("--jobdir", action="store_true", help="crawl with JOBDIR")
    parser.add_argument("--items", type=int, help="CONCURRENT_ITEMS of all crawls (default: that of Scrapy)")
    parser.add_argument("--alone", action="store_true", help="crawl with BloomDupeFilter alone, too")
    parser.add_argument("--large", action="store_true", help="the same as --pages 2000 --rounds 5")


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print a table."""
    measure.print_environment("Scrapy", "lxml")
    rounds = max(5, options.rounds) if options.large else options.rounds
    if options.html:
        site = ["--dir", str(options.html), *(["--pages", str(options.pages)] if options.pages else [])]
        name = f"{options.pages:,} pages of {options.html}" if options.pages else f"{options.html}"
    else:
        pages = 2_000 if options.large else options.pages or 400
        site = ["--pages", str(pages), "--links", str(options.links)]
        name = f"{pages:,} generated pages with {options.links} links each"
    on_demand = {ALONE: options.alone, CSS_FLOOR: options.css, FOLLOWING: options.following}
    sides = [side for side in SIDES if on_demand.get(side, True)]
    with served(site) as url, TemporaryDirectory() as directory:
        found_by = str(Path(directory, "pages.json"))
        arguments = {
            "has_jobdir": options.jobdir,
            "css": options.css,
            "canonicalize": options.canonicalize,
            "parses": options.parse,
            "pages_file": found_by,
            "links_file": str(Path(directory, "links.json")) if options.following else "",
        }
        common = {"CONCURRENT_ITEMS": options.items} if options.items else {}

        def crawl(side: str) -> dict[str, Any]:
            spider, settings = SIDES[side]
            return crawl_in_own_process(url, spider, {**settings, **common}, **arguments)

        # Its pages are those of the floor. Nobody is timed while the server's memory is cold.
        crawl(EXTRACTOR)
        calls: dict[str, Callable[[], dict[str, Any]]] = {side: lambda side=side: crawl(side) for side in sides}
        found = measure.side_by_side(calls, rounds)
        # Ours and the floor are close, and each crawl of either is 10 % off: three rounds do not tell them apart.
        near = [side for side in (EXTRACTOR, FLOOR, CSS_FLOOR, FOLLOWING) if side in sides]
        more = measure.side_by_side({side: calls[side] for side in near}, options.pairs)
    crawls = [crawl for side in (*found.values(), *more.values()) for crawl in side]
    if len({crawl["pages_digest"] for crawl in crawls}) != 1:
        raise AssertionError(f"not all crawls fetched the same pages: {[crawl['pages'] for crawl in crawls]}")

    jobdir = "with" if options.jobdir else "without"
    extractor = "LinkExtractor(canonicalize=True)" if options.canonicalize else "LinkExtractor"
    parsed = ", all pages parsed" if options.parse else ""
    print(f"{name}, {jobdir} JOBDIR, links by {'CSS' if options.css else extractor}{parsed}")
    print(
        f"Time with Scrapy over time (lowest-highest), then seconds; medians of {rounds} interleaved crawls. "
        "CPU time is that of the crawler's process\n"
    )
    rows = []
    cpu_ratios = {}
    for side, ones in found.items():
        cells = []
        for clock in ("cpu", "wall"):
            ratio = measure.ratios([one[clock] for one in found[SCRAPY]], [one[clock] for one in ones])
            cells.append(f"{ratio:.2f}")
            if clock == "cpu":
                cpu_ratios[side] = ratio
        medians = [f"{measure.Spread.of([one[clock] for one in ones]).median:.2f}" for clock in ("cpu", "wall")]
        numbers = [f"{measure.Spread.of([one[number] for one in ones]):,.0f}" for number in ("pages", "filtered")]
        rows.append([HREFS if options.css and side == EXTRACTOR else side, *cells, *medians, *numbers])
    header = ["", "times as fast, CPU", "by the clock", "CPU s", "wall s"]
    measure.print_table([*header, "pages fetched", "links filtered"], rows)
    print("All crawls fetched the same pages.")
    ours = HREFS if options.css else EXTRACTOR
    above = {}
    near_cpu = {side: [one["cpu"] for one in found[side] + more[side]] for side in near}
    for floor, name in ((FLOOR, "the floor"), (CSS_FLOOR, "the floor with response.css()")):
        if floor in near:
            above[name] = measure.ratios(near_cpu[EXTRACTOR], near_cpu[floor])
            print(f"CPU time with {ours} over {name}, {rounds + options.pairs} pairs: {above[name]:.2f}")
    if options.following:
        for upper, lower, name in ((FOLLOWING, FLOOR, "the floor"), (EXTRACTOR, FOLLOWING, FOLLOWING)):
            ratio = measure.ratios(near_cpu[upper], near_cpu[lower])
            print(f"CPU time with {upper} over {name}, {rounds + options.pairs} pairs: {ratio:.2f}")
    measure.print_target(f"crawl, times as fast with {ours}", cpu_ratios[EXTRACTOR].median, at_least=3.5)
    for name, ratio in above.items():
        measure.print_target(f"crawl, CPU time with {ours} over {name}", ratio.median, at_most=1.1)
    if options.alone:
        measure.print_target("crawl, times as fast with the filter alone", cpu_ratios[ALONE].median, at_least=1)
    return measure.Picture(f"A crawl of {name}", "times as fast as Scrapy", cpu_ratios)


@contextmanager
def served(arguments: Sequence[str]) -> Iterator[str]:
    """Serve the site, warmed up, and yield the URL to start from. The server ends with its stdin."""
    command = [sys.executable, str(Path(__file__).parent / "linksite.py"), "--warm", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        if server.stdout is None:
            raise AssertionError("it was asked for")
        try:
            url = server.stdout.readline().strip()
            if not url:
                sys.exit("The site could not be served; see above.")
            yield url
        finally:
            server.communicate()  # closes stdin and takes the server's last words


def crawl_in_own_process(
    url: str, spider: str, settings: dict[str, Any], *, has_jobdir: bool, **arguments: Any
) -> dict[str, Any]:
    """Return what :func:`crawled` returns, from a process of its own."""
    with TemporaryDirectory() as directory:
        jobdir = {"JOBDIR": directory} if has_jobdir else {}
        return measure.in_own_process(crawled, url, spider, {**settings, **jobdir}, **arguments)


def local_root(url: str) -> str:
    """Return *url* up to its path; ValueError if it is not on 127.0.0.1."""
    root = url[: url.index("/", len("http://")) + 1]
    if urlsplit(root).hostname != "127.0.0.1":
        raise ValueError(f"{root} is not on this machine")
    return root


def crawled(
    url: str,
    spider: str,
    settings: dict[str, Any],
    *,
    pages_file: str = "",
    css: bool = False,
    canonicalize: bool = False,
    parses: bool = False,
    links_file: str = "",
) -> dict[str, Any]:
    """Crawl all that *url* leads to on its own host and port, and return times and counts.

    Extractors parse the pages that they have to, and with *parses* the spider has parsed each before.

    The first crawl notes its pages in *pages_file*; the floor is made of them. *links_file* has the links of each.
    """
    from scrapy import Request, Spider
    from scrapy.crawler import CrawlerProcess
    from scrapy.http import HtmlResponse
    from scrapy.linkextractors import LinkExtractor

    from scrapy_bloom import UnseenLinkExtractor, UnseenLinks

    root = local_root(url)
    here = urlsplit(root).netloc
    pages: set[str] = set()
    not_found: list[str] = []
    links: dict[str, list[str]] = {}  # a page may be fetched twice, and the second time it has no new ones
    notes_links = links_file and not Path(links_file).exists()

    class LinkSpider(Spider):
        name = "links"
        start_urls = (url,)
        allowed_domains = ("127.0.0.1",)
        extractor = LinkExtractor(allow_domains=here, canonicalize=canonicalize)

        def parse(self, response: Any) -> Any:
            pages.add(response.url)
            if response.status != 200:
                not_found.append(response.url)
            if isinstance(response, HtmlResponse):
                if parses:
                    _ = response.selector
                found = self.by_css(response) if css else self.by_extractor(response)
                if notes_links:
                    links.setdefault(response.url, []).extend([getattr(one, "url", one) for one in found])
                yield from response.follow_all(found)

        def by_extractor(self, response: Any) -> Any:
            return self.extractor.extract_links(response)

        def by_css(self, response: Any) -> Any:
            targets = map(response.urljoin, response.css("a::attr(href)").getall())
            return [target for target in targets if target.startswith(root)]

    class AskingSpider(UnseenLinks, LinkSpider):
        def by_extractor(self, response: Any) -> Any:
            return self.unseen_links(super().by_extractor(response))

        def by_css(self, response: Any) -> Any:
            return self.unseen_links(super().by_css(response))

    class ExtractorSpider(UnseenLinks, LinkSpider):
        extractor = UnseenLinkExtractor(allow_domains=here, canonicalize=canonicalize)

        def by_css(self, response: Any) -> Any:
            unseen = self.unseen_links(response.css("a::attr(href)").getall(), response)
            return [target for target in map(response.urljoin, unseen) if target.startswith(root)]

    class FollowingSpider(UnseenLinks, LinkSpider):
        def __init__(self) -> None:
            super().__init__()
            self.links = json.loads(Path(links_file).read_text(encoding="utf-8"))

        def by_extractor(self, response: Any) -> Any:
            _ = response.selector
            return self.links.pop(response.url, ())

        by_css = by_extractor

    class FloorSpider(Spider):
        name = "links"

        async def start(self) -> Any:
            for page in json.loads(Path(pages_file).read_text(encoding="utf-8")):
                yield Request(page)

        def parse(self, response: Any) -> None:
            pages.add(response.url)
            if isinstance(response, HtmlResponse):
                _ = response.selector

    class CssFloorSpider(FloorSpider):
        def parse(self, response: Any) -> None:
            super().parse(response)
            if isinstance(response, HtmlResponse):
                response.css("a::attr(href)").getall()

    classes = (LinkSpider, AskingSpider, ExtractorSpider, FollowingSpider, FloorSpider, CssFloorSpider)
    spiders: Any = {cls.__name__: cls for cls in classes}
    process = CrawlerProcess(
        {"LOG_LEVEL": "WARNING", "TELNETCONSOLE_ENABLED": False, "ROBOTSTXT_OBEY": False, "DOWNLOAD_DELAY": 0}
        | {"HTTPERROR_ALLOW_ALL": True, "CONCURRENT_REQUESTS_PER_DOMAIN": 16}
        | settings
    )
    crawler = process.create_crawler(spiders[spider])
    process.crawl(crawler)
    cpu, wall = time.process_time(), time.monotonic()
    process.start()
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    stats = crawler.stats.get_stats() if crawler.stats else {}
    if pages_file and not Path(pages_file).exists():
        Path(pages_file).write_text(json.dumps(sorted(pages)), encoding="utf-8")
    if notes_links:
        Path(links_file).write_text(json.dumps(links), encoding="utf-8")
    return {
        "cpu": cpu,
        "wall": wall,
        "pages": len(pages),
        "not_found": not_found,
        "pages_digest": sha256("\n".join(sorted(pages)).encode()).hexdigest(),
        "filtered": stats.get("dupefilter/filtered", 0),
        "loop": {name.rpartition("/")[2]: n for name, n in stats.items() if name.startswith("bloom/loop/")},
    }
