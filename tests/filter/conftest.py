import random
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains have the same hash seed in every run of a test: a false positive comes always or never."""
    monkeypatch.setattr(secrets, "randbits", random.Random(request.node.nodeid).getrandbits)


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """Every file of a filter that a test opened is closed at its end, whatever went wrong in it."""
    before = open_files()
    yield
    assert open_files() <= before


def open_files() -> set[str]:
    if sys.platform != "linux":
        return set()
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{link.name} {link.readlink()}")
        except OSError:  # the directory of this very listing
            continue
    return {each for each in found if "bloom" in each or each.endswith(("lock", "forgotten"))}
