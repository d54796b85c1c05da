"""``scrapy bloom plan``: the figures are those of the filters that the pasted settings make."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from scrapy.settings import Settings

from scrapy_bloom import ScalableBloomFilter, open_filter
from scrapy_bloom.old.commands.command_line import main
from scrapy_bloom.old.commands.plan import MAX_URLS, plan
from scrapy_bloom.old.commands.terminal import OK, USAGE
from scrapy_bloom.old.crawl import fleet_filter as beside_the_scheduler
from scrapy_bloom.old.fleet.filter import fleet_filter
from scrapy_bloom.old.fleet.filter.shared import SharedFilter
from scrapy_bloom.old.settings import BloomSettings
from tests.old.filter.test_ageing import Clock
from tests.old.support.crawling import crawl
from tests.old.support.fingerprints import fingerprints
from tests.old.support.localsite import LocalSite

if TYPE_CHECKING:
    from pathlib import Path


def pasted(printed: str) -> dict[str, Any]:
    """Return the settings in the lines that are there to be pasted into ``settings.py``."""
    lines = re.findall(r"^(?:ADDONS|BLOOM_\w+) = .*$", printed, flags=re.MULTILINE)
    settings: dict[str, Any] = {}
    exec("\n".join(lines), {}, settings)  # as Scrapy reads it; our own lines
    return settings


@pytest.mark.slow
def test_a_crawl_takes_what_was_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the pasted settings a crawl has the planned layers and bytes, and its files the planned size."""
    assert main(["plan", "--urls", "5e3", "--error-rate", "1e-4"]) == OK
    settings = pasted(capsys.readouterr().out)
    with LocalSite(pages=3) as site:
        ran = crawl(site.url("/page/0"), {**settings, "JOBDIR": str(tmp_path)})
    planned = plan(5000, 1e-4)["right_capacity"]
    assert (ran.stats["bloom/layers"], ran.stats["bloom/bytes"]) == (planned["layers"], planned["disk"])
    (layer,) = (tmp_path / "requests.bloom").glob("layer-*")
    assert layer.stat().st_size == planned["disk"] + 4096


def test_a_filter_that_grows_takes_what_was_planned(tmp_path: Path) -> None:
    """Layers, bytes and expected loss of a filter whose capacity was guessed too small come out as computed."""
    from scrapy_bloom.old.commands.plan import _on_disk

    planned = _on_disk(2000, 1e-3, 100)
    with open_filter(tmp_path / "filter", 100, 1e-3) as chain:
        for fingerprint in fingerprints(2010):  # of which some are taken for seen
            if len(chain) < 2000:
                chain.add(fingerprint)
        assert (len(chain.layers), chain.nbytes) == (planned["layers"], planned["disk"])
        assert chain.expected_false_positives() == pytest.approx(planned["expected_lost"])


def test_the_settings_for_a_fleet_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """Server, shards and capacity go through the validation of settings, and JSON has the same."""
    assert main(["plan", "--urls", "1e9", "--workers", "4", "--hosts", "1000"]) == OK
    settings = pasted(capsys.readouterr().out)
    read = BloomSettings.from_settings(Settings(settings))
    assert (read.redis_shards, read.capacity) == (16, 1_010_000_000)
    assert main(["plan", "--urls", "1e9", "--workers", "4", "--hosts", "1000", "--json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == settings
    assert found["right_capacity"]["layers"] == 1
    assert found["workers"]["memory"] < 4 * 500e6
    assert found["hosts"]["memory"] > 0


def test_a_plan_keeps_its_promise_at_any_size() -> None:
    """From one URL to the largest number, the expected loss is never more than the error rate allows."""
    for urls in (1, 1000, 10**8, MAX_URLS):
        for error_rate in (4e-10, 1e-6, 0.5):
            for workers in (None, 10):
                found = plan(urls, error_rate, workers=workers)
                for cost in (found["default_capacity"], found["right_capacity"]):
                    assert 0 <= cost["expected_lost"] <= error_rate * urls * 1.0001


def test_a_large_fleet_does_not_make_local_filters_of_its_size() -> None:
    """What a worker remembers by itself begins again at 100 million URLs, and is made for no more."""
    unopened = object.__new__(SharedFilter)
    one = fleet_filter.FleetFilter(unopened, capacity=10**9, error_rate=1e-7, growth=2.0)
    other = object.__new__(beside_the_scheduler.WorkerFilter)
    other._settings = BloomSettings(capacity=10**9)
    for local in (one.local, other._new_local()):
        assert fleet_filter.MAX_LOCAL < local.layers[0].capacity < 1.02 * fleet_filter.MAX_LOCAL
        local.close()


@pytest.mark.parametrize(
    "arguments", ["--urls 0", "--urls many", "--urls 1e13", "--urls 9 --error-rate 1", "--urls 9 --workers 0"]
)
def test_what_cannot_be_planned_is_refused(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the range and a number that is in it."""
    with pytest.raises(SystemExit) as ended:
        main(["plan", *arguments.split()])
    assert ended.value.code == USAGE
    assert re.search(r"is no (number|error rate) from .* to .*; \S+ is one", capsys.readouterr().err)


def test_a_fleet_cannot_promise_the_smallest_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """A quarter of it would be the local filter's, and is too little for its probes: one line says the least."""
    assert main(["plan", "--urls", "9", "--redis", "--error-rate", "1e-10"]) == USAGE
    assert "Give 4e-10 or more" in capsys.readouterr().err


def test_a_filter_that_forgets_takes_no_more_than_was_planned() -> None:
    """After two ages in which as much came as was planned, a filter with BLOOM_MAX_AGE is about as large as that."""
    urls, age = 8_000, 800.0
    planned = plan(urls, 1e-6, max_age="800s")["right_capacity"]
    clock = Clock()
    chain = ScalableBloomFilter(urls, 1e-6, max_age=age, clock=clock)
    sizes = []
    for number in range(2 * urls):
        clock.now += age / urls
        chain.add(b"%d" % number)
        sizes.append((chain.nbytes, len(chain.layers)))
    assert max(sizes) <= (planned["disk"], planned["layers"])
    assert sizes[-1][0] >= 0.8 * planned["disk"]
    assert chain.expected_false_positives() <= planned["expected_lost"]
