import json
import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.fleet.commands import Command
from tests.fleet.servers import wait_until

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "example_project" / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(?:timeout -s KILL \d+ )?(scrapy .*)$", README, re.MULTILINE)
CRAWL, KILLED, INFO, RESUMED, FLEET = COMMANDS
"""The commands of the example's README, in its order."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPOSITORY / "example_project", tmp_path / "example_project"))


def run(project: Path, command: str, *more: str) -> tuple[str, str]:
    """Return what *command* has printed and logged."""
    (project / "log").unlink(missing_ok=True)
    started = Command(project, *command.split(), *more)
    printed = started.finish()
    assert started.code == 0, started.log()
    return printed, started.log()


def items(feed: Path) -> list[str]:
    return sorted(json.loads(line)["title"] for line in feed.read_text(encoding="utf-8").splitlines())


@pytest.mark.slow
def test_a_killed_crawl_goes_on_and_has_each_item_once(project: Path) -> None:
    """The README's way through a kill: `info` shows what is pending, and the feed has each page once in the end."""
    assert KILLED == RESUMED
    killed = Command(project, *KILLED.split(), "-s", "LOG_LEVEL=DEBUG")
    wait_until(lambda: killed.log().count("Crawled (200)") >= 120, "120 pages are crawled")
    killed.kill()
    assert killed.code == -signal.SIGKILL
    left, _ = run(project, INFO)
    assert re.search(r"^clean +no$", left, re.MULTILINE)
    assert re.search(r"^pending +[1-9]", left, re.MULTILINE)
    _, log = run(project, RESUMED, "-s", "DOWNLOAD_DELAY=0")
    assert "all 300 pages of the site" in log
    titles = items(project / "pages.jl")
    assert len(titles) == len(set(titles)) == 300


@pytest.mark.slow
def test_a_fleet_crawls_every_page_once(project: Path) -> None:
    """`scrapy bloom crawl maze --workers 2` writes each item of the site into one file."""
    run(project, FLEET)
    titles = items(project / "fleet.jl")
    assert len(titles) == len(set(titles)) == 300
