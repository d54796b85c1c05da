"""``plan``: the figures are those of the filters that the pasted settings make."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom.commands.command_line import main
from scrapy_bloom.commands.plan import plan
from scrapy_bloom.commands.terminal import OK
from scrapy_bloom.filter.directory import open_filter

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("error_rate", [1e-3, 1e-6])
def test_a_plan_is_what_the_filter_takes(tmp_path: Path, error_rate: float) -> None:
    """Layers and bytes are those of a filter of that many URLs, at the planned capacity and at a smaller one."""
    urls = 3_000
    _, found, *_ = plan(urls, error_rate)["ways"]
    with open_filter(tmp_path, capacity=urls, error_rate=error_rate) as chain:
        for number in range(urls):
            chain.add(number.to_bytes(20, "big"))
        assert (found["layers"], found["bytes_on_disk"]) == (len(chain.layers), chain.nbytes)


@pytest.mark.parametrize("urls", [10**6, 10**7, 10**9])
def test_the_right_capacity_takes_least_and_loses_least(urls: int) -> None:
    """It takes no more memory than the default, a fleet's server somewhat more, and all others many times as much."""
    default, right, fleet, *others = plan(urls, 1e-6)["ways"]
    assert right["bytes_in_memory"] <= default["bytes_in_memory"]
    assert right["bytes_in_memory"] < fleet["bytes_in_memory"] < 2 * right["bytes_in_memory"]
    assert all((way["bytes_in_memory"] or way["bytes_on_disk"]) > 5 * right["bytes_in_memory"] for way in others)
    assert right["pages_lost"] <= default["pages_lost"] < urls * 1e-6


def test_the_settings_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """The last lines are Python for ``settings.py``, with the values of the plan."""
    assert main(["plan", "--urls", "2.5e7", "--error-rate", "1e-4"]) == OK
    pasted: dict[str, object] = {}
    for line in re.findall(r"^[A-Z_]+ = .*$", capsys.readouterr().out, re.MULTILINE):
        exec(line, pasted)
    assert (pasted["BLOOM_CAPACITY"], pasted["BLOOM_ERROR_RATE"]) == (25_000_000, 1e-4)
    assert "ADDONS" in pasted
