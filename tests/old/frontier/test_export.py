"""The way back: crawls begun with DurableScheduler go on with Scrapy's own scheduler, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from scrapy import Request

from scrapy_bloom.old.errors import UnusableError
from scrapy_bloom.old.frontier import export
from scrapy_bloom.old.frontier.export import export_pending
from scrapy_bloom.old.frontier.scrapy_queue import ScrapyQueue
from tests.old.support.killed_crawling import ROOT, Crawl, finish
from tests.old.support.localsite import LocalSite
from tests.old.support.schedulers import SCRAPY, EngineCalls, opened

if TYPE_CHECKING:
    from pathlib import Path

# Scrapy 2.13's own priority queues leave their empty disk queues unclosed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BLOOM = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "BLOOM_CAPACITY": 1000}
SCRAPYS = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}


def exported(jobdir: Path, **settings: str) -> export.Exported:
    calls = EngineCalls(None, SCRAPY, **settings)  # an engine; its own scheduler has no part in it
    try:
        return export_pending(jobdir, calls.crawler, calls.crawler.spider)
    finally:
        calls.stop()


@pytest.mark.parametrize("order", ["Lifo", "Fifo"])
@pytest.mark.parametrize("dupefilter", [BLOOM, SCRAPYS])
def test_scrapys_scheduler_goes_on_with_what_was_exported(
    tmp_path: Path, order: str, dupefilter: dict[str, str]
) -> None:
    """Pending requests come out of Scrapy's queue in the order they would have come out of ours, with our filter and
    with Scrapy's, which knows those that are pending."""
    settings = {"SCHEDULER_DISK_QUEUE": f"scrapy.squeues.Pickle{order}DiskQueue"}
    for job in ("ours", "theirs"):
        with opened(tmp_path / job, **BLOOM, **settings) as calls:
            calls.push(*(Request(f"http://{n % 2}.example/{n}", priority=n % 3) for n in range(30)))
            calls.end(calls.start())
    with opened(tmp_path / "ours", **BLOOM, **settings) as calls:
        expected = calls.drain()
    assert exported(tmp_path / "theirs", **settings) == export.Exported(29, 29)
    with opened(tmp_path / "theirs", SCRAPY, **dupefilter, **settings) as calls:
        assert calls.push(*(Request(url) for url in expected)) == [False] * 29
        assert calls.drain() == expected
    with opened(tmp_path / "theirs", **BLOOM, **settings) as calls:  # and forward again
        assert calls.push(*(Request(url) for url in expected)) == [False] * 29


@pytest.mark.parametrize("tried_before", [False, True])
def test_what_scrapy_had_seen_goes_back_with_it(tmp_path: Path, *, tried_before: bool) -> None:
    """Fingerprints that came from Scrapy's filter are in its requests.seen again, also after a start too early."""
    with opened(tmp_path, SCRAPY, **SCRAPYS) as calls:
        calls.push(Request("http://a.example/1"), Request("http://a.example/2"))
        calls.end(calls.start())
    with opened(tmp_path, **BLOOM):
        pass
    if tried_before:  # which Scrapy's filter survives, and leaves an empty file
        (tmp_path / "requests.seen").touch()
    exported(tmp_path)
    with opened(tmp_path, SCRAPY, **SCRAPYS) as calls:
        assert calls.push(Request("http://a.example/1"), Request("http://a.example/2")) == [False, False]
        assert calls.drain() == ["http://a.example/1"]


@pytest.mark.parametrize("step", ["writing", "moving"])
def test_an_export_that_was_killed_is_done_again(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it writes, the job is as it was; killed while it moves, the next export goes on."""
    with opened(tmp_path, **BLOOM) as calls:
        calls.push(Request("http://a.example/1"))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*((export._Seen, "close") if step == "writing" else (ScrapyQueue, "unblock")), die)
        with pytest.raises(KeyboardInterrupt):
            exported(tmp_path)
    if step == "moving":
        with pytest.raises(IsADirectoryError):
            EngineCalls(tmp_path, SCRAPY, **SCRAPYS)
    else:
        with opened(tmp_path, **BLOOM) as calls:
            assert len(calls.scheduler) == 1
    assert exported(tmp_path) == export.Exported(1, 1)
    with opened(tmp_path, SCRAPY, **BLOOM) as calls:
        assert calls.drain() == ["http://a.example/1"]


def test_a_job_without_a_frontier_is_refused(tmp_path: Path) -> None:
    """There is nothing to export where no frontier is."""
    with pytest.raises(UnusableError, match="does not exist"):
        exported(tmp_path)


def test_a_job_of_several_workers_is_told_from_no_job(tmp_path: Path) -> None:
    """Its pending requests are on a server, so the error says what can be done instead."""
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "spider").write_text("books\n", encoding="utf-8")
    with pytest.raises(UnusableError, match="holds a crawl of several workers"):
        exported(tmp_path)


def export_command(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a project with the spider of the killed crawls."""
    (project / "scrapy.cfg").write_text("[settings]\ndefault = exporting\n")
    (project / "exporting.py").write_text(
        "SPIDER_MODULES = ['tests.old.support.killed_crawl']\n"
        "SCHEDULER_PRIORITY_QUEUE = 'scrapy.pqueues.DownloaderAwarePriorityQueue'\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "scrapy_bloom.old.frontier.export", *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{project}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sitee", "-s", "JOBDIR=job"], "No spider is called 'sitee'. The project's spiders are: site. Run this where"),
        (
            ["site", "-s", "JOBDIR=job", "-a", "options="],
            "requests.frontier does not exist. There is nothing to export",
        ),
        (["site", "-a", "options="], "JOBDIR is not set. Name the job: -s JOBDIR=..."),
        (["site", "-s", "JOBDIR"], "'JOBDIR' has no value: write NAME=VALUE"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_line(tmp_path: Path, arguments: list[str], told: str) -> None:
    """A person's mistakes are told with advice on the last line, without a traceback; nothing is exported."""
    ran = export_command(tmp_path, *arguments)
    assert ran.returncode == 2
    assert told in ran.stderr.splitlines()[-1], ran.stderr
    assert "Traceback" not in ran.stderr
    assert "CRITICAL" not in ran.stderr
    assert not (tmp_path / "job" / "requests.queue").exists()


@pytest.mark.parametrize("dupefilter", ["scrapy_bloom.BloomDupeFilter", "scrapy.dupefilters.RFPDupeFilter"])
def test_a_crawl_that_goes_back_to_scrapy_fetches_every_page(tmp_path: Path, dupefilter: str) -> None:
    """A crawl begun with our scheduler, stopped, exported by the command and ended with Scrapy's scheduler fetches
    every page; with our filter, each once."""
    settings = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter", "BLOOM_CAPACITY": 1000}
    with LocalSite(pages=120, delay=0.01) as site:
        with Crawl(site.url(), tmp_path, settings=settings) as crawl:
            crawl.wait_until(site, 40)
            crawl.interrupt()
            crawl.wait()
        ran = export_command(tmp_path, "site", "-s", f"JOBDIR={tmp_path / 'job'}", "-a", "options=")
        assert "pending requests to requests.queue" in ran.stdout, ran.stderr
        finish(site.url(), tmp_path, settings={"SCHEDULER": SCRAPY, "DUPEFILTER_CLASS": dupefilter})
        hits = site.all_hits()
    assert all(hits[f"/page/{i}"] >= 1 for i in range(site.pages))
    if dupefilter == "scrapy_bloom.BloomDupeFilter":
        assert all(hits[f"/page/{i}"] <= 1 for i in range(1, site.pages))
