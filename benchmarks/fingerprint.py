"""Fingerprints of requests and of URLs beside Scrapy's own, and how many URLs take the fast path.

Every round makes fresh requests, since Scrapy remembers the fingerprint of a request object; building them is outside
of the measured time, except in the columns "from a URL".
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from benchmarks import measure, urls
from scrapy_bloom.old.url.canonical import canonicalize_url, quick_canonical
from scrapy_bloom.old.url.fingerprint import FAST_PATH_ON, fingerprint, fingerprint_url, fingerprints_under
from scrapy_bloom.old.url.rules import resolve

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence


RULES = ["common"]
"""What the second table is about."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen on the command line."""
    parser.add_argument("--urls", type=Path, metavar="FILE", help="text file with a URL a line, may be gzipped")
    parser.add_argument("--html", type=Path, metavar="DIR", help="folder with HTML files whose links are taken")
    parser.add_argument("--base", default="https://docs.python.org/3.11/", help="URL that the folder stands for")
    parser.add_argument("--sample", type=int, default=2_000, help="URLs timed of each source (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=25, help="samples of each side (default: %(default)s)")


def run(options: argparse.Namespace) -> measure.Picture:
    """Measure and print a table."""
    measure.print_environment("Scrapy", "w3lib")
    if not FAST_PATH_ON:
        sys.exit("The self-check switched the fast path off: there is nothing to measure.")
    sources = {"composed": urls.composed_urls(20 * options.sample, seed=1)}
    if options.urls:
        sources[options.urls.name] = urls.file_urls(options.urls)
    if options.html:
        sources[f"links of {options.html}"] = urls.html_urls(options.html, options.base)
    print(f"Scrapy's time over ours, and ns per fingerprint; medians of {options.rounds} rounds (lowest-highest)\n")
    rows = []
    cost = []
    slower = {}
    drawn = {}
    for name, found in sources.items():
        known = urls.accepted(found)
        requested = [Request(url).url for url in known]
        fast = sum(quick_canonical(url) is not None for url in requested) / len(known)
        untouched = sum(canonicalize_url(url) == url for url in requested) / len(known)
        sample = random.Random(2).sample(known, min(options.sample, len(known)))
        of_requests = _compare(
            fingerprint, scrapy_fingerprint, lambda s=sample: [Request(url) for url in s], options.rounds
        )
        of_urls = _compare(fingerprint_url, scrapy_fingerprint_url, lambda s=sample: s, options.rounds)
        drawn |= {f"{name}, of a request": of_requests[0], f"{name}, from a URL": of_urls[0]}
        shares = [str(len(known)), f"{untouched:.2%}", f"{fast:.2%}"]
        rows.append([name[-40:], *_cells(*of_requests), *_cells(*of_urls), *shares])
        row, slower[name[-40:]] = _cost_of_rules(name[-40:], requested, options)
        cost.append(row)
    sides = ["times as fast", "ns", "Scrapy's ns"]
    header = ["source", *(f"of a request: {side}" for side in sides), *(f"from a URL: {side}" for side in sides)]
    measure.print_table([*header, "URLs", "canonical already", "on the fast path"], rows)
    print(f"\nTime with BLOOM_URL_RULES = {RULES} over that without: URLs no rule touches, and those one does\n")
    columns = ["untouched, of a request", "untouched, from a URL", "touched, from a URL", "untouched", "known at once"]
    measure.print_table(["source", *columns], cost)
    for name, times in slower.items():
        measure.print_target(f"fingerprint, time with rules over that without, {name}", times, at_most=1.2)
    return measure.Picture("Fingerprints", "times as fast as Scrapy", drawn)


def _cost_of_rules(name: str, requested: Sequence[str], options: argparse.Namespace) -> tuple[list[str], float]:
    """Return a row: what rules cost the URLs that none of them touches, and those that one does; and the former."""
    rules = resolve(RULES)
    of_request, of_url = fingerprints_under(rules)
    untouched = [url for url in requested if rules.apply(url) == canonicalize_url(url)]
    touched = [url for url in requested if rules.apply(url) != canonicalize_url(url)]
    at_once = sum(not rules.may_touch(canonicalize_url(url)) for url in untouched) / len(untouched)
    sample = random.Random(3).sample(untouched, min(options.sample, len(untouched)))
    others = random.Random(3).choices(touched or sample, k=len(sample))

    def ratio(
        ruled: Callable[[Any], bytes], plain: Callable[[Any], bytes], make: Callable[[], Sequence[Any]]
    ) -> measure.Spread:
        with measure.uncollected():
            times = measure.side_by_side(
                {
                    "ruled": lambda: measure.nanoseconds_each(ruled, make()),
                    "plain": lambda: measure.nanoseconds_each(plain, make()),
                },
                options.rounds,
            )
        return measure.ratios(times["ruled"], times["plain"])

    requests = ratio(of_request, fingerprint, lambda: [Request(url) for url in sample])
    links = ratio(of_url, fingerprint_url, lambda: sample)
    noisy = f"{ratio(of_url, fingerprint_url, lambda: others):.2f}" if touched else "-"
    share = f"{len(untouched) / len(requested):.2%}"
    row = [name, f"{requests:.2f}", f"{links:.2f}", noisy, share, f"{at_once:.2%}"]
    return row, max(requests.median, links.median)


def scrapy_fingerprint_url(url: str) -> bytes:
    """Do what a duplicate filter that is handed requests makes of a link."""
    return scrapy_fingerprint(Request(url))


def _compare(
    ours: Callable[[Any], bytes], theirs: Callable[[Any], bytes], make: Callable[[], Sequence[Any]], rounds: int
) -> tuple[measure.Spread, float, float]:
    with measure.uncollected():
        times = measure.side_by_side(
            {
                "ours": lambda: measure.nanoseconds_each(ours, make()),
                "theirs": lambda: measure.nanoseconds_each(theirs, make()),
            },
            rounds,
        )
    our_ns, their_ns = (measure.Spread.of(times[side]).median for side in ("ours", "theirs"))
    return measure.ratios(times["theirs"], times["ours"]), our_ns, their_ns


def _cells(ratio: measure.Spread, our_ns: float, their_ns: float) -> list[str]:
    return [f"{ratio:.1f}", f"{our_ns:.0f}", f"{their_ns:.0f}"]
