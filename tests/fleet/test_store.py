import json
import shutil
import socket
import time
from collections.abc import Callable
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.core.downloader import Slot
from scrapy.http import HtmlResponse

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.errors import InUseError, UnusableError
from scrapy_bloom.links.extractor import UnseenLinkExtractor
from tests.fleet.engine import Join, PageSpider, Worker, crawl, name_of, page, pop
from tests.fleet.servers import PATIENCE, RedisServer, move_slot, wait_until
from tests.support import store_contract


@pytest.mark.parametrize("check", store_contract.CHECKS, ids=lambda check: check.__name__)
def test_the_contract_of_all_stores(check: Callable[[Any], None], server: RedisServer) -> None:
    """A worker's store does what stores in memory and in job directories do."""
    check(lambda: Worker(server.url))


def test_links_that_the_server_has_forgotten_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's link was seen after a layer of the filter had grown too old; then the server goes back to before it."""
    with RedisServer(tmp_path / "redis", "--appendonly", "no") as server, server.client() as client:
        monkeypatch.setattr("scrapy_bloom.settings._MIN_AGE", 0.4)  # the least that users may set is a minute
        worker, extractor = Worker(server.url, BLOOM_MAX_AGE=0.4), UnseenLinkExtractor()
        chain, request = worker.store.chain, worker.fetch(page("list"))
        response = HtmlResponse(request.url, body='<a href="/b">b</a>', encoding="utf-8", request=request)
        wait_until(lambda: chain.drops, "a layer is too old")
        client.save()
        assert worker.fetch(page("b"))
        assert extractor.extract_links(response) == []
        server.kill()
        server.start()
        assert {worker.fetch().url, worker.fetch().url} == {page("list").url, page("b").url}  # the link is sent again
        assert worker.store.times_anew == 1
        assert [link.url for link in extractor.extract_links(response)] == [page("b").url]
        worker.link("c")
        worker.stop()
        assert worker.stat("bloom/urls") == 1


def test_a_host_gets_as_many_pages_as_it_may_of_the_fleet(join: Join, caplog: pytest.LogCaptureFixture) -> None:
    """All workers together fetch so many, and the log says so; what is left is fetched when the limit is gone."""
    caplog.set_level("INFO", "scrapy_bloom")
    workers = [join(BLOOM_PAGES_PER_HOST=3) for _ in range(2)]
    workers[0].push(*map(page, "abcde"))
    fetched = crawl(*workers)
    assert len(fetched) == 3
    for worker in workers:
        wait_until(lambda: worker.next() or worker.stat("bloom/fleet/left") == 2, "it knows what is left")  # noqa: B023 - called here
    assert [message.split()[0] for message in caplog.messages].count("example.com") >= 1
    for worker in workers:
        worker.leave()
    rest = join()
    rest.link("f")
    assert sorted(fetched + crawl(rest)) == list("abcdef")


@pytest.mark.parametrize(
    "kind",
    ["DOWNLOAD_DELAY", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("Crawl-delay", "AutoThrottle"))],
)
def test_a_delay_is_of_all_workers_together(join: Join, server: RedisServer, kind: str) -> None:
    """Two workers get the requests of a host no faster than one would, also with a delay that is found later."""
    delay = 0.6  # so long that the server hands out one at a time
    settings: dict[str, Any] = {"AUTOTHROTTLE_START_DELAY": 0.01, "AUTOTHROTTLE_ENABLED": kind == "AutoThrottle"}
    settings |= {"DOWNLOAD_DELAY": delay} if kind == "DOWNLOAD_DELAY" else {}
    workers = [join(**settings) for _ in range(2)]
    if kind == "AutoThrottle":
        for worker in workers:
            worker.engine.downloader.slots["example.com"] = Slot(8, delay, 0.0)
            worker.crawl.core.tick()
    elif kind == "Crawl-delay":
        workers[0].store.space_out("example.com", delay)
        with server.client() as client:
            wait_until(lambda: client.exists("{bloom:pages:0}:delays"), "the server knows the delay")
    began = time.monotonic()
    workers[0].push(*map(page, "abcd"))
    assert len(crawl(*workers)) == 4
    assert time.monotonic() >= began + 3 * delay - 0.01


def test_a_pause_is_of_all_workers(join: Join, server: RedisServer, capsys: Any) -> None:
    """The host's requests are handed to no worker before its time, neither to one that was there nor to one that starts
    after the one that asked for the pause has gone. Other hosts go on.
    """
    one, there = join(), join()
    until = time.time() + 1
    one.store.pause("example.com", until)
    one.store.pause("over.example", until)
    one.store.pause("long.example", until + 3600)
    with server.client() as client:
        wait_until(lambda: client.hlen("{bloom:pages:0}:paused") == 3, "the server knows of the pauses")
    one.leave()
    new = join()
    for number, worker in enumerate((there, new)):
        worker.link(str(number))
        worker.push(*[Request(f"https://{host}.example/{number}") for host in ("long", "other")])
    hosts = []
    for _ in range(4):
        worker, request = pop(there, new)
        hosts.append(request.url.split("/")[2])
        assert hosts[-1] == "other.example" or time.time() >= until - 0.01
        worker.end(request)
    assert sorted(hosts) == ["example.com"] * 2 + ["other.example"] * 2

    def paused() -> int:
        main(["info", server.url, "bloom:pages", "--json"])
        return int(json.loads(capsys.readouterr().out)["hosts_paused"])

    wait_until(lambda: paused() == 1, "a pause that is over does not count, though nobody looks at it any more")


def test_a_user_with_the_usual_rights_suffices(join: Join, server: RedisServer) -> None:
    """``+@all -@dangerous`` and its own keys, without INFO. One who may not use the keys is told which they are."""
    with server.client() as client:
        rights = ("reset", "on", ">secret", "+@all", "-@dangerous")
        client.execute_command("ACL", "SETUSER", "worker", *rights, "~{bloom:*")
        client.execute_command("ACL", "SETUSER", "stranger", *rights, "~other:*")
    address = server.url.replace("//", "//{}:secret@")
    one, other = (join(address.format("worker")) for _ in "ab")
    one.push(*map(page, "abc"))
    one.crawl.forget(page("d"))
    one.store.pause("other.example", time.time() + 1)
    one.store.note_estimate(b"")
    assert sorted(crawl(one, other)) == list("abc")
    with pytest.raises(UnusableError, match=r"\{bloom:"):
        join(address.format("stranger"))


@pytest.mark.slow
def test_a_cluster_shares_a_queue_among_its_nodes(join: Join, cluster: list[RedisServer]) -> None:
    """All pages are fetched, though slots move to other nodes meanwhile, and no node answers for a while."""
    one, other = (join(node.url) for node in cluster[:2])
    names = [str(number) for number in range(60)]
    one.push(*map(page, names[:30]))
    fetched = []
    for shard in range(2):
        worker, request = pop(one, other)
        fetched.append(name_of(request))
        move_slot(cluster, f"{{bloom:pages:{shard}}}")
        worker.end(request)
    for node in cluster:
        node.kill()
    other.push(*map(page, names[30:]))
    with socket.create_server(("127.0.0.1", cluster[0].port)) as dead:
        dead.settimeout(PATIENCE)
        for _ in range(3):
            dead.accept()[0].close()
    for node in cluster:
        node.start()
    assert sorted(fetched + crawl(one, other)) == sorted(names)
    for node in cluster:
        with node.client() as client:
            assert client.dbsize()


def test_a_start_request_is_fetched_once_whoever_yields_it(join: Join) -> None:
    """Unfiltered start requests are taken once for all workers; two equal ones of a spider are two."""
    one, other = join(), join()
    for worker in (one, other):
        worker.push(*[page("start", dont_filter=True, meta={"is_start_request": True}) for _ in range(2)])
    worker, request = pop(one, other)
    worker.push_from(request, request.copy())  # a retry
    worker.end(request)
    assert crawl(one, other) == ["start"] * 2


def test_a_pushed_url_whose_request_is_in_memory_waits_for_it(
    join: Join, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is stopped before the page is done leaves the pushed URL to another one."""

    def make_request(self: PageSpider, data: bytes) -> Request:
        return Request(data.decode(), meta={"part": Fraction(1, 3)}, dont_filter=True)

    monkeypatch.setattr(PageSpider, "make_request_from_data", make_request, raising=False)
    with server.client() as client:
        client.rpush("pages:start", page("a").url)
    for _ in range(2):
        worker = join(BLOOM_FLEET_START_URLS="%(spider)s:start")
        assert worker.fetch().url == page("a").url
        worker.leave()


def test_a_page_that_waits_for_its_own_request_gets_it(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unfiltered request goes with the acknowledgement of its page, but not later than after half a minute."""
    monkeypatch.setattr("scrapy_bloom.fleet.store.LONGEST_SECONDS", 0.5)
    worker = join()
    request = worker.fetch(page("waiting"))
    worker.push_from(request, page("token", dont_filter=True))
    token = worker.fetch()
    assert token.url == page("token").url
    worker.end(token)
    worker.end(request)
    assert crawl(worker) == []


def test_what_was_forgotten_is_new_once(join: Join) -> None:
    """Though the filter did not know it. What counts is the order in which the server hears of it."""
    one, other = (join(CONCURRENT_REQUESTS=0) for _ in "ab")  # which is Scrapy's "no limit"
    one.crawl.forget(page("a"))
    one.link("a")
    wait_until(lambda: one.crawl.core.tick() or one.store.commits, "the server has the link")
    other.link("a")
    assert crawl(one, other) == ["a"]


def test_a_report_says_what_a_fleet_holds(join: Join, server: RedisServer, tmp_path: Path, capsys: Any) -> None:
    """One page with the counts of `info`; what strangers have pushed is text there."""
    worker, written, hostile = join(BLOOM_FLEET_START_URLS="%(spider)s:start"), tmp_path / "report.html", "<script>"
    with server.client() as client:
        client.rpush("pages:start", hostile)
        wait_until(lambda: worker.next() or client.exists("{bloom:pages:0}:dead"), "it is dead-lettered")
        worker.end(worker.fetch(*map(page, "abc")), 500)
        wait_until(lambda: client.exists("{bloom:pages:0}:failed"), "a page has failed")
        wait_until(lambda: len(worker.store) == 2, "the others are in hand")
    assert main(["report", server.url, "bloom:pages", "-o", str(written)]) == 0
    text = written.read_text()
    assert hostile not in text
    assert escape(hostile) in text
    for tile in ("Done</dt><dd>2", "Failed</dt><dd>1", "Dead letters</dt><dd>1", "In hand</dt><dd>2", "status 500"):
        assert tile in text
    assert main(["report", server.url, "bloom:others", "-o", str(written)]) == 2


ODD = [
    b"\xff\xfe",
    b"example.com",
    b"{}",
    b'{"url": 5}',
    b'{"url": "https://example.com/", "priority": "high"}',
    b'{"url": "https://example.com/", "callback": "nobody"}',
    b'{"url": "https://example.com/", "cb_kwargs": 5}',
    b"[" * 100_000,
    b'{"url"',
    b"",
]
"""What somebody may push, and what is no request."""


def test_what_is_no_request_is_dead_lettered(join: Join, server: RedisServer, caplog: Any, capsys: Any) -> None:
    """An ERROR shows what was pushed, so does `info`, and the worker goes on. `requeue --dead` puts it back."""
    worker = join(BLOOM_FLEET_START_URLS="%(spider)s:start")
    with server.client() as client:

        def dead_letters() -> int:
            assert worker.next() is None
            return int(client.llen("{bloom:pages:0}:dead"))

        client.rpush("pages:start", *ODD, '{"url": "https://example.com/a", "meta": {"download_slot": ["a"]}}')
        fine: list[Request] = []
        wait_until(lambda: fine.extend(filter(None, [worker.scheduler.next_request()])) or fine, "the last one is read")
        assert fine[0].url == "https://example.com/a"
        worker.crawl.done(fine[0])
        wait_until(lambda: dead_letters() == len(ODD), "all are dead-lettered")
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == len(ODD)
        assert any("example.com" in error and "high" in error for error in errors)
        assert main(["info", server.url, "bloom:pages", "--json"]) == 0
        letters = json.loads(capsys.readouterr().out)["dead_letters"]
        assert "example.com" in [letter["url"] for letter in letters]
        assert main(["requeue", server.url, "bloom:pages", "--dead", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["requeued"] == len(ODD)
        assert client.llen("{bloom:pages:0}:dead") == 0
        wait_until(lambda: dead_letters() == len(ODD), "they are again")


def test_a_crawl_waits_for_start_urls_and_reads_them_as_scrapy_redis(join: Join, server: RedisServer) -> None:
    """They are URLs, or JSON with arguments of ``Request``; further fields are form data."""
    worker, url = join(BLOOM_FLEET_START_URLS="%(spider)s:start"), "https://example.com/"
    assert len(worker.store)
    pushed = [
        url,
        json.dumps({"url": f"{url}a", "note": "x"}),
        json.dumps({"url": f"{url}b", "method": "post", "note": "x", "meta": {"n": 1}}),
    ]
    with server.client() as client:
        client.rpush("pages:start", *pushed)
    requests = []
    for _ in pushed:
        request = worker.fetch()
        requests.append((request.url, request.method, request.body, request.meta.get("n"), request.dont_filter))
        worker.end(request)
    assert sorted(requests, key=repr) == [
        (url, "GET", b"", None, True),
        (f"{url}a?note=x", "GET", b"", None, True),
        (f"{url}b", "POST", b"note=x", 1, True),
    ]
    assert len(worker.store)


def test_a_job_directory_is_one_workers(join: Join, server: RedisServer, tmp_path: Path, capsys: Any) -> None:
    """Two workers cannot have one job directory: they would take each other's requests. A copy is another worker's."""
    one = join(JOBDIR=str(tmp_path / "one"))
    with pytest.raises(InUseError):
        join(JOBDIR=str(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    other = join(JOBDIR=str(tmp_path / "copy"))
    other.link("a")
    pop(one, other)
    assert main(["info", server.url, "bloom:pages", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["workers"]) == 2


def test_a_server_that_is_not_there_is_said_before_the_crawl(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose server does not answer does not start, and its message shows no password."""
    monkeypatch.setattr("scrapy_bloom.fleet.connection.START_SECONDS", 0)
    with pytest.raises(UnusableError) as caught:
        join("redis://:a-password@127.0.0.1:1")
    assert "127.0.0.1:1" in str(caught.value)
    assert "a-password" not in str(caught.value)
