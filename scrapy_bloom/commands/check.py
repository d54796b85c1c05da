"""Whether a job has seen a URL, and in which layer. Reads only, beside a running crawl, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_bloom.commands.job import filter_directory
from scrapy_bloom.commands.terminal import OK, WRONG, show
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.files.inspect import inspect
from scrapy_bloom.files.lookup import layers_of
from scrapy_bloom.url.canonical import canonicalize_url
from scrapy_bloom.url.fingerprint import fingerprints_under
from scrapy_bloom.url.rules import resolve

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what ``check`` takes."""
    parser.add_argument("directory", metavar="DIR", help="a JOBDIR")
    parser.add_argument("urls", metavar="URL", nargs="+")


def run(options: argparse.Namespace) -> int:
    """Print whether each URL was seen."""
    found = check(options.directory, options.urls)
    show(found, options, _lines)
    return OK if all(each["seen"] for each in found) else WRONG


def check(directory: str, urls: Sequence[str]) -> list[dict[str, Any]]:
    """Return for each of *urls* its canonical form, its fingerprint, and whether its plain GET request was seen.

    Raises:
        UnusableError: There is no filter, its fingerprints were made by a class of the project's, or a URL is none.

    """
    path = filter_directory(directory)
    key_space = inspect(path).key_space
    fingerprinter = key_space.get("fingerprinter", "scrapy")
    if fingerprinter != "scrapy":
        advice = "Ask the filter from within the project: BloomDupeFilter.seen_urls()."
        raise UnusableError(path, f"was filled with fingerprints of {fingerprinter}", advice=advice)
    rules = resolve([name for name in key_space.get("rules", "").split(",") if name])
    _, fingerprint_of = fingerprints_under(rules)
    fingerprints = []
    for url in urls:
        try:
            fingerprints.append(fingerprint_of(url))
        except ValueError as error:
            advice = "Give whole URLs, such as https://example.com/."
            raise UnusableError(repr(url), f"is no URL: {error}", advice=advice) from None
    return [
        {
            "url": url,
            "canonical": rules.apply_to_canonical(canonicalize_url(url)),
            "fingerprint": fingerprint.hex(),
            "seen": layer is not None,
            "layer": layer,
        }
        for url, fingerprint, layer in zip(urls, fingerprints, layers_of(path, fingerprints), strict=True)
    ]


def _lines(found: list[dict[str, Any]]) -> list[str]:
    return [
        f"{'seen' if each['seen'] else 'new ':<5} {each['canonical']}"
        + (f"  (layer {each['layer']})" if each["seen"] else "")
        for each in found
    ]
