"""The documentation names what there is, and what it shows runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scrapy_bloom.settings import _KNOWN, BloomSettings

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "scrapy_bloom").rglob("*.py"))


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


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link of the documentation leads to a file of the repository."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Python example can be pasted into an interpreter, its assertions included."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})  # our own page
