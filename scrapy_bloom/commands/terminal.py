"""What every command prints and returns: text or JSON, and an exit code. Knows no command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

OK = 0
"""All is well."""
WRONG = 1
"""There are findings, or (``check``) a URL is new."""
USAGE = 2
"""There is no such job, it cannot be used, or the arguments make no sense. argparse returns this number, too."""


def show(found: Any, options: argparse.Namespace, lines: Callable[[Any], Iterable[str]]) -> None:
    """Print *found*: as JSON with ``--json``, otherwise the *lines* made of it."""
    print(json.dumps(found, indent=2) if options.json else "\n".join(lines(found)))  # noqa: T201 - this is where commands print


def rows(labelled: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each label with its value, the values below each other."""
    return [f"{label:<16}{value}" for label, value in labelled]
