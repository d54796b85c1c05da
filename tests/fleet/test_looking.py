"""Scrapy's commands that look at pages join no fleet."""

from pathlib import Path

import pytest

from tests.fleet.commands import Command
from tests.fleet.servers import RedisServer
from tests.fleet.site import QUIET, Site

SPIDER = '''
import scrapy

class SiteSpider(scrapy.Spider):
    name = "site"

    def parse(self, response):
        """
        @url {url}
        @returns items 1 1
        """
        yield {{"url": response.url}}
'''


FLEET, SCRAPY = "scrapy_bloom.FleetScheduler", "scrapy.core.scheduler.Scheduler"


@pytest.mark.parametrize(
    ("command", "scheduler"),
    [
        (["parse", "--spider=site", "{url}"], FLEET),
        (["parse", "--spider=site", "{url}"], SCRAPY),
        (["fetch", "{url}"], FLEET),
        (["check"], FLEET),
        (["shell", "{url}", "-c", "response.url"], FLEET),
        (["list"], FLEET),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_command_that_looks_at_pages_leaves_the_server_alone(
    tmp_path: Path, server: RedisServer, command: list[str], scheduler: str
) -> None:
    """It answers as without a fleet, and neither takes nor leaves anything on the server."""
    with Site(pages=2) as site:
        (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = project\n")
        settings = {
            **QUIET,
            "SPIDER_MODULES": ["spiders"],
            "ADDONS": {"scrapy_bloom.Addon": 300},
            "BLOOM_REDIS_URL": server.url,
            "SCHEDULER": scheduler,
        }
        lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
        (tmp_path / "project.py").write_text("".join(lines))
        (tmp_path / "spiders.py").write_text(SPIDER.format(url=site.start_url))
        run = Command(tmp_path, "scrapy", *(part.format(url=site.start_url) for part in command))
        run.finish()
        assert run.code == 0, run.log()
        assert len(site.hits) == (command[0] != "list")
    with server.client() as client:
        assert client.dbsize() == 0
