"""``info`` and ``check``: what a job holds and what it knows of a URL, read without changing a byte of it."""

import json
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom.commands.check import check
from scrapy_bloom.commands.command_line import main
from scrapy_bloom.commands.import_seen import import_into
from scrapy_bloom.commands.info import info
from scrapy_bloom.commands.terminal import OK, USAGE, WRONG
from scrapy_bloom.components.fingerprints import fingerprint
from scrapy_bloom.filter.directory import open_filter
from tests.commands.conftest import Answer, Scrapy, Site, fetched
from tests.fleet.commands import Command
from tests.fleet.servers import RedisServer
from tests.support.engine import opened, snapshot, wait_for_job


def state_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in directory.rglob("*") if path.is_file() and not path.name.endswith("-shm"))
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_stopped_job_is_described(left: Path, answer: Answer) -> None:
    """Every URL that the filter knows is fetched or pending; spider, feed, failures, how many pages are left and the
    clean stop are told; and nothing is changed."""
    before = state_of(left)
    code, found = answer("info", left)
    assert (code, found["spider"], found["clean"], found["in_use"], found["findings"]) == (OK, "books", True, False, [])
    with closing(sqlite3.connect(f"file:{left}/requests.bloom/job.sqlite?immutable=1", uri=True)) as database:
        assert found["pending"] == database.execute("SELECT count(*) FROM request").fetchone()[0] > 0
    assert found["pending_by_host"] == [{"host": "127.0.0.1", "pending": found["pending"]}]
    # The page that fails is taken back, and may be asked for again before the crawl stops.
    assert sum(layer["urls"] for layer in found["layers"]) == found["urls"] + found["urls_taken_back"]
    assert found["urls"] >= found["pending"] + len(fetched(left))
    assert found["pages"] >= 25
    assert found["failed"] > 0
    assert found["pending"] <= found["left_at_least"] < found["left_at_most"]
    (feed,) = found["feeds"]
    assert Path(feed["feed"]).stat().st_size == feed["bytes"]
    assert found["bytes_on_disk"] == sum(path.stat().st_size for path in (left / "requests.bloom").rglob("*"))
    assert before.items() <= state_of(left).items()


def test_people_are_told_the_same(left: Path, answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines have the figures of the JSON."""
    _, found = answer("info", left)
    assert main(["info", str(left)]) == OK
    shown = capsys.readouterr().out
    for name in ("pending", "urls", "pages", "spider"):
        assert re.search(rf"^{name} +{found[name]}$", shown, re.MULTILINE)
    assert re.search(rf"^127\.0\.0\.1 +{found['pending']}$", shown, re.MULTILINE)


def test_watching_ends_with_the_crawl(left: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no crawl is running, it is one line, with what is pending and how much is left."""
    assert main(["info", str(left), "--watch", "--json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["in_use"] is False
    assert main(["info", str(left), "--watch"]) == OK
    (line,) = capsys.readouterr().out.splitlines()
    assert f"{found['pending']} pending" in line
    assert re.search(r"\d+ pages left", line)
    assert "ended" in line


def test_a_running_and_a_killed_crawl_are_told(
    tmp_path: Path, project: Path, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a crawl, what is pending at its last commit; after kill -9, the same, and that it was not closed."""
    crawl = Command(project, "scrapy", "crawl", "books", "-s", f"JOBDIR={tmp_path}", "-s", "DOWNLOAD_DELAY=0.1")
    try:
        wait_for_job(tmp_path, lambda info: info.state.pending)
        _, found = answer("info", tmp_path)
        assert (found["in_use"], found["clean"]) == (True, False)
    finally:
        crawl.kill()
    code, found = answer("info", tmp_path)
    assert (code, found["in_use"], found["clean"], found["urls_are_estimated"]) == (OK, False, False, True)
    assert found["pending"] > 0
    assert found["urls"] + found["duplicates"] > 0
    assert main(["info", str(tmp_path), "--watch"]) == OK
    assert "killed" in capsys.readouterr().out


def test_pages_of_the_last_commit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After kills within seconds, also if somebody has put back the clock meanwhile."""
    pages = 0
    for run in range(3):
        with opened(tmp_path / str(run)) as engine:
            for count in range(4):
                pages += 1
                engine.crawl.crawler.stats.inc_value("response_received_count")
                engine.push(Request(f"http://a.example/{run}/{count}"))
                engine.commit()
            snapshot(tmp_path / str(run), tmp_path / str(run + 1))
        found = info(str(tmp_path / str(run + 1)))
        assert found["pages"] == pages
        now = time.time()
        monkeypatch.setattr("time.time", lambda now=now: now - 3600)


JOB, FLEET = "JOBDIR=DIRECTORY", "SCHEDULER=scrapy_bloom.FleetScheduler BLOOM_REDIS_URL=SERVER"
FILTER = "SCHEDULER=scrapy.core.scheduler.Scheduler DUPEFILTER_CLASS=scrapy_bloom.RedisBloomDupeFilter"
LOOKS = {
    "shell -c response.url SITE/new": [JOB, FLEET],
    "fetch SITE/new": [JOB, FLEET],
    "fetch SITE/0": [JOB],
    "parse --spider=books SITE/new": [JOB, FLEET, f"{FILTER} BLOOM_REDIS_URL=SERVER"],
    "check books": [FLEET],
    "list": [FLEET],
}


@pytest.mark.parametrize(("command", "where"), [(command, where) for command in LOOKS for where in LOOKS[command]])
def test_commands_of_scrapy_that_look_at_pages_leave_jobs_and_fleets_alone(
    job: Path, site: Site, server: RedisServer, scrapy: Scrapy, command: str, where: str
) -> None:
    """With a job or a fleet in a project's settings, they fetch that page, seen or not, and nothing that is pending,
    and remember nothing."""
    before = state_of(job / "requests.bloom")
    site.forget_hits()
    settings = where.replace("DIRECTORY", str(job)).replace("SERVER", server.url).split()
    ran = scrapy(*command.replace("SITE", site.url).split(), *(word for each in settings for word in ("-s", each)))
    page = {"check books": ["/0"], "list": []}.get(command, [command[command.find("SITE/") + 4 :]])
    assert (ran.returncode, [*site.hits.elements()]) == (OK, page), ran.stderr
    assert state_of(job / "requests.bloom") == before
    with server.client() as client:
        assert client.dbsize() == 0


def test_a_damaged_layer_is_a_finding(job: Path, answer: Answer) -> None:
    """It is named, the exit code says so, and the rest is told all the same."""
    path = job / "requests.bloom" / "layer-000.bloom"
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"\xff\xff")
    code, found = answer("info", job)
    assert code == WRONG
    assert str(path) in found["findings"][0]
    assert found["pending"] > 0


# -- check -------------------------------------------------------------------------------------------------------------


def test_what_is_seen_is_fetched_or_pending(left: Path, site: Site, answer: Answer) -> None:
    """Of all pages of the site, exactly the fetched ones are seen and not pending; others are pending or new."""
    code, found = answer("check", left, *(f"{site.url}/{number}" for number in range(80)))
    assert code == WRONG
    pages = {int(each["url"].rpartition("/")[2]): each for each in found["urls"]}
    assert {number for number, each in pages.items() if each["seen"] and not each["pending"]} == fetched(left)
    assert any(each["pending"] for each in pages.values())
    assert not any(each["pending"] and not each["seen"] for each in pages.values())


def test_spellings_of_one_page_are_told(left: Path, site: Site, answer: Answer) -> None:
    """They have one canonical form and one fingerprint, that of the crawl, and the exit code is 0 if all were seen."""
    urls = [f"{site.url}/0?b=2&a=1", f"{site.url}/0?a=1&b=2#top"]
    code, found = answer("check", left, *urls)
    one, other = found["urls"]
    assert (code, one["same_page_as"], other["same_page_as"]) == (OK, None, urls[0])
    assert one["canonical"] == other["canonical"] == f"{site.url}/0?a=1&b=2"
    assert one["fingerprint"] == other["fingerprint"] == fingerprint(Request(urls[0])).hex()


def test_a_log_is_searched_for_urls(left: Path, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each URL in it is checked once, whatever stands around it; people get a line each, and see what is new."""
    log = tmp_path / "crawl.log"
    log.write_text(f"DEBUG: Crawled (200) <GET {site.url}/0> (referer: None)\n[{site.url}/nowhere ]\n{site.url}/0\n")
    assert main(["check", str(left), "--file", str(log)]) == WRONG
    seen, new = capsys.readouterr().out.splitlines()
    assert seen.split()[:2] == ["seen", f"{site.url}/0"]
    assert new.split() == ["new", f"{site.url}/nowhere"]


def test_beside_a_crawl_nothing_is_locked_or_changed(tmp_path: Path) -> None:
    """What the crawl adds is found at once, and what it takes back is not."""
    urls = [f"http://a.example/{number}" for number in range(3)]
    listed = tmp_path / "list"
    listed.write_text(urls[0])
    import_into(str(tmp_path), [str(listed)], Settings())
    with open_filter(tmp_path / "requests.bloom") as chain:
        chain.add(fingerprint(Request(urls[1])))
        assert [each["seen"] for each in check(str(tmp_path), urls, Settings())] == [True, True, False]
        chain.forget(fingerprint(Request(urls[0])))
        assert [each["seen"] for each in check(str(tmp_path), urls, Settings())] == [False, True, False]


def test_what_is_older_than_the_maximum_age_is_new(tmp_path: Path, answer: Answer) -> None:
    """As in the crawl, which would fetch it once more."""
    url = "http://a.example/"
    (tmp_path / "list").write_text(url)
    open_filter(tmp_path / "requests.bloom", clock=lambda: time.time() - 100).close()
    import_into(str(tmp_path), [str(tmp_path / "list")], Settings())
    for settings, is_seen in (({}, True), ({"BLOOM_MAX_AGE": "2m"}, True), ({"BLOOM_MAX_AGE": "1m"}, False)):
        assert check(str(tmp_path), [url], Settings(settings))[0]["seen"] is is_seen


def test_limits_of_the_project_are_told(left: Path) -> None:
    """With the loop guard on, a URL that a limit holds back says which and why; without it none does."""
    url = "http://a.example/aa/bb/aa/bb/aa/bb/aa/bb"
    (found,) = check(str(left), [url], Settings({"BLOOM_LOOP_GUARD": True}))
    assert found["limit"].startswith("tandem: ")
    assert check(str(left), [url], Settings())[0]["limit"] is None


class ByPath:
    def fingerprint(self, request: Request) -> bytes:
        return request.url.removeprefix("http://a.example").encode()


def test_a_job_is_asked_as_its_crawl_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under the rules and with the fingerprinter that filled it; elsewhere than in its project that is an error."""
    listed = tmp_path / "list"
    listed.write_text("http://a.example/one?x=1&utm_source=me\n")
    project = Settings({"REQUEST_FINGERPRINTER_CLASS": f"{__name__}.ByPath"})
    import_into(str(tmp_path / "own"), [str(listed)], project)
    assert check(str(tmp_path / "own"), ["http://a.example/one?x=1&utm_source=me"], project)[0]["seen"]
    assert main(["check", str(tmp_path / "own"), "http://a.example/"], settings=Settings()) == USAGE
    assert f"{__name__}.ByPath" in capsys.readouterr().err
    import_into(str(tmp_path / "ruled"), [str(listed)], Settings({"BLOOM_URL_RULES": ["tracking_2"]}))
    assert check(str(tmp_path / "ruled"), ["http://a.example/one?x=1"], Settings())[0]["seen"]
