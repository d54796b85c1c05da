"""What becomes of requests that middlewares replace, refuse and repeat: what has failed is listed, and nothing else."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.commands.terminal import OK
from scrapy_bloom.job.inspect import inspect_job
from tests.support.crawls import ADDON, FollowSpider, Pages, Site, crawl
from tests.support.engine import BY_HOST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# -- middlewares of the downloader, and spiders: in the child ----------------------------------------------------------


def once_more(request: Request, **changes: Any) -> Request | None:
    """Return a request in the place of *request*, unless that one has come from here."""
    if "again" in request.meta:
        return None
    return request.replace(meta={**request.meta, "again": True}, **{"dont_filter": True, **changes})


class ReplacesRequest:
    def process_request(self, request: Request, spider: Any = None) -> Any:
        return once_more(request)


class ReplacesAnswer:
    def process_response(self, request: Request, response: Any, spider: Any = None) -> Any:
        return once_more(request) or response


class ReplacesException:
    def process_exception(self, request: Request, exception: Exception, spider: Any = None) -> Any:
        return once_more(request, url=request.url.replace("/dead", "/backup"))


class RefusesRequest:
    def process_request(self, request: Request, spider: Any = None) -> None:
        if request.url.endswith("/b"):
            raise IgnoreRequest


class RefusesAnswer:
    def process_response(self, request: Request, response: Any, spider: Any = None) -> Any:
        if request.url.endswith("/b"):
            raise IgnoreRequest
        return response


class RefusesException:
    def process_exception(self, request: Request, exception: Exception, spider: Any = None) -> Any:
        raise IgnoreRequest


class CopiesRequest:
    def process_response(self, request: Request, response: Any, spider: Any = None) -> Any:
        return response.replace(request=request.copy())


class RepeatsForm:
    """The second form is repeated, and the third one fails."""

    def process_response(self, request: Request, response: Any, spider: Any = None) -> Any:
        if request.body == b"third":
            raise ConnectionError
        return (once_more(request) if request.body == b"second" else None) or response


class Forms(FollowSpider):
    """Sends several forms to one address."""

    def parse(self, response: Any) -> Any:
        if response.url.endswith("/a"):
            for body in ("first", "second", "third", "fourth"):
                yield response.follow("/form", method="POST", body=body)
        yield from super().parse(response)


class DownloadsAside(FollowSpider):
    """Downloads pages within a callback."""

    async def parse(self, response: Any) -> AsyncIterator[Any]:
        engine = self.crawler.engine
        if response.url.endswith("/a") and hasattr(engine, "download_async"):
            await engine.download_async(Request(response.urljoin("/c")))
            with suppress(Exception):  # which one depends on Scrapy and the system
                await engine.download_async(Request(response.urljoin("/dead")))
        for output in super().parse(response):
            yield output


# -- in the test -------------------------------------------------------------------------------------------------------

SITE: Pages = {"/": ["/a", "/b", "/status", "/raises"], "/a": [], "/b": [], "/status": 503, "/raises": []}
ITS_FAILURES = {"/status", "/raises"}


@dataclass
class Case:
    """A site with something that can be misread."""

    middleware: str = ""
    spider: str = "FollowSpider"
    links: list[str] = field(default_factory=list)
    """More pages."""
    pages: Pages = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    answered: int = len(SITE)


CASES = {
    "replaced on its way out": Case("ReplacesRequest"),
    "replaced in the place of its answer": Case("ReplacesAnswer"),
    "replaced in the place of an error": Case(
        "ReplacesException", links=["/dead"], pages={"/dead": 0, "/backup": []}, answered=6
    ),
    "refused on its way out": Case("RefusesRequest", answered=4),
    "refused with its answer": Case("RefusesAnswer", answered=4),
    "refused in the place of an error": Case("RefusesException", links=["/dead"], pages={"/dead": 0}),
    "answered with a copy of it": Case("CopiesRequest"),
    "one of several forms": Case("RepeatsForm", "Forms", pages={"/form": []}, failed={"/form"}, answered=8),
    "downloaded aside": Case("", "DownloadsAside", pages={"/c": [], "/dead": 0}),
    "failing and leading to each other": Case(
        links=["/raises/1"],
        pages={"/raises/1": ["/raises/2"], "/raises/2": ["/raises/1", "/raises/2"]},
        failed={"/raises/1", "/raises/2"},
        answered=9,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_has_failed_is_listed_and_put_back(tmp_path: Path, case: Case) -> None:
    """With ``BLOOM_FORGET_FAILED`` the crawl ends, and a later link leads to what has failed, and to nothing else. Put
    back, it is fetched. Pages of hosts are answers, each counted once.
    """
    job = tmp_path / "job"
    settings: dict[str, Any] = {
        **ADDON,
        "JOBDIR": str(job),
        "SPIDER": f"{__name__}.{case.spider}",
        "BLOOM_FORGET_FAILED": True,
        "BLOOM_PAGES_PER_HOST": 1000,
        "SCHEDULER_PRIORITY_QUEUE": BY_HOST,
    }
    if case.middleware:
        settings["DOWNLOADER_MIDDLEWARES"] = {f"{__name__}.{case.middleware}": 560}  # what it gets was not retried yet
    failed = ITS_FAILURES | case.failed
    pages: Pages = {**SITE, **case.pages, "/": [*SITE["/"], *case.links]}  # type: ignore[misc]
    with Site(pages) as site:
        outcome = crawl(site, tmp_path, settings)
        assert outcome.stats["finish_reason"] == "finished"
        left = inspect_job(job)
        assert {each.url.removeprefix(site.url) for each in left.failed} == failed
        assert outcome.stats["bloom/failed"] == len(left.failed)
        assert left.pages == {"127.0.0.1": case.answered}
        shutil.copytree(job, tmp_path / "copy")

        site.forget_hits()
        crawl(site, tmp_path, {**settings, "JOBDIR": str(tmp_path / "copy")})
        assert site.hits.keys() - failed == {"/"}
        assert failed - site.hits.keys() <= {"/form"}  # which its page leads to, and no link on that

        site.forget_hits()
        assert main(["requeue", str(job), "--failed"]) == OK
        assert inspect_job(job).state.pending == len(failed)
        crawl(site, tmp_path, settings)
        assert site.hits.keys() == failed
