"""How pages are shared among the kinds of URLs: by what they bring, until a host is given up."""

import pickle
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.frontier.lanes import Frontier
from scrapy_bloom.frontier.order import LaneKey
from scrapy_bloom.job.database import Database
from scrapy_bloom.job.records import Batch
from scrapy_bloom.loops import kinds
from scrapy_bloom.loops.novelty import NOTHING, Brought
from scrapy_bloom.loops.share import Mark, Share

NEWS, DRY, LITTLE = Brought(1), Brought(0), Brought(0.1)
HOST = "http://a.example"
LEAST_DRY = 1_000
"""So many pages without news in a row a host gets at least before it is given up."""


def new_share() -> Share:
    """Return a share that forgets nothing."""
    return Share(ScalableBloomFilter(10_000, 1e-9).add)


class Crawl:
    """A frontier with its share. With *slots*, each host has a slot; otherwise one slot has all of them."""

    def __init__(self, *, slots: bool = False) -> None:
        self.share = new_share()
        self.frontier = Frontier(is_lifo=(True, True), share=self.share)
        self.pending: dict[int, tuple[str, Mark]] = {}
        self._slots, self._last_id = slots, 0

    def push(self, url: str, origin: Mark | None = None) -> Mark:
        mark = self.share.mark(url, origin)
        self.take_in([(url, mark)])
        return mark

    def take_in(self, requests: Iterable[tuple[str, Mark]]) -> None:
        for url, mark in requests:
            self._last_id += 1
            self.pending[self._last_id] = url, mark
            self.frontier.push(LaneKey(self._slot(url), 0, False, mark.lane), self._last_id, (url, mark))

    def fill(self, sections: dict[str, int], host: str = HOST) -> None:
        """Push so many URLs of each section."""
        for name, urls in sections.items():
            for number in range(urls):
                self.push(f"{host}/{name}/{number}")

    def pop(self) -> tuple[str, Mark] | None:
        entry = self.frontier.pop()
        return None if entry is None else self.pending.pop(entry[1])

    def answer(self, url: str, mark: Mark, brought: Brought) -> None:
        self.share.page_done(mark, brought, url)
        self.frontier.done(self._slot(url))

    def fetch(self, pages: int = 1_000_000) -> Counter[str]:
        """Fetch so many pages, or all that there are; return how many of each section. The section "dry" is that."""
        fetched: Counter[str] = Counter()
        while pages and (found := self.pop()) is not None:
            pages -= 1
            fetched[found[0].split("/")[3]] += 1
            self.answer(*found, DRY if "/dry/" in found[0] else NEWS)
        return fetched

    def _slot(self, url: str) -> str:
        return url.split("/")[2] if self._slots else ""


SEGMENT = st.sampled_from(["a", "b", "shop", "x-1", "12", "9f86d081884c7d65", "", ";s=1", "\u00e4" * 90])
URLS = st.builds(
    lambda host, path, keys: (
        f"http://{host}.example/{'/'.join(path)}" + ("?" + "&".join(f"{k}=1" for k in keys) if keys else "")
    ),
    st.sampled_from("ab"),
    st.lists(SEGMENT, max_size=12),
    st.lists(st.sampled_from(["p", "q", "sid", "k" * 200]), max_size=4),
)


@settings(max_examples=60)
@given(st.lists(st.tuples(URLS, st.booleans(), st.booleans()), max_size=60))
def test_all_that_is_pushed_is_handed_out_once(steps: list[tuple[str, bool, bool]]) -> None:
    """Whatever the URLs and the news, every request is handed out once, from the lane that it was put into."""
    crawl = Crawl()
    pushed, popped, origin = Counter[str](), Counter[str](), None
    for url, is_news, is_pop in steps:
        mark = crawl.push(url, origin)
        pushed[url] += 1
        assert len(mark.lane.encode()) <= 200
        assert pickle.loads(pickle.dumps(mark)) == mark
        if is_pop and (found := crawl.pop()) is not None:
            popped[found[0]] += 1
            crawl.answer(*found, Brought(float(is_news)))
            origin = found[1]
    while (found := crawl.pop()) is not None:
        popped[found[0]] += 1
    assert popped == pushed


def test_kinds_that_bring_nothing_come_last() -> None:
    """Of a section with news and one without, the first is almost done before the second takes a tenth as much."""
    crawl = Crawl()
    crawl.fill({"news": 300, "dry": 1000})
    fetched = crawl.fetch(320)
    assert fetched["news"] > 250
    assert 0 < fetched["dry"] < 70


def test_variants_of_known_pages_come_after_others() -> None:
    """Each variant has a new picture, and the text of its product. When that is known, other pages come first."""
    crawl, fetched = Crawl(), Counter[str]()
    for number in range(100):
        crawl.push(f"{HOST}/topics/{number}")
        for variant in range(4):
            crawl.push(f"{HOST}/products/{number}?variant={4000000000 + variant}")
    while fetched.total() < 125 and (found := crawl.pop()) is not None:
        fetched[found[0].split("/")[3]] += 1
        crawl.answer(*found, Brought(1, random.Random(found[0].partition("?")[0]).randbytes(64)))
    assert fetched["topics"] == 100


def test_sections_that_bring_something_share_evenly() -> None:
    """A section that has a hundred times as many URLs waiting gets no more pages than another."""
    crawl = Crawl()
    crawl.fill({"small": 200, "large": 20_000})
    assert crawl.fetch(300)["small"] > 100


def test_a_resumed_crawl_knows_what_the_killed_one_knew() -> None:
    """What changed() returned, however often it was asked, makes a new share choose as the old one."""
    crawl, resumed = Crawl(), Crawl()
    rows: dict[str, bytes] = {}
    crawl.fill({"news": 200, "dry": 200})
    for _ in range(4):
        crawl.fetch(30)
        rows |= crawl.share.changed()
    assert not crawl.share.changed()
    resumed.share.load(rows)
    resumed.take_in(crawl.pending.values())
    assert [resumed.pop() for _ in range(20)] == [crawl.pop() for _ in range(20)]


def test_a_lane_that_nothing_is_known_of_is_handed_out() -> None:
    """A lane whose statistics a crash has lost is a lane like others."""
    share = new_share()
    group = share.group()
    share.waiting(group, "lost^0", 2)
    for _ in range(2):
        assert share.choose(group) == "lost^0"
        share.handed_out(group, "lost^0")
    assert not group.waiting
    share.page_done(Mark("lost^0", "lost too^1"), NEWS, HOST)


def test_the_end_comes_when_a_host_was_dry_as_long_as_it_was_not() -> None:
    """A host is given up after as many dry pages in a row as it had before; what waits is reported by kind."""
    crawl = Crawl()
    crawl.fill({"news": 1200, "dry": 3000})
    while any("/news/" in url for url, _ in crawl.pending.values()):
        crawl.fetch(10)
    pages = 4_200 - len(crawl.frontier)
    assert pages - 500 <= crawl.fetch().total() <= pages
    [(kind, waiting, example)] = crawl.share.report(crawl.frontier.groups())
    assert (kind, waiting) == ("a.example/dry/N", len(crawl.frontier))
    assert example.startswith(f"{HOST}/dry/")


def test_every_kind_is_tried_again_before_a_host_is_given_up() -> None:
    """A kind that was dry, and one of copies, get pages while nothing else brings anything; what they bring counts."""
    crawl, late = Crawl(), 0
    crawl.fill({"drya": 700, "dryb": 700, "dryc": 700, "late": 60})
    while (found := crawl.pop()) is not None:
        late += "/late/" in found[0]
        crawl.answer(*found, NEWS if "/late/" in found[0] and late > 40 else DRY)
    assert late == 60


def test_made_up_sections_share_the_trust_of_one() -> None:
    """Each page under a new folder brings news and leads to more new folders. Known sections still get their share."""
    crawl, made_up, fetched = Crawl(), count(), Counter[str]()
    start = crawl.push(f"{HOST}/")
    crawl.pop()
    for section in ("blog", "docs", "trap"):
        for number in range(400):
            crawl.push(f"{HOST}/{section}/{number}", start)
    while fetched.total() < 600 and (found := crawl.pop()) is not None:
        section = found[0].split("/")[3]
        fetched[section] += 1
        crawl.answer(*found, NEWS)
        if section not in ("blog", "docs"):
            for _ in range(5):
                word = "".join(chr(97 + int(digit)) for digit in str(next(made_up)))
                crawl.push(f"{HOST}/w{word}/1", found[1])
    assert fetched["blog"] + fetched["docs"] > 250


@pytest.mark.parametrize(("brought", "pages"), [(DRY, 999), (LITTLE, 1500), (NOTHING, 1500)])
def test_what_ends_by_itself_is_never_given_up(brought: Brought, pages: int) -> None:
    """Not a host of a thousand pages without news, nor pages that a few words or numbers tell apart, nor failures."""
    crawl = Crawl()
    crawl.fill({"pages": pages})
    while (found := crawl.pop()) is not None:
        crawl.answer(*found, brought)
    assert not crawl.pending


def test_ever_new_urls_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds do not grow with URLs: a host of 3,000 different paths and queries has a bounded number of them."""
    monkeypatch.setattr(kinds, "MOST_KINDS", 500)
    share, rng = new_share(), random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"

    def word() -> str:
        return "".join(rng.choices(letters, k=rng.randint(3, 9)))

    lanes = set()
    for _ in range(3_000):
        path = "/".join(word() + rng.choice(["", "1", "-2x3"]) for _ in range(rng.randint(1, 12)))
        lanes.add(share.mark(f"{HOST}/{path}?{word()}=1&{word()}=2", None).lane)
    assert len(lanes) < 600


def test_hosts_of_which_nothing_waits_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics stay in bounds over many hosts, each of which is done before the next is met, and leave the job."""
    monkeypatch.setattr(kinds, "HOSTS", 200)
    crawl = Crawl()
    with closing(Database(tmp_path / "job.sqlite")) as database:
        for number in range(600):
            crawl.push(f"http://{number}.example/")
            crawl.fetch()
            if number % 100 == 99:
                batch = Batch()
                batch.note("kind", crawl.share.changed())
                database.write(batch)
        hosts = {key.partition("/")[0] for key in database.notes("kind")} - {""}
        assert "599.example" in hosts
        assert len(hosts) <= 200


# -- hosts that are given up, among others that go on ------------------------------------------------------------------

DRY_HOST, RICH_HOST = "http://dry.example", "http://rich.example"


@pytest.mark.parametrize("slots", [True, False])
def test_a_host_that_is_given_up_gets_no_more_pages(slots: bool) -> None:
    """While another host goes on, too. Once that is done, the rest is over, and stays pending."""
    crawl = Crawl(slots=slots)
    crawl.fill({"dry": 2_000}, DRY_HOST)
    crawl.fill({"news": 1_200}, RICH_HOST)
    assert crawl.fetch() == {"dry": LEAST_DRY, "news": 1_200}
    assert crawl.frontier.has_given_up()
    assert len(crawl.frontier) == 1_000
    assert sum(group.waiting for group in crawl.frontier.groups()) == 1_000


@pytest.mark.parametrize("slots", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_news_of_a_page_in_flight_brings_its_host_back(slots: bool) -> None:
    """A host that is given up while one of its pages is in flight goes on if that page brings something."""
    crawl = Crawl(slots=slots)
    crawl.fill({"dry": 2_500}, DRY_HOST)
    late = crawl.pop()
    assert late is not None
    crawl.fetch()
    assert crawl.frontier.has_given_up()
    crawl.answer(*late, NEWS)
    assert not crawl.frontier.is_over()
    assert crawl.fetch().total() >= LEAST_DRY


def test_another_host_in_the_slot_of_one_that_is_given_up_is_fetched() -> None:
    """What is queued later in a slot that has no turn gives it one again."""
    crawl = Crawl()
    crawl.fill({"dry": 2_000}, DRY_HOST)
    crawl.fetch()
    crawl.fill({"dry": 1}, DRY_HOST)
    assert crawl.pop() is None
    crawl.fill({"news": 1}, RICH_HOST)
    assert crawl.fetch() == {"news": 1}
