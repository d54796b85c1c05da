"""``check``: what a job knows of a URL, also while its crawl runs."""

import time
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom.commands.check import check
from scrapy_bloom.commands.command_line import main
from scrapy_bloom.commands.import_seen import import_into
from scrapy_bloom.commands.terminal import OK, USAGE, WRONG
from scrapy_bloom.components.fingerprints import fingerprint
from scrapy_bloom.filter.directory import open_filter
from tests.commands.conftest import Answer, Site, fetched


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
