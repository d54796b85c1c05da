from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.engine import RAM

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ram() -> Iterator[Path]:
    """A directory in RAM where there is one: for many commits, each of which a disk would sync."""
    with tempfile.TemporaryDirectory(dir=RAM) as name:
        yield Path(name)
