"""What a crawl starts with stays out of garbage collections until it ends; all else is collected."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

MANY = 10_000
"""A program with Scrapy has some 90,000 objects, and a new Python at most some hundred out of the collector's reach."""

PROGRAM = """
import gc, json, sys
from weakref import ref

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess

from scrapy_bloom import UnseenLinks

class Cycle:
    def __init__(self):
        self.itself = self

process = CrawlerProcess({"LOG_ENABLED": False, "TELNETCONSOLE_ENABLED": False})
found = {}

class Second(UnseenLinks, Spider):
    name = "second"
    start_urls = ["data:,second"]
    has_ended = False

    def parse(self, response):
        found["in the second"] = gc.get_freeze_count()

    def closed(self, reason):
        Second.has_ended = True

class First(UnseenLinks, Spider):
    name = "first"
    start_urls = ["data:,0"]
    under_way = None

    def parse(self, response, number=0):
        if not number:
            found["in the first"] = gc.get_freeze_count()
            self.under_way = Cycle()
            process.crawl(Second)
        if not Second.has_ended:
            yield Request(f"data:,{number + 1}", cb_kwargs={"number": number + 1})
            return
        found["after the second"] = gc.get_freeze_count()
        gone = ref(self.under_way)
        self.under_way = None
        gc.collect()
        found["is freed"] = gone() is None

if "disabled" in sys.argv:
    gc.disable()
process.crawl(First)
process.start()
print(json.dumps({**found, "at the end": gc.get_freeze_count()}))
"""


def crawled(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def test_what_a_crawl_starts_with_is_passed_over_until_the_last_one_ends() -> None:
    """A second crawl in the same process keeps nothing of the first one from being freed, and its end changes nothing
    for the first one."""
    found = crawled()
    assert found["in the first"] > MANY
    assert MANY < found["in the second"] <= found["in the first"]
    assert MANY < found["after the second"] <= found["in the first"]
    assert found["is freed"]
    assert found["at the end"] == 0


def test_a_program_without_collections_is_left_alone() -> None:
    """Nothing is changed for a program that has disabled them."""
    found = crawled("disabled")
    assert max(found["in the first"], found["in the second"], found["at the end"]) < MANY
