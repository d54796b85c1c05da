"""How fast a fleet may ask the slots of the downloader: Scrapy's settings, for all workers together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy_bloom.frontier.order import Order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings


class Politeness(NamedTuple):
    """How fast all workers together may ask the slots of the downloader; "*" stands for all that are not named."""

    delays: Mapping[str, float] = {}
    """Seconds between two requests."""
    shares: Mapping[str, int] = {}
    """The most requests in hand; without "*"."""

    @classmethod
    def of(cls, settings: BaseSettings, spider: Spider | None) -> Politeness:
        """Return what *settings* and *spider* allow at the beginning."""
        delay = max(settings.getfloat("DOWNLOAD_DELAY"), getattr(spider, "download_delay", None) or 0)
        if settings.getbool("AUTOTHROTTLE_ENABLED"):
            delay = max(delay, settings.getfloat("AUTOTHROTTLE_START_DELAY"))
        slots = settings.getdict("DOWNLOAD_SLOTS")
        delays = {name: float(slot["delay"]) for name, slot in slots.items() if "delay" in slot}
        shares = {name: int(slot["concurrency"]) for name, slot in slots.items() if slot.get("concurrency")}
        return cls({"*": delay, **delays}, shares)

    def order(self, settings: BaseSettings) -> Order:
        """Return the order of the fleet's requests. It keeps slots apart if any slot has a delay or a share."""
        order = Order.of(settings, in_job=True)
        return order._replace(by_slot=True) if any(self.delays.values()) or self.shares else order

    def throttled(self, crawler: Crawler) -> Politeness:
        """Return this with the delays that AutoThrottle has found in *crawler*."""
        engine: Any = crawler.engine
        now = {name: slot.delay for name, slot in engine.downloader.slots.items()}
        return self._replace(delays={**self.delays, **now})
