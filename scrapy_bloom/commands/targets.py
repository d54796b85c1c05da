"""The project, job or fleet that a command works on, and the fingerprints of URLs there."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler, CrawlerRunner
from scrapy.utils.conf import arglist_to_dict
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.project import get_project_settings

from scrapy_bloom.components.fingerprints import fingerprints_of, fingerprints_under
from scrapy_bloom.errors import UnusableError
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.url.rules import resolve

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from scrapy.settings import Settings

    from scrapy_bloom.components.fleet_requests import FleetRequests
    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.fleet.shared_queue import SharedQueue
    from scrapy_bloom.url.fingerprint import Fingerprints


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the arguments JOBDIR, which may be a server, and KEY."""
    parser.add_argument("directory", metavar="JOBDIR", help="or the redis:// server of a fleet")
    parser.add_argument("key", metavar="KEY", nargs="?", default="", help="of a fleet's queue, such as bloom:books")


@contextmanager
def queue_at(target: str, key: str) -> Iterator[SharedQueue | None]:
    """Open the queue under *key* on the server *target*; None if that is a JOBDIR. Raises UnusableError."""
    if "://" not in target:
        yield None
        return
    from scrapy_bloom.fleet.server import Server
    from scrapy_bloom.fleet.shared_queue import SharedQueue  # imports redis, which is optional

    with closing(Server(target)) as server:
        yield SharedQueue(server, key)


@contextmanager
def queue_to_fill(
    url: str, crawler: Crawler, spider: Spider | None = None
) -> Iterator[tuple[Queue, Fingerprints, FleetRequests]]:
    """Open the queue of *crawler*'s fleet on the server at *url*; the queue may have to begin.

    Yields it, and what makes fingerprints and entries of the requests of *spider*. Raises UnusableError if the server
    cannot be used.
    """
    from scrapy_bloom.components.fleet_requests import FleetRequests  # imports redis
    from scrapy_bloom.components.fleet_settings import order_of
    from scrapy_bloom.fleet.queue import Queue
    from scrapy_bloom.fleet.server import Server

    settings, fingerprints = crawler.settings, fingerprints_by(crawler.settings)
    bloom = BloomSettings.from_settings(settings)
    requests = FleetRequests(spider, bloom.fleet_secret, order_of(settings, spider), fingerprints)
    with closing(Server(url)) as server:
        yield Queue.of(server, bloom, fingerprints, crawler.spidercls.name), fingerprints, requests


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings that Scrapy has handed over, or the settings of the project around the working directory."""
    return options.settings or get_project_settings()


def fingerprints_by(settings: Settings) -> Fingerprints:
    """Return how a crawl under *settings* makes fingerprints. Raises SettingsError if its rules cannot be used."""
    crawler = Crawler(Spider, settings.copy())
    cls = load_object(settings["REQUEST_FINGERPRINTER_CLASS"])
    crawler.request_fingerprinter = build_from_crawler(cls, crawler)
    return fingerprints_of(crawler)


def fingerprints_in(
    space: Mapping[str, str] | None, where: object, urls: Iterable[str], settings: Settings
) -> dict[str, bytes]:
    """Return the fingerprint of the plain GET request of each of *urls*, as :func:`of_url_in`.

    Raises UnusableError if one of them is not a URL.
    """
    fingerprint_of = of_url_in(space, where, settings)
    fingerprints = {}
    for url in urls:
        try:
            fingerprints[url] = fingerprint_of(url)
        except ValueError as error:
            advice = "Give whole URLs, such as https://example.com/."
            raise UnusableError(repr(url), f"is not a URL: {error}", advice=advice) from None
    return fingerprints


def of_url_in(space: Mapping[str, str] | None, where: object, settings: Settings) -> Callable[[str], bytes]:
    """Return a function that makes the fingerprint of a URL's plain GET request; ValueError if it is not a URL.

    It makes the fingerprints of the job at *where*, whose key space is *space*. If *space* is None or names a custom
    fingerprinter, it makes those of a crawl under *settings*. Raises UnusableError if these do not match *space*, and
    SettingsError if the rules in *settings* cannot be used.
    """
    if space and space["fingerprinter"] == "scrapy":
        return fingerprints_under(resolve(space["rules"]))[1]
    ours = fingerprints_by(settings)
    if space and {**ours.space, "w3lib": ""} != {**space, "w3lib": ""}:
        raise UnusableError(
            where,
            f"was filled with fingerprints of {space['fingerprinter']} under the rules {space['rules']!r}",
            expected=f"{ours.space['fingerprinter']} and {ours.space['rules']!r}, as in this project",
            advice="Run the command in the project of that crawl, under its settings.",
        )
    return ours.of_url or (lambda url: ours.of_request(Request(url)))


def named_values(given: list[str]) -> dict[str, Any]:
    """Return the values of options such as ``-s JOBDIR=jobs/books``. Raises UnusableError if one has no name."""
    try:
        return arglist_to_dict(given)
    except ValueError:
        advice = "Write -s JOBDIR=jobs/books, for example."
        raise UnusableError("The command", "has a -s or -a without NAME=VALUE", advice=advice) from None


def crawler_of(settings: Settings, name: str) -> Crawler:
    """Return a crawler of the spider *name* of the project, under its settings. Raises UnusableError if it has none."""
    runner = CrawlerRunner(settings)
    return runner.create_crawler(spider_class(runner, name))


def spider_class(process: Any, name: str) -> type[Spider]:
    """Return the spider *name* of the project. Raises UnusableError if it has none."""
    try:
        return process.spider_loader.load(name)  # type: ignore[no-any-return] # Scrapy's loaders are of any type
    except KeyError:
        known = ", ".join(process.spider_loader.list()) or "none: no project is here"
        raise UnusableError(name, "is not a spider", expected=known, advice="Run this where scrapy.cfg is.") from None
