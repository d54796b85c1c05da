"""What becomes of requests that middlewares replace, refuse and repeat: what has failed is listed, and nothing else.

All cases are sections of one site, and what happens to a request depends on its section: three crawls show all of them.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.commands.terminal import OK
from scrapy_bloom.job.inspect import inspect_job
from tests.support.crawls import ADDON, FollowSpider, Pages, Site, crawl
from tests.support.engine import BY_HOST

# -- the middleware of the downloader, and the spider: in the child ----------------------------------------------------


def once_more(request: Request, **changes: Any) -> Request | None:
    """Return a request in the place of *request*, unless that one has come from here."""
    if "again" in request.meta:
        return None
    return request.replace(meta={**request.meta, "again": True}, **{"dont_filter": True, **changes})


def section(url: str) -> str:
    return url.split("/")[3]


class Meddles:
    """Does with requests, answers and errors what is the matter of their section."""

    def process_request(self, request: Request, spider: Any = None) -> Any:
        if section(request.url) == "request-replaced":
            return once_more(request)
        if section(request.url) == "request-refused" and request.url.endswith("/b"):
            raise IgnoreRequest
        return None

    def process_response(self, request: Request, response: Any, spider: Any = None) -> Any:
        case = section(request.url)
        if case == "answer-refused" and request.url.endswith("/b"):
            raise IgnoreRequest
        if request.body == b"third":
            raise ConnectionError
        if case == "answer-copied":
            return response.replace(request=request.copy())
        if case == "answer-replaced" or request.body == b"second":
            return once_more(request) or response
        return response

    def process_exception(self, request: Request, exception: Exception, spider: Any = None) -> Any:
        if section(request.url) == "error-refused":
            raise IgnoreRequest
        if section(request.url) == "error-replaced":
            return once_more(request, url=request.url.replace("/dead", "/backup"))
        return None


class Sections(FollowSpider):
    """Sends several forms to one address, and downloads pages within a callback."""

    async def parse(self, response: Any) -> AsyncIterator[Any]:
        engine, page = self.crawler.engine, response.url.split("/", 3)[3]
        if page == "forms/a":
            for body in ("first", "second", "third", "fourth"):
                yield response.follow("/forms/form", method="POST", body=body)
        if page == "aside/a" and hasattr(engine, "download_async"):
            await engine.download_async(Request(response.urljoin("/aside/c")))
            with suppress(Exception):  # which one depends on Scrapy and the system
                await engine.download_async(Request(response.urljoin("/aside/dead")))
        for output in super().parse(response):
            yield output


# -- in the test -------------------------------------------------------------------------------------------------------

SITE: Pages = {"/": ["/a", "/b", "/status", "/raises"], "/a": [], "/b": [], "/status": 503, "/raises": []}
ITS_FAILURES = {"/status", "/raises"}


@dataclass
class Case:
    """A section with something that can be misread."""

    links: list[str] = field(default_factory=list)
    """More pages."""
    pages: Pages = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    answered: int = len(SITE)


CASES = {
    "request-replaced": Case(),
    "answer-replaced": Case(),
    "error-replaced": Case(links=["/dead"], pages={"/dead": 0, "/backup": []}, answered=6),
    "request-refused": Case(answered=4),
    "answer-refused": Case(answered=4),
    "error-refused": Case(links=["/dead"], pages={"/dead": 0}),
    "answer-copied": Case(),
    "forms": Case(pages={"/form": []}, failed={"/form"}, answered=8),
    "aside": Case(pages={"/c": [], "/dead": 0}),
    "each-leads-to-the-other": Case(
        links=["/raises/1"],
        pages={"/raises/1": ["/raises/2"], "/raises/2": ["/raises/1", "/raises/2"]},
        failed={"/raises/1", "/raises/2"},
        answered=9,
    ),
}


def pages_of(name: str, case: Case) -> Pages:
    pages: Pages = {**SITE, **case.pages, "/": [*SITE["/"], *case.links]}  # type: ignore[misc]
    return {
        f"/{name}{path}": [f"/{name}{link}" for link in page] if isinstance(page, list) else page
        for path, page in pages.items()
    }


class Shown(NamedTuple):
    """Which paths three crawls of all sections have shown."""

    failed: set[str]
    again: set[str]
    """Fetched by a crawl that goes over the lists once more."""
    put_back: set[str]
    """Fetched after ``requeue --failed``."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Crawl, with ``BLOOM_FORGET_FAILED``; crawl again in a copy of the job; put back what has failed, and go on."""
    directory = tmp_path_factory.mktemp("outcomes")
    job, copy = directory / "job", directory / "copy"
    settings: dict[str, Any] = {
        **ADDON,
        "JOBDIR": str(job),
        "START": [f"/{name}/" for name in CASES],
        "SPIDER": f"{__name__}.Sections",
        "BLOOM_FORGET_FAILED": True,
        "BLOOM_PAGES_PER_HOST": 1000,
        "SCHEDULER_PRIORITY_QUEUE": BY_HOST,
        "DOWNLOADER_MIDDLEWARES": {f"{__name__}.Meddles": 560},  # what it gets was not retried yet
    }
    with Site({path: page for name, case in CASES.items() for path, page in pages_of(name, case).items()}) as site:
        outcome = crawl(site, directory, settings)
        assert outcome.stats["finish_reason"] == "finished"
        left = inspect_job(job)
        assert outcome.stats["bloom/failed"] == len(left.failed)
        # Pages of hosts are answers, each counted once.
        assert left.pages == {"127.0.0.1": sum(case.answered for case in CASES.values())}
        shutil.copytree(job, copy)
        site.forget_hits()
        crawl(site, directory, {**settings, "JOBDIR": str(copy)})
        again = {*site.hits}
        site.forget_hits()
        assert main(["requeue", str(job), "--failed"]) == OK
        failed = {each.url.removeprefix(site.url) for each in left.failed}
        assert inspect_job(job).state.pending == len(failed)
        crawl(site, directory, settings)
        return Shown(failed, again, {*site.hits})


@pytest.mark.parametrize("name", CASES)
def test_what_has_failed_is_listed_and_put_back(name: str, shown: Shown) -> None:
    """A later link leads to what has failed, and to nothing else. Put back, it is fetched."""
    failed = ITS_FAILURES | CASES[name].failed
    found, again, put_back = (
        {path.removeprefix(f"/{name}") for path in paths if path.startswith(f"/{name}/")} for paths in shown
    )
    assert found == put_back == failed
    assert again - failed == {"/"}
    assert failed - again <= {"/form"}  # which its page leads to, and no link on that
