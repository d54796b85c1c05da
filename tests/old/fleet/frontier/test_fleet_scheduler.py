"""FleetScheduler as Scrapy's engine calls it: order, start requests, what cannot be written or read, and messages."""

from __future__ import annotations

import pickle
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import FormRequest, Request, version_info

from scrapy_bloom.old.errors import SettingsError, UnusableError
from scrapy_bloom.old.fleet.frontier import aside
from scrapy_bloom.old.fleet.frontier.entry import encode, encode_signed
from tests.old.fleet.test_ageing import AGE, let_pass
from tests.old.support.fleets import wait_until
from tests.old.support.redis_servers import RedisServer, free_port
from tests.old.support.schedulers import SCRAPY, EngineCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FLEET = "scrapy_bloom.FleetScheduler"


def delivered(worker: EngineCalls) -> None:
    """Wait until all that was pushed is on the server."""
    courier = worker.scheduler._courier
    wait_until(lambda: not (courier._outbox or courier._sending or courier._done or courier._sending_done), "delivery")


@contextmanager
def another(worker: EngineCalls) -> Iterator[None]:
    """What happens to a worker that is killed, but for the process: its thread ends, and the server is told nothing."""
    courier = worker.scheduler._courier
    courier.queue.leave = lambda: 0
    courier.close(5)
    worker.scheduler._courier = None
    worker.engine.downloader.close()
    yield


@pytest.mark.parametrize(("order", "start"), [("Lifo", "Fifo"), ("Fifo", "Fifo"), ("Lifo", None), ("Fifo", "Lifo")])
def test_the_order_is_scrapys(open_worker: Callable[..., EngineCalls], order: str, start: str | None) -> None:
    """One at a time, requests come out in the order of Scrapy's own scheduler."""
    settings = {
        "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.Pickle{order}DiskQueue",
        "SCHEDULER_MEMORY_QUEUE": f"scrapy.squeues.{order}MemoryQueue",
        "SCHEDULER_START_DISK_QUEUE": start and f"scrapy.squeues.Pickle{start}DiskQueue",
        "SCHEDULER_START_MEMORY_QUEUE": start and f"scrapy.squeues.{start}MemoryQueue",
        "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue",
    }
    theirs, ours = EngineCalls(None, SCRAPY, **settings), open_worker(**settings)
    try:
        for worker in (theirs, ours):
            for i in range(24):
                # Scrapy 2.13 begins start requests first, later ones last; ours does so under every Scrapy.
                meta = {"is_start_request": True} if i % 4 == 0 and version_info >= (2, 14) else {}
                worker.push(Request(f"https://example.com/{i}", priority=i % 3 - 1, meta=meta))
        delivered(ours)
        assert ours.drain() == theirs.drain()
    finally:
        theirs.stop()


def test_duplicates_are_filtered_counted_and_logged(
    open_worker: Callable[..., EngineCalls], caplog: pytest.LogCaptureFixture
) -> None:
    """A URL that this worker knows is refused at once; one that another worker knows is dropped when the server has
    answered."""
    caplog.set_level("DEBUG", "scrapy_bloom.old.fleet_scheduler")
    one = open_worker()
    assert one.push(Request("https://example.com/a"), Request("https://example.com/a")) == [True, False]
    delivered(one)
    assert one.drain() == ["https://example.com/a"]
    one.stop()
    other = open_worker()
    assert other.push(Request("https://example.com/a")) == [True]
    delivered(other)
    assert other.drain() == []
    assert one.stats.get_value("dupefilter/filtered") == other.stats.get_value("dupefilter/filtered") == 1
    assert caplog.text.count("Filtered duplicate request: <GET https://example.com/a>") == 2


def test_without_a_filter_nothing_is_dropped(open_worker: Callable[..., EngineCalls]) -> None:
    """Scrapy's way of switching filtering off, BaseDupeFilter, works here too."""
    worker = open_worker(DUPEFILTER_CLASS="scrapy.dupefilters.BaseDupeFilter")
    assert worker.push(*[Request("https://example.com/a")] * 2) == [True, True]
    delivered(worker)
    assert len(worker.drain()) == 2


def start_request(url: str) -> Request:
    return Request(url, dont_filter=True, meta={"is_start_request": True})


def test_start_requests_are_taken_once_for_all_workers(open_worker: Callable[..., EngineCalls]) -> None:
    """Two equal start requests of one worker are both fetched; those of the next worker, or of the same one restarted,
    are taken for the same two."""
    fetched = 0
    for _ in range(2):
        worker = open_worker()
        worker.push(*[start_request("https://example.com/")] * 2)
        delivered(worker)
        fetched += len(worker.drain())
        worker.stop()
    assert fetched == 2


def test_a_retried_start_request_is_no_start_request(open_worker: Callable[..., EngineCalls]) -> None:
    """A retry of a start request is fetched in every worker, however often start() ran."""
    fetched = 0
    for site in ("a", "b"):
        worker = open_worker()
        worker.push(start_request(f"https://example.com/{site}"))
        delivered(worker)
        request = worker.start()
        assert request is not None
        for retry in range(3):
            worker.push(request.replace(meta={**request.meta, "retry_times": retry}))
            worker.end(request)
            delivered(worker)
            request = worker.start()
            assert request is not None
            fetched += 1
        worker.end(request)
        worker.stop()  # or it would take what the next one has
    assert fetched == 6


def test_requests_come_back_as_they_were(open_worker: Callable[..., EngineCalls]) -> None:
    """Method, headers, body, meta, callbacks, arguments and class survive the way over the server."""
    worker = open_worker()
    sent = FormRequest(
        "https://example.com/form?a=%20b",
        formdata={"q": "ä"},
        headers={"X-A": ["1", "2"]},
        cookies={"c": "d"},
        meta={"pair": (1, 2), "raw": b"\xff", "depth": 3},
        callback=worker.crawler.spider.parse_other,
        errback=worker.crawler.spider.parse_other,
        cb_kwargs={"n": 1},
        priority=7,
        flags=["f"],
        dont_filter=True,
    )
    worker.push(sent)
    delivered(worker)
    found = worker.start()
    assert type(found) is FormRequest
    assert found.to_dict(spider=worker.crawler.spider) == sent.to_dict(spider=worker.crawler.spider)
    worker.end(found)


WHEN = datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_the_log_says_what_was_forgotten_for_its_age(
    open_worker: Callable[..., EngineCalls], plain_server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first line names the room of a layer, a ninth of the capacity, and URLs dropped for their age have a line."""
    caplog.set_level("INFO")
    worker = open_worker(BLOOM_MAX_AGE=f"{AGE:.0f}s", BLOOM_CAPACITY=9000)
    worker.push(*(Request(f"https://example.com/{number}") for number in range(5)))
    delivered(worker)
    let_pass(plain_server, prefix, AGE)
    worker.push(*(Request(f"https://example.com/new/{number}") for number in range(4)))
    delivered(worker)
    worker.stop()
    assert "for the first 1,000 URLs" in caplog.text
    assert "5 URLs were forgotten for their age: BLOOM_MAX_AGE is 64,000 s" in caplog.text
    assert "This run checked 9 URLs: 9 new" in caplog.text


def test_what_is_crawled_from_memory_ages(
    open_worker: Callable[..., EngineCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With BLOOM_MAX_AGE the fingerprint of a request that only this worker can hold is forgotten as late as those on
    the server."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    worker = open_worker(BLOOM_MAX_AGE="8h")
    one = Request("https://example.com/", meta={"when": WHEN})
    assert worker.push(one) == [True]
    now += 6.9 * 3600
    assert worker.push(one) == [False]
    now += 1.1 * 3600
    assert worker.push(one) == [True]


def test_what_needs_a_pickle_is_crawled_from_memory(
    open_worker: Callable[..., EngineCalls], caplog: pytest.LogCaptureFixture
) -> None:
    """A request that cannot be written is named in an ERROR, and the page it came from is acknowledged after it, so
    that a kill in between loses nothing."""
    worker = open_worker(BLOOM_FLEET_WORKER="one")
    worker.push(Request("https://example.com/page"))
    delivered(worker)
    page = worker.start()
    assert page is not None
    worker.push(Request("https://example.com/from-page", meta={"when": WHEN}))
    worker.end(page)
    assert "meta.when is of type datetime.datetime. It is crawled by this worker alone" in caplog.text
    assert worker.stats.get_value("scheduler/unserializable") == 1
    with another(worker):
        again = open_worker(BLOOM_FLEET_WORKER="one")
        page = again.start()
        assert page is not None
        assert page.url == "https://example.com/page"
        again.push(Request("https://example.com/from-page", meta={"when": WHEN}))
        again.end(page)
        found = again.start()
        assert found is not None
        assert found.meta["when"] == WHEN
        again.end(found)
        delivered(again)
        wait_until(lambda: not again.scheduler.has_pending_requests(), "the end")


def test_with_a_secret_pickles_are_signed(open_worker: Callable[..., EngineCalls]) -> None:
    """A request that needs a pickle goes over the server, to workers that have the same secret."""
    secret = {"BLOOM_FLEET_SECRET": "sixteen letters."}
    one = open_worker(**secret)
    one.push(Request("https://example.com/", meta={"when": WHEN}))
    one.stop()
    other = open_worker(**secret)
    found = other.start()
    assert found is not None
    assert found.meta == {"when": WHEN}
    other.end(found)


class Bomb:
    """Says so if somebody unpickles it."""

    went_off = False

    def __reduce__(self) -> Any:
        return setattr, (Bomb, "went_off", True)


URL = "https://example.com/"
HOSTILE = {
    "a pickle": pickle.dumps(Bomb()),
    "a pickle of another secret": encode_signed({"url": URL, "meta": {"bomb": Bomb()}}, b"another"),
    "no URL": encode({"meta": {}}),
    "a URL that is none": encode({"url": "no url"}),
    "a class elsewhere": encode({"url": URL, "_class": "antigravity.Request"}),
    "a class that is no request": encode({"url": URL, "_class": "subprocess.Popen"}),
    "a method of everything": encode({"url": URL, "callback": "__init__"}),
    "a callback elsewhere": encode({"url": URL, "callback": "crawler.stop"}),
    "a callback that is no method": encode({"url": URL, "callback": "name"}),
    "headers of a wrong type": encode({"url": URL, "headers": 7}),
    "meta of a wrong type": encode({"url": URL, "meta": [1]}),
    "nothing": b"\0",
}


@pytest.mark.parametrize("secret", [None, "sixteen letters."])
def test_hostile_entries_are_set_aside(
    open_worker: Callable[..., EngineCalls],
    plain_server: RedisServer,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
    secret: str | None,
) -> None:
    """Each hostile entry is logged and set aside without running code, and the crawl goes on with the others and
    ends."""
    worker = open_worker(BLOOM_FLEET_SECRET=secret)
    with plain_server.client() as client:
        worker.push(*(Request(f"https://example.com/{i}") for i in range(len(HOSTILE) + 1)))
        delivered(worker)
        ids = sorted(client.hkeys(f"{{{prefix}:0}}:requests"), key=int)
        client.hset(f"{{{prefix}:0}}:requests", mapping=dict(zip(ids, HOSTILE.values(), strict=False)))
        last = worker.start()
        assert last is not None
        worker.end(last)
        wait_until(lambda: worker.drain() == [] and not worker.scheduler.has_pending_requests(), "the end")
        assert client.hlen(f"{{{prefix}:0}}:aside") == len(HOSTILE)
    assert caplog.text.count("It is set aside") == len(HOSTILE)
    assert not Bomb.went_off


def test_another_filter_is_refused(open_worker: Callable[..., EngineCalls]) -> None:
    """A DUPEFILTER_CLASS of another package is refused, since FleetScheduler would not ask it."""
    with pytest.raises(SettingsError, match="ExactFilter, which FleetScheduler would not ask"):
        open_worker(DUPEFILTER_CLASS="tests.old.support.exactfilter.ExactFilter")


def test_a_server_that_is_not_there_ends_the_crawl_at_its_start(
    open_worker: Callable[..., EngineCalls], caplog: pytest.LogCaptureFixture
) -> None:
    """If no server is there, one line says where it was looked for and what to do, without the password."""
    with pytest.raises(UnusableError, match="Start the server"):
        open_worker(BLOOM_REDIS_URL=f"redis://:hunter2@127.0.0.1:{free_port()}")
    assert "hunter2" not in caplog.text


def test_settings_out_of_range_are_named_and_a_secret_is_not_shown(open_worker: Callable[..., EngineCalls]) -> None:
    """One message names all settings that are out of range, and does not show the secret."""
    with pytest.raises(SettingsError) as caught:
        open_worker(BLOOM_FLEET_SECRET="short", BLOOM_FLEET_LEASE=0, BLOOM_FLEET_HOST_WORKERS=-1)
    assert {line.split()[0] for line in caught.value.problems} == {
        "BLOOM_FLEET_HOST_WORKERS",
        "BLOOM_FLEET_LEASE",
        "BLOOM_FLEET_SECRET",
    }
    assert "short" not in str(caught.value)


def test_a_request_in_hand_at_three_crashes_is_set_aside_and_put_back(
    open_worker: Callable[..., EngineCalls], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that takes down every worker is set aside after three, and a person can put it back."""
    first = open_worker(BLOOM_FLEET_WORKER="one")
    first.push(Request("https://example.com/poison"))
    delivered(first)
    for _ in range(3):
        worker = open_worker(BLOOM_FLEET_WORKER="one")
        assert worker.start() is not None
    survivor = open_worker(BLOOM_FLEET_WORKER="one")
    assert survivor.start() is None
    named = "requests 0:1 'https://example.com/poison' were in hand at 3 crashes each, and are set aside"
    assert named in caplog.text
    queue = survivor.scheduler._queue
    (listed,) = aside.listed(queue.server, prefix, 1)
    assert (listed.reason, listed.url) == ("crashes", "https://example.com/poison")
    assert aside.put_back(queue.server, prefix, 1, [listed.id]) == 1
    wait_until(survivor.start, "the request to come back")


def test_the_queue_that_is_gone_begins_again(
    open_worker: Callable[..., EngineCalls],
    plain_server: RedisServer,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """When the server has lost the queue, workers send their start requests again, and the log says what was lost."""
    worker = open_worker(BLOOM_FLEET_LEASE=1)
    worker.push(start_request("https://example.com/"), Request("https://example.com/a"))
    delivered(worker)
    with plain_server.client() as client:
        client.delete(*client.scan_iter(f"{{{prefix}:*"))
        wait_until(lambda: "is gone, with all that was pending" in caplog.text, "the worker to find out")
        worker.push(Request("https://example.com/a"))
        delivered(worker)
    assert sorted(set(worker.drain())) == ["https://example.com/", "https://example.com/a"]


def test_a_queue_that_somebody_removed_takes_the_filter_with_it(
    open_worker: Callable[..., EngineCalls], plain_server: RedisServer, prefix: str
) -> None:
    """When the queue was removed, the filter is begun anew with it, so that what was pending does not count as seen."""
    worker = open_worker(BLOOM_FLEET_LEASE=1)
    worker.push(start_request("https://example.com/"), Request("https://example.com/a"))
    delivered(worker)
    with plain_server.client() as client:
        kept = {f"{{{prefix}:0}}:meta".encode(), *client.scan_iter(f"{{{prefix}:0}}:*:0")}
        client.delete(*set(client.scan_iter(f"{{{prefix}:*")) - kept)
    wait_until(lambda: worker.scheduler._is_outdated, "the worker to find out")
    worker.push(Request("https://example.com/a"))
    delivered(worker)
    assert sorted(set(worker.drain())) == ["https://example.com/", "https://example.com/a"]


def test_a_filter_without_a_queue_is_warned_of(
    open_worker: Callable[..., EngineCalls], plain_server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A filter without a queue is warned of: pages that were pending elsewhere when it was filled would be missed."""
    first = open_worker()
    first.push(Request("https://example.com/a"))
    delivered(first)
    first.stop()
    with plain_server.client() as client:
        client.delete(f"{{{prefix}:0}}:queue")
    assert "a filter that knows" not in caplog.text
    open_worker()
    assert "but a filter that knows 1 URLs: pages that were pending" in caplog.text
