"""Makes the fingerprints of URLs as the crawl does whose filter it is. Knows settings and key spaces, no filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.project import get_project_settings

from scrapy_bloom.old.crawl.fingerprints import fingerprints_of
from scrapy_bloom.old.errors import BloomError, UnusableError
from scrapy_bloom.old.url.fingerprint import fingerprints_under
from scrapy_bloom.old.url.rules import resolve

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from scrapy.settings import Settings

    from scrapy_bloom.old.crawl.fingerprints import Fingerprints
    from scrapy_bloom.old.url.rules import Rules


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings that Scrapy has handed over, or those of the project around the working directory.

    Raises:
        UnusableError: The project's settings cannot be imported.

    """
    try:
        given: Settings | None = options.settings
        return get_project_settings() if given is None else given
    except Exception as error:  # the project's own code may raise anything
        advice = "Run the command outside of the project, or mend its settings."
        raise UnusableError("The project's settings", f"cannot be read: {error!r}", advice=advice) from error


def fingerprints_by(settings: Settings) -> Fingerprints:
    """Return how a crawl under *settings* makes fingerprints.

    Raises:
        UnusableError: Its fingerprinter cannot be made.
        SettingsError: Its rules cannot be used.

    """
    name = settings["REQUEST_FINGERPRINTER_CLASS"]
    try:
        crawler = Crawler(Spider, settings.copy())
        crawler.request_fingerprinter = build_from_crawler(load_object(name), crawler)
        return fingerprints_of(crawler)
    except BloomError:
        raise
    except Exception as error:  # a fingerprinter may raise anything
        advice = "It is REQUEST_FINGERPRINTER_CLASS of this project."
        raise UnusableError(repr(name), f"cannot be made: {error!r}", advice=advice) from error


def rules_in(space: Mapping[str, str]) -> Rules:
    """Return the rules that are named in a key space.

    Raises:
        SettingsError: One of them is not known here.

    """
    return resolve([name for name in space.get("rules", "").split(",") if name])


def of_url_under(space: Mapping[str, str], where: Path, settings: Callable[[], Settings]) -> Callable[[str], bytes]:
    """Return what makes the fingerprint of the plain GET request of a URL as in the filter at *where*.

    Args:
        space: The key space of that filter.
        where: The filter, to be named.
        settings: Called if the fingerprinter is one of a project's.

    Raises:
        UnusableError: The filter's fingerprinter is not that of this project.
        SettingsError: The filter's rules are not known here.

    """
    fingerprinter = space.get("fingerprinter", "scrapy")
    if fingerprinter == "scrapy":
        return fingerprints_under(rules_in(space))[1]
    ours = fingerprints_by(settings())
    if {**ours.space, "w3lib": ""} != {**space, "w3lib": ""}:
        raise UnusableError(
            where,
            f"was filled with fingerprints of {fingerprinter}",
            expected=ours.space["fingerprinter"],
            advice="Run the command in the project of that crawl, under its settings.",
        )
    return of_url(ours)


def of_url(fingerprints: Fingerprints) -> Callable[[str], bytes]:
    """Return what makes the fingerprint of the plain GET request of a URL. It raises ValueError for what is no URL."""
    return fingerprints.of_url or (lambda url: fingerprints.of_request(Request(url)))
