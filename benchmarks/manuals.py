"""``BLOOM_CHANGES`` on the HTML manuals of two versions of a program, held against a direct comparison of their files.

The manuals are served on 127.0.0.1, first the old one and then the new one twice, with an ETag for each page. Each
section of a page is an item. Without directories, Debian's manuals of LLVM 14 and 15 are downloaded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from benchmarks import measure
from benchmarks.crawls import run_spider
from benchmarks.servers import Site, files_in

if TYPE_CHECKING:
    from scrapy.http import TextResponse

PACKAGES = ("llvm-14-doc", "llvm-15-doc")
Items = dict[tuple[str, str], str]
"""Texts of sections by the path of the page and the id of the section."""


def run(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Crawl both manuals, compare, and print the table. End with status 1 if the crawl and the comparison differ."""
    parser.add_argument("directories", nargs="*", type=Path, metavar="DIR", help="of the old manual, and of the new")
    options = parser.parse_args(arguments)
    measure.print_environment("Scrapy")
    with TemporaryDirectory() as name:
        old, new = options.directories or [downloaded(package, Path(name)) for package in PACKAGES]
        before = pages_of(old, {"/index.html"})
        after = pages_of(new, {path for path in {"/index.html", *before} if Path(new, path[1:]).is_file()})
        items_before, items_after = all_items(old, before), all_items(new, after)
        nights = [("old", old, {}, items_before), ("new", new, items_before, items_after)]
        nights.append(("new again", new, items_after, items_after))
        table, is_equal = [], True
        with Site(files_in(old), has_tags=True) as site:
            for night, directory, known, items in nights:
                site.find = files_in(directory)
                feed = Path(name, f"{night}.jl")
                crawl = measure.in_own_process(crawled, site.url, f"{name}/job", str(feed))
                changes = {key: "changed" if key in known else "new" for key in items if items[key] != known.get(key)}
                lines = map(json.loads, feed.read_text().splitlines())
                reported = {(item["page"], item["section"]): item["change"] for item in lines}
                gone = sorted(map(list, known.keys() - items.keys()))
                is_as_compared = (reported, crawl.pop("items")) == (changes, gone)
                table.append([night, *map(str, crawl.values()), "yes" if is_as_compared else "NO"])
                is_equal &= is_as_compared
    measure.print_table([f"{len(before):,} and {len(after):,} pages", *crawl, "as compared"], table)
    sys.exit(not is_equal)


def downloaded(package: str, directory: Path) -> Path:
    """Return where in *directory* the HTML of a Debian *package* is unpacked."""
    subprocess.run(["apt-get", "download", "-q", package], cwd=directory, check=True, stdout=sys.stderr)
    (archive,) = directory.glob(f"{package}_*.deb")
    subprocess.run(["dpkg", "-x", archive, directory / package], check=True)
    return directory / package / "usr/share/doc" / package / "html"


# -- pages -------------------------------------------------------------------------------------------------------------


def sections_of(response: TextResponse) -> Iterator[dict[str, str]]:
    """Yield the sections of a page, each without those within it."""
    for section in response.css("section[id]"):
        texts = section.xpath("./*[not(self::section)]//text()").getall()
        page = urlsplit(response.url).path
        yield {"page": page, "section": section.attrib["id"], "text": " ".join("".join(texts).split()), "change": ""}


def links_of(response: TextResponse) -> set[str]:
    """Return the URLs of HTML pages of the same site that *response* links to, without fragments."""
    urls = {response.urljoin(href).partition("#")[0] for href in response.css("a::attr(href)").getall()}
    start = response.urljoin("/")
    return {url for url in urls if url.startswith(start) and url.endswith(".html")}


def read(directory: Path, path: str) -> TextResponse:
    """Return the page at *path*, as a response."""
    from scrapy.http import HtmlResponse

    return HtmlResponse(f"http://manual{path}", body=Path(directory, path[1:]).read_bytes())


def pages_of(directory: Path, paths: set[str]) -> set[str]:
    """Return *paths* and those of all pages that links lead to from there."""
    waiting, pages = list(paths), set(paths)
    while waiting:
        linked = {unquote(urlsplit(url).path) for url in links_of(read(directory, waiting.pop()))}
        new = {path for path in linked - pages if Path(directory, path[1:]).is_file()}
        waiting += new
        pages |= new
    return pages


def all_items(directory: Path, pages: set[str]) -> Items:
    """Return the sections of all *pages*."""
    sections = (section for path in pages for section in sections_of(read(directory, path)))
    return {(section["page"], section["section"]): section["text"] for section in sections}


# -- a crawl -----------------------------------------------------------------------------------------------------------


def crawled(url: str, jobdir: str, feed: str) -> measure.Figures:
    """Crawl the manual at *url* once; return figures, and the keys of sections that are gone."""
    from scrapy import Request, Spider

    from scrapy_bloom.signals import item_gone

    class Sections(Spider):
        name = "manual"

        async def start(self) -> Any:
            self.crawler.signals.connect(note, signal=item_gone)
            yield Request(f"{url}/index.html")

        def parse(self, response: TextResponse) -> Iterator[Any]:
            yield from sections_of(response)
            yield from map(Request, sorted(links_of(response)))

    def note(label: str) -> None:
        gone.append(json.loads(label))

    gone: list[Any] = []
    options = {"key": ["page", "section"], "field": "change", "code": "1"}
    settings = {"ADDONS": {"scrapy_bloom.Addon": 300}, "BLOOM_CHANGES": options, "JOBDIR": jobdir}
    cpu, stats = run_spider(Sections, {**settings, "FEEDS": {feed: {"format": "jsonl"}}})
    names = ("new", "changed", "same", "gone", "unknown", "not_modified")
    figures = {name: stats.get(f"bloom/changes/{name}", 0) for name in names}
    return {**figures, "CPU s": round(cpu, 1), "items": sorted(gone)}
