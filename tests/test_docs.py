"""The documentation names what there is, in as many words as it may have, and what it shows runs."""

import ast
import io
import logging
import re
from collections.abc import Iterator
from contextlib import closing, redirect_stdout
from dataclasses import fields
from pathlib import Path

import pytest

import scrapy_bloom
from scrapy_bloom.commands.command_line import COMMANDS
from scrapy_bloom.fleet.life import TRANSITIONS, SessionEvent, SessionState
from scrapy_bloom.job.database import Database
from scrapy_bloom.settings import BloomSettings

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS]
SOURCES = sorted(Path(scrapy_bloom.__file__).parent.rglob("*.py"))
SETS_A_STAT = {"set_value", "inc_value", "_set_stat", "_count"}


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def rows(page: str) -> dict[str, list[str]]:
    """The table rows of a page of docs/ by the code that their first cell begins with: the other cells."""
    found = re.findall(r"^\| `([^`]+)`.*? \| (.*) \|$", text_of(ROOT / "docs" / page), re.MULTILINE)
    return {name: rest.split(" | ") for name, rest in found}


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_docs_have_at_most_14_000_words() -> None:
    """Whoever adds a page takes words out of another."""
    assert sum(len(text_of(path).split()) for path in DOCS) <= 14_000


def test_every_setting_has_its_row_with_its_default() -> None:
    """docs/settings.md lists the settings that are read, and no others, with the defaults that they have."""
    documented = {name: cells for name, cells in rows("settings.md").items() if name.startswith("BLOOM_")}
    defaults = {f"BLOOM_{field.name.upper()}": field.default for field in fields(BloomSettings)}
    del defaults["BLOOM_DELTA_RESET"]  # of earlier versions: its use is a warning
    shown = {name: ast.literal_eval(cells[0].strip("`")) for name, cells in documented.items()}
    assert {name: tuple(value) if value == [] else value for name, value in shown.items()} == defaults


def test_scrapy_lint_is_told_all_settings() -> None:
    """The block that docs/settings.md offers for pasting has each setting once."""
    (block,) = re.findall(r"known-settings = (\[.*?\])", text_of(ROOT / "docs" / "settings.md"), re.DOTALL)
    assert ast.literal_eval(block) == [name for name in rows("settings.md") if name.startswith("BLOOM_")]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_settings_that_are_named_exist(page: Path) -> None:
    """No page sends its reader to a setting that is none; the changelog alone names those that went."""
    if page.name != "CHANGELOG.md":
        named = set(re.findall(r"\bBLOOM_[A-Z_]*[A-Z]\b", text_of(page)))
        assert named <= {f"BLOOM_{field.name.upper()}" for field in fields(BloomSettings)}


def stats_set_in(tree: ast.Module) -> Iterator[str]:
    """The stats that a module sets; of a name that is made of another one, both, the first with ``<>`` in it."""
    for call in ast.walk(tree):
        name = getattr(call.func, "attr", "") if isinstance(call, ast.Call) else ""
        if name in SETS_A_STAT:
            found = call.args[0] if isinstance(call, ast.Call) else None
            if isinstance(found, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "<>" for part in found.values)
            elif isinstance(found, ast.Constant):
                yield str(found.value)


def test_every_stat_has_its_row() -> None:
    """docs/stats.md lists each stat that the package sets by name; one whose name is put together begins as a row."""
    documented = {name for name in rows("stats.md") if name.startswith("bloom/")}
    used: set[str] = set()
    for path in SOURCES:
        found = set(stats_set_in(ast.parse(text_of(path))))
        prefixes = {name.partition("<>")[0] for name in found if "<>" in name}
        used |= {name for name in found if name.startswith("bloom/") and "<>" not in name}
        used |= {prefix + name for prefix in prefixes for name in found if "/" not in name and "<>" not in name}
        assert all(any(name.startswith(prefix) for name in documented) for prefix in prefixes)
    assert len(used) > 10
    assert used <= documented


def test_stats_that_are_named_are_set() -> None:
    """Each part of a documented stat's name stands in the code, so that no row outlives its stat."""
    words = set(re.findall(r'["/](\w+)(?=["{/])', "\n".join(map(text_of, SOURCES))))
    for name in rows("stats.md"):
        if name.startswith("bloom/"):
            assert set(re.sub(r"<\w+>", "loop", name).split("/")) <= words, name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_that_are_shown_exist(page: Path) -> None:
    """No page shows a command that is none; the changelog alone names those that went."""
    shown = re.findall(r"(?:scrapy bloom|-m scrapy_bloom) ([a-z]+)\b", text_of(page))
    assert page.name == "CHANGELOG.md" or set(shown) <= set(COMMANDS)


def test_every_public_name_is_in_the_reference() -> None:
    """docs/api.md describes what the package exports."""
    described = re.findall(r"^\.\. auto\w+:: (\w+)", text_of(ROOT / "docs" / "api.md"), re.MULTILINE)
    assert sorted(described) == sorted(scrapy_bloom.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link leads to a file of the repository, and to a heading that it has."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text_of(page)):
        path = page.parent / target if target else page
        assert path.exists(), target
        if anchor:
            assert anchor in map(slug, re.findall(r"^#+ (.*)$", text_of(path), re.MULTILINE)), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_python_that_is_shown_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Python example can be pasted into an interpreter, and prints what is printed below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.Logger, "setLevel", lambda *_: None)  # one example would change other tests
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text_of(page), re.DOTALL)
    for code, expected in blocks:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(code, page.name, "exec"), {})  # our own page
        assert printed.getvalue() == expected


def test_every_page_is_in_the_table_of_contents() -> None:
    """The site's index leads to each page of docs/, once."""
    trees = re.findall(r"```\{toctree\}\n(.*?)```", text_of(ROOT / "docs" / "index.md"), re.DOTALL)
    listed = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    assert sorted(listed) == sorted(path.stem for path in DOCS if path.stem != "index")


def test_the_tables_are_those_of_a_new_job(tmp_path: Path) -> None:
    """docs/format.md lists the tables and columns of job.sqlite."""
    with closing(Database(tmp_path / "job.sqlite")) as database:
        names = database.reader.execute("SELECT name FROM sqlite_schema WHERE sql NOT NULL AND name NOT GLOB 'sqlite*'")
        tables = {name: [row[1] for row in database.reader.execute(f"PRAGMA table_info({name})")] for (name,) in names}
    assert tables
    documented = {name: re.findall(r"`(\w+)`", cells[0]) for name, cells in rows("format.md").items()}
    assert {name: columns for name, columns in documented.items() if name in tables} == tables


def test_the_table_of_a_session_is_shown() -> None:
    """Each cell, and no other; every state is reached from the first one, and every one can end."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text_of(ROOT / "docs" / "fleet.md").splitlines()
    ]
    at = next(number for number, row in enumerate(rows) if row[:1] == ["session"])
    assert rows[at][1:] == [event.value for event in SessionEvent]
    shown = {row[0]: row[1:] for row in rows[at + 2 : at + 5]}
    for state in {*SessionState} - {SessionState.ENDED}:
        after = [TRANSITIONS.get((state, event)) for event in SessionEvent]
        assert shown[state.value] == [nxt.value if nxt else "-" for nxt in after]
    reached = {SessionState.OUTSIDE}
    for _ in SessionState:
        reached |= {after for (state, _), after in TRANSITIONS.items() if state in reached}
    assert reached == {*SessionState}
    assert {state for (state, _), after in TRANSITIONS.items() if after is SessionState.ENDED} == (
        {*SessionState} - {SessionState.ENDED}
    )
