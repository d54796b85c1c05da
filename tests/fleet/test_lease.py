import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom.fleet.lease import LeaseClient
from scrapy_bloom.fleet.messages import Done, Ticket
from scrapy_bloom.fleet.queue import Queue
from scrapy_bloom.fleet.server import Server
from tests.fleet.servers import PATIENCE, LosingProxy, RedisServer, free_port, wait_until
from tests.fleet.test_queue import link

Join = Callable[..., LeaseClient]


@pytest.fixture
def join() -> Iterator[Join]:
    joined: list[tuple[LeaseClient, Server]] = []

    def join(url: str, name: str = "one", **options: Any) -> LeaseClient:
        server = Server(url)
        queue = Queue(server, "bloom:test", **options)
        client = LeaseClient(queue, name, ahead=4, news=lambda: None)
        joined.append((client, server))
        client.open()
        return client

    yield join
    for client, server in joined:
        client.close()
        server.close()


def take(client: LeaseClient) -> tuple[Ticket, bytes]:
    found: list[tuple[Ticket, bytes]] = []

    def has_one() -> bool:
        if not found and (one := client.next()) is not None:
            found.append(one)
        return bool(found)

    wait_until(has_one, "a request is ready")
    return found[0]


def crawl(client: LeaseClient, pages: int, seen: list[bytes], after_each: Callable[[], None]) -> None:
    """Crawl a chain of pages, each of which links to the next."""
    client.send(link("0"))

    def is_over() -> bool:
        if (found := client.next()) is not None:
            ticket, entry = found
            seen.append(entry)
            if int(entry) + 1 < pages:
                client.send(link(str(int(entry) + 1)))
            client.send(Done(ticket))
            after_each()
        return not len(client)

    wait_until(is_over, "the crawl is over")


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """The script of another client, which does not end."""
    with server.client() as client, server.client() as other, ThreadPoolExecutor(1) as pool:
        client.config_set("lua-time-limit", 50)
        script = pool.submit(other.eval, "while true do end", 0)
        yield
        client.execute_command("SCRIPT", "KILL")
        assert script.exception() is not None


@contextmanager
def replica_of_nobody(server: RedisServer, **config: str) -> Iterator[None]:
    """The server follows another one, which is not there."""
    with server.client() as client:
        for name, value in config.items():
            client.config_set(name.replace("_", "-"), value)
        client.replicaof("127.0.0.1", free_port())
        yield
        client.replicaof("NO", "ONE")


@contextmanager
def too_few_replicas(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        yield
        client.config_set("min-replicas-to-write", 0)


@contextmanager
def killed(server: RedisServer) -> Iterator[None]:
    server.kill()
    yield
    server.start()


TROUBLES = {
    "killed": killed,
    "BUSY": busy,
    "READONLY": replica_of_nobody,
    "MASTERDOWN": partial(replica_of_nobody, replica_serve_stale_data="no"),
    "NOREPLICAS": too_few_replicas,
}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_server_that_is_away_or_not_ready_gets_what_waited(mortal: RedisServer, join: Join, name: str) -> None:
    """The client says so, keeps what it has to deliver, and goes on to the end when it can."""
    client = join(mortal.url)
    client.send(link("page"))
    ticket, _ = take(client)
    with TROUBLES[name](mortal):
        client.send(link("found meanwhile"))
        client.send(Done(ticket))
        wait_until(lambda: client.counts["away"], "the client notices")
    ticket, entry = take(client)
    assert entry == b"found meanwhile"
    client.send(Done(ticket))
    wait_until(lambda: not len(client), "the end is seen")


@pytest.mark.slow
def test_a_server_that_is_away_is_said_once(mortal: RedisServer, join: Join) -> None:
    """A client with nothing to deliver tries again and again, and notes once that the server is away."""
    client = join(mortal.url)
    crawl(client, 1, [], lambda: None)
    mortal.kill()
    wait_until(lambda: client.counts["away"], "the client notices")
    with socket.create_server(("127.0.0.1", mortal.port)) as dead:
        dead.settimeout(PATIENCE)
        for _ in range(3):
            dead.accept()[0].close()
    mortal.start()
    client.send(link("page"))
    take(client)
    assert client.counts["away"] == 1


def test_lost_answers_lose_no_request(join: Join, server: RedisServer) -> None:
    """Answers that are lost on the way back, again and again, lose no page and hand out none twice."""
    with LosingProxy(server.port) as proxy:
        client = join(proxy.url)
        seen: list[bytes] = []

        def lose_sometimes() -> None:
            if len(seen) % 3 == 0:
                proxy.lose_next_answer()

        crawl(client, 15, seen, lose_sometimes)
        assert proxy.lost > 2
        assert seen == [b"%d" % i for i in range(15)]
        client.close()


def test_what_no_page_leads_to_is_sent_again_to_a_server_that_went_back(join: Join, tmp_path: Path) -> None:
    """A start request, say. Links of pages are not: these pages are fetched again."""
    with RedisServer(tmp_path / "redis", "--appendonly", "no") as server, server.client() as redis:
        client = join(server.url)
        redis.save()
        client.send(link("root"), is_root=True)
        client.send(link("of a page"))
        wait_until(lambda: client.has_delivered_all, "it has delivered")
        server.kill()
        server.start()
        wait_until(lambda: client.counts["went_back"], "it has noticed")
        assert take(client)[1] == b"root"
        client.close()


def test_a_worker_that_slept_over_its_lease_goes_on(join: Join, server: RedisServer) -> None:
    """A worker cut off for longer than its lease joins again. Its links count. Its pages are fetched again, and count
    for the worker that has them then.
    """
    with LosingProxy(server.port) as proxy:
        slow = join(proxy.url, "slow", lease_seconds=0.6)
        slow.send(link("page"))
        mine, _ = take(slow)
        proxy.gate.clear()
        other = join(server.url, "other")
        again, _ = take(other)
        slow.send(link("found by the slow one"))
        slow.send(Done(mine))
        proxy.gate.set()
        wait_until(lambda: slow.counts["lease_lost"] and slow.has_delivered_all, "it has delivered")
        other.send(Done(again))
        wait_until(lambda: other.has_delivered_all, "the page is acknowledged")
        slow.close()  # and gives back the link, if it has taken it before the other one did
        assert take(other)[1] == b"found by the slow one"
        assert (slow.counts["stale"], other.counts["stale"]) == (1, 0)


@pytest.mark.slow
def test_a_worker_that_waits_for_long_says_for_what(
    join: Join, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """If nothing happens for two leases, a WARNING names the worker that has what is outstanding."""
    busy = join(server.url, "busy", lease_seconds=2)
    busy.send(link("page"))
    ticket, _ = take(busy)
    idle = join(server.url, "idle", lease_seconds=2)
    wait_until(lambda: any("busy" in record.getMessage() for record in caplog.records), "the log says who is busy")
    busy.send(Done(ticket))
    wait_until(lambda: not len(idle), "the end is seen")


def test_the_lease_of_a_page_that_takes_long_is_renewed(join: Join, server: RedisServer) -> None:
    """By the thread, though the worker neither asks for requests nor has anything to deliver."""
    client = join(server.url, lease_seconds=3)
    for i in range(8):
        client.send(link(str(i)))
    wait_until(lambda: len(client) == 4, "as many requests are ready as the worker holds")
    take(client)
    with server.client() as redis:
        [(worker, ends)] = redis.zrange("{bloom:test:0}:workers", 0, -1, withscores=True)
        wait_until(lambda: redis.zscore("{bloom:test:0}:workers", worker) != ends, "the lease is renewed")
        assert redis.zscore("{bloom:test:0}:workers", worker) is not None
