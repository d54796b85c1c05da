"""``scrapy bloom info`` and ``requeue`` of a server: what they tell of a real queue, and what they change there."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request

from scrapy_bloom.old.commands.command_line import main
from tests.old.fleet.frontier.test_fleet_scheduler import FLEET, another, delivered
from tests.old.support.fleets import wait_until
from tests.old.support.redis_servers import RedisServer
from tests.old.support.schedulers import EngineCalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Runs a command with ``--json``; returns its exit code and what it printed."""

    def run(*arguments: str) -> tuple[int, Any]:
        code = main([*arguments, "--json"])
        told = capsys.readouterr()
        return code, json.loads(told.out) if told.out else told.err.strip()

    return run


def start(server: RedisServer, name: str, **settings: Any) -> EngineCalls:
    ours = {"BLOOM_REDIS_URL": server.url, "BLOOM_FLEET_WORKER": name, "BLOOM_CAPACITY": 1000, "CONCURRENT_REQUESTS": 1}
    plain = "scrapy.dupefilters.RFPDupeFilter"
    return EngineCalls(None, FLEET, **{"DUPEFILTER_CLASS": plain, **ours, **settings})


def contents(server: RedisServer) -> dict[bytes, bytes]:
    with server.client() as client:
        return {key: client.dump(key) for key in client.scan_iter()}


@pytest.mark.parametrize("engine", ["bitmap", "bf"])
def test_info_tells_what_is_there_and_changes_nothing(
    tmp_path: Path, command: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    """Info tells pending requests by host, what each worker holds and when it was last seen, the filter, and whether
    all is done."""
    with RedisServer(tmp_path, bloom=engine == "bf") as server:
        worker = start(server, "one", BLOOM_REDIS_ENGINE=engine)
        worker.push(
            *(Request(f"https://{host}.example/{i}") for host, many in (("a", 5), ("b", 2)) for i in range(many))
        )
        delivered(worker)
        request = worker.start()
        assert request is not None
        courier = worker.scheduler._courier
        wait_until(lambda: courier.arrived == 0, "the worker to hold one")
        before = contents(server)
        code, found = command("info", server.url)
        assert contents(server) == before
        assert code == 0
        expected = {"spider": "site", "prefix": "bloom:site", "engine": engine, "shards": 1, "urls": 7, "layers": 1}
        expected |= {"enqueued": 7, "pending": 6, "leased": 1, "aside": 0, "hosts": 2, "finished": False}
        assert {name: found[name] for name in expected} == expected
        assert dict(found["pending_by_host"]) in ({"a.example": 4, "b.example": 2}, {"a.example": 5, "b.example": 1})
        (one,) = found["workers"]
        assert (one["name"], one["is_alive"], one["held"]) == ("one", True, 1)
        assert abs(one["last_seen"] - time.time()) < 60
        assert main(["info", server.url, "--spider", "site"]) == 0
        printed = capsys.readouterr().out
        assert "not finished" in printed
        assert "a.example" in printed
        worker.end(request)
        worker.drain()
        worker.stop()
        assert command("info", server.url)[1]["finished"]


@pytest.mark.slow
def test_what_crashed_workers_is_listed_and_put_back(
    tmp_path: Path, command: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """``requeue`` lists what was set aside with URL and reason, and puts one of it back by its id, or all; a worker
    then fetches it."""
    with RedisServer(tmp_path) as server:
        for url in ("https://example.com/one", "https://example.com/two"):
            worker = start(server, "w")
            worker.push(Request(url))
            delivered(worker)
            for _ in range(3):
                assert worker.start() is not None
                with another(worker):
                    worker = start(server, "w")
            worker.stop()
        code, found = command("requeue", server.url, "--list")
        assert code == 0
        assert [(one["reason"], one["url"]) for one in found["set_aside"]] == [
            ("crashes", "https://example.com/one"),
            ("crashes", "https://example.com/two"),
        ]
        assert command("info", server.url)[1]["aside"] == 2
        code, told = command("requeue", server.url, "--id", "0:99")
        assert (code, "has not set aside 0:99. It has 0:1, 0:2." in told) == (2, True)
        assert command("requeue", server.url, "--id", "0:2")[1]["requeued"] == 1
        assert command("info", server.url)[1]["pending"] == 1
        assert main(["requeue", server.url]) == 0
        assert "Pending again: 1." in capsys.readouterr().out
        assert command("requeue", server.url)[1]["requeued"] == 0
        worker = start(server, "w")
        assert sorted(worker.drain()) == ["https://example.com/one", "https://example.com/two"]
        worker.stop()


def test_a_server_with_several_queues_or_none_says_what_to_give(
    tmp_path: Path, command: Callable[..., tuple[int, Any]]
) -> None:
    """The error names the queues that there are, and does not show the password in the address."""
    with RedisServer(tmp_path, arguments=("--requirepass", "hunter2")) as server:
        url = f"redis://:hunter2@127.0.0.1:{server.port}"
        none = command("info", url)
        for key in ("first", "second"):
            start(server, "w", BLOOM_REDIS_KEY=key, BLOOM_REDIS_URL=url).stop()
        several = command("info", url)
        wrong = command("info", f"redis://:other@127.0.0.1:{server.port}")
        assert command("info", url, "--key", "second")[1]["prefix"] == "second"
        watched = command("info", url, "--key", "second", "--watch")
    gone = command("requeue", url)
    for (code, told), expected in (
        (none, "holds no queue of FleetScheduler's"),
        (several, "--spider site --key first, --spider site --key second"),
        (wrong, "refuses the user or password"),
        (gone, "Start the server"),
        (watched, "follows a crawl by files in its JOBDIR"),
    ):
        assert code == 2
        assert expected in told
        assert "hunter2" not in told
        assert "other" not in told
