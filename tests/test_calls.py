"""How many of our calls a request takes on its way; ``docs/architecture.md`` draws it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scrapy import Request, signals
from scrapy.http import Response

import scrapy_bloom
from tests.support.engine import BY_HOST, BY_PRIORITY, opened

if TYPE_CHECKING:
    from types import FrameType

PACKAGE = str(Path(scrapy_bloom.__file__).parent)
MOST = 10
REQUESTS = 600


class Calls:
    """Counts the calls of Python functions of the package, in this thread."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def __enter__(self) -> Counter[str]:
        sys.setprofile(self._count)
        return self.of

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.of[frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name] += 1


@pytest.mark.parametrize("queue", [BY_HOST, BY_PRIORITY])
@pytest.mark.parametrize("in_job", [True, False], ids=["job", "memory"])
def test_a_request_takes_at_most_ten_calls_in_and_ten_out(tmp_path: Path, in_job: bool, queue: str) -> None:
    """A new URL up to its queue, and from the queue to the engine and to done, with all that is due now and then.

    One whose query has to be put in order takes one call more, and so does each response.
    """
    urls = [f"http://host-{n % 20}.example/page/{n}" for n in range(2 * REQUESTS)]
    with opened(tmp_path if in_job else None, {"SCHEDULER_PRIORITY_QUEUE": queue, "BLOOM_CAPACITY": 5_000}) as engine:
        engine.push(*map(Request, urls[:REQUESTS]))
        in_progress, signal = engine.engine._slot.inprogress, engine.crawler.signals.send_catch_log
        requests = [Request(url) for url in urls[REQUESTS:]]
        with Calls() as coming:
            for request in requests:
                engine.scheduler.enqueue_request(request)
        leaving: Counter[str] = Counter()
        for _ in range(REQUESTS):
            with Calls() as calls:
                found = engine.scheduler.next_request()
                in_progress.add(found)
            signal(signals.response_received, response=Response(found.url), request=found)
            with Calls() as more:
                in_progress.remove(found)
            leaving += calls + more
        engine.commit()
        assert len(engine.scheduler) == REQUESTS
    assert coming.total() / REQUESTS <= MOST, coming.most_common()
    assert leaving.total() / REQUESTS <= MOST, leaving.most_common()
