"""Whole crawls of sites without traps, with the loop guard and without: the pages fetched, and CPU time.

Like ``crawl --parse``, with UnseenLinkExtractor on both sides (the cheaper the crawl, the larger the guard's share), or
with Scrapy's LinkExtractor. The guard may change no page of them: those that one crawl has fetched and the other has
not are named. What a site links to and does not have is counted beside: "Not found" is nothing new, and the guard may
leave it.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import measure
from benchmarks.crawl import crawl_in_own_process, served

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

ADDON = {"ADDONS": {"scrapy_bloom.Addon": 300}}
WITHOUT, WITH = "without", "with BLOOM_LOOP_GUARD"
SIDES: dict[str, dict[str, Any]] = {WITHOUT: ADDON, WITH: {**ADDON, "BLOOM_LOOP_GUARD": True}}

_MOST_NAMED = 10
"""Pages named of each site, of those that only one of the crawls has fetched."""


class Comparison(NamedTuple):
    """What the crawls of one site have come to."""

    pages: dict[str, set[str]]
    """By side, the paths of the pages that were fetched in the first round."""
    not_found: dict[str, int]
    """By side, how many requests were answered by anything but a page."""
    cpu: dict[str, list[float]]
    """By side, seconds of CPU time in each round."""
    held_back: tuple[int, int, int]
    """How many requests and links met a limit, were demoted, and were parked."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--html", type=Path, nargs="+", metavar="DIR", help="crawl each of these folders of HTML files")
    parser.add_argument("--pages", type=int, default=400, help="or that many generated pages (default: %(default)s)")
    parser.add_argument("--links", type=int, default=50, help="with that many links each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="crawls of each kind (default: %(default)s)")
    parser.add_argument("--plain", action="store_true", help="find links as most spiders do, by Scrapy's LinkExtractor")
    parser.add_argument("--jobdir", action="store_true", help="crawl with JOBDIR")


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print a table."""
    measure.print_environment("Scrapy", "lxml")
    if options.html:
        sites = {str(directory): ["--dir", str(directory)] for directory in options.html}
    else:
        name = f"{options.pages:,} generated pages with {options.links} links each"
        sites = {name: ["--pages", str(options.pages), "--links", str(options.links), "--words", "400"]}
    extractor = "LinkExtractor" if options.plain else "UnseenLinkExtractor"
    print(f"Crawls with {extractor}, {'with' if options.jobdir else 'without'} JOBDIR")
    print(f"CPU time of the crawler over that without the guard (lowest-highest); medians of {options.rounds} rounds\n")
    rows = []
    found = {}
    ratios = {}
    for name, site in sites.items():
        compared = found[name] = _compare(
            site, options.rounds, "LinkSpider" if options.plain else "ExtractorSpider", has_jobdir=options.jobdir
        )
        ratios[name] = measure.ratios(compared.cpu[WITH], compared.cpu[WITHOUT])
        seconds = [f"{measure.Spread.of(compared.cpu[side]).median:.2f}" for side in SIDES]
        lost, more = _differences(compared)
        pages = [f"{len(compared.pages[side]):,}" for side in SIDES]
        held_back = [f"{number:,}" for number in compared.held_back]
        missing = [str(compared.not_found[side]) for side in SIDES]
        differing = [str(len(lost)), str(len(more))]
        rows.append([name, *pages, *differing, *missing, *held_back, *seconds, f"{ratios[name]:.2f}"])
    measure.print_table(
        [
            "",
            *("pages without", "with the guard", "only without", "only with", "not found without", "with"),
            *("by limits", "demoted", "parked"),
            *("CPU s without", "CPU s with", "times the CPU"),
        ],
        rows,
    )
    for name, compared in found.items():
        for what, paths in zip(("only without the guard", "only with it"), _differences(compared), strict=True):
            if paths:
                print(f"{name}: {what}: {' '.join(paths[:_MOST_NAMED])}{' ...' if len(paths) > _MOST_NAMED else ''}")
    changed = sum(len(paths) for compared in found.values() for paths in _differences(compared))
    measure.print_target("loop guard, pages changed", changed, at_most=0)
    for name, ratio in ratios.items():
        measure.print_target(f"loop guard, times the CPU time, {name}", ratio.median, at_most=1.1)
    return measure.Picture("Crawls with the loop guard", "times the CPU time without it", ratios)


def _compare(site: Sequence[str], rounds: int, spider: str, *, has_jobdir: bool) -> Comparison:
    pages: dict[str, set[str]] = {}
    not_found: dict[str, int] = {}
    with served(site) as url, TemporaryDirectory() as directory:

        def crawl(side: str) -> dict[str, Any]:
            file = Path(directory, f"{list(SIDES).index(side)}.json")
            found = crawl_in_own_process(
                url, spider, SIDES[side], has_jobdir=has_jobdir, pages_file=str(file), parses=True
            )
            if side not in pages:
                root = url[: url.index("/", len("http://"))]
                urls = set(json.loads(file.read_text(encoding="utf-8"))).difference(found["not_found"])
                pages[side] = {page.removeprefix(root).partition("#")[0] for page in urls}
                not_found[side] = len(found["not_found"])
            return found

        crawls = measure.side_by_side({side: lambda side=side: crawl(side) for side in SIDES}, rounds)
    cpu = {side: [one["cpu"] for one in ones] for side, ones in crawls.items()}
    counted = crawls[WITH][0]["loop"]
    limits = sum(counted.get(limit, 0) for limit in ("depth", "length", "tandem", "params"))
    return Comparison(pages, not_found, cpu, (limits, counted.get("demoted", 0), counted.get("parked", 0)))


def _differences(compared: Comparison) -> tuple[list[str], list[str]]:
    """Return the paths that only the crawl without the guard has fetched, and those that only the one with it has."""
    without, with_guard = compared.pages[WITHOUT], compared.pages[WITH]
    return sorted(without - with_guard), sorted(with_guard - without)
