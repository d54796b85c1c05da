from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import Spider, signals
from scrapy.utils.test import get_crawler

from scrapy_bloom.old.crawl import regular_call
from scrapy_bloom.old.crawl.regular_call import RegularCall

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Loop:
    """Stands in for Twisted's or asyncio's loop, whose clock a test cannot move without a reactor."""

    running = False

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def start(self, seconds: float, now: bool) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False


def test_it_is_called_while_a_spider_is_open(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Calls begin and end with the spider, and go on after one that failed."""
    loops: list[Loop] = []

    def create(function: Callable[[], None]) -> Any:
        loops.append(Loop(function))
        return loops[-1]

    monkeypatch.setattr(regular_call, "create_looping_call", create)
    calls = []

    def fail() -> None:
        calls.append("called")
        raise RuntimeError("once")

    crawler = get_crawler(Spider)
    regular = RegularCall(crawler, fail, 5)
    crawler.signals.send_catch_log(signals.spider_closed)
    crawler.signals.send_catch_log(signals.spider_opened)
    assert loops[0].running
    loops[0].function()
    loops[0].function()
    assert calls == ["called"] * 2
    assert caplog.text.count("RuntimeError: once") == 2
    crawler.signals.send_catch_log(signals.spider_closed)
    assert not loops[0].running
    del regular
