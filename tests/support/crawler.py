"""A crawler without a crawl. The module installs no reactor: processes of tests fork after they have imported it."""

from __future__ import annotations

from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings


class OwnSettings(Settings):
    """Settings of one crawler, which need not copy them: that takes longer than to open a job."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__({"LOG_VERSIONS": [], **settings})  # reading them from files takes a sixth of a short crawl

    def copy(self) -> OwnSettings:
        return self

    def frozencopy(self) -> OwnSettings:
        return self


def quick_crawler(spider: type[Spider] = Spider, settings: dict[str, Any] | None = None) -> Any:
    """Return a crawler as `get_crawler()` of Scrapy does, without the runner and its copies, which take longest."""
    crawler = Crawler(spider, OwnSettings(settings or {}))
    crawler._apply_settings()
    return crawler
