"""Imports run downwards only and never in circles; ``docs/architecture.md`` shows the order."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import scrapy_bloom

PACKAGE = Path(scrapy_bloom.__file__).parent

BELOW_FACES = {"errors", "filter", "files", "fleet", "url", "loops", "settings", "crawl"}
FACES = {"dupefilter", "fleet_scheduler", "links", "link_extractor", "redis_dupefilter", "addon", "frontier"}
MAY_IMPORT = {
    "errors": set(),
    "filter": {"errors"},
    "files": {"errors", "filter"},
    "fleet": {"errors", "filter"},
    "url": {"errors"},
    "loops": {"errors", "filter", "files", "url"},
    "settings": {"errors", "filter", "url", "loops"},
    "crawl": {"errors", "filter", "files", "fleet", "url", "loops", "settings"},
    **dict.fromkeys(FACES, BELOW_FACES),
    "commands": BELOW_FACES,
    "__main__": {"commands"},
}
"""Parts of the package, by what they may import besides themselves. The package's root may import all of them."""


def parts() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found.setdefault(path.relative_to(PACKAGE).parts[0].removesuffix(".py"), []).append(path)
    return found


def imported_by(path: Path) -> set[str]:
    """Every module that *path* imports anywhere, under TYPE_CHECKING and inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} has a relative import, which this test does not follow"
            assert node.module
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_part_of_the_package_has_its_place() -> None:
    """A part that MAY_IMPORT does not know has to be put into the order first."""
    assert parts().keys() - MAY_IMPORT.keys() == {"__init__"}


def test_imports_run_downwards_only() -> None:
    """No part imports one above or beside it; faces never import each other."""
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for part, paths in parts().items()
        if part != "__init__"
        for path in paths
        for name in sorted(imported_by(path))
        if name.split(".")[0] == "scrapy_bloom" and name.split(".")[1] not in {part, *MAY_IMPORT[part]}
    ]
    assert not wrong


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def import_graph() -> dict[str, set[str]]:
    """Each module of the package with those that it imports; the root is left out, as it imports on demand only."""
    modules = {module_name(path): path for paths in parts().values() for path in paths}
    del modules["scrapy_bloom"]
    return {
        name: {
            module
            for imported in imported_by(path)
            for module in (imported, imported.rpartition(".")[0])
            if module in modules and module != name
        }
        for name, path in modules.items()
    }


def test_no_module_is_part_of_a_circle() -> None:
    """Inside the rooms, too, imports run one way: the modules can be read in an order in which each is explained."""
    graph = import_graph()
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("scrapy_bloom.old.frontier.journal") < order.index("scrapy_bloom.old.frontier.scheduler")
    graph["scrapy_bloom.old.frontier.journal"].add("scrapy_bloom.old.frontier.scheduler")
    with pytest.raises(CycleError):
        list(TopologicalSorter(graph).static_order())


ORDER_INSIDE = {
    "filter": ["sizing", "probes", "layer", "chain"],
    "files": ["damage", "layerfile", "layout", "inspect"],
    "frontier": ["database", "journal", "lanes", "recovery", "scheduler"],
    "loops": ["options", "limits"],
}
"""Modules of a room from the bottom up, where the order is worth keeping: none imports one that comes later."""


@pytest.mark.parametrize(("room", "order"), ORDER_INSIDE.items(), ids=ORDER_INSIDE)
def test_the_order_inside_a_room(room: str, order: list[str]) -> None:
    """A lower module knows nothing of a higher one, not even by way of a third."""
    graph = import_graph()
    names = [f"scrapy_bloom.{room}.{module}" for module in order]
    for place, name in enumerate(names):
        reached, waiting = set(), [name]
        while waiting:
            waiting += graph[waiting.pop()] - reached
            reached.update(waiting)
        assert not reached & set(names[place + 1 :]), name


def test_the_walk_sees_imports() -> None:
    """The face on one machine is seen to import the filter, or the tests above would prove nothing."""
    assert "scrapy_bloom.old.filter.chain.ScalableBloomFilter" in imported_by(PACKAGE / "dupefilter.py")


def test_the_filter_needs_nothing_but_bits_and_a_hash() -> None:
    """filter/ imports the standard library, bitarray and mmh3, and no Scrapy, Redis, path or clock."""
    roots = {name.split(".")[0] for path in parts()["filter"] for name in imported_by(path)}
    foreign = roots - sys.stdlib_module_names - {"scrapy_bloom"}
    assert foreign == {"bitarray", "mmh3", "typing_extensions"}
    assert not roots & {"time", "datetime", "os", "pathlib", "io", "tempfile"}


def test_the_filter_works_without_scrapy() -> None:
    """ScalableBloomFilter can be imported, filled and asked where neither Scrapy nor Twisted can be imported."""
    program = """
import sys
sys.modules.update(dict.fromkeys(["scrapy", "twisted", "w3lib", "redis", "filelock", "typing_extensions"]))
from scrapy_bloom import ScalableBloomFilter
from scrapy_bloom.old.filter.chain import ScalableBloomFilter as same
assert ScalableBloomFilter is same
with ScalableBloomFilter(10, 1e-9) as seen:
    print([seen.add(b"%d" % (i % 50)) for i in range(100)].count(True), b"7" in seen, b"x" in seen, len(seen.layers))
"""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "50 True False 3\n"
