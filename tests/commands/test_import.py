"""``import``: what other crawls have seen is seen here, too, and nothing else is."""

import gzip
import io
import json
import pickle
import sys
from pathlib import Path

import pytest
from scrapy import Request

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.commands.terminal import OK, USAGE, WRONG
from scrapy_bloom.components.fingerprints import fingerprint
from scrapy_bloom.filter.directory import open_filter
from scrapy_bloom.fleet.takeover import ScrapyRedisFingerprinter
from tests.commands.conftest import Answer, Scrapy
from tests.fleet.servers import RedisServer

URLS = [f"http://a.example/{number}" for number in range(50)]
FINGERPRINTS = {fingerprint(Request(url)) for url in URLS}
BINARY = b"".join(b"\0\x14" + each for each in FINGERPRINTS)
TEXT = b"".join(each.hex().encode() + b"\n" for each in FINGERPRINTS)
LIST = "# what was crawled\n\n{}\n".format("\n".join(URLS)).encode()


def known(job: Path) -> set[bytes]:
    with open_filter(job / "requests.bloom") as chain:
        assert len(chain) == len(FINGERPRINTS)
        return {each for each in FINGERPRINTS if each in chain}


@pytest.mark.parametrize("content", [BINARY, TEXT, gzip.compress(LIST)], ids=["2.19", "2.18", "list.gz"])
def test_what_others_have_seen_is_known(tmp_path: Path, content: bytes, answer: Answer) -> None:
    """A requests.seen in either format or a list of URLs makes a filter that knows just those; twice counts once."""
    (tmp_path / "seen").write_bytes(content)
    for new in (50, 0):
        code, found = answer("import", tmp_path / "job", tmp_path / "seen")
        assert (code, found["urls"], found["findings"]) == (OK, 50, [])
        assert [(each["read"], each["new"]) for each in found["sources"]] == [(50, new)]
    assert known(tmp_path / "job") == FINGERPRINTS


def test_the_advice_is_about_what_was_imported(tmp_path: Path, answer: Answer) -> None:
    """Of a requests.seen nobody knows what made it; a URL stands for its plain GET request."""
    (tmp_path / "seen").write_bytes(BINARY)
    (tmp_path / "list").write_bytes(LIST)
    kinds = {"seen": ["requests.seen"], "list": ["GET"]}
    for names in (["seen"], ["list"], ["list", "seen", "list"]):
        _, found = answer("import", tmp_path / "job", *(tmp_path / name for name in names))
        expected = [word for name in dict.fromkeys(names) for word in kinds[name]]
        assert len(found["advice"]) == len(expected)
        assert all(word in advice for word, advice in zip(expected, found["advice"], strict=True))


def test_standard_input_is_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ``zcat old.gz | scrapy bloom import jobs/books -``."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LIST)))
    assert main(["import", str(tmp_path), "-"]) == OK
    assert known(tmp_path) == FINGERPRINTS


@pytest.mark.parametrize("command", ["import", "seed"])
def test_what_is_no_url_or_cannot_be_read_is_told(tmp_path: Path, answer: Answer, command: str) -> None:
    """The first 30 lines that are not URLs are findings with their numbers, and all others are taken in. A file that is
    not there begins no job; that, a job in use, and what is no list of URLs are one line each."""
    job, wrong = tmp_path / "job", tmp_path / "wrong"
    wrong.write_bytes(LIST)
    assert answer(command, job, wrong, tmp_path / "nowhere")[0] == USAGE
    assert not job.exists()
    wrong.write_bytes(b"what?\n" * 100 + LIST)
    code, found = answer(command, job, wrong)
    assert (code, found.get("urls", found.get("new")), len(found["findings"])) == (WRONG, 50, 31)
    assert "line 1:" in found["findings"][0]
    with open_filter(job / "requests.bloom"):
        assert answer(command, job, wrong)[0] == USAGE
    if command == "import":
        wrong.write_bytes(b"hello\nworld\n")
        code, error = answer(command, job, wrong)
        assert (code, str(wrong) in error) == (USAGE, True)


def test_a_crawl_of_scrapy_redis_is_taken_over(server: RedisServer, scrapy: Scrapy) -> None:
    """What it had seen and what was pending is in the fleet's queue under its own fingerprints, its keys have other
    names, and a second time there is nothing to take."""
    with server.client() as client:
        client.sadd("books:dupefilter", *(each.hex() for each in FINGERPRINTS))
        for url in URLS:
            client.zadd("books:requests", {pickle.dumps(Request(url).to_dict()): 0})
        command = ("bloom", "import", server.url, "books", "--json")
        refused = scrapy(*command)
        assert (refused.returncode, refused.stderr.count("\n")) == (USAGE, 1)
        its_own = ("-s", f"REQUEST_FINGERPRINTER_CLASS={ScrapyRedisFingerprinter.__module__}.ScrapyRedisFingerprinter")
        taken = scrapy(*command, *its_own)
        assert taken.returncode == OK, taken.stderr
        found = json.loads(taken.stdout)
        assert (found["requests"], found["fingerprints"], found["refused"]) == (50, 50, [])
        assert all(client.exists(name) for name in found["renamed"])
        client.sadd("films:dupefilter", FINGERPRINTS.copy().pop().hex())
        unknown = scrapy("bloom", "import", server.url, "films", "nobody", "--json", *its_own)
        assert (unknown.returncode, unknown.stdout, unknown.stderr.count("\n")) == (USAGE, "", 1)
        client.copy("films:dupefilter", "books:dupefilter")
        several = scrapy("bloom", "import", server.url, "films", "books", *its_own)
        assert (several.returncode, several.stdout.count("fingerprints")) == (OK, 2), several.stderr
        again = scrapy(*command, *its_own)
        assert (again.returncode, again.stdout, again.stderr.count("\n")) == (USAGE, "", 1)
