"""How fast fingerprints are made, beside Scrapy's own, and how many URLs take the fast path.

    python benchmarks/fingerprint.py [--urls FILE] [--html DIR [--base URL]]

Every round makes fresh requests, since Scrapy remembers the fingerprint of a request object; building them is outside
of the measured time, except in the columns "from a URL". Times are CPU time of this process, ours and Scrapy's in turn.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import platform
import random
import statistics
import sys
import time
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin

from scrapy import Request
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_bloom.url.canonical import canonicalize_url, quick_canonical
from scrapy_bloom.url.fingerprint import FAST_PATH_ON, fingerprint, fingerprint_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORDS = (
    *("news", "world", "about", "product", "category", "article", "review", "index", "list", "view", "help", "forum"),
    *(
        "thread",
        "user",
        "profile",
        "image",
        "download",
        "archive",
        "2024",
        "january",
        "summer",
        "blue",
        "large",
        "garden",
    ),
)


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


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value]


def html_urls(directory: Path, base: str) -> list[str]:
    """Return every web link of the HTML files below *directory*, as a crawl that starts at *base* would see it."""
    urls = []
    for page in sorted(directory.rglob("*.html")):
        parser = _Links()
        parser.feed(page.read_text(encoding="utf-8", errors="replace"))
        page_url = urljoin(base, quote(page.relative_to(directory).as_posix()))
        urls += [urljoin(page_url, href) for href in parser.hrefs]
    return [url for url in urls if url.startswith(("http://", "https://"))]


def file_urls(path: Path) -> list[str]:
    """Return the URLs of a text file, one a line, gzipped or not."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", errors="replace") as lines:
        return [line for line in map(str.strip, lines) if line]


def nanoseconds_each(function: Callable[[Any], bytes], arguments: Sequence[Any]) -> float:
    """Return the CPU time of one call, in nanoseconds, as the mean over one pass over *arguments*."""
    start = time.process_time_ns()
    for argument in arguments:
        function(argument)
    return (time.process_time_ns() - start) / len(arguments)


def scrapy_fingerprint_url(url: str) -> bytes:
    """Do what a duplicate filter that is handed requests makes of a link."""
    return scrapy_fingerprint(Request(url))


def compare(
    ours: Callable[[Any], bytes], theirs: Callable[[Any], bytes], make: Callable[[], Sequence[Any]], rounds: int
) -> str:
    """Return the table cells of *ours* beside *theirs*: medians in ns, ratio, and the range of the rounds' ratios."""
    pairs = [(nanoseconds_each(ours, make()), nanoseconds_each(theirs, make())) for _ in range(rounds)]
    our_ns, their_ns = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(their / our for our, their in pairs)
    return f"{our_ns:7.0f} {their_ns:7.0f} {statistics.median(ratios):5.1f}x ({ratios[0]:.1f}-{ratios[-1]:.1f})"


def accepted(urls: list[str]) -> list[str]:
    """Return those of *urls* that Scrapy makes requests of."""
    kept = []
    for url in urls:
        try:
            Request(url)
        except ValueError:
            continue
        kept.append(url)
    return kept


def main() -> None:
    """Measure what the command line names and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--urls", type=Path, help="text file with a URL a line, may be gzipped")
    parser.add_argument("--html", type=Path, help="folder with HTML files whose links are taken")
    parser.add_argument("--base", default="https://docs.python.org/3.11/", help="URL that the folder stands for")
    parser.add_argument("--sample", type=int, default=10_000, help="URLs timed of each source (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="passes of each side (default: %(default)s)")
    options = parser.parse_args()

    sources = {"composed": composed_urls(40_000, seed=1)}
    if options.urls:
        sources[options.urls.name] = file_urls(options.urls)
    if options.html:
        sources[f"links of {options.html}"] = html_urls(options.html, options.base)

    print(f"Python {platform.python_version()}, Scrapy {version('scrapy')}, w3lib {version('w3lib')}, {machine()}")
    if not FAST_PATH_ON:
        sys.exit("The self-check switched the fast path off: there is nothing to measure.")
    print(f"medians of {options.rounds} rounds over {options.sample} URLs; ns: CPU time of one fingerprint\n")
    sides = "   ours  Scrapy  ratio (range)"
    print(f"{'':36}   on the fast path  {'of a request':31} from a URL")
    print(f"{'source':28} {'URLs':>7}  untouched    all  {sides:31}{sides}")
    for name, found in sources.items():
        urls = accepted(found)
        requested = [Request(url).url for url in urls]
        fast = sum(quick_canonical(url) is not None for url in requested) / len(urls)
        untouched = sum(canonicalize_url(url) == url for url in requested) / len(urls)
        sample = random.Random(2).sample(urls, min(options.sample, len(urls)))
        gc.collect()
        gc.disable()  # Scrapy's cache would be charged for walks over the requests that wait for their turn
        of_requests = compare(
            fingerprint, scrapy_fingerprint, lambda s=sample: [Request(url) for url in s], options.rounds
        )  # type: ignore[misc]
        of_urls = compare(fingerprint_url, scrapy_fingerprint_url, lambda s=sample: s, options.rounds)  # type: ignore[misc]
        gc.enable()
        print(f"{name[-28:]:28} {len(urls):7}   {untouched:7.2%} {fast:7.2%} {of_requests:31}{of_urls}")


def machine() -> str:
    """Name the processor, as well as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
