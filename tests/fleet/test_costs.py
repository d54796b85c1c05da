"""No call of a fleet grows with what it does not return; the server's clock may go back; and ends that are no crash."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.messages import Politeness, SlowDown
from scrapy_bloom.frontier.order import PagesPerHost
from scrapy_bloom.settings import OTHERS
from tests.fleet.engine import Join
from tests.fleet.servers import RedisServer, wait_until
from tests.fleet.test_queue import Worker, link, make

__all__ = ["make"]
MANY = 4_500


def cost(server: RedisServer, call: Callable[[], Any]) -> tuple[int, int]:
    """Return how many commands the server carries out for *call*, and how many bytes it reads."""

    def counted() -> tuple[int, int]:
        with server.client() as client:
            commands = sum(row["calls"] for row in client.info("commandstats").values())
            return commands, client.info("stats")["total_net_input_bytes"]

    before = counted()
    call()
    after = counted()
    return after[0] - before[0], after[1] - before[1]


def enqueue(worker: Worker, *links: Any) -> None:
    for at in range(0, len(links), 300):
        worker.finish(*links[at : at + 300])


def test_a_look_costs_the_same_however_many_priorities_are_pending(make: Any, server: RedisServer) -> None:
    worker = Worker(make(politeness=Politeness({OTHERS: 1000})), "one")
    enqueue(worker, *[link(str(i), priority=i, is_filtered=False) for i in range(MANY)])
    assert len(worker.take(1)) == 1
    commands, _ = cost(server, lambda: worker.take(10))
    assert commands < 100


def test_hosts_that_have_had_their_pages_cost_nothing(make: Any, server: RedisServer) -> None:
    """They are counted once for all looks, until something changes."""
    worker, hosts = Worker(make(pages=PagesPerHost({OTHERS: 1})), "one"), range(500)
    enqueue(worker, *[link(f"{i} {host}", slot=f"host-{host}", is_filtered=False) for host in hosts for i in "ab"])
    held: dict[str, Any] = {}
    while found := worker.take():
        held |= found
    worker.finish(done=held.values())
    left = []
    for _ in range(2):
        look = partial(worker.queue.take, 0, worker.token, worker.newest, 10, number=worker.number)
        left.append(look().left)
        commands, _ = cost(server, look)
        assert commands < 50
        worker.finish(link("c 7", slot="host-7", is_filtered=False))
    assert left == [500, 501]


def test_slots_that_the_settings_name_are_not_sent_with_each_call(make: Any, server: RedisServer) -> None:
    """And they hold all the same."""
    named = {f"host-{i}": i for i in range(MANY)}
    politeness = Politeness({OTHERS: 0, **named}, {**named, "narrow": 1})
    worker = Worker(make(politeness=politeness, pages=PagesPerHost({OTHERS: 5, **named, "free": None})), "one")
    slots = ("narrow", "free", "other", "host-1")
    enqueue(worker, *[link(f"{slot} {i}", slot=slot, is_filtered=False) for slot in slots for i in range(10)])
    held: dict[str, Any] = {}
    _, size = cost(server, lambda: held.update(worker.take(100)))
    assert size < 2_000
    taken = [name.split()[0] for name in held]
    assert {slot: taken.count(slot) for slot in slots} == {"narrow": 1, "free": 10, "other": 5, "host-1": 1}


def test_a_call_costs_the_same_however_much_the_worker_holds(make: Any, server: RedisServer) -> None:
    """It gets as many as it wants. Emptied slots cost nothing; the worker is told of each paused host once."""
    worker, other = Worker(make(), "one"), Worker(make(), "other")
    enqueue(worker, *[link(str(i), slot=f"host-{i}", is_filtered=False) for i in range(MANY)])
    assert len(worker.take(MANY)) == MANY
    commands, _ = cost(server, lambda: worker.take(10))
    assert commands < 100
    other.number += 1
    other.queue.finish(0, other.token, other.number, [SlowDown(0, "host-7", until=4e9)])
    answer: list[Any] = []
    commands, _ = cost(server, lambda: answer.append(worker.finish()))
    assert commands < 50
    assert list(answer[0].paused) == ["host-7"]
    again = worker.queue.finish(0, worker.token, worker.number + 1, [], last_pause=answer[0].last_pause)
    assert not again.paused


def test_a_clock_that_goes_back_stops_no_slot(make: Any, server: RedisServer) -> None:
    """All times that the server has noted are a minute ahead: requests are handed out, and leases go on."""
    worker, key = Worker(make(lease_seconds=30), "one"), "{bloom:test:0}"
    enqueue(worker, *[link(f"{slot}{i}", slot=slot) for slot in "ab" for i in range(9)])
    assert len(worker.take(4)) == 4
    with server.client() as client:
        for name in ("slots", "workers"):
            for member, moment in client.zrange(f"{key}:{name}", 0, -1, withscores=True):
                client.zadd(f"{key}:{name}", {member: moment + 60_000})
        client.hincrby(key, "called", 60_000)
    for _ in range(3):
        assert len(worker.take(4)) == 4


def test_a_worker_waits_for_its_server_at_its_start(mortal: RedisServer, join: Join) -> None:
    mortal.kill()
    timer = threading.Timer(1, mortal.start)
    timer.start()
    join(mortal.url)
    timer.join()


def test_ctrl_c_ends_the_wait_for_a_server(join: Join, caplog: Any) -> None:
    """Also once Scrapy handles it, whose handler only takes note as long as the worker waits."""
    taken_note: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: taken_note.append(number))

    def press() -> None:
        wait_until(lambda: "waits for its server" in caplog.text, "it waits")
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pressed = pool.submit(press)
        with pytest.raises(UnusableError, match="stopped"):
            join("redis://127.0.0.1:1")
        pressed.result()
    os.kill(os.getpid(), signal.SIGINT)
    assert taken_note == [signal.SIGINT]
    signal.signal(signal.SIGINT, before)


STOPPED = """
import sys
from tests.fleet.engine import Worker, page

Worker(sys.argv[1]).fetch(page("page"))
"""


@pytest.mark.slow
def test_a_process_that_ends_without_closing_its_crawl_has_not_crashed(server: RedisServer) -> None:
    """As after Ctrl-C twice: its page is pending again, and not suspected."""
    subprocess.run([sys.executable, "-c", STOPPED, server.url], check=True, timeout=120)
    with server.client() as client:
        assert client.exists("{bloom:pages:0}:suspects", "{bloom:pages:0}:dead", "{bloom:pages:0}:workers") == 0
        assert len(client.keys("{bloom:pages:0}:lane:*")) == 1
