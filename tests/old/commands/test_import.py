"""``import``: what other crawls have seen is seen here, too, and nothing else is."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom import fingerprint, open_filter
from scrapy_bloom.old.commands.command_line import main
from scrapy_bloom.old.commands.import_seen import import_seen
from scrapy_bloom.old.commands.terminal import OK, USAGE, WRONG
from scrapy_bloom.old.crawl.fingerprints import key_space
from scrapy_bloom.old.url.rules import resolve
from tests.old.support.crawling import crawl
from tests.old.support.damage import wait_until
from tests.old.support.fingerprints import fingerprints as keys
from tests.old.support.localsite import LocalSite
from tests.old.support.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
FINGERPRINTS = keys(50)


def filter_of(job: Path) -> Path:
    return job / "requests.bloom"


def known(job: Path) -> set[bytes]:
    with open_filter(filter_of(job)) as chain:
        return {each for each in keys(200) if each in chain}


def as_text(fingerprints: list[bytes]) -> bytes:
    return b"".join(each.hex().encode() + b"\n" for each in fingerprints)


def as_binary(fingerprints: list[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(2, "big") + each for each in fingerprints)


def urls_in(*parts: str) -> str:
    return "".join(f"{part}\n" for part in parts)


@pytest.mark.parametrize("content", [as_text(FINGERPRINTS), as_binary(FINGERPRINTS)], ids=["text", "binary"])
@pytest.mark.parametrize("way", ["file", "gzip", pytest.param("pipe", marks=pytest.mark.slow)])
def test_fingerprints_come_in_any_wrapping(tmp_path: Path, content: bytes, way: str) -> None:
    """A requests.seen of either format, as it is, packed or piped, makes a filter that knows just those."""
    file = tmp_path / "requests.seen"
    file.write_bytes(gzip.compress(content) if way == "gzip" else content)
    command = [sys.executable, "-m", "scrapy_bloom", "import", "job", "-" if way == "pipe" else str(file), "--json"]
    if way == "pipe":
        told = subprocess.run(command, cwd=tmp_path, input=content, capture_output=True, check=True, env=environment())
        found = json.loads(told.stdout)
    else:
        found = import_seen(str(tmp_path / "job"), [str(file)], Settings)
    assert (found["new"], found["urls"], found["is_assumed"], found["findings"]) == (50, 50, True, [])
    assert known(tmp_path / "job") == set(FINGERPRINTS)


def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT), "PATH": ""}


def test_urls_get_the_fingerprints_of_the_filter(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """They are made under the rules that the filter was filled under, whatever the command knows otherwise; what is no
    URL is a finding, and the rest is imported."""
    space = key_space("scrapy", resolve(["tracking"]))
    open_filter(filter_of(tmp_path), 100, key_space=space).close()
    listed = tmp_path / "urls.txt"
    listed.write_text(urls_in("# seen", "", "https://example.com/?a=1&utm_source=x", "  https://example.com/b  ", "c"))
    code, found = answer("import", tmp_path, listed)
    assert code == WRONG
    assert [found["new"], found["is_assumed"]] == [2, False]
    assert "1 entry or byte could not be used; first: line 5 is no URL" in found["findings"][0]
    urls = ["https://example.com/?utm_medium=y&a=1", "https://example.com/b"]
    assert answer("check", tmp_path, *urls)[0] == OK


def test_a_new_filter_is_that_of_the_project(tmp_path: Path) -> None:
    """Its rules, its own fingerprinter and its capacity are used, so that its crawl opens the filter."""
    name = f"{ByPath.__module__}.{ByPath.__qualname__}"
    project = Settings({"REQUEST_FINGERPRINTER_CLASS": name, "BLOOM_CAPACITY": 321})
    listed = tmp_path / "urls.txt"
    listed.write_text(urls_in("https://example.com/a?b"))
    for times in (1, 0):
        assert import_seen(str(tmp_path), [str(listed)], lambda: project)["new"] == times
    with open_filter(filter_of(tmp_path), key_space=key_space(name, resolve([]))) as chain:
        assert b"/a?b" in chain
        assert chain.layers[0].capacity == 321
    code = main(["import", str(tmp_path), str(listed)], settings=Settings())
    assert code == USAGE, "outside of the project nobody knows how its fingerprints are made"


class ByPath:
    def fingerprint(self, request: Request) -> bytes:
        return request.url.removeprefix("https://example.com").encode()


def test_what_the_job_has_of_scrapy_comes_first(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """A job of Scrapy's own filter keeps what that had seen: its first crawl would find a filter and not look there."""
    (tmp_path / "requests.seen").write_bytes(as_binary(FINGERPRINTS[:20]))
    more = tmp_path / "more"
    more.write_bytes(as_text(FINGERPRINTS[10:]))
    _, found = answer("import", tmp_path, more)
    assert (found["taken_over"], found["new"]) == (20, 30)
    assert known(tmp_path) == set(FINGERPRINTS)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.tuples(st.sets(st.integers(0, 99)), st.sampled_from([as_text, as_binary])), min_size=1, max_size=4))
def test_importing_twice_is_importing_once(lists: list[tuple[set[int], Callable[[list[bytes]], bytes]]]) -> None:
    """Whatever overlaps and whatever is repeated, the filter holds each fingerprint once and no other."""
    with tempfile.TemporaryDirectory() as directory:
        job = Path(directory)
        files = [job / str(number) for number in range(len(lists))]
        for file, (numbers, written) in zip(files, lists, strict=True):
            file.write_bytes(written([keys(100)[number] for number in sorted(numbers)]))
        names = list(map(str, files))
        wanted = {keys(100)[number] for numbers, _ in lists for number in numbers}
        first = import_seen(directory, [*names, *names], Settings, capacity=200, error_rate=1e-9)
        second = import_seen(directory, names, Settings)
        assert (first["new"], first["urls"], second["new"], second["urls"]) == (
            len(wanted),
            len(wanted),
            0,
            len(wanted),
        )
        assert sum(each["read"] for each in second["sources"]) == sum(len(numbers) for numbers, _ in lists)
        assert known(job) == wanted


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, WRONG), (signal.SIGKILL, -signal.SIGKILL)])
@pytest.mark.slow
def test_an_interrupted_import_keeps_what_it_has_and_can_be_repeated(tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C and kill -9 leave a filter that opens, with what was read so far; once more, and all of it is there."""
    urls = [f"https://example.com/{number}" for number in range(1000)]
    command = [sys.executable, "-m", "scrapy_bloom", "import", "job", "-", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdin=pipe, stdout=pipe, text=True, env=environment()) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(urls_in(*urls) + "#" * (1 << 16))  # and the rest of the list never comes
        process.stdin.flush()
        first = filter_of(tmp_path / "job") / "layer-000.bloom"
        try:
            wait_until(lambda: first.exists() and any(first.read_bytes()[4096:]), process)
            process.send_signal(number)
            told = process.communicate(timeout=30)[0]
        finally:
            process.kill()
        assert process.returncode == code
    if number == signal.SIGINT:
        assert "Interrupted" in json.loads(told)["findings"][0]
    listed = tmp_path / "urls.txt"
    listed.write_text(urls_in(*urls))
    found = import_seen(str(tmp_path / "job"), [str(listed)], Settings)
    assert (found["began"], found["findings"]) == (False, [])
    assert found["sources"][0]["already_seen"] > 0
    with open_filter(filter_of(tmp_path / "job")) as chain:
        assert all(fingerprint(Request(url)) in chain for url in urls)


def test_what_cannot_be_read_is_one_line(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """A file that is not there, a directory, something else than a list, half a gzip, fingerprints of another length:
    each is told, and no wrong fingerprint gets in."""
    job = tmp_path / "job"
    code, error = answer("import", job, "nowhere.txt")
    assert (code, error) == (USAGE, "nowhere.txt is not there, or cannot be read. Nothing was imported.")
    assert "is a directory" in answer("import", job, tmp_path)[1]
    assert not job.exists()
    other = tmp_path / "other"
    other.write_bytes(b"hello\nworld\n")
    assert "begins with b'hello\\nworld\\n'; expected: URLs or fingerprints" in answer("import", job, other)[1]
    other.write_bytes(gzip.compress(as_text(keys(5000)))[:-9000])
    code, error = answer("import", job, other)
    assert code == USAGE
    assert "cannot be unpacked" in error
    other.write_bytes(as_text([b"x" * 32, b"y" * 32]))
    code, found = answer("import", job, other)
    assert (code, found["new"], found["sources"][0]["unreadable"]) == (WRONG, 0, 2)
    assert "has 32 bytes, a fingerprint of this filter 20" in found["findings"][0]


def test_a_filter_in_use_is_left_alone(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """As long as a crawl has the filter open, the import says so and adds nothing."""
    listed = tmp_path / "urls.txt"
    listed.write_text(urls_in("https://example.com/"))
    with open_filter(filter_of(tmp_path), 100) as chain:
        code, error = answer("import", tmp_path, listed)
        assert code == USAGE
        assert "is in use by process" in error
        assert len(chain) == 0


@pytest.mark.slow
def test_a_set_of_scrapy_redis(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """All its members are imported from a real server; a key that is missing or of another kind is named, and the
    password is not."""
    job = tmp_path / "job"
    with RedisServer(tmp_path) as server:
        client = server.client()
        client.sadd("books:dupefilter", *(each.hex() for each in keys(200)), "what?")
        client.set("text", "x")
        code, found = answer("import", job, f"{server.url}#books:dupefilter")
        assert (code, found["new"], found["sources"][0]["unreadable"]) == (WRONG, 200, 1)
        assert known(job) == set(keys(200))
        assert "is not there; expected: a set" in answer("import", job, f"{server.url}#nothing")[1]
        assert "is a string; expected: a set" in answer("import", job, f"{server.url}#text")[1]
        assert "names no Redis key" in answer("import", job, server.url)[1]
        secret = server.url.replace("://", "://me:secret@")
        code, error = answer("import", job, f"{secret}#books:dupefilter")
        assert code == USAGE
        assert "secret" not in error
    assert answer("import", job, f"{server.url}#books:dupefilter")[0] == USAGE


@pytest.mark.slow
def test_a_crawl_does_not_fetch_what_was_imported(tmp_path: Path, answer: Callable[..., tuple[int, Any]]) -> None:
    """Pages in an imported list are filtered as duplicates from the first link on; all others are fetched."""
    with LocalSite(pages=40) as site:
        links = {site.url(link) for page in range(40) for link in site.links_of(page)}
        by_page: dict[bytes, str] = {fingerprint(Request(link)): link for link in links}
        listed = tmp_path / "urls.txt"
        skipped = [link for link in by_page.values() if "/page/3" in link and "/page/3?" not in link]
        assert len(skipped) == 10
        listed.write_text(urls_in(*skipped))
        assert answer("import", tmp_path / "job", listed)[1]["new"] == 10
        crawl(site.url(), {"ADDONS": {"scrapy_bloom.Addon": 300}, "JOBDIR": str(tmp_path / "job")})
        assert sorted(site.missing_pages()) == list(range(30, 40))


def test_a_kill_that_may_have_lost_requests_is_not_hushed_up(
    tmp_path: Path, answer: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The import closes the filter, so the next crawl cannot warn that Scrapy's queue was lost: the import does."""
    (tmp_path / "list").write_bytes(as_text(FINGERPRINTS))
    killed = "from scrapy_bloom import open_filter; import os, sys; open_filter(sys.argv[1]).add(b'x'); os._exit(1)"
    subprocess.run([sys.executable, "-c", killed, str(filter_of(tmp_path))], cwd=ROOT, check=False)
    assert main(["import", str(tmp_path), str(tmp_path / "list")]) == OK
    assert "what was pending is lost" in capsys.readouterr().out
    assert answer("import", tmp_path, tmp_path / "list")[1]["may_lack_requests"] is False
