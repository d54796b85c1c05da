"""A whole crawl of a site without traps, with the loop guard and without: CPU time, and the pages fetched.

Like ``crawl``, with UnseenLinks on both sides: the cheaper the crawl, the more the guard's share shows. Both must fetch
the same pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import measure
from benchmarks.crawl import crawl_in_own_process, served

if TYPE_CHECKING:
    import argparse

ADDON = {"ADDONS": {"scrapy_bloom.Addon": 300}}
WITHOUT, WITH = "without", "with BLOOM_LOOP_GUARD"
SIDES: dict[str, dict[str, Any]] = {WITHOUT: ADDON, WITH: {**ADDON, "BLOOM_LOOP_GUARD": True}}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--html", type=Path, metavar="DIR", help="crawl this folder with HTML files")
    parser.add_argument("--pages", type=int, default=400, help="or that many generated pages (default: %(default)s)")
    parser.add_argument("--links", type=int, default=50, help="with that many links each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="crawls of each kind (default: %(default)s)")
    parser.add_argument("--jobdir", action="store_true", help="crawl with JOBDIR")


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print a table."""
    measure.print_environment("Scrapy", "lxml")
    if options.html:
        site, name = ["--dir", str(options.html)], str(options.html)
    else:
        site = ["--pages", str(options.pages), "--links", str(options.links), "--words", "400"]
        name = f"{options.pages:,} generated pages with {options.links} links each"
    with served(site) as url:
        found = measure.side_by_side(
            {
                side: lambda side=side: crawl_in_own_process(
                    url, "AskingSpider", SIDES[side], has_jobdir=options.jobdir
                )
                for side in SIDES
            },
            options.rounds,
        )
    if len({crawl["pages_digest"] for side in found.values() for crawl in side}) != 1:
        raise AssertionError(f"not all crawls fetched the same pages: { {s: c[0]['pages'] for s, c in found.items()} }")
    print(f"{name}, {'with' if options.jobdir else 'without'} JOBDIR, with UnseenLinks")
    print(f"CPU time of the crawler over that without the guard (lowest-highest); medians of {options.rounds} rounds\n")
    ratios = {
        side: measure.ratios([one["cpu"] for one in ones], [one["cpu"] for one in found[WITHOUT]])
        for side, ones in found.items()
    }
    rows = [
        [
            side,
            f"{ratios[side]:.2f}",
            f"{measure.Spread.of([one['cpu'] for one in ones]).median:.2f}",
            f"{ones[0]['pages']:,}",
        ]
        for side, ones in found.items()
    ]
    measure.print_table(["", "times the CPU", "CPU s", "pages fetched"], rows)
    print("All crawls fetched the same pages.")
    measure.print_target("loop guard, times the CPU time", ratios[WITH].median, at_most=1.1)
    return measure.Picture(f"A crawl of {name}", "times the CPU time without the guard", ratios)
