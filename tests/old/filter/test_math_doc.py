"""docs/math.md prints what it says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "math.md"
BLOCKS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


def test_every_block_of_python_has_its_output() -> None:
    """The document has four blocks of Python, each followed by what it prints."""
    assert len(BLOCKS) == DOCUMENT.read_text(encoding="utf-8").count("```python") == 4


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_figures_in_the_document_are_computed(number: int) -> None:
    """Running a block prints the figures that stand below it."""
    program, printed = BLOCKS[number]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(program, f"{DOCUMENT.name}, block {number + 1}", "exec"), {})
    assert output.getvalue() == printed
