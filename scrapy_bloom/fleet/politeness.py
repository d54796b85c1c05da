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


class Throttle:
    """The delays that AutoThrottle has found in *crawler*, if it is on."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._is_on = crawler.settings.getbool("AUTOTHROTTLE_ENABLED")
        self._sent: dict[str, float] = {}

    def changed(self) -> dict[str, float]:
        """Return the delays that have changed by a tenth since they were returned, in seconds by slot."""
        if not self._is_on:
            return {}
        engine: Any = self._crawler.engine
        delays = {name: slot.delay for name, slot in engine.downloader.slots.items()}
        changed = {slot: delay for slot, delay in delays.items() if abs(delay - self._sent.get(slot, 0)) > 0.1 * delay}
        self._sent |= changed
        return changed
