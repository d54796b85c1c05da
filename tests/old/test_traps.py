"""The site with traps of example_project: what it promises to whoever tunes or scores a guard on it."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import pytest

if TYPE_CHECKING:
    from types import ModuleType

REPOSITORY = Path(__file__).parents[2]
PROJECT = REPOSITORY / "example_project"
README = (PROJECT / "README.md").read_text(encoding="utf-8")
SMALL = 0.002
ENOUGH = 210
"""Pages after which a trap is taken for endless: more than a guard may fetch of it."""


@pytest.fixture
def traps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROJECT))
    return importlib.import_module("example.traps.site")


def crawled(arguments: list[str]) -> dict[str, list[str]]:
    """Crawl with these spider arguments; return the rows of the table that is printed, by their first cell."""
    ran = subprocess.run(
        [sys.executable, "-m", "scrapy", "crawl", "traps", *(word for one in arguments for word in ("-a", one))],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return {cells[0]: cells[1:] for line in ran.stdout.splitlines() if len(cells := re.split(r" {2,}", line)) > 1}


def links(url: str, body: str) -> list[str]:
    return [urljoin(url, unescape(href)) for href in re.findall(r'href="([^"]*)"', body)]


def walk_honest(site: Any, home: str) -> tuple[Counter[str], dict[str, list[str]], list[str]]:
    """Follow all links from honest pages; return pages by honest section, ways into traps, links that lead nowhere."""
    honest: Counter[str] = Counter()
    ways: dict[str, list[str]] = defaultdict(list)
    dead = []
    seen, queue = {home}, [home]
    while queue:
        url = queue.pop()
        found = site.find(url)
        if found is None:
            dead.append(url)
            continue
        section, answer = found
        if not section.honest:
            ways[section.name].append(url)
            continue
        honest[section.name] += 1
        new = set(links(url, answer.body)) - seen
        seen |= new
        queue += new
    return honest, ways, dead


def test_honest_pages_need_no_trap_and_every_trap_has_a_way_in(traps: ModuleType) -> None:
    """Links of honest pages alone lead to all honest pages, each under one address, and into every trap."""
    site = traps.TrapSite(SMALL)
    honest, ways, dead = walk_honest(site, traps.HOME)
    assert dead == []
    assert honest == {name: section.size for name, section in site.sections.items() if section.honest}
    assert ways.keys() == {name for name, section in site.sections.items() if not section.honest}


def test_the_site_has_the_honest_pages_that_the_readme_says(traps: ModuleType) -> None:
    """At full size there are 90,000 honest pages, 50,000 products under one shape and 20 years of days among them."""
    site = traps.TrapSite(1)
    assert round(site.honest_pages, -4) == 90_000
    assert site.sections["shop-products"].size == 50_000
    assert site.sections["weather-days"].size == 7305


ONE_FOR_EACH_PAGE = {"login-return", "share-forms", "board-replies", "wiki-views", "sort-index"}
"""Traps that multiply honest pages instead of having no end."""


def test_traps_have_no_end(traps: ModuleType) -> None:
    """From one page of it, each trap leads to more pages of itself than a guard may fetch of it."""
    site = traps.TrapSite(SMALL)
    _, ways, _ = walk_honest(site, traps.HOME)
    for name in ways.keys() - ONE_FOR_EACH_PAGE:
        seen = set(ways[name][:1])
        queue = list(seen)
        pages = 0
        while queue and pages < ENOUGH:
            url = queue.pop(0)
            found = site.serve(url)
            if found is None or found[0].name != name:
                continue
            pages += 1
            if len(queue) < ENOUGH:
                new = set(links(url, found[1].body)) - seen
                seen |= new
                queue += sorted(new)
        assert pages == ENOUGH, name


def test_the_site_is_the_same_on_every_run(traps: ModuleType) -> None:
    """Two sites that served the same pages answer the same, byte for byte; nothing depends on Python's hash seed."""
    program = """
import sys, zlib
from example.traps.site import HOME, TrapSite
site, total = TrapSite(0.002), 0
for section in site.sections.values():
    if section.start:
        total = zlib.crc32(site.serve(HOME.rstrip("/") + section.start)[1].body.encode(), total)
print(total)
"""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    sums = {
        subprocess.run(
            [sys.executable, "-c", program], env=environment | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(sums) == 1


def test_half_of_the_traps_are_for_tuning_and_the_readme_says_which(traps: ModuleType) -> None:
    """The README's table names every trap, in the column of what it is for."""
    cells = re.findall(r"^\| [a-z ]+ \| (`.*) \| (`.*) \|$", README, flags=re.MULTILINE)
    tuning = {name for cell, _ in cells for name in re.findall(r"`([a-z0-9-]+)`", cell)}
    scoring = {name for _, cell in cells for name in re.findall(r"`([a-z0-9-]+)`", cell)}
    every = [section for section in traps.TrapSite(SMALL).sections.values() if not section.honest]
    assert tuning == {section.name for section in every if section.tuning}
    assert scoring == {section.name for section in every if not section.tuning}
    assert abs(len(tuning) - len(scoring)) <= 1


@pytest.mark.parametrize("order", ["lifo", "fifo"])
def test_the_command_prints_what_was_fetched_of_each_section(order: str) -> None:
    """The rows add up, traps and honest sections apart; with a budget for it a crawl without a guard misses nothing."""
    assert "\nscrapy crawl traps -a guard=off\n" in README
    sections = "home,comic,comic-lists,glossary,glossary-lists,paging-repeats"
    arguments = ["size=0.002", f"order={order}", "guard=off", "budget=150", f"only={sections}"]
    rows = crawled(arguments)
    assert rows["comic"] == ["scoring", "40", "40", "one picture a page, in a chain"]
    assert rows["honest pages"] == ["85", "85", "0", "0", "100.00% of them"]
    assert rows["pages of traps"] == [rows["paging-repeats"][1], "0"]
    assert int(rows["pages of traps"][0]) == 150 - 85, "links to sections that are left out cost nothing"


@pytest.mark.slow
@pytest.mark.parametrize("order", ["lifo", "fifo"])
def test_the_guard_fetches_the_honest_pages_before_the_traps(order: str) -> None:
    """Beside the traps for tuning, 99.5 % of the honest pages come within twice their number, and none is parked."""
    rows = crawled(["size=0.01", "guard=on", "traps=tuning", f"order={order}"])
    pages, fetched, _, parked, _ = rows["honest pages"]
    assert int(fetched.replace(",", "")) >= 0.995 * int(pages.replace(",", "")), rows
    assert parked == "0", rows


def test_limits_hold_traps_that_their_urls_give_away() -> None:
    """With the guard on, a trap that its URLs alone give away costs at most 25 pages, and honest pages none."""
    arguments = [
        "size=0.002",
        "guard=on",
        "budget=400",
        "only=home,relative-link,print-link,symlink-loop,comic,comic-lists",
    ]
    rows = crawled(arguments)
    assert rows["honest pages"][2] == "0", rows
    for name in ("relative-link", "print-link", "symlink-loop"):
        assert int(rows[name][1]) <= 25, name
