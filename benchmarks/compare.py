"""What ``kill -9`` costs: pages and items lost, and items twice, of Scrapy, scrapy-redis and scrapy-bloom.

Each crawls the same site with a feed in JSON lines, two items to a page, and is killed when half of the pages have
come. It is started again until it ends by itself; all are set up as their documentation says, with a
job directory where they take one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import measure
from benchmarks.crawls import REDIS, SCRAPY, WAYS, crawl, sides
from benchmarks.measure import Spread
from benchmarks.servers import generated_pages, redis_server, served

SETTINGS = {"DOWNLOAD_DELAY": 0.01}
"""A hundred pages a second at most, so that a crawl is killed some seconds after it began, as crawls are."""
STARTS = 5
"""Starts after the kill that are tried; a way that has not ended by itself then is not going to."""
ITEMS_OF_A_PAGE = 2
COLUMNS = ("pages lost", "items lost", "items twice", "pages again", "starts until it ended")


def run(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Measure and print a table."""
    parser.add_argument("--pages", type=int, default=600, help="pages of the site (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="kills of each (default: %(default)s)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the medians, as docs/pictures/kill.svg does")
    options = parser.parse_args(arguments)
    measure.print_environment("Scrapy", "scrapy-redis", "redis")
    ways = sides({name: name for name in WAYS}, options.old)
    calls = {name: lambda way=way: killed(*way, options.pages) for name, way in ways.items()}
    found = measure.side_by_side(calls, options.rounds)
    medians = {name: {key: Spread.of([one[key] for one in ones]) for key in COLUMNS} for name, ones in found.items()}
    print(f"{options.pages:,} pages with {ITEMS_OF_A_PAGE} items each, killed half-way; medians of {options.rounds}\n")
    rows = [[name, *(format(costs[key], ".0f") for key in COLUMNS)] for name, costs in medians.items()]
    measure.print_table(["", *COLUMNS], rows)
    if options.picture:
        options.picture.write_text(picture(medians, options.pages), encoding="utf-8")


def killed(name: str, package: Path | None, pages: int) -> measure.Figures:
    """Crawl, kill, crawl on, and return what that cost."""
    site = generated_pages(pages, links=8)
    with TemporaryDirectory() as directory, redis_server() as (redis_url, _), served(*site) as url:
        feed = Path(directory, "items.jl")
        settings = {**SETTINGS, "FEEDS": {str(feed): {"format": "jsonlines"}}}
        given = (name, url, {"job": f"{directory}/job", "server": redis_url}, settings, ITEMS_OF_A_PAGE)
        command, environment = measure.command_for(crawl, *given, package=package)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as crawling:
            fetched = list(islice(crawling.stdout or (), pages // 2))
            if len(fetched) < pages // 2:
                sys.exit(f"{name} ended before it could be killed")
            crawling.kill()
            fetched += crawling.stdout or ()
        starts, code = 0, 1
        while code and starts < STARTS:
            starts += 1
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
            fetched += ended.stdout.splitlines(keepends=True)
            code = ended.returncode
        items = Counter(_items(feed))
    came = Counter(line for line in fetched if line.startswith("http"))
    return {
        "pages lost": pages - len(came),
        "items lost": pages * ITEMS_OF_A_PAGE - len(items),
        "items twice": sum(items.values()) - len(items),
        "pages again": sum(came.values()) - len(came),
        "starts until it ended": starts,
    }


def _items(feed: Path) -> Iterator[str]:
    for line in feed.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)["item"]
        except (ValueError, KeyError, TypeError):  # torn by the kill
            continue


# -- the picture of the README -----------------------------------------------------------------------------------------


def picture(medians: dict[str, dict[str, Spread]], pages: int) -> str:
    """Return an SVG of what 100 million URLs take, as planned, and of what the kills cost."""
    from scrapy_bloom.commands.plan import plan

    ways = {way["way"]: (way["bytes_in_memory"] or 0) / 1e9 for way in plan(100_000_000, 1e-6)["ways"]}
    memory = {"Scrapy's set": ways["Scrapy's own filter"], measure.OURS: ways["BLOOM_CAPACITY as it is"]}
    names = [name for name in (SCRAPY, REDIS, measure.OURS) if name in medians]
    panels = [("Memory for 100 million URLs, GB", memory, ".1f")]
    for key, whole in (("pages lost", pages), ("items lost", pages * ITEMS_OF_A_PAGE)):
        title = f"{key.capitalize()} of {whole:,}, killed half-way with kill -9, then resumed"
        panels.append((title, {name: medians[name][key].median for name in names}, ".0f"))
    texts, bars, y = [], [], 12
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
        texts.append(f"{title}: " + ", ".join(f"{name} {value:{digits}}" for name, value in values.items()))
    size = f'width="720" height="{y + 14}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {y + 14}" {size} role="img" aria-labelledby="t"'
    head += ' font-family="system-ui, sans-serif" font-size="14" fill="#222">'
    lines = [head, f'<title id="t">{". ".join(texts)}.</title>', f'<rect {size} rx="8" fill="#fff"/>']
    return "\n".join([*lines, *bars, "</svg>", ""])
