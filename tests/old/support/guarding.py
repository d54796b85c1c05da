"""A loop guard that is shown pages without a crawl around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.http import HtmlResponse
from scrapy.utils.test import get_crawler

from scrapy_bloom.old.loops.guard import LoopGuard
from scrapy_bloom.old.loops.options import parse_loop_guard

if TYPE_CHECKING:
    from pathlib import Path


def opened_guard(
    jobdir: Path | None = None, *, filter_is_shared: bool = False, max_age: float | None = None
) -> LoopGuard:
    crawler = get_crawler()
    crawler._apply_settings()
    assert crawler.stats is not None
    options = parse_loop_guard(True)
    assert options
    guard = LoopGuard(options, crawler.stats, filter_is_shared=filter_is_shared, max_age=max_age)
    guard.open(jobdir)
    return guard


def come_back(guard: LoopGuard, request: Request, text: str, title: str = "") -> None:
    """Show the guard the page that *request* has led to, with *text* and maybe a *title*."""
    head = f"<head><title>{title}</title></head>" if title else ""
    guard.saw(HtmlResponse(request.url, body=f"<html>{head}<body><p>{text}</p></body></html>".encode()), request)


def fetch(guard: LoopGuard, url: str, text: str, links: list[str]) -> list[Request]:
    """Fetch *url*, queue *links* from it, and return their requests."""
    page = Request(url)
    come_back(guard, page, text)
    return queue_links(guard, page, links)


def queue_links(guard: LoopGuard, page: Request, links: list[str]) -> list[Request]:
    """Queue *links* from the page that *page* has led to, and return their requests."""
    requests = [Request(link, meta=guard.marks_of_links(page)) for link in links]
    for request in requests:
        guard.queued(request)
    return requests
