"""Requests that cannot be checked are let through, but do not make a crawl endless."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom.old.crawl.unchecked import MOST_IN_A_ROW, MOST_OF_ONE, UncheckedRequests
from tests.old.support.crawling import crawl
from tests.old.support.localsite import LocalSite

if TYPE_CHECKING:
    from pathlib import Path


class Raising:
    """A fingerprinter that always raises."""

    def fingerprint(self, request: Request) -> bytes:
        raise RuntimeError("out of ink")


class Textual:
    """A fingerprinter that returns text, as those of old did."""

    def fingerprint(self, request: Request) -> Any:
        return request.url


class Partial:
    """A fingerprinter that raises for two pages of the site, which link to each other by way of others."""

    def fingerprint(self, request: Request) -> bytes:
        if "/page/2" in request.url or "/page/0" in request.url:
            raise RuntimeError("out of ink")
        return request.url.encode()


@pytest.mark.parametrize(
    ("fingerprinter", "scheduler"), [(Raising, "DurableScheduler"), (Textual, None), (Partial, None)]
)
def test_a_fingerprinter_that_fails_again_and_again_ends_the_crawl(
    fingerprinter: type, scheduler: str | None, tmp_path: Path
) -> None:
    """One CRITICAL line says so, with the error and what to repair; no page is fetched for ever."""
    path = f"{__name__}.{fingerprinter.__qualname__}"
    settings = {"REQUEST_FINGERPRINTER_CLASS": path, "JOBDIR": str(tmp_path / "job")}
    if scheduler:
        settings["SCHEDULER"] = f"scrapy_bloom.{scheduler}"
    with LocalSite(pages=4) as site:
        outcome = crawl(site.url("/page/1"), settings)
        assert sum(site.all_hits().values()) < 10 * MOST_OF_ONE
    assert outcome.stats["finish_reason"] == "bloom_unchecked"
    (line,) = [line for line in outcome.log.splitlines() if "] CRITICAL:" in line]
    assert f"Repair {path}; with JOBDIR, the crawl can be resumed" in line
    assert "out of ink" in line or fingerprinter is Textual


def test_odd_requests_among_others_end_nothing() -> None:
    """A success in between, and other URLs, make the count begin anew."""
    unchecked = UncheckedRequests()
    for number in range(20 * MOST_IN_A_ROW):
        if number % (MOST_IN_A_ROW - 1) == 0:
            unchecked.in_a_row = 0
        assert unchecked.failed(Request(f"http://example.com/{number}")) is None


def test_the_same_request_failing_again_and_again_ends_the_crawl() -> None:
    """However many others succeed in between: it may be what links the loop together."""
    unchecked = UncheckedRequests()
    answers = []
    for _ in range(MOST_OF_ONE):
        unchecked.in_a_row = 0
        answers.append(unchecked.failed(Request("http://example.com/")))
    assert answers[:-1] == [None] * (MOST_OF_ONE - 1)
    assert answers[-1] == f"<GET http://example.com/> could not be checked, for the {MOST_OF_ONE}th time"
