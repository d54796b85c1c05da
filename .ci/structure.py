"""Checks the structure of the package: ``python .ci/structure.py`` prints what breaks a rule, and exits with 1 then.

The rules: imports run downwards only and without cycles, the filter needs neither Scrapy nor a server, fleets and URLs
need no Scrapy, only fleets need redis, modules and functions are short, and classes have few attributes.
"""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

from radon.complexity import cc_visit

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "scrapy_bloom"
MOST_LINES = 400
MOST_COMPLEX = 15
MOST_ATTRIBUTES = 15
FLOOR = {"errors", "filter", "url", "loops", "settings", "signals"}
STORES = {"frontier", "job", "fleet"}
MAY_IMPORT = {
    "errors": set(),
    "signals": set(),
    "filter": {"errors"},
    "url": {"errors"},
    "loops": {"errors", "url"},
    "settings": {"errors", "filter", "url", "loops"},
    "frontier": FLOOR,
    "job": FLOOR | {"frontier"},
    "fleet": FLOOR | {"frontier"},
    "crawl": FLOOR | {"frontier", "job"},
    "links": FLOOR | {"crawl", "components"},
    "components": FLOOR | STORES | {"crawl"},
    "commands": FLOOR | STORES | {"crawl", "components"},
    "__main__": {"commands"},
}
"""Parts of the package, by the parts that they may import. The root imports on demand."""
LIBRARIES_OF_THE_FILTER = {"scrapy_bloom", "bitarray", "mmh3", "typing_extensions"}
MAY_IMPORT_REDIS = {"fleet", "components", "commands"}
NEED_NO_SCRAPY = {"filter", "url", "loops", "frontier", "job", "fleet", "crawl"}
"""Parts that work on plain data. They must not import Scrapy for types either."""


def imports_of(tree: ast.Module) -> set[str]:
    """Return all names that a module imports, also for types and inside functions. Ruff forbids relative imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return the names that the methods of a class assign to ``self``, and the fields that it declares."""
    methods = {part.name for part in node.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))}
    assigned = {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and ast.unparse(part.value) == "self"
    }
    fields = {
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    return (assigned | fields) - methods


def problems_of_imports(imports: dict[str, set[str]]) -> Iterator[str]:
    """Yield which modules import something above or beside their part, a library they must not need, or each other."""
    for name, imported in imports.items():
        part = name.split(".")[1]
        libraries = {other.split(".")[0] for other in imported} - sys.stdlib_module_names
        for other in sorted(imported):
            if other.startswith("scrapy_bloom.") and other.split(".")[1] not in {part, *MAY_IMPORT.get(part, ())}:
                yield f"{name} imports {other}, which is not below it"
        if part == "filter" and libraries - LIBRARIES_OF_THE_FILTER:
            yield f"{name} imports {libraries - LIBRARIES_OF_THE_FILTER}, which the filter must not need"
        if "scrapy" in libraries and part in NEED_NO_SCRAPY:
            yield f"{name} imports scrapy, which {part} must not need"
        if "redis" in libraries and part not in MAY_IMPORT_REDIS:
            yield f"{name} imports redis, which only fleets may need"
    graph = {
        name: {
            module
            for other in imported
            for module in (other, other.rpartition(".")[0])
            if module in imports and module != name
        }
        for name, imported in imports.items()
    }
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        yield f"a circle of imports: {' -> '.join(error.args[1])}"


def problems_of_size(path: Path, text: str, tree: ast.Module) -> Iterator[str]:
    """Yield what in a module is too long, too complex or too large."""
    where = path.relative_to(ROOT)
    if PACKAGE in path.parents and (lines := len(text.splitlines())) > MOST_LINES:
        yield f"{where} has {lines} lines, at most {MOST_LINES} are allowed"
    for block in cc_visit(text):
        if block.complexity > MOST_COMPLEX:
            yield f"{where}: {block.name} has complexity {block.complexity}, at most {MOST_COMPLEX} is allowed"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (count := len(attributes_of(node))) > MOST_ATTRIBUTES:
            yield f"{where}: {node.name} has {count} attributes, at most {MOST_ATTRIBUTES} are allowed"


def problems() -> Iterator[str]:
    """Yield what breaks a rule, in the package and the benchmarks."""
    imports: dict[str, set[str]] = {}
    for path in sorted([*PACKAGE.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        yield from problems_of_size(path, text, tree)
        if PACKAGE in path.parents and path != PACKAGE / "__init__.py":
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            imports[name] = imports_of(tree)
    yield from problems_of_imports(imports)


if __name__ == "__main__":
    found = list(problems())
    print(*found, sep="\n")
    sys.exit(bool(found))
