"""One worker of a scrapy-redis fleet, with our filter in it; prints its final stats as JSON in its last line.

    python fleet_worker.py <settings as JSON>

It takes its first URLs from the list ``site:start_urls`` and waits for more until SIGTERM.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from scrapy.crawler import CrawlerProcess
from scrapy_redis.spiders import RedisSpider


class SiteSpider(RedisSpider):  # type: ignore[misc] - scrapy-redis has no types
    name = "site"

    async def start(self) -> Any:
        for request in self.next_requests():
            yield request

    def parse(self, response: Any, **_: Any) -> Any:
        yield {"url": response.url}
        yield from response.follow_all(css="a")


def main(settings: dict[str, Any]) -> None:
    ours = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
        "TELNETCONSOLE_ENABLED": False,
    }
    process = CrawlerProcess({**ours, **settings})
    crawler = process.create_crawler(SiteSpider)
    process.crawl(crawler)
    process.start()
    print(json.dumps(crawler.stats.get_stats() if crawler.stats else {}, default=str))  # noqa: T201 - the output


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
