"""Hosts that the loop guard has given up, among others that go on."""

from typing import NamedTuple

import pytest

from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.frontier.lanes import Frontier
from scrapy_bloom.frontier.order import LaneKey
from scrapy_bloom.loops.novelty import Brought
from scrapy_bloom.loops.share import Mark, Share

DRY, NEWS = Brought(0), Brought(1)
LEAST_DRY = 1_000
"""So many pages without news in a row a host gets at least before it is given up."""


class Fetched(NamedTuple):
    """A request that was handed out."""

    slot: str
    url: str
    mark: Mark


class Crawl:
    """A frontier with its share. With *slots*, each host has a slot; otherwise one slot has all of them."""

    def __init__(self, *, slots: bool) -> None:
        self.share = Share(ScalableBloomFilter(10_000, 1e-9).add)
        self.frontier = Frontier(is_lifo=(True, True), share=self.share)
        self._slots, self._last_id = slots, 0

    def push(self, host: str, count: int) -> None:
        for _ in range(count):
            self._last_id += 1
            url = f"http://{host}/pages/{self._last_id}"
            mark = self.share.mark(url, None)
            self.frontier.push(LaneKey(host if self._slots else "", 0, False, mark.lane), self._last_id, (url, mark))

    def hand_out(self) -> Fetched | None:
        entry = self.frontier.pop()
        return None if entry is None else Fetched(entry[0].key.slot, *entry[2])

    def answer(self, fetched: Fetched, brought: Brought) -> None:
        self.share.page_done(fetched.mark, brought, fetched.url)
        self.frontier.done(fetched.slot)


def is_of(host: str, fetched: Fetched) -> bool:
    return fetched.url.startswith(f"http://{host}/")


@pytest.mark.parametrize("slots", [True, False])
def test_a_host_that_is_given_up_gets_no_more_pages(slots: bool) -> None:
    """While another host goes on, too. Once that is done, the rest is over, and stays pending."""
    crawl = Crawl(slots=slots)
    crawl.push("dry.example", 2_000)
    crawl.push("rich.example", 1_200)
    counts = {"dry.example": 0, "rich.example": 0}
    while (fetched := crawl.hand_out()) is not None:
        host = "dry.example" if is_of("dry.example", fetched) else "rich.example"
        counts[host] += 1
        crawl.answer(fetched, DRY if host == "dry.example" else NEWS)
    assert counts == {"dry.example": LEAST_DRY, "rich.example": 1_200}
    assert crawl.frontier.has_given_up()
    assert len(crawl.frontier) == 1_000
    assert sum(group.waiting for group in crawl.frontier.groups()) == 1_000


@pytest.mark.parametrize("slots", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_news_of_a_page_in_flight_brings_its_host_back(slots: bool) -> None:
    """A host that is given up while one of its pages is in flight goes on if that page brings something."""
    crawl = Crawl(slots=slots)
    crawl.push("dry.example", 2_500)
    late = crawl.hand_out()
    assert late is not None
    while (fetched := crawl.hand_out()) is not None:
        crawl.answer(fetched, DRY)
    assert crawl.frontier.has_given_up()
    crawl.answer(late, NEWS)
    assert not crawl.frontier.is_over()
    again = 0
    while (fetched := crawl.hand_out()) is not None:
        crawl.answer(fetched, DRY)
        again += 1
    assert again >= LEAST_DRY


def test_another_host_in_the_slot_of_one_that_is_given_up_is_fetched() -> None:
    """What is queued later in a slot that has no turn gives it one again."""
    crawl = Crawl(slots=False)
    crawl.push("dry.example", 2_000)
    while (fetched := crawl.hand_out()) is not None:
        crawl.answer(fetched, DRY)
    crawl.push("dry.example", 1)
    assert crawl.hand_out() is None
    crawl.push("rich.example", 1)
    fetched = crawl.hand_out()
    assert fetched is not None
    assert is_of("rich.example", fetched)
