"""The house is in order: imports run downwards only, modules are short, and nothing names a machine."""

from __future__ import annotations

import ast
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

from radon.complexity import cc_visit

import scrapy_bloom
from scrapy_bloom import errors

PACKAGE = Path(scrapy_bloom.__file__).parent
REPOSITORY = Path(__file__).parents[1]
MOST_LINES = 400
MOST_COMPLEX = 15
MOST_EXCEPTIONS = 8
MOST_ATTRIBUTES = 15
FLOOR = {"errors", "filter", "url", "loops", "settings"}
STORES = {"frontier", "job", "fleet"}
POINTERS = {"found", "each", "one", "told", "its"}
MAY_IMPORT = {
    "errors": set(),
    "filter": {"errors"},
    "url": {"errors"},
    "loops": {"errors", "url"},
    "settings": {"errors", "filter", "url", "loops"},
    "frontier": FLOOR,
    "job": FLOOR | {"frontier"},
    "fleet": FLOOR | {"frontier"},
    "crawl": FLOOR | {"frontier", "job"},
    "links": FLOOR | {"crawl"},
    "components": FLOOR | STORES | {"crawl"},
    "commands": FLOOR | STORES | {"crawl", "components"},
    "__main__": {"commands"},
}
"""Parts of the package, by what they may import besides themselves. The root imports on demand."""


def modules() -> dict[str, Path]:
    """Return the modules of the package by name, but the root."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def imported_by(path: Path) -> set[str]:
    """Return every name that *path* imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    waiting: list[ast.AST] = [tree]
    names: set[str] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} has a relative import, which this test does not follow"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        waiting += ast.iter_child_nodes(node)
    return names


def part_of(name: str) -> str:
    return name.split(".")[1]


def test_imports_run_downwards_only() -> None:
    """No room imports one above or beside it, for types and inside functions neither."""
    found = {part_of(name) for name in modules()}
    assert found == MAY_IMPORT.keys()
    wrong = [
        f"{name} imports {imported}"
        for name, path in modules().items()
        for imported in sorted(imported_by(path))
        if imported.startswith("scrapy_bloom.") and part_of(imported) not in {part_of(name), *MAY_IMPORT[part_of(name)]}
    ]
    assert not wrong


def test_no_module_is_part_of_a_circle() -> None:
    """Inside the rooms and for types, too: modules can be read in an order that explains each by those before it."""
    known = modules()
    graph = {
        name: {
            module
            for imported in imported_by(path)
            for module in (imported, imported.rpartition(".")[0])
            if module in known and module != name
        }
        for name, path in known.items()
    }
    order = list(TopologicalSorter(graph).static_order())
    assert order.index("scrapy_bloom.job.store") < order.index("scrapy_bloom.components.scheduler")


def test_the_filter_needs_nothing_but_bits_and_a_hash() -> None:
    """Whoever wants the data structure alone needs neither Scrapy nor Twisted nor a server."""
    roots = {
        each.split(".")[0]
        for name, path in modules().items()
        if part_of(name) == "filter"
        for each in imported_by(path)
    }
    assert roots - sys.stdlib_module_names <= {"scrapy_bloom", "bitarray", "mmh3", "typing_extensions"}


def test_no_redis_without_a_fleet() -> None:
    """A crawl on one machine runs where the package redis is not installed."""
    importing = {
        name for name, path in modules().items() if any(each.startswith("redis") for each in imported_by(path))
    }
    assert {part_of(name) for name in importing} <= {"fleet", "commands", "components"}


def test_modules_are_short() -> None:
    """Each is read before one loses patience."""
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_functions_are_simple() -> None:
    """None of the package or the benchmarks is too complex to follow, by McCabe's measure."""
    complex_ = {
        f"{path.parent.name}/{path.name}: {block.name}": block.complexity
        for path in [*PACKAGE.rglob("*.py"), *(REPOSITORY / "benchmarks").rglob("*.py")]
        for block in cc_visit(path.read_text(encoding="utf-8"))
        if block.complexity > MOST_COMPLEX
    }
    assert complex_ == {}


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return what the methods of a class assign to ``self``, and the fields that it declares."""
    methods = {each.name for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
    assigned = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
    }
    fields = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return (assigned | fields) - methods


def test_classes_have_few_attributes() -> None:
    """A class with many does several things."""
    many = {
        node.name: count
        for path in [*PACKAGE.rglob("*.py"), *(REPOSITORY / "benchmarks").rglob("*.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and (count := len(attributes_of(node))) > MOST_ATTRIBUTES
    }
    assert not many


def test_errors_are_few() -> None:
    """Whoever catches BloomError catches all that we raise on purpose, and there are few to know."""
    ours = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
    assert all(issubclass(vars(errors)[name], errors.BloomError) for name in ours)
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in modules().values()]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    named = {node.name for node in classes if node.name.endswith(("Error", "Exception", "Warning"))}
    assert ours <= named
    assert len(named) <= MOST_EXCEPTIONS


def test_nothing_names_a_machine() -> None:
    """No path of somebody's directories, and no host that is not an example's or this one."""
    named = re.compile(r"[\"'\s](/(?:home|root|work|Users|tmp)/\S*)")
    wrong = [f"{name}: {found}" for name, path in modules().items() for found in named.findall(path.read_text("utf-8"))]
    assert not wrong


def names_in(path: Path) -> set[str]:
    """Return the names of the variables and parameters in *path*, and of the attributes that it assigns."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    assigned = [node for node in nodes if isinstance(getattr(node, "ctx", None), ast.Store)]
    names = {node.id for node in assigned if isinstance(node, ast.Name)}
    names |= {node.attr for node in assigned if isinstance(node, ast.Attribute)}
    return names | {node.arg for node in nodes if isinstance(node, ast.arg)}


def test_names_say_what_they_hold() -> None:
    """A word that only points at a thing makes the reader look for it. Only errors have a part called *found*."""
    wrong = [f"{name}: {pointer}" for name, path in modules().items() for pointer in sorted(POINTERS & names_in(path))]
    assert wrong == ["scrapy_bloom.errors: found"]
