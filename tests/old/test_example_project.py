from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from w3lib.url import canonicalize_url

from scrapy_bloom.old.commands.plan import plan
from scrapy_bloom.old.commands.terminal import size
from tests.old.support.redis_servers import executable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

REPOSITORY = Path(__file__).parents[2]
PROJECT = REPOSITORY / "example_project"
README = (PROJECT / "README.md").read_text(encoding="utf-8")
TIMEOUT = 60  # seconds until a crawl of a second or two counts as hung


class Crawl(NamedTuple):
    code: int
    summary: dict[str, tuple[str, str]]
    log: str
    output: str

    def number(self, label: str) -> int:
        return int(self.summary[label][0].replace(",", ""))

    def remark(self, label: str) -> str:
        return self.summary[label][1]


def copy_project(directory: Path) -> Path:
    return Path(shutil.copytree(PROJECT, directory / "example_project", ignore=shutil.ignore_patterns("job*", "*.pyc")))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copy_project(tmp_path)


def start(project: Path, command: str) -> subprocess.Popen[str]:
    return start_python(project, "-m", *command.split())


def start_python(project: Path, *arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, *arguments]
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "default"}
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, cwd=project, env=environment, text=True, stdout=pipe, stderr=pipe)


def finish(process: subprocess.Popen[str]) -> Crawl:
    with process:
        try:
            output, log = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    rows = [re.split(r" {2,}", line) for line in output.splitlines() if "  " in line]
    return Crawl(process.returncode, {row[0]: (row[1], row[2] if len(row) > 2 else "") for row in rows}, log, output)


def crawl(project: Path, command: str) -> Crawl:
    return finish(start(project, command))


def signal_after(process: subprocess.Popen[str], pages: int, number: int) -> None:
    """Send signal *number* to *process* once its log says that *pages* pages have been crawled."""
    left = pages
    for line in process.stderr:
        left -= "Crawled (200)" in line and "robots.txt" not in line
        if not left:
            process.send_signal(number)
            return
    pytest.fail(f"the crawl ended before page {pages}")


def assert_nothing_to_complain_about(log: str) -> None:
    complaints = [line for line in log.splitlines() if re.search(r"\] (WARNING|ERROR|CRITICAL):", line)]
    assert complaints == []
    assert "DeprecationWarning: example" not in log
    assert "ScrapyDeprecationWarning" not in log


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Crawl:
    assert "\nscrapy crawl maze\n" in README
    return crawl(copy_project(tmp_path_factory.mktemp("first")), "scrapy crawl maze -a compare=no")


def test_the_first_command_of_the_readme_crawls_every_page_once(first_run: Crawl) -> None:
    """`scrapy crawl maze` fetches every page of the site exactly once and its summary adds up."""
    run = first_run
    assert run.code == 0, run.log
    assert_nothing_to_complain_about(run.log)
    assert run.summary["ended because"] == ("finished", "")
    assert run.summary["resumed"] == ("no", "")
    assert run.number("pages crawled, this run") == 300
    assert run.summary["pages crawled, all runs"] == ("300", "all 300 pages of the site, each once")
    assert run.summary["requests served by the site"] == ("300", "this run, for 300 different pages")
    # Each link and the one start request either led to a page or was filtered.
    assert run.number("links followed") + 1 == 300 + run.number("duplicates filtered")


def test_the_readme_shows_what_one_sees(first_run: Crawl) -> None:
    """The table pasted into the README has the rows of a real run, and its numbers where chance has no part in them."""
    chance = {"fill ratio", "estimated error rate", "expected pages lost"}  # each filter draws its own hash seed
    chance.add("of these, as links")  # a link found on two pages at once is a request both times
    for label, (value, remark) in first_run.summary.items():
        shown = re.search(rf"^{re.escape(label)}  +(\S+)(?:  (.*))?$", README, re.MULTILINE)
        assert shown, label
        if label not in chance:
            assert (shown[1], shown[2] or "") == (value, remark)


def test_the_summary_says_what_the_filter_holds_and_what_it_may_have_cost(first_run: Crawl) -> None:
    """The rows about the filter show its final stats."""
    run = first_run
    assert run.number("URLs remembered") == 300
    assert run.number("layers") == 1
    assert run.number("bytes") > 0
    assert run.number("bytes of Scrapy's own filter") == 300 * 91
    assert run.summary["fill ratio"][0].endswith("%")
    assert 0 <= float(run.summary["estimated error rate"][0]) < 1e-6
    assert 0 <= float(run.summary["expected pages lost"][0]) < 300 * 1e-6


@pytest.mark.slow
def test_the_first_command_ends_with_what_plain_scrapy_does_on_the_same_site(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill it ends with a part of the pages and exit code 0, and it does not leave the calendar; with us every
    page is crawled both times. The README shows such a table, and the memory in it is what `plan` computes."""
    monkeypatch.setattr("tests.test_example_project.TIMEOUT", 240)
    run = crawl(project, "scrapy crawl maze")
    assert run.code == 0, run.log
    rows = compared(run.output)
    assert rows["pages crawled in the end"][0] == "300 of 300"
    missed = re.fullmatch(r"(\d+) of 300", rows["pages crawled in the end"][1])
    assert missed
    assert 100 <= int(missed[1]) < 300
    assert rows["exit code"] == ["0", "0"]
    assert rows["pages crawled"][0] == "300 of 300"
    assert rows["ended"] == ["by itself", "by a limit only"]
    ours, plain = map(int, rows["months of the calendar"])
    assert 25 <= ours < 100 < plain
    planned = plan(100_000_000, 1e-6)
    sizes = [size(planned["right_capacity"]["memory"]), size(planned["scrapy"]["memory"])]
    shown = compared(README)
    assert rows["memory for 100,000,000 URLs"] == shown["memory for 100,000,000 URLs"] == sizes
    assert shown.keys() == rows.keys()


def compared(text: str) -> dict[str, list[str]]:
    """Return the rows of the table that compares both ways."""
    lines = text.partition("The same site, 300 pages, in both ways")[2].splitlines()[3:11]
    return {label.strip(): cells for label, *cells in (re.split(r"(?<=\S) {2,}", line) for line in lines)}


def test_a_crawl_stopped_with_ctrl_c_and_resumed_fetches_every_page_once(project: Path) -> None:
    """Two runs of a job with Ctrl-C in between fetch together what one run fetches, nothing twice."""
    command = "scrapy crawl maze -s JOBDIR=job"
    assert f"\n{command}" in README
    # At one page every 50 ms the first run would take four seconds: it cannot finish before the signal.
    process = start(project, f"{command} -a pages=80 -s DOWNLOAD_DELAY=0.05 -s LOG_LEVEL=DEBUG")
    signal_after(process, 10, signal.SIGINT)
    first = finish(process)
    second = crawl(project, f"{command} -a pages=80")

    assert (first.code, second.code) == (0, 0), first.log + second.log
    assert_nothing_to_complain_about(second.log)
    assert first.summary["ended because"] == ("shutdown", "")
    assert first.summary["resumed"] == ("no", "")
    stopped_at = first.number("pages crawled, this run")
    assert 10 <= stopped_at < 80
    assert first.remark("pages crawled, all runs") == f"of 80 on the site; {80 - stopped_at} missing so far"

    assert second.summary["ended because"] == ("finished", "")
    assert second.summary["resumed"] == ("yes", "run 2 of this job")
    assert second.number("pages crawled, this run") == 80 - stopped_at
    assert second.summary["pages crawled, all runs"] == ("80", "all 80 pages of the site, each once")
    assert first.number("requests served by the site") + second.number("requests served by the site") == 80
    assert second.number("URLs remembered") == 80


def test_a_crawl_that_is_killed_goes_on_with_what_was_pending(project: Path) -> None:
    """The README's command kills a crawl after a commit; the next run fetches what was pending, and nothing is lost."""
    assert "\npython kill_and_resume.py\n" in README
    outcome = finish(start_python(project, "kill_and_resume.py", "120", "1"))
    assert outcome.code == 0, outcome.log
    assert "1 kill, and every page was crawled." in outcome.output
    assert outcome.remark("pages crawled, all runs").startswith("all 120 pages of the site, ")
    assert outcome.summary["resumed"] == ("yes", "run 2 of this job")
    killed = re.search(r"^kill 1: after (\d+) pages, (\d+) requests are pending$", outcome.output, re.MULTILINE)
    assert killed
    crawled, pending = map(int, killed.groups())
    assert 40 <= crawled < 120
    assert pending > 0
    # A run that starts over would fetch all 120.
    assert pending <= outcome.number("pages crawled, this run") < 120


@pytest.mark.parametrize(
    "command",
    [
        "parse --spider=maze --depth=3 http://maze.example/",
        "shell --spider=maze -c response.status http://maze.example/",
        pytest.param("fetch --spider=maze http://maze.example/", marks=pytest.mark.slow),
    ],
    ids=["parse", "shell", "fetch"],
)
def test_commands_that_look_at_pages_leave_a_job_alone(project: Path, command: str) -> None:
    """With JOBDIR in the settings, `scrapy parse` and its kin change no byte of the queue and the filter."""
    with (project / "example" / "settings.py").open("a", encoding="utf-8") as settings:
        settings.write('JOBDIR = "job"\n')
    stopped = crawl(project, "scrapy crawl maze -s CLOSESPIDER_PAGECOUNT=5")
    assert stopped.number("pages crawled, all runs") < 300
    files = [project / "job" / "requests.frontier", *sorted((project / "job" / "requests.bloom").iterdir())]
    before = [path.read_bytes() for path in files]
    looked = crawl(project, f"scrapy {command}")
    assert looked.code == 0, looked.log
    assert "job is left alone: this is no crawl" in looked.log
    assert "No JOBDIR" not in looked.log
    assert "Traceback" not in looked.log
    assert [path.read_bytes() for path in files] == before


def test_the_killer_says_what_it_does(project: Path) -> None:
    """`kill_and_resume.py --help` says what it does and starts no crawl."""
    process = start_python(project, "kill_and_resume.py", "--help")
    out, log = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, log
    assert "show that no page was lost" in " ".join(out.split())
    assert re.search(r"^  pages +pages of the site \(default: 1000\)$", out, re.MULTILINE)


def test_a_fleet_of_three_loses_nothing_when_one_is_killed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's command crawls with three workers that share a queue, kills one, and counts at the site.

    What the README says to install is enough: no server is on the PATH.
    """
    executable()  # skips the test where no server can be had
    monkeypatch.setenv("PATH", "")
    assert "pip install '..[fleet]'" in README
    assert "\npython fleet.py\n" in README
    process = start_python(project, "fleet.py", "150")
    out, log = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, out + log
    assert "worker-1: killed after" in out
    assert "the site has 150 pages; 150 were fetched" in out
    assert re.search(r"^workers +3; died: worker-1 1 \(SIGKILL\)$", out, re.MULTILINE)


def test_the_record_outlasts_a_kill_under_scrapys_own_queue(project: Path) -> None:
    """After SIGKILL the next run still counts the pages of the first, and says how many of the site are missing."""
    command = "scrapy crawl maze -s JOBDIR=job -s SCHEDULER=scrapy.core.scheduler.Scheduler -a pages=60"
    process = start(project, f"{command} -s DOWNLOAD_DELAY=0.05 -s LOG_LEVEL=DEBUG")
    signal_after(process, 10, signal.SIGKILL)
    first = finish(process)
    assert first.code == -signal.SIGKILL
    second = crawl(project, command)
    assert second.code == 0, second.log
    lines = (project / "job" / "pages-crawled.txt").read_text(encoding="utf-8").splitlines()
    missing = 60 - len({line for line in lines if line.startswith("page\t")})
    assert missing, "which is what DurableScheduler is for"
    assert f"{missing} missing, LOST" in second.remark("pages crawled, all runs")
    assert "requests that were pending may be lost" in second.log


@contextmanager
def served_site() -> Iterator[tuple[str, Counter[tuple[str, str]]]]:
    """Serve 12 pages that link to all others, a forbidden page and another host; count hits by (host, path)."""
    hits: Counter[tuple[str, str]] = Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hits[self.headers["Host"].split(":")[0], self.path] += 1
            links = [f"/page/{number}" for number in range(12)] + ["/private/page", "/list?b=2&a=1", "/list?a=1&b=2#x"]
            links.append(f"http://localhost:{self.server.server_port}/elsewhere")
            body = "".join(f'<a href="{link}">link</a>' for link in links)
            kind = "text/html"
            if self.path == "/robots.txt":
                body, kind = "User-agent: *\nDisallow: /private/\n", "text/plain"
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", hits
        server.shutdown()
        thread.join()


FAST = "-s AUTOTHROTTLE_ENABLED=False"  # the site is ours


def test_the_site_spider_crawls_all_of_its_host_and_nothing_else(project: Path) -> None:
    """Two runs of the `site` spider, the first ended by max_pages, fetch every allowed page of the host once."""
    with served_site() as (url, hits):
        command = f"scrapy crawl site -s JOBDIR=job -a url={url} {FAST}"
        first = crawl(project, f"{command} -a max_pages=5")
        second = crawl(project, command)
    assert (first.code, second.code) == (0, 0), first.log + second.log
    assert_nothing_to_complain_about(first.log + second.log)
    assert first.summary["ended because"] == ("max_pages", "")
    assert 5 <= first.number("pages crawled, this run") < 14  # some are under way when the limit is reached
    assert second.summary["ended because"] == ("finished", "")
    assert second.number("pages crawled, all runs") == 14
    assert "requests served by the site" not in second.summary

    assert {host for host, _ in hits} == {"127.0.0.1"}
    assert hits.pop(("127.0.0.1", "/robots.txt")) == 2  # once per run
    assert set(hits.values()) == {1}
    fetched = {path for _, path in hits}
    lists = {"/list?b=2&a=1", "/list?a=1&b=2"}
    assert fetched - lists == {"/", *(f"/page/{number}" for number in range(12))}
    assert len(fetched & lists) == 1  # two spellings of one page


def test_a_missing_address_is_one_line(project: Path) -> None:
    """Without an address the `site` spider ends with a line that says what to type, and a failing exit code."""
    run = crawl(project, "scrapy crawl site")
    assert run.code != 0
    message = "site: no address; give it as -a url=https://..."
    assert run.log.splitlines()[-1].removeprefix("SystemExit: ") == message
    assert run.summary == {}


@pytest.mark.parametrize(
    ("spider", "arguments", "message"),
    [
        ("site", {"url": "example.com"}, "site: 'example.com' is no address; give it as -a url=https://..."),
        (
            "site",
            {"url": "https://example.com/", "max_pages": "all"},
            "site: max_pages=all is not a number of pages; leave it out for no limit",
        ),
        ("maze", {"pages": "0"}, "maze: pages=0 is not a number of pages, which is what it needs: -a pages=500"),
    ],
)
def test_odd_arguments_are_one_line(
    monkeypatch: pytest.MonkeyPatch, spider: str, arguments: dict[str, str], message: str
) -> None:
    """An argument that makes no sense ends the run with a line that names it."""
    monkeypatch.syspath_prepend(str(PROJECT))
    module = importlib.import_module(f"example.spiders.{spider}")
    with pytest.raises(SystemExit, match=f"^{re.escape(message)}$"):
        getattr(module, f"{spider.title()}Spider")(**arguments)


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROJECT))
    return importlib.import_module("example.record")


def test_a_job_directory_of_another_crawl_is_refused(record: ModuleType, tmp_path: Path) -> None:
    """A job directory used for another maze is refused with the reason: its frontier would not fit."""
    (tmp_path / "pages-crawled.txt").write_text("run\tmaze of 99 pages\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"holds the crawl of 'maze of 99 pages', not of 'maze of 500 pages': use"):
        record.PageRecord(str(tmp_path), "maze of 500 pages")


def test_a_line_cut_short_is_not_joined_to_the_next(record: ModuleType, tmp_path: Path) -> None:
    """A record whose last line was cut at any place loses at most the page on that line."""
    lines = "run\tx\npage\t/one\npage\t/two\n"
    start_of_last = lines.index("page\t/two")
    for cut in range(start_of_last, len(lines)):
        (tmp_path / "pages-crawled.txt").write_text(lines[:cut], encoding="utf-8")
        pages = record.PageRecord(str(tmp_path), "x")
        pages.begin_run()
        pages.add("/three", links=0)
        assert pages.crawled() >= {"/one", "/three"}
        assert pages.totals().runs == 2
        pages.close()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROJECT))
    return importlib.import_module("example.site")


def test_the_maze_is_the_same_on_every_run(site: ModuleType) -> None:
    """The same number of pages gives the same site, byte for byte; another seed gives another."""
    assert site.build_site(50) == site.build_site(50)
    assert site.build_site(50) != site.build_site(50, seed=2)


def test_every_page_of_the_maze_can_be_reached_and_is_spelled_in_many_ways(site: ModuleType) -> None:
    """Following links from the home page leads to all pages, and canonical URLs are one to one with pages."""
    pages = site.build_site(200)
    spellings: dict[str, set[str]] = {}
    reached, queue = {"/"}, ["/"]
    while queue:
        for link in re.findall(r'href="([^"]*)"', pages[queue.pop()].body):
            url = f"http://maze.example{link.replace('&amp;', '&')}"
            address = site.page_address(url)
            spellings.setdefault(address, set()).add(url)
            if address not in reached:
                reached.add(address)
                queue.append(address)
    assert reached == pages.keys()
    canonical = {address: {canonicalize_url(url) for url in urls} for address, urls in spellings.items()}
    assert all(len(urls) == 1 for urls in canonical.values())
    assert len({url for urls in canonical.values() for url in urls}) == len(pages)
    assert sum(len(urls) for urls in spellings.values()) > 3 * len(pages)
