"""Parts of URLs that do not matter are learned, and a wrong belief costs nothing but order."""

import random
from collections import Counter

import pytest

from scrapy_bloom.filter.chain import ScalableBloomFilter
from scrapy_bloom.loops.address import Address
from scrapy_bloom.loops.aliases import HOSTS, PARTS, SECTIONS, Aliases
from scrapy_bloom.loops.kinds import COPIES
from scrapy_bloom.loops.novelty import Brought
from tests.loops.test_share import HOST, NEWS, Crawl


def sketch(key: object) -> bytes:
    return random.Random(f"{key}").randbytes(64)


def aliases() -> Aliases:
    return Aliases(ScalableBloomFilter(10_000, 1e-9).add)


def learn(learned: Aliases, *pages: tuple[str, object]) -> None:
    """Ask for pages and learn from them, each a path and what stands for its content; None: nothing to compare."""
    for path, content in pages:
        address = Address.of(HOST + path)
        learned.is_copy(address)
        learned.learn(address, Brought(0) if content is None else Brought(1, sketch(content)))


def believed(learned: Aliases) -> set[str]:
    return {alias.part for alias in learned.believed()}


def are_copies(learned: Aliases, *paths: str) -> list[bool]:
    return [learned.is_copy(Address.of(HOST + path)) for path in paths]


def token(n: int) -> str:
    return f"{random.Random(n).getrandbits(128):032x}"


@pytest.mark.parametrize(
    ("form", "part"),
    [
        ("/topic?t={n}&sid={token}", "?sid"),
        ("/topic/{n};jsessionid={token}", ";jsessionid"),
        ("/(S({token}))/topic/{n}", ";"),
        ("/topic/{n}/{token}", "/-1/H"),
    ],
)
def test_session_ids_are_learned(form: str, part: str) -> None:
    """Wherever they stand: ten pages that are met under two ids each are enough, and the next such URL is a copy."""
    learned = aliases()
    for n in range(10):
        learn(learned, *((form.format(n=n, token=token(2 * n + k)), n) for k in range(2)))
    assert believed(learned) == {part}
    assert are_copies(learned, *(form.format(n=99, token=token(k)) for k in (100, 101))) == [False, True]


def test_links_to_copies_count_for_what_they_copy() -> None:
    """A page behind session ids is linked as often as the URLs with its ids together."""
    learned = aliases()
    for n in range(10):
        learn(learned, *((f"/topic?t={n}&sid={token(2 * n + k)}", n) for k in range(2)))
    asked = [Address.of(f"{HOST}/topic?t=99&sid={token(k)}") for k in range(100, 105)]
    for address in asked:
        learned.is_copy(address)
    assert {learned.forms(address) for address in asked} == {5}
    assert learned.forms(Address.of(f"{HOST}/topic?t=98")) == 0


@pytest.mark.parametrize(
    ("forms", "part", "told"),
    [
        (("/products/x{n}x", "/collections/c{k}/products/x{n}x"), "/*", "the folders"),
        (("/p/x{n}x", "/p/x{n}x?list=search&position={k}"), "?list&position", "parameter list with position"),
        (("/thread-{n}-1-{k}.html",), "/#2/thread-N-N-N.html", "number 3 in"),
    ],
)
def test_other_ways_to_a_page_are_learned(forms: tuple[str, ...], part: str, told: str) -> None:
    """Folders that show where one came from, parameters that come together, and one of several numbers in a name."""
    learned = aliases()
    for n in range(20):
        for k in range(3):
            learn(learned, (forms[k % len(forms)].format(n=n, k=k), n))
    (alias,) = (alias for alias in learned.believed() if alias.part == part)
    assert told in alias.describe()
    assert are_copies(learned, *(forms[-1].format(n=99, k=k) for k in (100, 101, 102)))[::2] == [False, True]


def test_a_mirror_is_learned() -> None:
    """A first folder that shows what the pages without it show."""
    learned = aliases()
    for n in range(15):
        learn(learned, (f"/topic/{n}", n), (f"/mirror/topic/{n}", n))
    assert "/0/mirror" in believed(learned)
    assert are_copies(learned, "/topic/99", "/mirror/topic/99") == [False, True]


@pytest.mark.parametrize("values", ["2024-{:02}", "{}", "red{}x"])
def test_values_that_look_like_words_dates_or_numbers_need_more_evidence(values: str) -> None:
    """Five empty months do not show that months do not matter, and one with events among ten that they do."""
    learned = aliases()
    learn(learned, *((f"/calendar?month={values.format(n)}", "empty") for n in range(5)))
    assert not believed(learned)
    learn(learned, *((f"/calendar?month={values.format(n)}", n if n % 5 == 0 else "empty") for n in range(5, 60)))
    assert not believed(learned)


def test_a_section_of_babble_does_not_hide_what_others_show() -> None:
    """Sections vote: where each page is random, nothing is said of a parameter that others have."""
    learned = aliases()
    for n in range(40):
        learn(learned, *((f"/babble?p={n}&sid={token(2 * n + k)}", (n, k)) for k in range(2)))
    for section in "abcd":
        for n in range(4):
            learn(learned, *((f"/{section}?p={n}&sid={token(2 * n + k)}", (section, n)) for k in range(2)))
    assert believed(learned) == {"?sid"}
    for path, is_copy in (("/a?p=99", True), ("/babble?p=99", False)):
        assert are_copies(learned, *(f"{path}&sid={token(k)}" for k in (500, 501))) == [False, is_copy]


def records_and_services(learned: Aliases) -> None:
    """Learn of a catalogue whose forms show the same for each record, under the key that tells records apart."""
    for n in range(40):
        learn(
            learned,
            (f"/cgi/detail?id={n}", ("record", n)),
            (f"/cgi/hold?id={n}", "form"),
            (f"/cgi/mail?id={n}", "form"),
        )


def test_what_a_script_shows_counts_for_it_alone() -> None:
    """Where one key tells records apart and makes no difference to forms, records are no copies, and forms are."""
    learned = aliases()
    records_and_services(learned)
    scripts = (f"/cgi/{script}?id=99" for script in ("detail", "hold", "mail"))
    assert are_copies(learned, *scripts) == [False, True, True]


def test_a_rule_is_suggested_only_if_no_section_contradicts() -> None:
    """Session ids get a rule. A key that matters in one section gets none, nor one that cannot be compared there."""
    learned = aliases()
    for n in range(30):
        learn(
            learned,
            *((f"/{section}/p?id={n}&sid={token(2 * n + k)}", (section, n)) for section in "abc" for k in (0, 1)),
        )
    assert [alias.rule() for alias in learned.believed()] == ["without:sid@a.example"]
    learn(learned, *((f"/d/p?id=1&sid={token(k)}", ("d", k)) for k in range(2)))
    assert [alias.rule() for alias in learned.believed()] == [""]

    learned = aliases()
    records_and_services(learned)
    assert not [alias.rule() for alias in learned.believed() if alias.rule()]

    learned = aliases()
    for section in ("form", "mail"):
        learn(learned, *((f"/{section}/p?id={token(n)}", section) for n in range(40)))
    for n in range(2):
        address = Address.of(f"{HOST}/tiny/p?id={token(n)}")
        learned.learn(address, Brought(0.1))  # a number, and nothing else: too little to be compared
    assert believed(learned) == {"?id"}
    assert [alias.rule() for alias in learned.believed()] == [""]


def test_a_copy_that_brings_something_ends_the_belief() -> None:
    """One page is enough, and only for its section."""
    learned = aliases()
    for section in "ab":
        for n in range(20):
            learn(learned, *((f"/{section}/p?t={n}&sid={token(2 * n + k)}", (section, n)) for k in range(2)))
    learn(learned, (f"/a/p?t=99&sid={token(499)}", "a page"))
    address = Address.of(f"{HOST}/a/p?t=99&sid={token(500)}")
    learned.learn(address, Brought(1, sketch("news")), is_copy=True)
    for section, is_copy in (("a", False), ("b", True)):
        assert are_copies(learned, *(f"/{section}/p?t=98&sid={token(k)}" for k in (600, 601))) == [False, is_copy]


def test_what_was_learned_is_kept_and_taken_back() -> None:
    """What changed() returned makes a new object believe the same, and evidence against it ends the belief."""
    learned, resumed = aliases(), aliases()
    rows: dict[str, bytes] = {}
    for n in range(10):
        learn(learned, *((f"/topic?t={n}&sid={token(2 * n + k)}", n) for k in range(2)))
        rows |= learned.changed()
    assert not learned.changed()
    resumed.load(rows)
    assert [*resumed.believed()] == [*learned.believed()]
    for n in range(100, 140):
        learn(resumed, *((f"/topic?t={n}&sid={token(2 * n + k)}", (n, k)) for k in range(2)))
    assert not believed(resumed)


def test_ever_new_parts_take_bounded_memory() -> None:
    """Hosts, parts of a host and sections that vote on a part have a limit each."""
    learned = aliases()
    for n in range(PARTS + 50):
        learn(learned, *((f"/s{'x' * n}/a?t={n}&k{n}={token(k)}&sid={token(k + 5)}", n) for k in range(2)))
        learn(learned, *((f"/s{'x' * n}/a?t={n}&k{n}={token(k)}", n) for k in range(2)))
    rows = learned.changed()
    assert len(rows) == PARTS
    assert max(row.count(b"\n") for row in rows.values()) <= SECTIONS
    for n in range(HOSTS + 50):
        for k in range(2):
            learned.learn(Address.of(f"http://{n}.example/?sid={token(k)}"), Brought(1, sketch(n)))
    kept = [row for row in learned.changed().values() if row]
    assert len(kept) <= HOSTS


def test_copies_come_strictly_last_and_are_handed_out() -> None:
    """A page that is no copy is fetched before all copies, and all are fetched."""
    queue = Crawl()
    for n in range(10):
        for k in range(2):
            url = f"{HOST}/topic?t={n}&sid={token(2 * n + k)}"
            mark = queue.push(url)
            queue.pop()
            queue.answer(url, mark, NEWS._replace(sketch=sketch(n), news=float(not k)))
    for n in range(100, 150):
        for k in range(3):
            queue.push(f"{HOST}/topic?t={n}&sid={token(3 * n + k)}")
    queue.push(f"{HOST}/other")
    order = []
    while (found := queue.pop()) is not None:
        order.append(found[0])
    assert len(order) == len(set(order)) == 151
    topics = [url.partition("t=")[2].partition("&")[0] for url in order]
    assert set(Counter(topics[:51]).values()) == {1}


def test_a_fetched_copy_that_brings_something_ends_the_belief() -> None:
    """From then on, URLs that differ in that part alone are no copies."""
    crawl, lanes = Crawl(), []
    for n in range(12):
        for k in range(2):
            url = f"{HOST}/topic?t={n}&sid={token(2 * n + k)}"
            mark = crawl.push(url)
            crawl.pop()
            crawl.answer(url, mark, NEWS._replace(sketch=sketch((n, k) if n == 10 else n)))
            lanes.append(mark.lane)
    assert [COPIES in lane for lane in lanes[-4:]] == [False, True, False, False]
