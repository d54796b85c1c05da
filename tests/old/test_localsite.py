"""The website that the crawls of the other tests run against does what it says."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from tests.old.support.localsite import LocalSite


def fetch(url: str, data: bytes | None = None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, data, timeout=20) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_every_page_is_reachable_from_the_first() -> None:
    """Following the links from page 0 arrives at every page."""
    site = LocalSite(pages=120, links_per_page=5)
    found, todo = {0}, [0]
    while todo:
        new = set(site.neighbours(todo.pop())) - found
        found |= new
        todo += new
    assert found == set(range(120))


def test_the_site_is_the_same_every_time_and_spells_its_links_in_several_ways() -> None:
    """Two sites of one seed are equal, and one page is linked with parameters in different orders."""
    assert LocalSite(pages=50).html_of(7) == LocalSite(pages=50).html_of(7)
    site = LocalSite(pages=50)
    spellings = {link for i in range(50) for link in site.links_of(i) if urlsplit(link).path == "/page/9"}
    assert len({urlsplit(link).query for link in spellings}) > 1
    assert any(urlsplit(link).fragment for link in spellings)


def test_hits_are_counted_by_path_from_many_threads() -> None:
    """A hundred fetches from eight threads are a hundred hits."""
    with LocalSite(pages=10) as site, ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda n: fetch(site.url(f"/page/{n % 10}?n={n}"))[0], range(100)))
        assert statuses == [200] * 100
        assert [site.hits(f"/page/{i}") for i in range(10)] == [10] * 10
        assert site.hits() == 100
        assert site.missing_pages() == []


def test_redirects_retries_forms_and_unknown_paths() -> None:
    """A redirect leads to its page, a flaky page recovers, a form answers to POST only, the rest is 404."""
    with LocalSite(pages=10, redirects=3, flaky=3) as site:
        assert "/redirect/1" in site.links_of(2)
        assert "/flaky/2" in site.links_of(3)
        assert fetch(site.url("/redirect/4")) == (200, site.html_of(4))
        assert fetch(site.url("/flaky/2"))[0] == 503
        assert fetch(site.url("/flaky/2")) == (200, site.html_of(2))
        assert b"/submit" in fetch(site.url("/form"))[1]
        assert fetch(site.url("/submit"))[0] == 405
        assert fetch(site.url("/submit"), b"i=5") == (200, site.html_of(5))
        assert site.hits("POST /submit?i=5") == 1
        assert fetch(site.url("/page/10"))[0] == 404


@pytest.mark.parametrize("let_go", [True, False])
def test_a_held_page_answers_when_released_or_when_the_site_closes(let_go: bool) -> None:
    """A held page arrives only after its release, and closing the site leaves nobody waiting."""
    answers: list[int] = []

    def ask(url: str) -> None:
        try:
            answers.append(fetch(url)[0])
        except OSError:
            answers.append(0)

    with LocalSite() as site:
        asker = threading.Thread(target=ask, args=(site.url("/held/a"),))
        asker.start()
        site.wait_for_hits(1, "/held/a")
        assert answers == []
        if let_go:
            site.release("a")
            asker.join(20)
            assert answers == [200]
    asker.join(20)
    assert not asker.is_alive()
