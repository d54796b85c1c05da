from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "example_project" / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(?:timeout -s KILL \d+ )?(scrapy .*)$", README, re.MULTILINE)
CRAWL, KILLED, INFO, RESUMED, FLEET = COMMANDS
"""The commands of the example's README, in its order."""
ALL = "all 300 pages of the site, each once"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPOSITORY / "example_project", tmp_path / "example_project"))


def start(project: Path, command: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command.split(), *more],
        cwd=project,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(project: Path, command: str, *more: str) -> str:
    with start(project, command, *more) as process:
        said, _ = process.communicate(timeout=180)
    assert process.returncode == 0, said
    return said


def items(feed: Path) -> list[str]:
    return sorted(json.loads(line)["title"] for line in feed.read_text(encoding="utf-8").splitlines())


def test_the_first_command_crawls_every_page_once(project: Path) -> None:
    """`scrapy crawl maze` fetches all pages of the site, and has nothing to warn of."""
    said = run(project, CRAWL)
    assert ALL in said
    assert not re.search(r"(WARNING|ERROR|CRITICAL):", said)


def test_a_killed_crawl_goes_on_and_has_each_item_once(project: Path) -> None:
    """The README's way through a kill: `info` shows what is pending, and the feed has each page once in the end."""
    assert KILLED == RESUMED
    with start(project, KILLED, "-s", "LOG_LEVEL=DEBUG") as killed:
        crawled = 0
        for line in killed.stdout or ():
            crawled += "Crawled (200)" in line
            if crawled == 120:
                killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    left = run(project, INFO)
    assert re.search(r"^clean +no$", left, re.MULTILINE)
    assert re.search(r"^pending +[1-9]", left, re.MULTILINE)
    said = run(project, RESUMED, "-s", "DOWNLOAD_DELAY=0")
    assert "all 300 pages of the site" in said
    titles = items(project / "pages.jl")
    assert len(titles) == len(set(titles)) == 300


def test_a_fleet_crawls_every_page_once(project: Path) -> None:
    """`scrapy bloom crawl maze --workers 2` writes each item of the site into one file."""
    run(project, FLEET)
    titles = items(project / "fleet.jl")
    assert len(titles) == len(set(titles)) == 300
