"""Switches everything on with one line: ``ADDONS = {"scrapy_bloom.Addon": 300}``.

Chooses classes, and does not know what they do.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy_bloom.old.crawl.loop_guard_middleware import LoopGuardMiddleware
from scrapy_bloom.old.crawl.startup import job_directory, log_start_errors

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)


class Addon:
    """Switches on the duplicate filter, and with ``JOBDIR`` the scheduler that survives ``kill -9``.

    With ``BLOOM_REDIS_URL`` the crawl is a worker of a fleet instead: queue and filter are on that server, not in the
    job directory. With ``BLOOM_LOOP_GUARD`` it also switches on the two middlewares that show the loop guard the crawl;
    and our scheduler without ``JOBDIR``, too, as that asks the guard with less effort than Scrapy's engine.

    Settings of the project, the spider or the command line have a higher priority and win. ``JOBDIR`` may come from any
    of them: Scrapy asks its add-ons after it has read all three.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Choose our classes where nobody has chosen others.

        Raises:
            UnusableError: ``JOBDIR`` is not a directory, or cannot be created.

        """
        with log_start_errors(logger):
            job_directory(settings)  # before Scrapy does, whose error names neither the setting nor a way out
        if settings.get("BLOOM_REDIS_URL"):
            settings.set("DUPEFILTER_CLASS", "scrapy_bloom.RedisBloomDupeFilter", "addon")
            settings.set("SCHEDULER", "scrapy_bloom.FleetScheduler", "addon")
        else:
            settings.set("DUPEFILTER_CLASS", "scrapy_bloom.BloomDupeFilter", "addon")
            if settings.get("JOBDIR") or settings.get("BLOOM_LOOP_GUARD"):
                settings.set("SCHEDULER", "scrapy_bloom.DurableScheduler", "addon")
        if settings.get("BLOOM_LOOP_GUARD"):
            for name, place in (("SPIDER_MIDDLEWARES", 950), ("DOWNLOADER_MIDDLEWARES", 40)):
                settings.setdefault_in_component_priority_dict(name, LoopGuardMiddleware, place)
