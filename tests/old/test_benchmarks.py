from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import measure, rivals
from benchmarks.__main__ import BENCHMARKS, main

ROOT = Path(__file__).parents[2]

SMALLEST = {
    "add": "--capacity 2000 --rounds 2",
    "request_seen": "--sample 100 --rounds 2 --known 10",
    "fingerprint": "--sample 100 --rounds 2",
    "memory": "--urls 50000",
    "reopen": "--urls 2000 --rounds 1",
    "growth": "--urls 50000 --batch 10000 --absent 20000",
    "crawl": "--pages 8 --links 10 --rounds 1 --pairs 1 --following",
    "loops": "--pages 8 --links 10 --rounds 1",
    "news": "--pages 8 --rounds 1",
    "hosts": "--hosts 3 20 --work 30 --rounds 1",
    "frontier": "--pages 8 --links 10 --rounds 1 --pending 100 --work 100",
    "pending": "--pending 200 --beside 200 --pages 8 --rounds 1 --sync-ms 1",
    "fleet": "--urls 20 --rounds 1 --memory-urls 1000 --pages 0",
    "workers": "--pages 12 --rows 5 --workers 2",
    "shards": "--urls 2000 --lookups 2000 --capacity 500",
    "compare": "--urls 200 --pages 30 --ways scrapy-bloom Scrapy",
}
SLOW = {"compare", "workers", "crawl", "frontier", "pending"}  # whole crawls, of many processes


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in BENCHMARKS]
)
def test_each_benchmark_runs_in_its_smallest_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each prints when, where and with what it ran, and a table with the figures of our side in it."""
    main([name, *SMALLEST[name].split()])
    printed = capsys.readouterr().out
    assert re.match(r"\d{4}-\d\d-\d\d, .* cores.*\nPython 3\.", printed), printed
    tables = re.findall(r"(?:^\|.*\n)+", printed, flags=re.MULTILINE)
    assert tables
    for table in tables:
        header, rule, *rows = table.splitlines()
        assert re.fullmatch(r"\|-+(\|-+:)+\|", rule)
        assert rows
        assert {row.count(" | ") for row in rows} == {header.count(" | ")}


@pytest.mark.slow
def test_the_crawls_of_a_fleet_run_in_their_smallest_form(capsys: pytest.CaptureFixture[str]) -> None:
    """Four sides at one latency; each with its round trips per page and its longest call."""
    smallest = SMALLEST["fleet"].replace("--pages 0", "--pages 8 --links 10 --round-trip-ms 1")
    main(["fleet", *smallest.split()])
    printed = capsys.readouterr().out
    rows = [line.split("|") for line in printed[printed.index("One worker, 8 pages") :].splitlines()[3:7]]
    assert [row[1].split(",")[0].strip() for row in rows] == ["FleetScheduler"] * 2 + ["scrapy-redis"] * 2
    assert all(float(row[4]) > 0 and float(row[7]) > 0 for row in rows)


def test_all_of_them_are_listed() -> None:
    """The help names every benchmark with what it measures; one that is not known is refused."""
    command = [sys.executable, "-m", "benchmarks"]
    shown = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(BENCHMARKS) <= set(re.findall(r"^    (\w+)\s", shown, flags=re.MULTILINE))
    assert subprocess.run([*command, "nonsense"], cwd=ROOT, capture_output=True, check=False).returncode == 2


def test_the_readme_shows_each_benchmark() -> None:
    """Each has its section with the command, and no section is about a benchmark that is gone."""
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `(\w+)`[^\n]*\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert set(sections) == set(BENCHMARKS)
    for name, section in sections.items():
        assert f"python -m benchmarks {name}" in section, name


def test_spreads_show_median_and_range() -> None:
    """A ratio is taken per round, before the median: one slow round of both sides changes nothing."""
    spread = measure.ratios([10.0, 30.0, 500.0], [5.0, 10.0, 250.0])
    assert spread == (2.0, 2.0, 3.0)
    assert f"{spread:.1f}" == "2.0 (2.0-3.0)"
    assert f"{measure.Spread(1.0, 1.0, 1.0):.2f}" == "1.00"


def test_sides_take_turns() -> None:
    """Both sides run once in every round, and neither always runs behind the other."""
    turns: list[str] = []
    results = measure.side_by_side({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, rounds=2)
    assert turns == ["a", "b", "b", "a"]
    assert results == {"a": [None, None], "b": [None, None]}


def test_pictures_are_drawn(tmp_path: Path) -> None:
    """Bars and lines end up in the file that was asked for."""
    pytest.importorskip("matplotlib")
    bars = measure.Picture("title", "axis", {"a": measure.Spread(2, 1, 3)})
    lines = measure.Picture("title", "axis", {"a": [(1.0, 2.0), (2.0, 3.0)]}, x_axis="x")
    for number, picture in enumerate((bars, lines)):
        path = tmp_path / f"{number}.png"
        picture.save(path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_preset_filters_answer_as_filled_ones_do(tmp_path: Path) -> None:
    """Bits set beforehand make no filter forget fingerprints and let none take others for seen."""
    for number, (name, make) in enumerate(rivals.MEMORIES.items()):
        directory = tmp_path / str(number)
        directory.mkdir()
        try:
            memory = make(rivals.Need(20_000, 1e-4, directory, preset=True))
        except (ImportError, rivals.NoPresetError):
            continue
        added, others = measure.random_fingerprints(1, 500), measure.random_fingerprints(2, 500)
        for fingerprint in added:
            memory.add(fingerprint)
        assert all(memory.contains(fingerprint) for fingerprint in added), name
        assert sum(bool(memory.contains(fingerprint)) for fingerprint in others) < 10, name
