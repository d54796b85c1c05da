"""The queue's Redis keys by name, and its scripts, which are the files beside this one. Knows no server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.old.fleet.client import Command, Script

if TYPE_CHECKING:
    from collections.abc import Sequence


def key(prefix: str, shard: int, name: str) -> str:
    """Return the Redis key *name* of a shard."""
    return f"{{{prefix}:{shard}}}:{name}"


def script(name: str, probes: str = "") -> Script:
    """Return the script in the file *name*, behind what all have in common and the *probes* of a filter's engine."""
    here = Path(__file__).parent
    return Script(probes + "".join((here / f"{part}.lua").read_text(encoding="utf-8") for part in ("queue", name)))


def command(script: Script, prefix: str, shard: int, arguments: Sequence[Any], keys: Sequence[str] = ()) -> Command:
    """Return the call of *script* on a shard; *keys* are those besides the state."""
    state = key(prefix, shard, "queue")
    return Command((1 + len(keys), state, *keys, *arguments), state, script)


ASIDE = script("aside")
