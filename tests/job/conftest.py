from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from scrapy_bloom.job import commits


class Inline:
    """In the place of the thread that writes transactions: it writes them at once, so that a seed says what happens."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def submit(self, call: Callable[..., None], *args: Any, **kwargs: Any) -> Future[None]:
        future: Future[None] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None: ...


@pytest.fixture
def commits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commits begin whenever they may, and be written before the crawl goes on."""
    monkeypatch.setattr(commits, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(commits, "ThreadPoolExecutor", Inline)
