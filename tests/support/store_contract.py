"""What every store has to do, as checks that each store's tests run: memory, job, fleet.

    @pytest.mark.parametrize("check", CHECKS)
    def test_the_contract(check, tmp_path):
        check(lambda: Engine(tmp_path))

Each check is given a function that opens the store, as a crawl does; called again after the crawl was stopped, it opens
what is left of it. ``REOPENING`` are for stores that survive their process.
"""

from collections.abc import Callable
from typing import Any

from scrapy import FormRequest, Request

from tests.support.engine import Engine

Open = Callable[[], Engine]

ONE, OTHER = b"1" * 20, b"2" * 20


def url(n: int) -> str:
    return f"http://host-{n % 3}.example/{n}"


def unserializable(n: int) -> Request:
    return Request(url(n), meta={"unserializable": lambda: None})


def remembers(open_: Open) -> None:
    """A fingerprint is new once; asking remembers nothing; taken back, it is new again."""
    engine = open_()
    store = engine.store
    assert store.seen([ONE, OTHER]) == [False, False]
    assert [store.add(ONE), store.add(ONE)] == [True, False]
    assert store.seen([ONE, OTHER, ONE]) == [True, False, True]
    assert store.seen([]) == []
    assert store.forget(ONE)
    assert store.seen([ONE]) == [False]
    assert [store.add(ONE), store.add(ONE), store.add(OTHER)] == [True, False, True]
    engine.stop()


def hands_out(open_: Open) -> None:
    """What goes in comes out once, whole; it is handled until it is done, and not pending meanwhile."""
    engine = open_()
    callback: Any = engine.spider.parse_other
    request = FormRequest(
        "http://a.example/?a=%E4#b",
        formdata={"q": "ä"},
        headers={"X-Name": ["1", "2"]},
        cookies={"k": "v"},
        meta={"depth": 3, "when": (1, 2)},
        priority=-5,
        callback=callback,
        errback=engine.spider.parse_other,
        cb_kwargs={"n": 7},
    )
    expected = request.to_dict(spider=engine.spider)
    assert (engine.pending(), engine.start()) == (0, None)
    assert engine.push(request) == [True]
    assert (engine.pending(), engine.scheduler.has_pending_requests()) == (1, True)
    found = engine.fetch()
    assert found.to_dict(spider=engine.spider) == expected
    assert type(found) is FormRequest
    assert engine.pending() == 0
    page = engine.crawl.of_request(found)
    assert page is not None
    assert page.request is found
    assert engine.crawl.of_request(Request(found.url)) is None
    engine.end(found)
    assert engine.crawl.of_request(found) is None
    assert engine.start() is None
    engine.stop()


def takes_what_it_does_not_know(open_: Open) -> None:
    """To be done with a request that the store never handed out, or twice with one, is harmless."""
    engine = open_()
    found = engine.fetch(Request(url(1)))
    engine.crawl.done(Request(url(1)))
    assert engine.crawl.of_request(found) is not None
    engine.end(found)
    engine.crawl.done(found)
    assert engine.push(Request(url(1)), Request(url(2))) == [False, True]
    assert engine.drain() == [url(2)]
    engine.stop()


def hands_out_what_cannot_be_serialized(open_: Open) -> None:
    """A request that cannot be serialized is the same object when it comes out, and filtered like any other."""
    engine = open_()
    request = unserializable(1)
    assert engine.push(request, unserializable(1), Request(url(1))) == [True, False, False]
    assert engine.start() is request
    assert engine.push(unserializable(1)) == [False]
    engine.end(request)
    assert engine.push(unserializable(1)) == [False]
    engine.crawl.forget(request)
    assert engine.push(Request(url(1)), unserializable(1)) == [True, False]
    engine.stop()


def closes_twice(open_: Open) -> None:
    """Scrapy may close a scheduler whose filter has been closed, and nothing is pending then."""
    engine = open_()
    engine.push(Request(url(1)))
    engine.stop()
    engine.crawl.close("again")
    engine.scheduler.df.close("again")


def takes_back_what_is_in_progress(open_: Open) -> None:
    """A page that its callback takes back is new when it is done, also if its request cannot be serialized."""
    engine = open_()
    for request in (Request(url(1)), unserializable(2)):
        assert engine.push(request) == [True]
        page = engine.fetch()
        engine.crawl.forget(page)
        engine.end(page)
        engine.commit()
        assert engine.push(Request(request.url)) == [True]
        assert engine.drain() == [request.url]
    engine.stop()


CHECKS = [
    remembers,
    hands_out,
    takes_what_it_does_not_know,
    hands_out_what_cannot_be_serialized,
    takes_back_what_is_in_progress,
    closes_twice,
]


def keeps_what_is_pending(open_: Open) -> None:
    """The next run hands out what was pending or not done, knows its pages, and does not repeat what was done."""
    engine = open_()
    done = engine.fetch(*(Request(url(n)) for n in range(8)))
    engine.end(done)
    engine.fetch()
    engine.close("shutdown")  # with a request in flight: Scrapy waits for these, but a time limit may not
    engine.closed()
    engine = open_()
    assert len(engine.store) == 7
    assert not any(engine.push(*(Request(url(n)) for n in range(8))))
    assert sorted(engine.drain()) == sorted({url(n) for n in range(8)} - {done.url})
    engine.stop()
    engine = open_()
    assert len(engine.store) == 0
    engine.stop()


def keeps_what_was_taken_back(open_: Open) -> None:
    """A page that was taken back, before a commit or after it, is new to the next run."""
    engine = open_()
    requests = [Request(url(n)) for n in range(3)]
    engine.push(*requests[:2])
    engine.commit()
    engine.push(requests[2])
    engine.drain()
    engine.crawl.forget(requests[0])
    engine.crawl.forget(requests[2])
    engine.stop()
    engine = open_()
    assert engine.push(*requests) == [True, False, True]
    engine.stop()


REOPENING = [keeps_what_is_pending, keeps_what_was_taken_back]
