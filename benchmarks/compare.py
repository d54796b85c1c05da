"""What ``kill -9`` costs: pages and items lost, and items twice, of Scrapy, scrapy-redis and scrapy-bloom.

Each crawls the same site with a feed in JSON lines, two items to a page, and is killed when half of the pages have
come. It is started again until it ends by itself; the site counts what it was asked for. All are set up as their
documentation says, with a job directory where they take one.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks import measure
from benchmarks.redis_server import redis_server

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SCRAPY, REDIS, FLEET = "Scrapy", "scrapy-redis", "scrapy-bloom, fleet"
SETTINGS = {"LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False, "DOWNLOAD_DELAY": 0.01}
"""A hundred pages a second at most, so that a crawl is killed some seconds after it began, as crawls are."""
WAYS: dict[str, dict[str, Any]] = {
    SCRAPY: {},
    REDIS: {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
    },
    measure.OURS: {"ADDONS": {"scrapy_bloom.Addon": 300}},
    FLEET: {"ADDONS": {"scrapy_bloom.Addon": 300}, "BLOOM_REDIS_URL": "here"},
}
STARTS = 5
"""Starts after the kill that are tried; a way that has not ended by itself then is not going to."""
ITEMS_OF_A_PAGE = 2
COLUMNS = ("pages lost", "items lost", "items twice", "pages again")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--pages", type=int, default=600, help="pages of the site (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="kills of each (default: %(default)s)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the medians, as docs/pictures/kill.svg does")


def run(options: argparse.Namespace) -> None:
    """Measure and print a table."""
    measure.print_environment("Scrapy", "scrapy-redis", "redis")
    ways: dict[str, tuple[str, Path | None]] = {name: (name, None) for name in WAYS}
    if options.old:
        ways |= {f"{name}, old": (name, options.old.resolve()) for name in (measure.OURS, FLEET)}
    if measure.installed(REDIS) == "(not installed)":
        print(f"left out, since it is not installed: {ways.pop(REDIS)[0]}\n")
    sides = {name: lambda way=way: killed(*way, options.pages) for name, way in ways.items()}
    found = measure.side_by_side(sides, options.rounds)
    medians = {
        name: {key: measure.Spread.of([one[key] for one in ones]) for key in COLUMNS} for name, ones in found.items()
    }
    print(f"{options.pages:,} pages with {ITEMS_OF_A_PAGE} items each, killed half-way; medians of {options.rounds}\n")
    rows = [
        [
            name,
            *(format(costs[key], ".0f") for key in COLUMNS),
            format(max(one["starts"] for one in found[name]), ".0f"),
        ]
        for name, costs in medians.items()
    ]
    measure.print_table(["", *COLUMNS, "starts until it ended"], rows)
    if options.picture:
        options.picture.write_text(picture(medians, options.pages), encoding="utf-8")


def killed(name: str, package: Path | None, pages: int) -> dict[str, float]:
    """Crawl, kill, crawl on, and return what that cost."""
    with TemporaryDirectory() as directory, redis_server() as (redis_url, _):
        with served(pages) as (url, counted):
            command, environment = measure.command_for(
                crawl, name, url=url, directory=directory, redis_url=redis_url, package=package
            )
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as crawling:
                if sum(1 for _ in islice(crawling.stdout or (), pages // 2)) < pages // 2:
                    sys.exit(f"{name} ended before it could be killed")
                crawling.kill()
            starts = 1
            while subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=False).returncode:
                starts += 1
                if starts > STARTS:
                    break
        items = Counter(_items(Path(directory, "items.jl")))
    return {
        "pages lost": pages - counted["different_pages"],
        "items lost": pages * ITEMS_OF_A_PAGE - len(items),
        "items twice": sum(items.values()) - len(items),
        "pages again": counted["requests"] - counted["different_pages"],
        "starts": starts,
    }


def _items(feed: Path) -> Iterator[str]:
    for line in feed.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)["item"]
        except (ValueError, KeyError, TypeError):  # torn by the kill
            continue


@contextmanager
def served(pages: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Serve a site; the mapping that it yields has what was fetched, once the block has ended."""
    counted: dict[str, int] = {}
    command = [sys.executable, str(Path(__file__).parent / "linksite.py"), "--pages", str(pages), "--links", "8"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield (server.stdout.readline().strip() if server.stdout else ""), counted
        finally:
            said, _ = server.communicate()  # closes stdin and takes the server's last words
            counted.update(json.loads(said))


def crawl(name: str, url: str, directory: str, redis_url: str) -> None:
    """Crawl the site; print a line per page, and leave with status 0 if the crawl ended by itself."""
    from scrapy import Request, Spider
    from scrapy.crawler import CrawlerProcess

    class SiteSpider(Spider):
        name = "site"

        async def start(self) -> Any:
            yield Request(url)  # filtered, unlike start_urls: or a link back would fetch it twice without any kill

        def parse(self, response: Any) -> Iterator[Any]:
            print("page", flush=True)
            for number in range(ITEMS_OF_A_PAGE):
                yield {"item": f"{response.url} {number}"}
            for href in response.css("a::attr(href)").getall():
                yield Request(response.urljoin(href))

    logging.disable(logging.WARNING)
    settings = {**SETTINGS, "FEEDS": {f"{directory}/items.jl": {"format": "jsonlines"}}, **WAYS[name]}
    settings |= {"REDIS_URL": redis_url} if name == REDIS else {"JOBDIR": f"{directory}/job"}
    settings |= {"BLOOM_REDIS_URL": redis_url} if name == FLEET else {}
    process = CrawlerProcess(settings)
    process.crawl(SiteSpider)
    process.start()


# -- the picture of the README -----------------------------------------------------------------------------------------


def picture(medians: dict[str, dict[str, measure.Spread]], pages: int) -> str:
    """Return an SVG of what 100 million URLs take, as planned, and of what the kills cost."""
    from scrapy_bloom.commands.plan import plan

    ways = {
        way["way"]: way["bytes_in_memory"] / 1e9 for way in plan(100_000_000, 1e-6)["ways"] if way["bytes_in_memory"]
    }
    memory = {"Scrapy's set": ways["Scrapy's own filter"], measure.OURS: ways["BLOOM_CAPACITY as it is"]}
    names = [name for name in (SCRAPY, REDIS, measure.OURS) if name in medians]
    panels = [("Memory for 100 million URLs, GB", memory, ".1f")]
    for key, what, whole in (
        ("pages lost", "Pages lost", pages),
        ("items lost", "Items lost", pages * ITEMS_OF_A_PAGE),
    ):
        title = f"{what} of {whole:,}, killed half-way with kill -9, then resumed"
        panels.append((title, {name: medians[name][key].median for name in names}, ".0f"))
    text = ". ".join(
        f"{title}: " + ", ".join(f"{name} {value:{digits}}" for name, value in values.items())
        for title, values, digits in panels
    )
    bars, y = [], 12
    for title, values, digits in panels:
        y += 34
        bars.append(f'<text x="24" y="{y - 6}" font-size="16" font-weight="600">{title}</text>')
        for name, value in values.items():
            width = max(2, 440 * value / max(*values.values(), 1e-9))
            is_ours = name == measure.OURS
            weight, colour = (' font-weight="600"', "#111") if is_ours else ("", "#9aa0a6")
            bars += [
                f'<text x="24" y="{y + 17}"{weight}>{name}</text>',
                f'<rect x="150" y="{y + 3}" width="{width:.0f}" height="18" fill="{colour}"/>',
                f'<text x="{158 + width:.0f}" y="{y + 17}"{weight}>{value:{digits}}</text>',
            ]
            y += 26
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {y + 14}" width="720" height="{y + 14}" role="img"'
    )
    head += ' aria-labelledby="t" font-family="system-ui, sans-serif" font-size="14" fill="#222">'
    lines = [head, f'<title id="t">{text}.</title>', f'<rect width="720" height="{y + 14}" rx="8" fill="#fff"/>']
    return "\n".join([*lines, *bars, "</svg>", ""])
