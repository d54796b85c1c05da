"""Switches everything on with one line: ``ADDONS = {"scrapy_bloom.Addon": 300}``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy_bloom.components.changes import ChangesMiddleware
from scrapy_bloom.components.loop_guard import LoopGuardMiddleware
from scrapy_bloom.components.politeness import PolitenessMiddleware
from scrapy_bloom.components.startup import job_directory, log_start_errors

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)


class Addon:
    """Switches on filter and scheduler; with ``JOBDIR`` both survive ``kill -9``, and feeds with them.

    With ``BLOOM_REDIS_URL`` the crawl is a worker of a fleet instead: queue and filter are on that server. With
    ``BLOOM_LOOP_GUARD`` it also switches on the guard's middleware.

    Settings of the project, the spider or the command line have a higher priority and win. ``JOBDIR`` may come from any
    of them: Scrapy asks its add-ons after it has read all three.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Choose our classes where nobody has chosen others. Raises UnusableError if ``JOBDIR`` cannot be used."""
        with log_start_errors(logger):
            job_directory(settings)  # before Scrapy does, whose error names neither the setting nor a way out
        is_fleet = bool(settings.get("BLOOM_REDIS_URL"))
        has_guard = str(settings.get("BLOOM_LOOP_GUARD")) not in _OFF
        settings.set("DUPEFILTER_CLASS", f"scrapy_bloom.{'Redis' if is_fleet else ''}BloomDupeFilter", "addon")
        settings.set("SCHEDULER", f"scrapy_bloom.{'Fleet' if is_fleet else 'Durable'}Scheduler", "addon")
        if is_fleet or settings.get("JOBDIR"):
            extensions = settings.getwithbase("EXTENSIONS")
            if extensions.get(_SCRAPYS_FEEDS) is not None:
                settings["EXTENSIONS"].set(_SCRAPYS_FEEDS, None, "addon")
                settings["EXTENSIONS"].set("scrapy_bloom.FeedExporter", extensions[_SCRAPYS_FEEDS], "addon")
        settings.setdefault_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", PolitenessMiddleware, 1000)
        if str(settings.get("BLOOM_CHANGES")) not in _OFF:
            for middlewares in ("DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES"):
                settings.setdefault_in_component_priority_dict(middlewares, ChangesMiddleware, 10_000)
        if has_guard:
            settings.setdefault_in_component_priority_dict("SPIDER_MIDDLEWARES", LoopGuardMiddleware, 950)


_OFF = {"None", "False", "false", "0"}
_SCRAPYS_FEEDS = "scrapy.extensions.feedexport.FeedExporter"
