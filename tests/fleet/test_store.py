import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.core.downloader import Slot
from scrapy.http import HtmlResponse

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.errors import InUseError, UnusableError
from scrapy_bloom.fleet.store import FleetStore
from scrapy_bloom.frontier.page import Outcome, Result
from scrapy_bloom.frontier.store import PageEffects
from scrapy_bloom.links.extractor import UnseenLinkExtractor
from tests.fleet.servers import PATIENCE, RedisServer, WorkerStore, crawl, end, move_slot, open_store, wait_until
from tests.support import store_contract
from tests.support.engine import BY_HOST, Engine

FLEET = {"SCHEDULER": "scrapy_bloom.components.scheduler.FleetScheduler"}


class PageSpider(Spider):
    name = "pages"

    def parse(self, response: Any, **_: Any) -> None:
        pass


@pytest.fixture
def make(server: RedisServer) -> Iterator[Callable[..., FleetStore]]:
    made: list[FleetStore] = []

    def make(effects: PageEffects | None = None, **own: Any) -> FleetStore:
        settings = {"BLOOM_REDIS_URL": server.url, "BLOOM_CAPACITY": 1000, **own}
        made.append(open_store(PageSpider, settings, effects))
        return made[-1]

    yield make
    for store in made:
        store.close()


def page(name: str, **options: Any) -> Request:
    return Request(f"https://example.com/{name}", **options)


def push(store: FleetStore, name: str, **options: Any) -> bool:
    """Push a link as the scheduler does; returns whether the store takes it for new."""
    fingerprint = f"fingerprint of {name}".encode()
    return store.add(fingerprint) and store.push(page(name, **options), fingerprint)


def pop(*stores: FleetStore) -> tuple[FleetStore, Request]:
    found: list[tuple[FleetStore, Request]] = []

    def has_one() -> bool:
        for store in stores:
            store.commit()
            if not found and (one := store.pop()) is not None:
                found.append((store, one[0]))
        return bool(found)

    wait_until(has_one, "a request is handed out")
    return found[0]


class FleetEngine(Engine):
    """The engine of a worker, which waits for the server as Scrapy's does, and ticks as its timer does."""

    @property
    def worker(self) -> WorkerStore:
        return WorkerStore(self.store, self.crawl.requests)

    def pending(self) -> int:
        """A worker counts what is ready here, and what is in hand anywhere as one."""
        return max(0, len(self.store) - len(self.engine._slot.inprogress))

    def start(self) -> Request | None:
        found: list[Request | None] = []

        def is_over() -> bool:
            self.crawl.core.tick()
            if (request := self.scheduler.next_request()) is not None or not self.scheduler.has_pending_requests():
                found.append(request)
            return bool(found)

        wait_until(is_over, "a request is handed out, or the crawl is over")
        if found[0] is not None:
            self.engine._slot.add_request(found[0])
            self._slot(found[0]).active.add(found[0])
        return found[0]


@pytest.mark.parametrize("check", store_contract.CHECKS, ids=lambda check: check.__name__)
def test_the_contract_of_all_stores(check: Callable[[Any], None], server: RedisServer) -> None:
    """A worker's store does what stores in memory and in job directories do."""
    check(lambda: FleetEngine(None, {**FLEET, "BLOOM_REDIS_URL": server.url}))


def test_links_that_the_server_has_forgotten_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's link was seen after a layer of the filter had grown too old; then the server goes back to before it."""
    with RedisServer(tmp_path / "redis", "--appendonly", "no") as server, server.client() as client:
        monkeypatch.setattr("scrapy_bloom.settings._MIN_AGE", 0.4)  # the least that users may set is a minute
        engine = FleetEngine(None, {**FLEET, "BLOOM_REDIS_URL": server.url, "BLOOM_MAX_AGE": 0.4})
        chain, extractor = engine.store.chain, UnseenLinkExtractor()
        engine.push(page("list"))
        request = engine.start()
        assert request is not None
        response = HtmlResponse(request.url, body='<a href="/b">b</a>', encoding="utf-8", request=request)
        wait_until(lambda: chain.drops, "a layer is too old")
        client.save()
        engine.push(page("b"))
        assert engine.start() is not None
        assert extractor.extract_links(response) == []
        server.kill()
        server.start()
        wait_until(lambda: engine.scheduler.next_request(), "the link is sent again")
        assert engine.store.times_anew == 1
        assert [link.url for link in extractor.extract_links(response)] == [page("b").url]
        engine.push(page("c"))
        engine.stop()
        assert engine.stat("bloom/urls") == 1


def test_a_host_gets_as_many_pages_as_it_may_of_the_fleet(server: RedisServer) -> None:
    """All workers together fetch so many; what is left is fetched when the limit is gone."""

    def open_(limit: int | None) -> FleetEngine:
        return FleetEngine(None, {**FLEET, "BLOOM_REDIS_URL": server.url, "BLOOM_PAGES_PER_HOST": limit})

    one, other = open_(3), open_(3)
    one.push(*map(page, "abcde"))
    fetched = crawl(one.worker, other.worker)
    assert len(fetched) == 3
    for engine in (one, other):
        wait_until(lambda: engine.crawl.core.tick() or engine.stat("bloom/fleet/left") == 2, "it knows what is left")  # noqa: B023 - called here
        engine.stop()
    rest = open_(None)
    rest.push(page("f"))
    assert sorted(fetched + crawl(rest.worker)) == list("abcdef")
    rest.stop()


@pytest.mark.parametrize(
    "kind",
    ["DOWNLOAD_DELAY", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("Crawl-delay", "AutoThrottle"))],
)
def test_a_delay_is_of_all_workers_together(server: RedisServer, kind: str) -> None:
    """Two workers get the requests of a host no faster than one would, also with a delay that is found later."""
    settings = {**FLEET, "BLOOM_REDIS_URL": server.url, "BLOOM_CAPACITY": 1000, "AUTOTHROTTLE_START_DELAY": 0.01}
    delay = 0.6  # so long that the server hands out one at a time
    settings |= {"DOWNLOAD_DELAY": delay} if kind == "DOWNLOAD_DELAY" else {}
    settings |= {"AUTOTHROTTLE_ENABLED": kind == "AutoThrottle"}
    one, other = FleetEngine(None, settings), FleetEngine(None, settings)
    if kind == "AutoThrottle":
        for engine in (one, other):
            engine.engine.downloader.slots["example.com"] = Slot(8, delay, 0.0)
            engine.crawl.core.tick()
    elif kind == "Crawl-delay":
        one.store.space_out("example.com", delay)
        with server.client() as client:
            wait_until(lambda: client.exists("{bloom:site:0}:delays"), "the server knows the delay")
    began = time.monotonic()
    one.push(*map(page, "abcd"))
    stores = one.worker, other.worker
    for _ in "abcd":
        store, request = pop(*stores)
        end(store, request)
    assert time.monotonic() >= began + 3 * delay - 0.01
    one.stop()
    other.stop()


def test_a_pause_is_of_all_workers(make: Callable[..., FleetStore], server: RedisServer, capsys: Any) -> None:
    """The host's requests are handed to no worker before its time, neither to one that was there nor to one that starts
    after the one that asked for the pause has gone. Other hosts go on.
    """
    one, there = make(SCHEDULER_PRIORITY_QUEUE=BY_HOST), make(SCHEDULER_PRIORITY_QUEUE=BY_HOST)
    until = time.time() + 1
    one.pause("example.com", until)
    one.pause("over.example", until)
    one.pause("long.example", until + 3600)
    with server.client() as client:
        wait_until(lambda: client.hlen("{bloom:pages:0}:paused") == 3, "the server knows of the pauses")
    one.close()
    new = make(SCHEDULER_PRIORITY_QUEUE=BY_HOST)
    for number, store in enumerate((there, new)):
        push(store, str(number))
        for host in ("long", "other"):
            store.push(Request(f"https://{host}.example/{number}"), f"{host} {number}".encode())
    hosts = []
    for _ in range(4):
        store, request = pop(there, new)
        hosts.append(request.url.split("/")[2])
        assert hosts[-1] == "other.example" or time.time() >= until - 0.01
        end(store, request)
    assert sorted(hosts) == ["example.com"] * 2 + ["other.example"] * 2

    def paused() -> int:
        main(["info", server.url, "bloom:pages", "--json"])
        return int(json.loads(capsys.readouterr().out)["hosts_paused"])

    wait_until(lambda: paused() == 1, "a pause that is over does not count, though nobody looks at it any more")


def test_a_user_with_the_usual_rights_suffices(make: Callable[..., FleetStore], server: RedisServer) -> None:
    """``+@all -@dangerous`` and its own keys, without INFO. One who may not use the keys is told which they are."""
    with server.client() as client:
        rights = ("reset", "on", ">secret", "+@all", "-@dangerous")
        client.execute_command("ACL", "SETUSER", "worker", *rights, "~{bloom:*")
        client.execute_command("ACL", "SETUSER", "stranger", *rights, "~other:*")
    address = server.url.replace("//", "//{}:secret@")
    one, other = (make(BLOOM_REDIS_URL=address.format("worker")) for _ in "ab")
    for name in "abc":
        push(one, name)
    one.forget(b"a fingerprint")
    one.pause("other.example", time.time() + 1)
    one.note_estimate(b"")
    assert sorted(crawl(one, other)) == list("abc")
    with pytest.raises(UnusableError, match=r"\{bloom:"):
        make(BLOOM_REDIS_URL=address.format("stranger"))


@pytest.mark.slow
def test_a_cluster_shares_a_queue_among_its_nodes(make: Callable[..., FleetStore], cluster: list[RedisServer]) -> None:
    """All pages are fetched, though slots move to other nodes meanwhile, and no node answers for a while."""
    one, other = (make(BLOOM_REDIS_URL=node.url) for node in cluster[:2])
    names = [str(number) for number in range(60)]
    for name in names[:30]:
        push(one, name)
    fetched = []
    for shard in range(2):
        store, request = pop(one, other)
        fetched.append(request.url.rpartition("/")[2])
        move_slot(cluster, f"{{bloom:pages:{shard}}}")
        end(store, request)
    for node in cluster:
        node.kill()
    for name in names[30:]:
        push(other, name)
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


def test_a_start_request_is_fetched_once_whoever_yields_it(make: Callable[..., FleetStore]) -> None:
    """Unfiltered start requests are taken once for all workers; two equal ones of a spider are two."""
    one, other = make(), make()
    for store in (one, other):
        for _ in range(2):
            store.push(page("start", dont_filter=True, meta={"is_start_request": True}), None)
    store, request = pop(one, other)
    store.push(request.copy(), None)  # a retry
    end(store, request)
    assert crawl(one, other) == ["start"] * 2


def test_a_pushed_url_whose_request_is_in_memory_waits_for_it(
    make: Callable[..., FleetStore], server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is stopped before the page is done leaves the pushed URL to another one."""

    def make_request(self: Spider, data: bytes) -> Request:
        return Request(data.decode(), meta={"part": Fraction(1, 3)}, dont_filter=True)

    monkeypatch.setattr(PageSpider, "make_request_from_data", make_request, raising=False)
    one = make(BLOOM_FLEET_START_URLS="%(spider)s:start")
    with server.client() as client:
        client.rpush("pages:start", page("a").url)
    assert pop(one)[1].url == page("a").url
    one.close()
    other = make(BLOOM_FLEET_START_URLS="%(spider)s:start")
    _, request = pop(other)
    assert request.url == page("a").url
    end(other, request)


def test_a_page_that_waits_for_its_own_request_gets_it(
    make: Callable[..., FleetStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unfiltered request goes with the acknowledgement of its page, but not later than after half a minute."""
    monkeypatch.setattr("scrapy_bloom.fleet.store.LONGEST_SECONDS", 0.5)
    store = make()
    push(store, "waiting")
    _, request = pop(store)
    store.push(page("token"), None, store.in_flight[id(request)])
    _, token = pop(store)
    assert token.url == page("token").url
    end(store, token)
    end(store, request)
    assert crawl(store) == []


def test_what_was_forgotten_is_new_once(make: Callable[..., FleetStore]) -> None:
    """Though the filter did not know it. What counts is the order in which the server hears of it."""
    one, other = (make(CONCURRENT_REQUESTS=0) for _ in "ab")  # which is Scrapy's "no limit"
    one.forget(b"fingerprint of a")
    push(one, "a")
    wait_until(lambda: one.commit() or one.commits, "the server has the link")
    push(other, "a")
    assert crawl(one, other) == ["a"]


def test_an_entry_that_cannot_be_read_is_dead_lettered(make: Callable[..., FleetStore], server: RedisServer) -> None:
    """An entry that is nothing is taken out and kept, and the crawl goes on to its end."""
    store = make()
    push(store, "a")
    _, request = pop(store)
    with server.client() as client:
        client.lpush("{bloom:pages:0}:lane:0:example.com", b"garbage")
        client.hincrby("{bloom:pages:0}", "outstanding", 1)
        client.zadd("{bloom:pages:0}:lanes:example.com", {"0": 0})
        client.zadd("{bloom:pages:0}:slots", {"example.com": 0})
        end(store, request)
        assert crawl(store) == []
        assert b"garbage" in client.lindex("{bloom:pages:0}:dead", 0)


def test_a_report_says_what_a_fleet_holds(
    make: Callable[..., FleetStore], server: RedisServer, tmp_path: Path, capsys: Any
) -> None:
    """One page with the counts of `info`; what strangers have pushed is text there."""
    store, written, hostile = make(BLOOM_FLEET_START_URLS="%(spider)s:start"), tmp_path / "report.html", "<script>"
    with server.client() as client:
        client.rpush("pages:start", hostile)
        wait_until(lambda: pop_none(store) or client.exists("{bloom:pages:0}:dead"), "it is dead-lettered")
        for name in "abc":
            push(store, name)
        _, request = pop(store)
        store.in_flight[id(request)].result = Result(Outcome.FAILED, "status 500", has_answer=True)
        end(store, request)
        wait_until(lambda: client.exists("{bloom:pages:0}:failed"), "a page has failed")
        wait_until(lambda: len(store) == 2, "the others are in hand")
    assert main(["report", server.url, "bloom:pages", "-o", str(written)]) == 0
    page = written.read_text()
    assert hostile not in page
    assert escape(hostile) in page
    for tile in ("Done</dt><dd>2", "Failed</dt><dd>1", "Dead letters</dt><dd>1", "In hand</dt><dd>2"):
        assert tile in page
    assert "status 500" in page
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


def test_what_is_no_request_is_dead_lettered(
    make: Callable[..., FleetStore], server: RedisServer, caplog: Any, capsys: Any
) -> None:
    """An ERROR shows what was pushed, so does `info`, and the worker goes on. `requeue --dead` puts it back."""
    store = make(BLOOM_FLEET_START_URLS="%(spider)s:start")
    with server.client() as client:
        client.rpush("pages:start", *ODD, '{"url": "https://example.com/a", "meta": {"download_slot": ["a"]}}')
    _, request = pop(store)
    assert request.url == "https://example.com/a"
    end(store, request)
    with server.client() as client:
        wait_until(lambda: store.commit() or client.llen("{bloom:pages:0}:dead") == len(ODD), "all are dead-lettered")
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == len(ODD)
    assert any("example.com" in error and "high" in error for error in errors)
    assert main(["info", server.url, "bloom:pages", "--json"]) == 0
    letters = json.loads(capsys.readouterr().out)["dead_letters"]
    assert "example.com" in [letter["url"] for letter in letters]
    assert main(["requeue", server.url, "bloom:pages", "--dead", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requeued"] == len(ODD)
    with server.client() as client:
        assert client.llen("{bloom:pages:0}:dead") == 0
        wait_until(lambda: not (pop_none(store), client.llen("{bloom:pages:0}:dead") < len(ODD))[1], "they are again")


def pop_none(store: FleetStore) -> None:
    assert store.pop() is None
    store.commit()


def test_a_crawl_waits_for_start_urls_and_reads_them_as_scrapy_redis(
    make: Callable[..., FleetStore], server: RedisServer
) -> None:
    """They are URLs, or JSON with arguments of ``Request``; further fields are form data."""
    store, url = make(BLOOM_FLEET_START_URLS="%(spider)s:start"), "https://example.com/"
    assert len(store)
    pushed = [
        url,
        json.dumps({"url": f"{url}a", "note": "x"}),
        json.dumps({"url": f"{url}b", "method": "post", "note": "x", "meta": {"n": 1}}),
    ]
    with server.client() as client:
        client.rpush("pages:start", *pushed)
    requests = []
    for _ in pushed:
        _, request = pop(store)
        requests.append((request.url, request.method, request.body, request.meta.get("n"), request.dont_filter))
        end(store, request)
    assert sorted(requests, key=repr) == [
        (url, "GET", b"", None, True),
        (f"{url}a?note=x", "GET", b"", None, True),
        (f"{url}b", "POST", b"note=x", 1, True),
    ]
    assert len(store)


def test_a_job_directory_is_one_workers(
    make: Callable[..., FleetStore], server: RedisServer, tmp_path: Path, capsys: Any
) -> None:
    """Two workers cannot have one job directory: they would take each other's requests. A copy is another worker's."""
    one = make(JOBDIR=str(tmp_path / "one"))
    with pytest.raises(InUseError):
        make(JOBDIR=str(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    other = make(JOBDIR=str(tmp_path / "copy"))
    push(other, "a")
    pop(one, other)
    assert main(["info", server.url, "bloom:pages", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["workers"]) == 2


def test_a_server_that_is_not_there_is_said_before_the_crawl(
    make: Callable[..., FleetStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose server does not answer does not start, and its message shows no password."""
    monkeypatch.setattr("scrapy_bloom.fleet.connection.START_SECONDS", 0)
    with pytest.raises(UnusableError) as caught:
        make(BLOOM_REDIS_URL="redis://:a-password@127.0.0.1:1")
    assert "127.0.0.1:1" in str(caught.value)
    assert "a-password" not in str(caught.value)
