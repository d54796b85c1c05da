"""The documentation names what there is, and what it shows runs."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import scrapy_bloom
from scrapy_bloom.old.commands.command_line import COMMANDS
from scrapy_bloom.old.settings import _KNOWN, BloomSettings

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
SOURCES = sorted(Path(scrapy_bloom.__file__).parent.rglob("*.py"))


def rows(page: str) -> dict[str, str]:
    """Return the table rows of a page of docs/ by the code in their first cell."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `([^`]+)` \| (.*)$", text, flags=re.MULTILINE))


def test_every_setting_has_its_row_with_its_default() -> None:
    """docs/settings.md lists the settings that are read, and no others, with the defaults they have."""
    documented = {name: row for name, row in rows("settings.md").items() if name.startswith("BLOOM_")}
    assert documented.keys() == _KNOWN.keys()
    defaults = BloomSettings()
    for name, row in documented.items():
        shown = row.split(" | ")[0].strip("`")
        assert eval(shown) == getattr(defaults, _KNOWN[name].attribute), name  # our own page, read as Python


def test_every_stat_has_its_row() -> None:
    """docs/stats.md lists every stat that the package sets under bloom/, and no others."""
    # A name that ends in a variable, as "bloom/loop/{rule}", has one row.
    pattern = r'"(bloom/[a-z_/]+(?:\{\w+\})?)"'
    used = {
        name.replace("{", "<").replace("}", ">")
        for path in SOURCES
        for name in re.findall(pattern, path.read_text(encoding="utf-8"))
    }
    assert used
    assert {name for name in rows("stats.md") if name.startswith("bloom/")} == used


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link of the documentation leads to a file of the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_the_python_that_is_shown_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Python example can be pasted into an interpreter, its assertions included."""
    monkeypatch.chdir(tmp_path)
    try:
        for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL):
            exec(compile(block, page, "exec"), {})  # our own page
    finally:
        logging.getLogger("scrapy_bloom.old.dupefilter").setLevel(logging.NOTSET)  # one example sets it


def test_the_changelog_begins_with_this_version() -> None:
    """What is built is what the newest entry of the changelog describes."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    newest = re.search(r"^## (\S+) ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert version
    assert newest
    assert newest[1] == version[1]


def test_every_page_is_in_the_table_of_contents() -> None:
    """The site's index leads to each page of docs/."""
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    trees = re.findall(r"```\{toctree\}\n(.*?)```", (ROOT / "docs/index.md").read_text(encoding="utf-8"), re.DOTALL)
    listed = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    assert sorted(listed) == sorted(pages)


def test_every_command_is_documented() -> None:
    """docs/commands.md shows each command that there is."""
    text = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    missing = [name for name in COMMANDS if not re.search(rf"^(\| `|#+ `?){name}\b", text, re.MULTILINE)]
    assert not missing
