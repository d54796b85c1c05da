"""Puts URLs, or the locations of sitemaps, into a job or a fleet as pending requests.

Each becomes a plain GET request with the spider's default callback, which waits behind links, as start requests do. A
URL that was seen before is dropped, so the command may be interrupted and repeated.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.crawler import CrawlerRunner

from scrapy_bloom.commands.import_seen import job_to_fill
from scrapy_bloom.commands.locations import check_readable, made_of_urls
from scrapy_bloom.commands.targets import crawler_of, queue_to_fill, settings_of
from scrapy_bloom.commands.terminal import OK, WRONG, show
from scrapy_bloom.components import serialize
from scrapy_bloom.components.requests import lane_in, scrapys_order
from scrapy_bloom.errors import UnusableError, counted
from scrapy_bloom.frontier.lanes import Lane
from scrapy_bloom.job.records import Batch

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from scrapy.crawler import Crawler
    from scrapy.settings import Settings

    Enqueue = Callable[[list[Request]], int]
    """Makes the new ones of some requests pending, durably, and returns how many were new."""

_AT_ONCE, _AT_ONCE_ON_SERVER = 20_000, 1_000
"""Requests of one transaction, and of one call to a server, which answers no other client meanwhile.

Small transactions are costly: 5,000 rows over 1,000 hosts rewrite a page of SQLite's file for every five rows. In all,
that wrote 44 times the size of the file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``seed``."""
    parser.add_argument(
        "target", metavar="JOBDIR", help="of a crawl that is stopped, or a new one; or a redis:// server"
    )
    files = "URLs, one a line, or a sitemap or an index of sitemaps; also gzipped; - for standard input"
    parser.add_argument("sources", metavar="FILE", nargs="+", help=files)
    spider = "spider whose settings are used, and whose fleet it is; default for a fleet: the project's only spider"
    parser.add_argument("--spider", metavar="SPIDER", default="", help=spider)


def run(options: argparse.Namespace) -> int:
    """Enqueue, and print how many URLs were new."""
    settings, in_fleet = settings_of(options), "://" in options.target
    check_readable(options.sources)
    crawler = _crawler(settings, options.spider, is_needed=in_fleet)
    if crawler is not None:
        settings = crawler.settings
    findings: list[str] = []
    read = new = 0
    with (
        _fleet(options.target, crawler)
        if crawler and in_fleet
        else _job(options.target, settings, options.spider) as enqueue
    ):
        for source in options.sources:
            requests = made_of_urls(source, partial(Request, meta={"is_start_request": True}), findings)
            while batch := list(islice(requests, _AT_ONCE)):
                read, new = read + len(batch), new + enqueue(batch)
    show({"target": options.target, "read": read, "new": new, "findings": findings}, options)
    return WRONG if findings else OK


def _crawler(settings: Settings, name: str, *, is_needed: bool) -> Crawler | None:
    """Return a crawler of the spider *name*, or of the only one; None if none is named, and it is not needed."""
    if not name and is_needed:
        known = list(CrawlerRunner(settings).spider_loader.list())
        if len(known) != 1:
            problem = f"is not named, of which the project has {counted(len(known), 'spider')}"
            raise UnusableError("The spider of the fleet", problem, advice="Add --spider NAME.")
        (name,) = known
    return crawler_of(settings, name) if name else None


@contextmanager
def _job(jobdir: str, settings: Settings, spider: str) -> Iterator[Enqueue]:
    order = scrapys_order(settings, in_job=True)
    with job_to_fill(jobdir, settings, spider or None) as (chain, database, space, fingerprint_of):

        def enqueue(requests: list[Request]) -> int:
            state = database.state
            new: dict[bytes, Request] = {}
            for request in requests:
                fingerprint = fingerprint_of(request.url)
                if fingerprint not in chain:
                    new.setdefault(fingerprint, request)
            last_id = state.last_id + len(new)
            state = replace(state, spider=state.spider or spider, filter=chain.chain_id, key_space=space)
            batch = Batch(state=replace(state, last_id=last_id), fingerprints=dict.fromkeys(new))
            for id_, request in enumerate(new.values(), start=state.last_id + 1):
                key = lane_in(order, request)
                batch.add(id_, Lane(key, is_lifo=order.is_lifo[key.is_start]), serialize.dumps(request, None))
            # As a crawl commits: a page counts as seen only once its request is on disk.
            database.write(batch, redo_until=chain.synced)
            chain.update(new)
            chain.watermark = last_id
            return len(new)

        yield enqueue


@contextmanager
def _fleet(server_url: str, crawler: Crawler) -> Iterator[Enqueue]:
    from scrapy_bloom.fleet.messages import Link

    with queue_to_fill(server_url, crawler) as (queue, fingerprints, entries):
        queue.begin()

        def enqueue(requests: list[Request]) -> int:
            links = []
            for request in requests:
                fingerprint = fingerprints.of_request(request)
                links.append(Link(queue.shard_of(fingerprint), fingerprint, *entries.write(request)))
            starts = range(0, len(links), _AT_ONCE_ON_SERVER)
            return sum(queue.enqueue(links[at : at + _AT_ONCE_ON_SERVER]) for at in starts)

        yield enqueue
