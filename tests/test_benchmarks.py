import re
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from benchmarks.__main__ import BENCHMARKS
from benchmarks.compare import COLUMNS, picture
from benchmarks.loops import CONSTANTS
from benchmarks.measure import Spread
from benchmarks.servers import directory_pages, generated_pages, served

REPOSITORY = Path(__file__).parents[1]
SMALL = {
    "request_seen": "--sample 100 --rounds 1 --old .",
    "memory": "--urls 1000 --rounds 1",
    "pending": "--hosts 3 --requests 100 --pending 9000 --rounds 1",
    "compare": "--pages 60 --rounds 1",
    "fleet": "--pages 60 --links 5 --rounds 1",
    "links": "--pages 20 --links 5 --rounds 1",
    "loops": "--seeds 4-4 --budget 0.3 --orders fifo",
    "estimate": "--seeds 0-0",
    "changes": "--pages 50 --percents 10 --rows 100",
}


def run_benchmark(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    ended = subprocess.run(command, cwd=REPOSITORY, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_benchmark_prints_a_table(name: str) -> None:
    """Each benchmark runs through, small, and ends with figures. `--old DIR` adds a row for the package in a folder."""
    said = run_benchmark(name, *SMALL[name].split())
    assert re.search(r"^\|-+\|", said, re.MULTILINE)
    assert re.search(r"\d", said.splitlines()[-1] or said)
    assert ("| scrapy-bloom, old |" in said) is ("--old" in SMALL[name])


def test_without_a_name_all_benchmarks_are_listed() -> None:
    """`python -m benchmarks` names each, with what it measures."""
    said = run_benchmark()
    assert all(re.search(rf"^ +{name} +\S", said, re.MULTILINE) for name in BENCHMARKS)


@pytest.mark.slow
def test_the_loop_guard_is_measured_beside_the_add_on() -> None:
    """`links --guard` ends well only if both crawls fetched the same pages."""
    said = run_benchmark("links", *SMALL["links"].split(), "--guard")
    assert "loop guard" in said.splitlines()[-1] or "loop guard" in said.splitlines()[-2]


@pytest.mark.slow
def test_reported_changes_of_manuals_are_those_of_their_files(tmp_path: Path) -> None:
    """`manuals` counts a changed, a new and a section that is gone, and answers 304 when it crawls the same again."""
    start = '<a href="page.html">page</a><section id="{}"><p>{}</p></section>'
    page = '<section id="usage"><p>Press the button.</p></section>'
    for name, sections in (("old", start.format("intro", "One.")), ("new", start.format("preface", "Two."))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(sections, encoding="utf-8")
        (tmp_path / name / "page.html").write_text(page.replace("button", f"{name} button"), encoding="utf-8")
    said = run_benchmark("manuals", str(tmp_path / "old"), str(tmp_path / "new"))
    header, *nights = (re.split(r" *\| *", line)[1:-1] for line in said.splitlines() if line.startswith("| "))
    columns = dict(zip(header, zip(*nights, strict=True), strict=True))
    assert columns["as compared"] == ("yes", "yes", "yes")
    assert columns["new"] == ("2", "1", "0")
    assert columns["changed"] == columns["gone"] == ("0", "1", "0")
    assert columns["not_modified"] == ("0", "0", "2")


@pytest.mark.slow
def test_constants_of_the_loop_guard_are_halved_and_doubled() -> None:
    """`loops --constants` has a row for each, and the figures as they are."""
    said = run_benchmark("loops", "--seeds", "4-4", "--budget", "0.05", "--orders", "fifo", "--constants")
    assert len(re.findall(r"^\| [A-Z_]+ +\|", said, re.MULTILINE)) == len(CONSTANTS)
    assert "as they are" in said


def test_the_readmes_picture_says_in_words_what_it_shows() -> None:
    """The title of the picture, which a screen reader reads, has every number that is drawn."""
    drawn = picture({"Scrapy": dict.fromkeys(COLUMNS, Spread.of([301.0])), "scrapy-bloom": _nothing_lost()}, 600)
    title = re.search(r"<title[^>]*>(.*)</title>", drawn)
    assert title
    for number in re.findall(r"<text[^>]*>([\d.]+)</text>", drawn):
        assert number in title[1]
    assert "kill.svg" in (REPOSITORY / "README.md").read_text(encoding="utf-8")


def _nothing_lost() -> dict[str, Spread]:
    return dict.fromkeys(COLUMNS, Spread.of([0.0]))


def test_a_folder_and_generated_pages_are_served(tmp_path: Path) -> None:
    """The URL to start from has the folder's index, or the first page."""
    (tmp_path / "index.html").write_text("<p>start")
    for pages, expected in ((directory_pages(tmp_path), "<p>start"), (generated_pages(3, 2), "Page 0")):
        with served(*pages) as url, urlopen(url) as answer:
            assert expected in answer.read().decode()
