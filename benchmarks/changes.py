"""A second crawl of a site of which some pages have changed, and the bytes that ``BLOOM_CHANGES`` keeps on disk.

The site is served on 127.0.0.1: lists of item pages, each with an ETag, 12 kB of text, and links to 20 lists and to 20
other pages. Every crawl runs in a process of its own. Requests and bytes are those of the server; times are CPU seconds
of the crawl's process.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks import measure
from benchmarks.crawls import run_spider
from benchmarks.servers import Site

if TYPE_CHECKING:
    from scrapy.http import Response

CACHE, CHANGES = "Scrapy, RFC2616Policy", "scrapy-bloom, BLOOM_CHANGES"
SETTINGS: dict[str, dict[str, Any]] = {
    measure.SCRAPY: {},
    CACHE: {
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_POLICY": "scrapy.extensions.httpcache.RFC2616Policy",
        "HTTPCACHE_DIR": "cache",
    },
    CHANGES: {"ADDONS": {"scrapy_bloom.Addon": 300}, "BLOOM_CHANGES": True, "JOBDIR": "job"},
}
ON_A_LIST = 50
"""Item pages."""


def run(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Measure and print the tables."""
    parser.add_argument("--pages", type=int, default=2000, help="item pages of the site (default: %(default)s)")
    parser.add_argument("--percents", type=int, nargs="+", default=[0, 1, 10], help="of the pages that change")
    parser.add_argument("--rows", type=int, default=10**6, help="pages and items on disk (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="crawls of each kind (default: %(default)s)")
    options = parser.parse_args(arguments)
    measure.print_environment("Scrapy")
    for percent in options.percents:
        sides = {name: partial(second_crawl, name, options.pages, percent) for name in SETTINGS}
        found = measure.side_by_side(sides, options.rounds)
        measure.print_figures(f"second crawl, {percent} % of {options.pages:,} pages changed", found)
    figures = measure.in_own_process(bytes_on_disk, options.rows)
    print(f"On disk at {options.rows:,}: {figures['page']:.0f} bytes per page, {figures['item']:.0f} bytes per item")


# -- crawls ------------------------------------------------------------------------------------------------------------


def second_crawl(name: str, pages: int, percent: int) -> measure.Figures:
    """Crawl a site twice, *percent* of its pages changed in between; return figures of the second crawl."""
    with TemporaryDirectory() as directory, Site(partial(body_of, pages, 0), has_tags=True) as site:
        first = measure.in_own_process(crawled, name, site.url, directory)
        site.find, site.bytes_sent = partial(body_of, pages, percent), 0
        site.statuses.clear()
        second = measure.in_own_process(crawled, name, site.url, directory)
    return {
        "full answers": site.statuses[200],
        "304": site.statuses[304],
        "MB": site.bytes_sent / 1e6,
        "items": second["items"],
        "CPU s": second["cpu"],
        "of the first": second["cpu"] / first["cpu"],
    }


def crawled(name: str, url: str, directory: str) -> measure.Figures:
    """Crawl the site at *url* once; return CPU seconds and the number of items."""
    from scrapy import Request, Spider

    class Shop(Spider):
        name = "shop"

        async def start(self) -> Any:
            yield Request(url)

        def parse(self, response: Response) -> Iterator[Any]:
            yield from response.follow_all(css="a")
            for product in response.css("article"):
                yield {"name": product.css("h1::text").get(), "texts": product.css("p::text").getall()}

    settings = {key: f"{directory}/{value}" if key.endswith("DIR") else value for key, value in SETTINGS[name].items()}
    cpu, stats = run_spider(Shop, {**settings, "BLOOM_CAPACITY": 100_000})
    return {"cpu": cpu, "items": stats.get("item_scraped_count", 0)}


# -- the site ----------------------------------------------------------------------------------------------------------


def body_of(pages: int, percent: int, path: str) -> bytes:
    """Return the page at *path*, which shows what it has when *percent* of the pages have changed."""
    if path == "/":
        return "".join(f'<a href="/list/{number}/">{number}</a>' for number in range(pages // ON_A_LIST)).encode()
    kind, number = path.strip("/").split("/")
    if kind == "list":
        first = int(number) * ON_A_LIST
        return "".join(f'<a href="/item/{item}/">{item}</a>' for item in range(first, first + ON_A_LIST)).encode()
    version = int(int(number) % 100 < percent)
    texts = (f"<p>{sha256(f'{path} {version} {line}'.encode()).hexdigest() * 3}</p>" for line in range(60))
    lists = (f'<a href="/list/{other}/">{other}</a>' for other in range(min(20, pages // ON_A_LIST)))
    related = (f'<a href="/item/{(int(number) * 31 + other * 17) % pages}/">{other}</a>' for other in range(20))
    links = "".join((*lists, *related))
    return f'<a href="/">shop</a>{links}<article><h1>{number}</h1>{"".join(texts)}</article>'.encode()


# -- on disk -----------------------------------------------------------------------------------------------------------


def bytes_on_disk(rows: int) -> measure.Figures:
    """Return the bytes that each of so many pages takes, and each of so many items, written as commits write them."""
    from scrapy import Request

    from scrapy_bloom.components import serialize
    from scrapy_bloom.job import changes
    from scrapy_bloom.job.database import Database

    def page(number: int) -> changes.PageRow:
        url = f"https://www.shop.example/department-{number % 97}/product-{number}"
        request = Request(url, meta={"depth": 4}, headers={"Referer": "https://www.shop.example/"})
        stored = serialize.dumps(request, None)
        id_, tag = changes.number_of(url.encode()), f'E"{sha256(url.encode()).hexdigest()[:16]}"'
        digest = id_ % 2**48
        return changes.PageRow(id_, 1, changes.PageState.ANSWERED, 10_000, digest, True, changes.packed(stored), tag)

    def item(number: int) -> changes.ItemRow:
        key = f'["SKU-{number:08}"]'
        id_ = changes.number_of(key.encode())
        return changes.ItemRow(id_, id_ ^ number, id_ % 2**48, 1, 5, key)

    sizes = []
    with TemporaryDirectory() as directory:
        path = Path(directory, "job.sqlite")
        for make, kind in ((page, "pages"), (item, "items")):
            with closing(Database(path)) as database:
                for first in range(0, rows, 4000):
                    database.writer.execute("BEGIN")
                    made = [make(number) for number in range(first, min(first + 4000, rows))]
                    changes.write_rows(database.writer, *((made, []) if kind == "pages" else ([], made)))
                    database.writer.execute("COMMIT")
            sizes.append(path.stat().st_size)
    return {"page": sizes[0] / rows, "item": (sizes[1] - sizes[0]) / rows}
