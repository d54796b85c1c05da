"""All sites by name, in groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.sites.beside import BESIDE
from benchmarks.sites.draw import site
from benchmarks.sites.plain import ITEMS, SHAPES, PlainSite
from benchmarks.sites.records import Learning, Library
from benchmarks.sites.source_and_shop import Shop, SourceHost
from benchmarks.sites.wiki_and_board import Board, SpaceWiki

PROGRAMS = (Library, Learning, SourceHost, Shop, SpaceWiki, Board)
GROUPS: dict[str, dict[str, Callable[[int], Any]]] = {
    "drawn": {"drawn": site},
    "programs": {program.__name__: program for program in PROGRAMS},
    "traps": BESIDE,
    "honest": {kind: partial(PlainSite, kind) for kind in (*ITEMS, *SHAPES)},
}
NAMED = {name: make for group in GROUPS.values() for name, make in group.items()}
