"""``seed``: URLs and the pages of sitemaps become pending, each once, whatever happens in between."""

import gzip
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom.commands.info import pending_requests
from scrapy_bloom.commands.locations import made_of_urls
from scrapy_bloom.commands.terminal import OK, USAGE, WRONG
from scrapy_bloom.job.inspect import inspect_job
from tests.commands.conftest import Answer, Scrapy, Site, fetched, reopened
from tests.fleet.servers import RedisServer
from tests.support.crawls import Pages

URLS = [f"http://host-{number % 3}.example/{number}?a=1&b=2" for number in range(50)]
NAMESPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"
IMAGES = "http://www.google.com/schemas/sitemap-image/1.1"


def sitemap(urls: list[str], name: str = "url", namespace: str = NAMESPACE) -> bytes:
    image = f'<image:image xmlns:image="{IMAGES}"><image:loc>http://a.example/picture</image:loc></image:image>'
    entries = "".join(f"<{name}>{image}<loc>\n {url.replace('&', '&amp;')} </loc></{name}>" for url in urls)
    outer = {"url": "urlset", "sitemap": "sitemapindex"}[name]
    return f'<?xml version="1.0"?>\n<{outer} xmlns="{namespace}">{entries}</{outer}>'.encode()


def pending(job: Path) -> list[str]:
    return sorted(each["url"] for each in pending_requests(inspect_job(job)))


LIST = "\ufeff# pages\n\n{}\n".format("\n".join(URLS)).encode()
CONTENTS = [LIST, gzip.compress(LIST), sitemap(URLS), gzip.compress(sitemap(URLS)), sitemap(URLS, namespace="")]


@pytest.mark.parametrize("content", CONTENTS, ids=["list", "list.gz", "sitemap", "sitemap.gz", "no namespace"])
def test_every_kind_of_file_makes_its_urls_pending_once(tmp_path: Path, content: bytes, answer: Answer) -> None:
    """A list or a sitemap, also gzipped. A second time nothing is new, and the job is sound."""
    job = tmp_path / "job"
    (tmp_path / "seeds").write_bytes(content)
    for new in (50, 0):
        code, found = answer("seed", job, tmp_path / "seeds")
        assert (code, found["read"], found["new"], found["findings"]) == (OK, 50, new, [])
        assert pending(job) == sorted(URLS)
    assert answer("verify", job)[0] == OK


def test_the_sitemaps_of_an_index_are_read(tmp_path: Path, answer: Answer) -> None:
    """From beside the index, or else from the web. One that is nowhere, or no place of sitemaps, is a finding."""
    pages: Pages = {"/two.xml.gz": gzip.compress(sitemap(URLS[20:40])), "/four.xml": sitemap(URLS[40:])}
    with Site(pages) as web:
        pages["/three.xml"] = sitemap([f"{web.url}/four.xml"], "sitemap")
        (tmp_path / "one.xml").write_bytes(sitemap(URLS[:20]))
        wrong = [f"{web.url}/nowhere.xml", f"{web.url}/no where.xml", "file:///etc/passwd", "ftp://a.example/x.xml"]
        right = ["http://a.example/one.xml", f"{web.url}/two.xml.gz", f"{web.url}/three.xml"]
        (tmp_path / "index.xml").write_bytes(sitemap([*right, *wrong], "sitemap"))
        code, found = answer("seed", tmp_path / "job", tmp_path / "index.xml")
    assert (code, found["new"], len(found["findings"])) == (WRONG, 50, 4)
    assert all(url in finding for url, finding in zip(wrong, found["findings"], strict=True))
    assert pending(tmp_path / "job") == sorted(URLS)


@pytest.mark.parametrize("content", [gzip.compress(LIST)[:-40], sitemap(URLS)[:-60]], ids=["gzip", "sitemap"])
def test_what_is_torn_is_a_finding(tmp_path: Path, content: bytes) -> None:
    """What comes before it is read. An index that names itself ends, however often it does."""
    (tmp_path / "torn").write_bytes(content)
    (tmp_path / "index.xml").write_bytes(sitemap(["http://a.example/index.xml"] * 3, "sitemap"))
    findings: list[str] = []
    assert set(made_of_urls(str(tmp_path / "torn"), str, findings)) <= set(URLS)
    assert [str(tmp_path / "torn") in finding for finding in findings] == [True]
    assert not list(made_of_urls(str(tmp_path / "index.xml"), str, []))


def test_seeds_of_a_job_come_once_with_the_default_callback(
    left: Path, job: Path, tmp_path: Path, scrapy: Scrapy, site: Site
) -> None:
    """Also in the middle of a crawl: pages seen or pending are dropped, and each other one comes once."""
    urls = [f"{site.url}/{number}" for number in range(80)] + [f"{site.url}/seeded?{number}" for number in range(9)]
    (tmp_path / "list").write_text("\n".join(urls))
    before = pending(job)
    seeded = scrapy("bloom", "seed", job, tmp_path / "list", "--spider", "books", "--json")
    assert seeded.returncode == OK, seeded.stderr
    fetched_urls = {f"{site.url}/{number}" for number in fetched(left)}
    new = [url for url in urls if url not in fetched_urls and url not in before]
    with reopened(job) as engine:
        started = [engine.fetch() for _ in range(len(engine.store))]
    assert Counter(request.url for request in started) == Counter([*before, *new])
    assert all(request.callback is None for request in started if request.url in new)
    for spider in ("films", "nobody"):
        assert scrapy("bloom", "seed", job, tmp_path / "list", "--spider", spider).returncode == USAGE


@pytest.mark.slow
def test_a_fleet_is_seeded(tmp_path: Path, scrapy: Scrapy, site: Site, server: RedisServer, answer: Answer) -> None:
    """Its workers, which want signed requests, fetch each seed once; without the spider's name, it is not known which
    fleet it is."""
    urls = [f"{site.url}/fleet?{number}" for number in range(30)]
    (tmp_path / "list").write_text("\n".join([*urls, *urls]))
    code, error = answer("seed", server.url, tmp_path / "list")
    assert (code, "--spider" in error) == (USAGE, True)
    secret = ("-s", f"BLOOM_FLEET_SECRET={'long ' * 10}")
    command: Any = ("bloom", "seed", server.url, tmp_path / "list", "--spider", "books", "--json", *secret)
    for new in (30, 0):
        seeded = scrapy(*command)
        assert (seeded.returncode, f'"new": {new},' in seeded.stdout) == (OK, True), seeded.stderr
    site.hits.clear()
    fleet = ("-s", f"BLOOM_REDIS_URL={server.url}", "-s", "SCHEDULER=scrapy_bloom.FleetScheduler", *secret)
    assert scrapy("crawl", "books", *fleet, "-s", "DEPTH_LIMIT=1").returncode == OK
    found = [site.url + path for path in site.hits.elements() if "fleet" in path]
    assert sorted(found) == sorted(urls)


@pytest.mark.parametrize("kind", ["list", "sitemap.gz"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    """The lines of a list and the entries of a sitemap pass through."""
    peaks = []
    for count in (200, 200, 2_000):  # the first call imports what it needs
        urls = [f"http://a.example/{number}" for number in range(count)]
        content = "\n".join(urls).encode() if kind == "list" else gzip.compress(sitemap(urls))
        (tmp_path / kind).write_bytes(content)
        del urls, content
        tracemalloc.start()
        assert sum(1 for _ in made_of_urls(str(tmp_path / kind), str, [])) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 50_000
