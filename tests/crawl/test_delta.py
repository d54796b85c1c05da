"""Delta crawls: what gave an item is not fetched again, unless a kill has lost the item."""

import dbm.dumb
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider, signals
from scrapy.http import HtmlResponse
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler
from twisted.python.failure import Failure

from scrapy_bloom import fingerprint, open_filter
from scrapy_bloom.commands.command_line import main
from scrapy_bloom.commands.terminal import OK, USAGE
from scrapy_bloom.components.dupefilter import BloomDupeFilter
from scrapy_bloom.crawl.delta import DeltaFiles
from scrapy_bloom.errors import SettingsError
from scrapy_bloom.settings import BloomSettings
from tests.support.crawls import ADDON, Pages, Site, crawl, start
from tests.support.engine import SCRAPYS_SCHEDULER, Engine, opened, snapshot
from tests.support.feeds import FeedRun

SHOP: Pages = {
    "/list": ["/list-2", "/1", "/2"],
    "/list-2": ["/list", "/3", "/to-1"],
    "/1": [],
    "/2": [],
    "/3": [],
    "/4": [],
}
ITEM_PAGES = 3
FIRST_RUN = {**dict.fromkeys(SHOP.keys() - {"/4"} | {"/to-1"}, 1), "/list": 2}
"""How often a run that knows of nothing fetches each page: a link leads to the start page, which is not filtered."""


@pytest.fixture
def shop() -> Iterator[Site]:
    with Site({**SHOP, "/to-1": "/1"}) as site:
        yield site


@pytest.mark.parametrize("in_job", [True, False])
def test_a_second_run_fetches_the_lists_and_what_is_new(shop: Site, tmp_path: Path, in_job: bool) -> None:
    """Pages that gave an item are left alone, also behind a redirect; the job of the first run may be kept."""
    own = {**ADDON, "START": ["/list"], "BLOOM_DELTA": str(tmp_path / "delta")}
    own["FEEDS"] = {f"{tmp_path}/items.jl": {"format": "jsonlines"}}
    own["JOBDIR"] = str(tmp_path / "job") if in_job else None
    first = crawl(shop, tmp_path, own).stats
    assert shop.hits == FIRST_RUN
    assert (first["bloom/delta/pages"], first.get("bloom/delta/skipped")) == (ITEM_PAGES, None)
    shop.forget_hits()
    shop.pages["/list-2"] = ["/list", "/3", "/to-1", "/4"]
    second = crawl(shop, tmp_path, own).stats
    assert shop.hits == {"/list": 2, "/list-2": 1, "/to-1": 1, "/4": 1}
    skipped = len(["/1", "/2"]) * 2 + len(["/3", "/1"])
    assert (second["bloom/delta/pages"], second["bloom/delta/skipped"]) == (ITEM_PAGES + 1, skipped)
    items = [json.loads(line)["url"] for line in (tmp_path / "items.jl").read_text().splitlines()]
    assert sorted(items) == [f"{shop.url}/{number}" for number in range(1, 5)]


@pytest.mark.parametrize("how", ["killed", "feed not stored"])
def test_without_commits_pages_count_when_the_feeds_are_stored(shop: Site, tmp_path: Path, how: str) -> None:
    """Without a job, a crawl that is killed, or whose feed cannot be stored, has the next one leave nothing out."""
    feed = f"{tmp_path}/items.jl" if how == "killed" else "ftp://user:secret@127.0.0.1:1/items.jl"
    own = {
        **ADDON,
        "START": ["/list"],
        "BLOOM_DELTA": str(tmp_path / "delta"),
        "FEEDS": {feed: {"format": "jsonlines"}},
    }
    if how == "killed":
        running = start(shop, tmp_path, {**own, "START": ["/1", "/held"], "CONCURRENT_REQUESTS": 1})
        shop.wait_for("/held")
        running.signal(signal.SIGKILL)
        running.finish()
        shop.release.set()
    else:
        assert crawl(shop, tmp_path, own).stats["feedexport/failed_count/FTPFeedStorage"] == 1
    shop.forget_hits()
    crawl(shop, tmp_path, own)
    assert shop.hits == FIRST_RUN


def test_a_page_whose_item_cannot_be_written_is_fetched_again(tmp_path: Path) -> None:
    """It is an ERROR, and lacks in the feed."""
    run = FeedRun(tmp_path, {"items.jl": {"format": "jsonlines"}}, BLOOM_DELTA=str(tmp_path / "delta"))
    for url, value in zip(URLS, (1, object()), strict=False):
        page = run.engine.fetch(Request(url))
        with run.engine.within(page):
            run.scrape({"value": value})
        run.engine.end(page)
    run = run.end().next_run()
    assert run.engine.push(*map(Request, URLS[:3])) == [False, True, True]
    run.end()


# -- which pages count, and which requests are skipped -----------------------------------------------------------------


def answer(engine: Engine, request: Request, *outcome: str) -> None:
    """Have the page of *request*, which is in progress, give items, or fail, and be done."""
    response: Any = HtmlResponse(request.url, request=request, status=503 if "status 503" in outcome else 200)
    if "no response" in outcome:  # its errback gives the items
        response = Failure(TimeoutError())
    engine.crawl.result_came(request, response)
    failure: dict[str, Any] = {"response": response, "spider": engine.spider, "failure": Failure(RuntimeError())}
    for each in outcome:
        if each == "item":
            with engine.within(request):
                engine.crawler.signals.send_catch_log(
                    signals.item_scraped, item={}, response=response, spider=engine.spider
                )
        elif each == "item fails":
            with engine.within(request):
                engine.crawler.signals.send_catch_log(signals.item_error, item={}, **failure)
        elif each == "callback fails":
            engine.crawl.callback_raised(Failure(RuntimeError()), request)
    engine.end(request, None)


OUTCOMES = [
    (),
    ("item",),
    ("item", "item"),
    ("item", "item fails"),
    ("item fails", "item"),
    ("callback fails", "item"),
    ("item", "callback fails"),
    ("item", "status 503"),
    ("item", "no response"),
]
URLS = [f"http://a.example/{n}" for n in range(len(OUTCOMES))]
METAS: list[dict[str, Any]] = [
    {},
    {},
    {"bloom_delta_key": "a"},
    {"delta_key": "a"},
    {"deltafetch_key": b"a"},
    {"bloom_refetch": True},
    {"delta_skip": True},
]


@given(
    runs=st.lists(
        st.lists(st.tuples(st.sampled_from(URLS), st.sampled_from(METAS), st.booleans(), st.sampled_from(OUTCOMES))),
        max_size=3,
    )
)
@example([[(url, {}, False, outcome) for url, outcome in zip(URLS, OUTCOMES, strict=True)]] * 2)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_gave_whole_items_in_an_earlier_run_is_skipped(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[tuple[str, dict[str, Any], bool, tuple[str, ...]]]]
) -> None:
    """By its URL or its own key, filtered or not; but for what asks for it, and never for what failed or came in this
    run."""
    directory = tmp_path_factory.mktemp("delta")
    before: set[Any] = set()
    for number, requests in enumerate(runs):
        gave = set()
        own = {"BLOOM_DELTA": str(directory / "delta"), "BLOOM_CAPACITY": 100}
        with opened(directory / f"job-{number}", own) as engine:
            taken = set()
            for url, meta, dont_filter, outcome in requests:
                key = "a" if any(name.endswith("_key") for name in meta) else url
                is_skipped = key in before and not {"bloom_refetch", "delta_skip"} & set(meta)
                is_new = dont_filter or url not in taken
                pushed = engine.push(Request(url, meta=dict(meta), dont_filter=dont_filter))
                assert pushed == [is_new and not is_skipped]
                if pushed == [True]:
                    taken |= set() if dont_filter else {url}
                    request = engine.fetch()
                    answer(engine, request, *outcome)
                    gave |= {key} if outcome and set(outcome) == {"item"} else set()
        before |= gave


def test_a_page_is_known_after_a_kill_only_if_its_items_were_committed(tmp_path: Path) -> None:
    """The other is fetched again, and gives nothing this time: later runs fetch it once more. What the job has done
    itself may be asked for again."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    engine = Engine(run / "job", {"BLOOM_DELTA": str(run / "delta")})
    for url in URLS[:2]:
        answer(engine, engine.fetch(Request(url)), "item")
        if url == URLS[0]:
            engine.push(Request(URLS[2]))
            engine.commit()
    snapshot(run, copy)
    engine.stop()
    own = {"BLOOM_DELTA": str(copy / "delta")}
    with opened(copy / "job", own) as engine:
        engine.push(*map(Request, URLS[:2]), Request(URLS[0], dont_filter=True))
        assert sorted(engine.drain()) == URLS[:3]
    with opened(copy / "next", own) as engine:
        assert engine.push(*map(Request, URLS[:3])) == [False, True, True]


def test_start_requests_are_skipped_only_if_they_may_be_filtered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Scrapy's default ones are always fetched; those of a spider that fetches a list of items are not. If that leaves
    nothing, a WARNING says so."""
    own, start = {"BLOOM_DELTA": str(tmp_path / "delta")}, {"is_start_request": True}
    requests = Request(URLS[0], meta=start, dont_filter=True), Request(URLS[1], meta=start)
    for number, expected in enumerate([[True, True], [True, False]]):
        with opened(tmp_path / f"job-{number}", own) as engine:
            assert engine.push(*(each.copy() for each in requests)) == expected
            while (request := engine.start()) is not None:
                answer(engine, request, "item")
    assert "WARNING" not in {record.levelname for record in caplog.records}
    with opened(tmp_path / "job", own) as engine:
        assert engine.push(requests[1].copy()) == [False]
    assert "bloom_refetch" in caplog.text


@pytest.mark.parametrize("setting", ["BLOOM_DELTA", "BLOOM_CHANGES"])
def test_a_job_that_has_not_ended_looks_at_no_list_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, setting: str
) -> None:
    """The requests that a full host leaves stay in the job, and a WARNING says so: its pages are not looked at."""
    own = {setting: str(tmp_path / "delta") if setting == "BLOOM_DELTA" else True}
    with opened(tmp_path / "job", {**own, "BLOOM_PAGES_PER_HOST": 1}) as engine:
        engine.push(*map(Request, URLS[:2]))
        assert len(engine.drain()) == 1
    logged = [record.levelname for record in caplog.records if "The job has not ended" in record.getMessage()]
    assert logged == ["WARNING"]


def test_a_reset_forgets_all_pages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The setting, in each run that has it, with a WARNING; and the command, for spiders that there are."""
    delta, is_new = tmp_path / "delta", []
    for number, way in enumerate(["", "", "setting", "", "command", ""]):
        if way == "command":
            assert main(["forget", "--delta", "site", str(delta)]) == OK
        with opened(
            tmp_path / f"job-{number}", {"BLOOM_DELTA": str(delta), "BLOOM_DELTA_RESET": way == "setting"}
        ) as engine:
            is_new += engine.push(Request(URLS[0]))
            if is_new[-1]:
                answer(engine, engine.fetch(), "item")
    assert is_new == [True, False, True, False, True, False]
    assert [record.levelname for record in caplog.records if "BLOOM_DELTA_RESET" in record.getMessage()] == ["WARNING"]
    assert main(["forget", "--delta", "nobody", str(delta)]) == USAGE


def test_pages_come_round_again_after_the_maximum_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``BLOOM_MAX_AGE``, once in that time."""
    own, is_new, now = {"BLOOM_DELTA": str(tmp_path / "delta"), "BLOOM_MAX_AGE": "2d"}, list[bool](), time.time()
    for days in (0, 1, 3):
        monkeypatch.setitem(open_filter.__kwdefaults__, "clock", lambda days=days: now + days * 86_400)
        with opened(tmp_path / f"job-{days}", own) as engine:
            is_new += engine.push(Request(URLS[0]))
            if is_new[-1]:
                answer(engine, engine.fetch(), "item")
    assert is_new == [True, False, True]


def test_links_to_known_pages_are_dropped(tmp_path: Path) -> None:
    """``UnseenLinks`` and its extractor ask the delta, too."""
    own = {"BLOOM_DELTA": str(tmp_path / "delta")}
    prints = [fingerprint(Request(url)) for url in URLS[:2]]
    for number, expected in enumerate([[False, False], [True, False]]):
        with opened(tmp_path / f"job-{number}", own) as engine:
            assert engine.crawl.core.decisions.seen(prints) == expected
            if not number:
                request = engine.fetch(Request(URLS[0]))
                answer(engine, request, "item")
    assert engine.stat("bloom/delta/skipped") == 1


def test_crawls_side_by_side_share_what_earlier_ones_know(tmp_path: Path) -> None:
    """Two processes of a machine, as of a fleet, each add to files of their own, and read both from the next run on."""
    own = {"BLOOM_DELTA": str(tmp_path / "delta")}
    with opened(tmp_path / "one", own) as one, opened(tmp_path / "two", own) as two:
        for engine, url in ((one, URLS[0]), (two, URLS[1])):
            request = engine.fetch(Request(url))
            answer(engine, request, "item")
    with opened(tmp_path / "three", own) as three, opened(tmp_path / "four", own) as four:
        assert three.stat("bloom/delta/pages") == 2
        for engine in (three, four):
            assert engine.push(*map(Request, URLS[:3])) == [False, False, True]


def test_what_the_error_rate_may_cost_is_counted(tmp_path: Path) -> None:
    """A new page that is taken for known is lost: ``bloom/expected_lost`` counts that, too, within a factor of two."""
    with open_filter(tmp_path / "delta" / "site" / "0", 20_000, 0.5) as pages:
        for number in range(100_000):
            pages.add(b"%d" % number)
    with opened(tmp_path / "job", {"BLOOM_DELTA": str(tmp_path / "delta")}) as engine:
        lost = engine.push(*(Request(f"http://a.example/{n}") for n in range(500))).count(False)
    assert engine.stat("bloom/delta/skipped") == lost > 20
    assert lost / 2 < engine.stat("bloom/expected_lost") < 2 * lost


@pytest.mark.parametrize("setting", ["BLOOM_DELTA", "BLOOM_CHANGES"])
def test_another_scheduler_is_refused(tmp_path: Path, setting: str) -> None:
    """It does not say when a page is done, and its items are safe."""
    own = {setting: str(tmp_path) if setting == "BLOOM_DELTA" else True, "SCHEDULER": SCRAPYS_SCHEDULER}
    crawler = get_crawler(Spider, {**own, "JOBDIR": str(tmp_path), "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"})
    with pytest.raises(SettingsError, match=f"{setting}.*SCHEDULER"):
        BloomDupeFilter.from_crawler(crawler).open()


# -- scrapy-deltafetch -------------------------------------------------------------------------------------------------


def test_what_deltafetch_knows_is_taken_over_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings switch a delta crawl on; its keys are fingerprints in bytes or hexadecimal, or the user's own. A
    reset forgets them for good."""
    monkeypatch.chdir(tmp_path)
    old = tmp_path / "old"
    old.mkdir()
    with dbm.dumb.open(str(old / "site.db"), "n") as database:
        for key in (fingerprint(Request(URLS[0])), fingerprint(Request(URLS[1])).hex(), "mine"):
            database[key] = "1700000000.0"
    own = {"DELTAFETCH_ENABLED": True, "DELTAFETCH_DIR": str(old), "BLOOM_CAPACITY": 100}
    wanted = Request(URLS[0], meta={"deltafetch_enabled": False})
    requests = [*map(Request, URLS[:3]), Request(URLS[3], meta={"deltafetch_key": "mine"}), wanted]
    outcomes = []
    for number, reset in enumerate([False, False, True, False]):
        with opened(tmp_path / f"job-{number}", {**own, "DELTAFETCH_RESET": reset}) as engine:
            outcomes.append(engine.push(*(each.copy() for each in requests)))
        (old / "site.db.dir").unlink(missing_ok=True)  # it is not read again
    assert outcomes == [[False, False, True, False, True]] * 2 + [[True, True, True, True, False]] * 2


def test_a_database_that_cannot_be_read_costs_fetches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One of Berkeley DB, which old versions wrote, say; the log names it."""
    (tmp_path / "site.db").write_bytes(b"\0" * 12 + b"\x61\x15\x06\0" + bytes(4096))
    own = {"DELTAFETCH_ENABLED": True, "DELTAFETCH_DIR": str(tmp_path), "BLOOM_DELTA": str(tmp_path / "delta")}
    with opened(tmp_path / "job", own) as engine:
        assert engine.push(Request(URLS[0])) == [True]
    assert [record.levelname for record in caplog.records if "site.db" in record.getMessage()] == ["WARNING"]


def test_what_the_same_crawl_has_done_is_of_no_earlier_run(tmp_path: Path) -> None:
    """Neither what a process did before it was stopped, nor what another one of the crawl does, new layers included."""
    settings = BloomSettings.from_settings(Settings({"BLOOM_CAPACITY": 50_000}))

    def begun(crawl: str) -> DeltaFiles:
        files = DeltaFiles(tmp_path, "site", settings, forgets=False)
        files.begin(crawl)
        return files

    for name, key in (("earlier", b"old"), ("this", b"before")):
        processes = [begun(name) for _ in range(3)]
        processes[0].add(key)
        for process in processes:
            process.close()
    ours, other, strange = begun("this"), begun("this"), begun("of a fleet beside")
    assert ours.is_of_earlier_run(b"old")  # which looks at what the other process has so far
    keys = [b"%d" % number for number in range(12_000)]
    for key in keys:
        other.add(key)
    known = [*keys[::100], *keys[-20:]]
    assert not any(map(ours.is_of_earlier_run, [b"before", *known]))
    assert all(map(strange.is_of_earlier_run, [b"before", *known]))
    other.close()
    assert not any(map(ours.is_of_earlier_run, known))
    ours.close()
    strange.close()
    later = begun("later")
    assert all(map(later.is_of_earlier_run, [b"old", b"before", *known]))
    later.close()
