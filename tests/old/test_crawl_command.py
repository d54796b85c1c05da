"""``scrapy bloom crawl``: what several processes fetch between them, whatever of it is killed, and what it refuses."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scrapy import Request, Spider
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.test import get_crawler

from scrapy_bloom.old.commands.command_line import main
from scrapy_bloom.old.commands.crawl import UNFINISHED
from scrapy_bloom.old.commands.crawl_directory import CrawlDirectory
from scrapy_bloom.old.commands.crawl_feeds import check_feeds
from scrapy_bloom.old.commands.crawl_summary import summary_lines, total
from scrapy_bloom.old.commands.terminal import OK, USAGE, WRONG
from scrapy_bloom.old.errors import InUseError, SettingsError, UnusableError
from scrapy_bloom.old.fleet.own_server import OwnServer
from scrapy_bloom.old.fleet.server_executable import server_executable
from scrapy_bloom.old.loops.parked import ParkedFile
from tests.old.support.crawl_command import IN_HAND, PAGE_SECONDS, CrawlCommand, is_running, items_of, make_project
from tests.old.support.fleets import wait_until
from tests.old.support.localsite import LocalSite
from tests.old.support.redis_servers import RedisServer, executable

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = 100
FEED = ("-o", "items.jl")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    executable()  # skips the test where no server can be had
    return make_project(tmp_path / "project")


@pytest.fixture
def site() -> Iterator[LocalSite]:
    with LocalSite(pages=PAGES, links_per_page=6, delay=PAGE_SECONDS) as site:
        yield site


def assert_all_fetched(site: LocalSite, project: Path, again: int) -> None:
    """Every page was fetched, at most *again* of them again, and of each there is an item."""
    assert site.missing_pages() == []
    hits = site.hits()
    # The start page is not filtered, as with Scrapy: a link leads back to it, once.
    assert hits <= PAGES + 1 + again
    items = items_of(project)
    assert len({url.partition("?")[0] for url in items if "/page/" in url}) == PAGES
    assert len(items) <= hits


@pytest.mark.slow
def test_workers_share_a_crawl(project: Path, site: LocalSite) -> None:
    """Both fetch, each page is fetched once, all items are in one file, and nobody can see the server's password."""
    with CrawlCommand(project, None, *FEED, "-a", f"url={site.url('/held/x')}") as crawl:
        wait_until(lambda: all(f"shards: 1, worker {name}" in crawl.log for name in ("worker-1", "worker-2")), "both")
        site.release("x")
        members = crawl.members()
        assert set(members) == {"server", "worker-1", "worker-2"}
        seen = [Path(f"/proc/{pid}/{what}").read_bytes() for pid in members.values() for what in ("cmdline", "environ")]
        code, found = crawl.finish()
        log = crawl.log
    assert (code, found["outcome"], found["problem"]) == (OK, "finished", None), log
    assert site.hits() == PAGES + 1
    assert_all_fetched(site, project, again=0)
    assert found["stats"]["response_received_count"] == found["stats"]["item_scraped_count"] == PAGES + 1
    shares = [worker["stats"]["response_received_count"] for worker in found["workers"].values()]
    assert len(shares) == 2
    assert all(shares)
    assert not any(is_running(pid) for pid in members.values())
    assert "[worker-1] " in log
    assert "[worker-2] " in log
    files = [path.read_bytes() for path in crawl.job.rglob("*") if path.is_file()]
    for text in [*seen, *files, log.encode()]:
        assert not re.search(rb"redis://:|requirepass |[0-9a-f]{48}", text)  # 48 digits: the password


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker-1", "server"])
def test_a_member_that_is_killed_is_started_again(project: Path, site: LocalSite, victim: str) -> None:
    """The crawl goes on after SIGKILL of a worker or the server; pages in hand are fetched again, nothing is lost."""
    with CrawlCommand(project, site, *FEED) as crawl:
        crawl.wait_for_members(3)
        site.wait_for_hits(30)
        crawl.kill(victim)
        code, found = crawl.finish()
        log = crawl.log
    assert (code, found["outcome"]) == (OK, "finished"), log
    assert_all_fetched(site, project, again=IN_HAND if victim == "worker-1" else 0)
    if victim == "worker-1":
        assert found["workers"]["worker-1"]["deaths"] == ["SIGKILL"]
        assert "worker-1 has died (SIGKILL), and is started again" in log
    else:
        assert "The server has died (-9), and is started again" in log


@pytest.mark.slow
def test_a_killed_crawl_leaves_nobody_behind_and_goes_on(project: Path, site: LocalSite) -> None:
    """After SIGKILL of the process that runs it, workers and server end by themselves; a start meanwhile waits."""
    with CrawlCommand(project, site, *FEED) as crawl:
        members = crawl.wait_for_members(3)
        site.wait_for_hits(30)
        crawl.kill()
    with CrawlCommand(project, site, *FEED) as crawl:
        code, found = crawl.finish()
        log = crawl.log
    assert (code, found["outcome"]) == (OK, "finished"), log
    assert not any(is_running(pid) for pid in members.values())
    assert "this worker ends, too" in log
    assert 0 < found["stats"]["response_received_count"] < PAGES
    assert_all_fetched(site, project, again=2 * IN_HAND)


@pytest.mark.slow
def test_all_killed_at_once_loses_nothing(project: Path, site: LocalSite) -> None:
    """As a power failure would: the next start has the queue as it was, and fetches the rest."""
    with CrawlCommand(project, site, *FEED) as crawl:
        members = crawl.wait_for_members(3)
        site.wait_for_hits(30)
        for pid in (crawl.process.pid, *members.values()):
            os.kill(pid, signal.SIGKILL)
        crawl.process.wait()
    with CrawlCommand(project, site, *FEED) as crawl:
        code, found = crawl.finish()
        log = crawl.log
    assert (code, found["outcome"]) == (OK, "finished"), log
    assert 0 < found["stats"]["response_received_count"] < PAGES
    assert_all_fetched(site, project, again=2 * IN_HAND)


@pytest.mark.slow
def test_ctrl_c_stops_and_the_next_start_goes_on(project: Path, site: LocalSite) -> None:
    """Pages in hand are finished, nothing is fetched twice, and the exit code tells a stop from the end.

    Meanwhile a second start on the same job directory is refused, and says who has it. One that finds the data of the
    server deleted is refused, too: it would take the rest of a crawl for all of it.
    """
    start = (*FEED, "-a", f"url={site.url('/held/x')}")
    with CrawlCommand(project, None, *start) as crawl:
        site.wait_for_hits(1)
        with CrawlCommand(project, None, *start) as second:
            assert second.finish() == (USAGE, {})
        assert f"job is in use by process {crawl.process.pid} on " in crawl.log
        site.release("x")
        site.wait_for_hits(30)
        crawl.interrupt()
        code, _ = crawl.finish()
        assert code == UNFINISHED, crawl.log
        assert "Stopping: pages in hand are finished" in crawl.log
        assert "Traceback" not in crawl.log
    assert site.hits() < PAGES
    with CrawlCommand(project, None, *start) as crawl:
        code, found = crawl.finish()
        assert (code, found["outcome"]) == (OK, "finished"), crawl.log
    assert site.hits() == PAGES + 1
    assert_all_fetched(site, project, again=0)
    for path in (project / "job" / "fleet" / "server").rglob("appendonly*"):
        if path.is_file():
            path.unlink()
    with CrawlCommand(project, None, *start) as crawl:
        assert crawl.finish()[0] == USAGE
        assert "is not there: " in crawl.log


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once(project: Path) -> None:
    """The second one reaches the workers as Scrapy's second: it does not wait for a page that hangs."""
    with LocalSite(pages=20) as site, CrawlCommand(project, None, "-a", f"url={site.url('/held/x')}") as crawl:
        site.wait_for_hits(1)
        crawl.interrupt()
        wait_until(lambda: "Closing spider (shutdown)" in crawl.log, "the first")
        crawl.interrupt()
        code, _ = crawl.finish()
        assert code == UNFINISHED, crawl.log
        assert "forcing unclean shutdown" in crawl.log


@pytest.mark.slow
def test_a_worker_that_cannot_live_ends_the_crawl(project: Path, site: LocalSite) -> None:
    """A spider that raises at its start is started three times, then the crawl ends and says which worker died how."""
    with CrawlCommand(project, site, spider="broken", workers=1) as crawl:
        code, found = crawl.finish()
        log = crawl.log
    assert (code, found["outcome"]) == (WRONG, "failed"), log
    assert found["problem"].startswith("worker-1 has died 3 times in a row before it had fetched a page (exit code 1)")
    assert log.count("RuntimeError: no such thing") >= 3


@pytest.mark.slow
def test_a_server_that_cannot_live_ends_the_crawl(project: Path, site: LocalSite) -> None:
    """After its third death within a minute of its start the crawl ends, and names the log of the server."""
    with CrawlCommand(project, None, "-a", f"url={site.url('/held/x')}") as crawl:
        site.wait_for_hits(1)
        killed: set[int] = set()
        while len(killed) < 3:
            wait_until(lambda: crawl.members().get("server", 0) not in {0, *killed}, "the server")
            pid = crawl.members()["server"]
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        wait_until(lambda: "The server has died 3 times" in crawl.log, "the message")
        site.release("x")
        code, found = crawl.finish()
    assert (code, found["outcome"]) == (WRONG, "failed"), crawl.log
    assert found["problem"].endswith("see job/fleet/server/server.log")


@pytest.mark.slow
def test_a_server_of_the_settings_is_used(project: Path, site: LocalSite, tmp_path: Path) -> None:
    """With a server in the settings none is started, and workers have names that other machines do not use."""
    with RedisServer(tmp_path / "redis", keeps_data=True) as server:
        with CrawlCommand(project, site, *FEED, "-s", f"BLOOM_REDIS_URL={server.url}") as crawl:
            members = crawl.wait_for_members(2)
            code, found = crawl.finish()
            log = crawl.log
        assert server.client().exists("{bloom:site:0}:queue")
    assert (code, found["outcome"]) == (OK, "finished"), log
    assert set(members) == {"worker-1", "worker-2"}
    assert "worker worker-1" not in log
    assert_all_fetched(site, project, again=0)


@pytest.mark.parametrize("number", ["0", "-1", "257", "many", "2.5", "1e9"])
def test_absurd_numbers_of_workers_are_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what is allowed."""
    with pytest.raises(SystemExit) as ended:
        main(["crawl", "books", f"--workers={number}"])
    assert ended.value.code == USAGE
    assert f"must be a whole number from 1 to 256, not '{number}'" in capsys.readouterr().err


def test_a_place_without_a_project_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one line says where to go."""
    monkeypatch.chdir(tmp_path)
    assert main(["crawl", "books"]) == USAGE
    assert "is not in a Scrapy project. Change to the directory of the project's scrapy.cfg." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["items.json", "items.csv", "items.xml", "s3://bucket/items.jl", "stdout:"])
def test_feeds_that_cannot_be_shared_are_refused(name: str) -> None:
    """Whatever has a head or an end, or is uploaded whole, has to name the worker."""
    form = name.rpartition(".")[2] if "." in name else "jl"
    with pytest.raises(SettingsError, match=r"several workers cannot write .*%\(worker\)s"):
        check_feeds(Settings({"FEEDS": {name: {"format": form}}}))
    check_feeds(Settings({"FEEDS": {f"%(worker)s-{name}": {"format": form}}}))


def test_lines_in_a_local_file_are_shared() -> None:
    """Under any of their names, and wherever the file is."""
    feeds = {"items.jl": {"format": "jl"}, "/tmp/a.jsonl": {"format": "jsonlines"}, "file:///tmp/b": {"format": "jl"}}
    check_feeds(Settings({"FEEDS": feeds}))


def test_the_job_of_a_single_process_is_refused(tmp_path: Path) -> None:
    """Its pending requests are in files that no worker reads; they would be forgotten without a word."""
    (tmp_path / "requests.frontier").touch()
    with pytest.raises(UnusableError, match=r"holds the crawl of a single process \(requests\.frontier\)"):
        CrawlDirectory(tmp_path, "books", print).__enter__()


def test_a_single_process_is_kept_out_of_the_job_of_workers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would begin anew and lock the workers out: one CRITICAL line says how to go on, and no file is created."""
    with CrawlDirectory(tmp_path, "books", print):
        pass
    before = sorted(tmp_path.rglob("*"))
    for scheduler in ("scrapy_bloom.DurableScheduler", "scrapy.core.scheduler.Scheduler"):
        crawler = get_crawler(
            Spider,
            {
                "JOBDIR": str(tmp_path),
                "SCHEDULER": scheduler,
                "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
            },
        )
        crawler.spider = crawler._create_spider("books")
        caplog.clear()
        with pytest.raises(UnusableError):
            build_from_crawler(load_object(scheduler), crawler)
        (line,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
        assert f"holds the crawl of workers, in {tmp_path / 'fleet'}" in line
        assert f"scrapy bloom crawl SPIDER -s JOBDIR={tmp_path}" in line
    assert sorted(tmp_path.rglob("*")) == before


def test_of_two_crawls_in_one_directory_the_workers_say_what_to_delete(tmp_path: Path) -> None:
    """A job directory in which a single process has begun as well: doing what the message says helps."""
    with CrawlDirectory(tmp_path, "books", print):
        pass
    (tmp_path / "requests.frontier").touch()
    with pytest.raises(UnusableError, match=re.escape(f"to go on with it, delete {tmp_path / 'requests.*'}")):
        CrawlDirectory(tmp_path, "books", print).__enter__()
    for path in tmp_path.glob("requests.*"):
        path.unlink()
    with CrawlDirectory(tmp_path, "books", print):
        pass


def test_what_is_left_of_a_killed_crawl_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has inherited the lock keeps others out until it ends, and is named."""
    said: list[str] = []
    with CrawlDirectory(tmp_path, "books", said.append) as first:
        left = subprocess.Popen(["sleep", "60"], pass_fds=first.inherited)
        first.note_members({"worker-1": left.pid})
    monkeypatch.setattr("scrapy_bloom.old.commands.crawl_directory.WAIT_SECONDS", 0.0)
    with pytest.raises(InUseError, match=rf"processes of a killed crawl: worker-1 \(process {left.pid}\)"):
        CrawlDirectory(tmp_path, "books", said.append).__enter__()
    left.kill()
    left.wait()
    with CrawlDirectory(tmp_path, "books", said.append):
        assert said == [f"waiting for what is left of a killed crawl: worker-1 (process {left.pid})"]


def test_the_crawl_of_another_spider_is_refused(tmp_path: Path) -> None:
    """Two spiders in turn in one job directory would get each other's spider.state."""
    with CrawlDirectory(tmp_path, "books", print):
        pass
    with pytest.raises(UnusableError, match=r"holds the crawl of the spider 'books', and this is 'shelves'"):
        CrawlDirectory(tmp_path, "shelves", print).__enter__()


@pytest.mark.slow
def test_what_absent_workers_have_parked_is_said_and_comes_back(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start with fewer workers warns of requests that the loop guard has parked with the others. Doing what the
    warning says fetches them."""
    where = Path("job", "fleet", "worker-2")
    lot = ParkedFile.open(project / where, None)
    with LocalSite(pages=3) as site:
        lot.park(7, Request(site.url("/only/parked")))
        lot.close(queue_is_kept=True)
        with CrawlCommand(project, site, workers=1) as crawl:
            assert crawl.finish()[0] == OK
            (line,) = [line for line in crawl.log.splitlines() if "nobody looks there" in line]
        assert f"has parked 1 request in {where}, and with --workers 1 nobody looks there" in line
        assert "Go on with them by --workers 2 or more" in line
        assert line.endswith(f"scrapy bloom info {where}. To have them fetched then: scrapy bloom requeue {where}")
        assert site.hits("/only/parked") == 0
        assert main(["info", str(project / where)]) == OK
        assert main(["requeue", str(project / where)]) == OK
        assert "1 parked request goes back" in capsys.readouterr().out
        with CrawlCommand(project, site, "-s", "BLOOM_LOOP_GUARD=True", workers=2) as crawl:
            assert crawl.finish()[0] == OK
            assert crawl.log.count("nobody looks there") == 1
        assert site.hits("/only/parked") == 1


def test_stats_add_up() -> None:
    """Counts are added, largest values and what describes the common filter are not, and rates have no sum."""
    one = {"pages": 3, "request_depth_max": 4, "bloom/urls": 50, "responses_per_minute": 9.0, "finish_reason": "x"}
    other = {"pages": 4, "request_depth_max": 2, "bloom/urls": 60, "elapsed_time_seconds": 3.0, "flag": True}
    assert total([one, other]) == {"pages": 7, "request_depth_max": 4, "bloom/urls": 60}


@pytest.mark.slow
def test_scrapy_hands_its_options_on(project: Path) -> None:
    """`scrapy bloom crawl` gets those that Scrapy takes for itself, too: -s, -L and --logfile; wrong ones end it."""
    program = """
import sys, scrapy.cmdline
from scrapy_bloom.old.commands.scrapy_command import Command
import scrapy_bloom.old.commands.crawl as crawl
scrapy.cmdline._get_commands_dict = lambda *_: {"bloom": Command()}  # as if installed
run = crawl.run
crawl.run = lambda options: print(crawl._typed_settings(options), options.arguments, options.output) or run(options)
scrapy.cmdline.execute(["scrapy", "bloom", *sys.argv[1:]])
"""
    command = [sys.executable, "-c", program, "crawl", "site", "--workers", "2", "-a", "url=x", "-o", "items.jl"]
    command += ["-s", "BLOOM_CAPACITY=0", "-L", "ERROR", "--logfile", "log.txt"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == USAGE, ran.stderr
    typed = {"BLOOM_CAPACITY": "0", "LOG_ENABLED": True, "LOG_FILE": str(project / "log.txt"), "LOG_LEVEL": "ERROR"}
    assert ran.stdout == f"{typed} ['url=x'] ['items.jl']\n"
    assert "BLOOM_CAPACITY must be a whole number of URLs from 1 to 1e12, not '0'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_summary_says_who_died_and_what_it_does_not_know() -> None:
    """Counts of a worker that was killed lack its last second; a stop says why, and how to go on."""
    worker = {"finish_reason": "closespider_pagecount", "deaths": ["SIGKILL"], "stats": {"response_received_count": 4}}
    found = {"spider": "books", "outcome": "stopped", "problem": None, "seconds": 61, "job": "jobs/books"}
    lines = summary_lines({**found, "stats": worker["stats"], "workers": {"worker-1": worker, "worker-2": worker}})
    assert [line[16:] for line in lines if line.startswith(("outcome", "workers", "pages", "next"))] == [
        "stopped: closespider_pagecount",
        "2; died: worker-1 1 (SIGKILL), worker-2 1 (SIGKILL)",
        "at least 4 (4 + 4)",
        "The same command goes on from here.",
    ]


@pytest.mark.slow
def test_ctrl_c_while_workers_are_starting_is_not_lost(project: Path, site: LocalSite) -> None:
    """It waits for Scrapy in a worker that still imports it, and then stops that cleanly."""
    with CrawlCommand(project, site) as crawl:
        crawl.wait_for_members(3)
        crawl.interrupt()
        code, _ = crawl.finish()
        assert code == UNFINISHED, crawl.log
        assert "Traceback" not in crawl.log
    assert site.hits() < PAGES


@pytest.mark.slow
def test_a_server_whose_note_was_cut_short_goes_on(tmp_path: Path) -> None:
    """Killed while the name of its data was written, the next start finds an empty note and the data that it had. Where
    the data are gone, an empty note is no reason to begin anew."""
    program = server_executable()
    assert program is not None
    data = tmp_path / "data"
    data.mkdir()
    note = data / "job-id"

    def start() -> str:
        server = OwnServer(data, program)
        try:
            server.start()
        finally:
            server.stop()
        return note.read_text()

    first = start()
    note.write_text("")
    assert start() == first
    shutil.rmtree(data)
    data.mkdir()
    note.write_text("")
    with pytest.raises(UnusableError, match="has read nothing"):
        start()
