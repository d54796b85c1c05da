import pickle
import random
from collections import Counter, defaultdict
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.loops import crawl
from benchmarks.sites import site
from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.job.database import Database
from scrapy_bloom.job.records import Batch
from scrapy_bloom.loops import kinds
from scrapy_bloom.loops.novelty import NOTHING, Brought
from scrapy_bloom.loops.share import Mark, Share

NEWS, BARE, LITTLE = Brought(1), Brought(0), Brought(0.1)
HOST = "http://a.example"


def new_share() -> Share:
    """Return a share that forgets nothing."""
    return Share(ScalableBloomFilter(10_000, 1e-9).add)


class Queue:
    """Lanes as the frontier keeps them."""

    def __init__(self, share: Share) -> None:
        self.share, self.group = share, share.group()
        self.lanes: dict[str, list[tuple[str, Mark]]] = defaultdict(list)

    def push(self, url: str, origin: Mark | None = None) -> Mark:
        mark = self.share.mark(url, origin)
        self.lanes[mark.lane].append((url, mark))
        self.share.waiting(self.group, mark.lane, 1)
        return mark

    def pop(self) -> tuple[str, Mark]:
        lane = self.share.choose(self.group)
        assert lane is not None
        self.share.handed_out(self.group, lane)
        return self.lanes[lane].pop()


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
    queue = Queue(new_share())
    pushed, popped, origin = Counter[str](), Counter[str](), None
    for url, is_news, is_pop in steps:
        mark = queue.push(url, origin)
        pushed[url] += 1
        assert len(mark.lane.encode()) <= 200
        assert pickle.loads(pickle.dumps(mark)) == mark
        if is_pop:
            found, mark = queue.pop()
            popped[found] += 1
            queue.share.page_done(mark, Brought(float(is_news)), found)
            origin = mark
    while queue.group.waiting:
        popped[queue.pop()[0]] += 1
    assert popped == pushed


def fill(queue: Queue, sections: dict[str, int]) -> None:
    for name, urls in sections.items():
        for number in range(urls):
            queue.push(f"{HOST}/{name}/{number}")


def hand_out(queue: Queue, pages: int, dry: str) -> Counter[str]:
    given: Counter[str] = Counter()
    for _ in range(pages):
        url, mark = queue.pop()
        section = url.split("/")[3]
        given[section] += 1
        queue.share.page_done(mark, BARE if section == dry else NEWS, url)
    return given


def test_kinds_that_bring_nothing_come_last() -> None:
    """Of a section with news and one without, the first is almost done before the second takes a tenth as much."""
    queue = Queue(new_share())
    fill(queue, {"news": 300, "dry": 1000})
    given = hand_out(queue, 320, "dry")
    assert given["news"] > 250
    assert 0 < given["dry"] < 70


def test_variants_of_known_pages_come_after_others() -> None:
    """Each variant has a new picture, and the text of its product. When that is known, other pages come first."""
    queue = Queue(new_share())
    for number in range(100):
        queue.push(f"{HOST}/topics/{number}")
        for variant in range(4):
            queue.push(f"{HOST}/products/{number}?variant={4000000000 + variant}")
    given: Counter[str] = Counter()
    for _ in range(125):
        url, mark = queue.pop()
        section = url.split("/")[3]
        given[section] += 1
        sketch = random.Random(url.partition("?")[0]).randbytes(64)
        queue.share.page_done(mark, Brought(1, sketch), url)
    assert given["topics"] == 100


def test_sections_that_bring_something_share_evenly() -> None:
    """A section that has a hundred times as many URLs waiting gets no more pages than another."""
    queue = Queue(new_share())
    fill(queue, {"small": 200, "large": 20_000})
    given = hand_out(queue, 300, "")
    assert given["small"] > 100


def test_a_resumed_crawl_knows_what_the_killed_one_knew() -> None:
    """What changed() returned, however often it was asked, makes a new share choose as the old one."""
    share = new_share()
    queue = Queue(share)
    rows: dict[str, bytes] = {}
    fill(queue, {"news": 200, "dry": 200})
    for _ in range(4):
        hand_out(queue, 30, "dry")
        rows |= share.changed()
    assert not share.changed()
    resumed = Queue(new_share())
    resumed.share.load(rows)
    for lane, requests in queue.lanes.items():
        if requests:
            resumed.lanes[lane] = list(requests)
            resumed.share.waiting(resumed.group, lane, len(requests))
    assert [resumed.pop() for _ in range(20)] == [queue.pop() for _ in range(20)]


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
    queue = Queue(new_share())
    fill(queue, {"news": 1200, "dry": 3000})
    while any(url.startswith(f"{HOST}/news/") for lane in queue.lanes.values() for url, _ in lane):
        assert queue.share.choose(queue.group)
        hand_out(queue, 1, "dry")
    pages = 4_200 - queue.group.waiting
    while queue.share.choose(queue.group):
        hand_out(queue, 1, "dry")
    assert pages - 500 <= 4_200 - queue.group.waiting - pages <= pages
    [(kind, waiting, example)] = queue.share.report([queue.group])
    assert (kind, waiting) == ("a.example/dry/N", queue.group.waiting)
    assert example.startswith(f"{HOST}/dry/")


def test_every_kind_is_tried_again_before_a_host_is_given_up() -> None:
    """A kind that was dry, and one of copies, get pages while nothing else brings anything; what they bring counts."""
    queue = Queue(new_share())
    fill(queue, {f"dry{letter}": 700 for letter in "abc"})
    for number in range(60):
        queue.push(f"{HOST}/late/{number}")
    late = 0
    while queue.share.choose(queue.group):
        url, mark = queue.pop()
        is_late = "/late/" in url
        late += is_late
        queue.share.page_done(mark, NEWS if is_late and late > 40 else BARE, url)
    assert late == 60


def test_made_up_sections_share_the_trust_of_one() -> None:
    """Each page under a new folder brings news and leads to more new folders. Known sections still get their share."""
    queue, made_up = Queue(new_share()), count()
    start = queue.push(f"{HOST}/")
    queue.pop()
    for section in ("blog", "docs", "trap"):
        for number in range(400):
            queue.push(f"{HOST}/{section}/{number}", start)
    given: Counter[str] = Counter()
    for _ in range(600):
        url, mark = queue.pop()
        section = url.split("/")[3]
        given[section] += 1
        queue.share.page_done(mark, NEWS, url)
        if section not in ("blog", "docs"):
            for _ in range(5):
                queue.push(f"{HOST}/{word(next(made_up))}/1", mark)
    assert given["blog"] + given["docs"] > 250


def word(number: int) -> str:
    """Return the word that stands for *number*."""
    return "w" + "".join(chr(97 + int(digit)) for digit in str(number))


def test_what_ends_by_itself_is_never_given_up() -> None:
    """Not a host of a thousand pages without news, nor pages that a few words or numbers tell apart, nor failures."""
    for brought, pages in ((BARE, 999), (LITTLE, 1500), (NOTHING, 1500)):
        queue = Queue(new_share())
        fill(queue, {"pages": pages})
        while queue.group.waiting:
            assert queue.share.choose(queue.group)
            url, mark = queue.pop()
            queue.share.page_done(mark, brought, url)


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
    queue = Queue(new_share())
    with closing(Database(tmp_path / "job.sqlite")) as database:
        for number in range(600):
            queue.push(f"http://{number}.example/")
            url, mark = queue.pop()
            queue.share.page_done(mark, NEWS, url)
            queue.lanes.clear()
            if number % 100 == 99:
                batch = Batch()
                batch.note("kind", queue.share.changed())
                database.write(batch)
        hosts = {key.partition("/")[0] for key in database.notes("kind")} - {""}
        assert "599.example" in hosts
        assert len(hosts) <= 200


@pytest.mark.slow
def test_a_site_with_traps_is_crawled_to_its_honest_pages() -> None:
    """On a drawn site with traps, twice the budget fetches every honest page, and no trap takes more than half."""
    drawn = site(3)
    result = crawl(drawn, 2.0)
    assert result.at[2] == 1.0
    assert max(pages for part, pages in result.by_part.items() if part.startswith("trap")) < result.pages / 2


@pytest.mark.slow
def test_an_honest_site_loses_no_page() -> None:
    """Without traps, a crawl under the guard fetches every page of the site."""
    drawn = site(4, traps=False)
    assert crawl(drawn, 1.0).at[1] == 1.0
