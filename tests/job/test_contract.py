"""The contract of all stores, run over a crawl's memory in its process and in its job directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import Engine
from tests.support.store_contract import CHECKS, REOPENING


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_store_in_memory(check: Callable[[Any], None]) -> None:
    """A store in memory keeps the contract."""
    check(lambda: Engine(None))


@pytest.mark.parametrize("check", CHECKS + REOPENING, ids=lambda check: check.__name__)
def test_the_store_of_a_job(check: Callable[[Any], None], tmp_path: Path) -> None:
    """A store in a job directory keeps the contract, and what is pending beyond its process."""
    check(lambda: Engine(tmp_path))
