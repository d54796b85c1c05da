"""BloomDupeFilter.request_seen beside Scrapy's own filter, with and without a job directory.

Four of five requests are duplicates. Every request is a fresh object, since Scrapy remembers the fingerprint of an
object; building them is outside of the measured time.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
import time
from collections.abc import Callable
from urllib.parse import quote

from benchmarks import measure

_SECTIONS = ("news", "world", "about", "product", "category", "article", "review", "index", "list", "view", "help")
_THINGS = ("forum", "thread", "user", "profile", "image", "download", "archive", "2024", "summer", "large", "garden")
WORDS = _SECTIONS + _THINGS


def run(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Measure and print a table for each place."""
    parser.add_argument("--sample", type=int, default=50_000, help="requests per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="default: %(default)s")
    options = parser.parse_args(arguments)
    measure.print_environment("Scrapy", "w3lib", "bitarray", "mmh3")
    print(f"{options.sample:,} requests a round; medians of {options.rounds} rounds\n")
    for has_jobdir in (False, True):
        sides = measure.of_each(measured, has_jobdir=has_jobdir, sample=options.sample)
        what = "with JOBDIR" if has_jobdir else "in memory"
        measure.print_side_by_side(what, sides, options.old, options.rounds)


def measured(name: str, has_jobdir: bool, sample: int) -> measure.Figures:
    """Return the microseconds of CPU time that a call takes."""
    from scrapy import Request
    from scrapy.utils.misc import load_object

    from benchmarks.engine import quiet_crawler

    new = composed_urls(max(1, sample // 5), seed=1)
    chosen = new * 5
    random.Random(2).shuffle(chosen)
    with tempfile.TemporaryDirectory() as directory:
        crawler = quiet_crawler({"JOBDIR": directory if has_jobdir else None})
        asked = load_object(measure.DUPEFILTERS[name]).from_crawler(crawler)
        asked.open()
        requests = [Request(url) for url in chosen]
        gc.collect()
        gc.disable()  # or one side is charged for walking over what the other does not have
        start = time.process_time()
        for request in requests:
            asked.request_seen(request)
        elapsed = time.process_time() - start
        asked.close("finished")
    return {"us per call": elapsed / len(requests) * 1e6}


def composed_urls(count: int, seed: int) -> list[str]:
    """Compose links as pages have them: about 9 in 10 plain, the others with queries, escapes, fragments and `;`."""
    rng = random.Random(seed)

    def words(fewest: int, most: int, glue: str) -> str:
        return glue.join(rng.choices(WORDS, k=rng.randint(fewest, most)))

    def query(most: int, glue: str = "&") -> str:
        values = (rng.choice((rng.randint(1, 99999), words(1, 3, "+"))) for _ in range(rng.randint(1, most)))
        return glue.join(f"{rng.choice(WORDS)}={value}" for value in values)

    def url() -> str:
        host = rng.choice(("www.", "www.", "shop.", "")) + words(1, 2, "-") + rng.choice((".com", ".org", ".co.uk"))
        leaf = rng.choice(("", "/", ".html", f"-{rng.randint(1, 999999)}", f"/{words(2, 5, '-')}"))
        return f"https://{host}/{words(0, 4, '/')}{leaf}"

    kinds: list[tuple[int, Callable[[], str]]] = [
        (760, url),
        (30, lambda: url() + "#" + words(1, 2, "-")),
        (90, lambda: url() + "?" + query(1)),
        (70, lambda: url() + "?" + query(4)),
        (12, lambda: f"{url()}?url={quote(url(), safe='')}&{query(2)}"),
        (4, lambda: url() + "?" + query(3, "&amp;")),
        (20, lambda: f"{url()}/{quote(rng.choice(('München', 'Straße', '東京', 'two words', 'Москва')))}"),
        (6, lambda: f"{url()}_%28{rng.choice(WORDS)}%29"),
        (3, lambda: f"{url()};jsessionid={rng.getrandbits(64):X}"),
        (2, lambda: f"{url()}/../{rng.choice(WORDS)}"),
        (2, lambda: f"{url()}?q=é"),
        (1, lambda: f"{url()}/50%25"),
    ]
    chosen = rng.choices([kind for _, kind in kinds], weights=[weight for weight, _ in kinds], k=count)
    return [kind() for kind in chosen]
