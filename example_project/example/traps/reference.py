"""What is looked up. Manuals, tables and a glossary are honest; sort orders, trees and lists without end are not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from example.traps.model import Answer, Section, decimal, scaled
from example.traps.text import STEMS, babble, chance, link, listed, page, paragraphs, row, slug, title

if TYPE_CHECKING:
    from example.traps.model import Visit

PER_PACKAGE = 25
PER_DIRECTORY = 8
TERMS_PER_PAGE = 30
TABLES_PER_PAGE = 100
MOST_TERMS = len(STEMS) * 8


def sections(factor: float) -> list[Section]:
    """Return the works of reference."""
    docs = _Docs(scaled(2_000, factor, 40))
    api = _Api(scaled(100, factor, 3))
    tables = _Tables(scaled(2_000, factor, 40))
    glossary = _Glossary(min(MOST_TERMS, scaled(1_500, factor, 40)))
    files = _Files(scaled(300, factor, 12))
    return [
        Section("docs", "docs", "a manual up to twelve levels deep", True, True, docs.chapter, "/docs/", docs.chapters),
        Section("api", "api", "classes, with relative links", True, False, api.page, "/api/index.html", api.pages),
        Section("tables", "figures", "tables of numbers", True, False, tables.table, "", tables.tables),
        Section("table-lists", "figures", "their list", True, False, tables.listing, "/figures/", tables.pages),
        Section("glossary", "glossary", "a sentence a page", True, False, glossary.term, "", glossary.terms),
        Section("glossary-lists", "glossary", "its list", True, False, glossary.listing, "/glossary/", glossary.pages),
        Section("paging-repeats", "glossary", "past the end, the last page again", False, False, glossary.past_the_end),
        Section(
            "files", "pub", "directories of a file server", True, True, files.directory, "/pub/", files.directories
        ),
        Section("sort-index", "pub", "each of them in eight orders", False, True, files.sorted),
        Section("tree-path", "family", "a tree that is made as one descends", False, True, _tree, "/family/tree/a/"),
        Section("tree-query", "thesaurus", "the same by number", False, False, _narrower, "/thesaurus/term.aspx?id=1"),
    ]


@dataclass(frozen=True)
class _Docs:
    """``/docs/garden/lake-oak/…/``: chapter n has the chapters 3n + 1 to 3n + 3 below it, or only the first of them."""

    chapters: int

    def _children(self, number: int) -> list[int]:
        # A chain now and then makes some branches much deeper than others.
        return [child for child in range(2 * number + 1, 2 * number + 3) if child < self.chapters]

    def _path(self, number: int) -> str:
        names = []
        while number:
            names.append(slug("chapter", number, words=1 + number % 2) + ("" if number < 60 else f"-{number % 10}"))
            number = (number - 1) // 2
        return "/".join(["/docs", *reversed(names), ""])

    def chapter(self, visit: Visit) -> Answer | None:
        if visit.query or visit.segments[-1:] != [""]:
            return None
        number = 0
        for depth in range(2, len(visit.segments) + 1):
            begun = "/".join(["/docs", *visit.segments[: depth - 1], ""])
            number = next((child for child in self._children(number) if self._path(child) == begun), -1)
            if number < 0:
                return None
        rng = chance("docs", number)
        above = (number - 1) // 2
        links = [link(self._path(child), title(chance("docs", child))) for child in self._children(number)]
        links += [link(self._path(above), "Up")] if number else []
        links += [
            link(self._path(other), title(chance("docs", other))) for other in rng.choices(range(self.chapters), k=3)
        ]
        example = f"<pre>{' '.join(rng.choices(STEMS, k=12))}</pre>\n"
        return Answer(page(title(rng), paragraphs(rng, 50, 70) + example + paragraphs(rng, 40) + listed(links)))


@dataclass(frozen=True)
class _Api:
    """``/api/org/lake/garden/OakRiver.html``: made by a generator, most of each page a template."""

    packages: int

    @property
    def pages(self) -> int:
        return 1 + self.packages * (PER_PACKAGE + 1)

    def _package(self, number: int) -> str:
        return f"org/{STEMS[number % 20]}/{slug('package', number, words=1)}{number}"

    def _class(self, package: int, number: int) -> str:
        return f"{title(chance('class', package, number), 2).replace(' ', '')}{number}"

    def page(self, visit: Visit) -> Answer | None:
        if visit.query:
            return None
        path = "/".join(visit.segments)
        if path == "index.html":
            names = [self._package(number) for number in range(self.packages)]
            return Answer(
                page("Packages", listed(link(f"{name}/package.html", name.replace("/", ".")) for name in names))
            )
        folder, _, file = path.rpartition("/")
        digits = folder.lstrip("abcdefghijklmnopqrstuvwxyz/")
        package = decimal(digits)
        if not 0 <= package < self.packages or folder != self._package(package):
            return None
        up = "../../../"
        if file == "package.html":
            names = [self._class(package, number) for number in range(PER_PACKAGE)]
            return Answer(
                page(f"Package {folder.replace('/', '.')}", listed(link(f"{name}.html", name) for name in names))
            )
        name = file.removesuffix(".html")
        number = decimal(name.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"))
        if not 0 <= number < PER_PACKAGE or file != f"{self._class(package, number)}.html":
            return None
        rng = chance("api", package, number)
        methods = "".join(
            f"<dt>{rng.choice(('int', 'void', 'String', 'boolean'))} {word}{rng.choice(STEMS).title()}()</dt>"
            f"<dd>Returns the {word}. {babble(rng, 6)}</dd>\n"
            for word in rng.choices(STEMS, k=6)
        )
        other = rng.randrange(self.packages)
        see = f"{up}{self._package(other)}/{self._class(other, number)}.html"
        links = [
            link("package.html", "Package"),
            link(f"{up}index.html", "Overview"),
            link(f"{self._class(package, (number + 1) % PER_PACKAGE)}.html", "Next class"),
            link(see, "See also"),
        ]
        inherited = (
            "<p>Methods inherited from class Object: clone, equals, finalize, getClass, hashCode, toString</p>\n"
        )
        return Answer(page(f"Class {name}", f"<dl>{methods}</dl>\n{inherited}{listed(links)}"))


@dataclass(frozen=True)
class _Tables:
    """``/figures/T0017.html``: nothing but numbers under the same heads."""

    tables: int

    @property
    def pages(self) -> int:
        return -(-self.tables // TABLES_PER_PAGE)

    def table(self, visit: Visit) -> Answer | None:
        name = visit.segments[0] if len(visit.segments) == 1 else ""
        number = int(name[1:5]) if name[1:5].isdecimal() and name[1:5].isascii() else -1
        if name != f"T{number:04d}.html" or visit.query or number >= self.tables:
            return None
        rng = chance("table", number)
        rows = [row(year, *(rng.randrange(10, 99_999) for _ in range(5))) for year in range(2010, 2024)]
        head = row("Year", "Men", "Women", "Total", "Urban", "Rural", kind="th")
        return Answer(page(f"Table {number}", f"<table>{head}{''.join(rows)}</table>\n{link('./', 'All tables')}\n"))

    def listing(self, visit: Visit) -> Answer | None:
        match visit.segments:
            case [""] if not visit.query:
                number = 1
            case [file] if file.startswith("list") and file.endswith(".html") and not visit.query:
                number = decimal(file[4:-5])
                if number < 2:
                    return None
            case _:
                return None
        if number > self.pages:
            return None
        shown = range((number - 1) * TABLES_PER_PAGE, min(self.tables, number * TABLES_PER_PAGE))
        lists = [link(f"/figures/list{other}.html", other) for other in range(2, self.pages + 1)]
        return Answer(
            page("Tables", listed(link(f"/figures/T{one:04d}.html", f"T{one:04d}") for one in shown) + " ".join(lists))
        )


@dataclass(frozen=True)
class _Glossary:
    """``/glossary/river-3``: one sentence a page; a list by offset that never ends."""

    terms: int

    @property
    def pages(self) -> int:
        return -(-self.terms // TERMS_PER_PAGE)

    def _name(self, number: int) -> str:
        return STEMS[number % len(STEMS)] + (f"-{number // len(STEMS)}" if number >= len(STEMS) else "")

    def term(self, visit: Visit) -> Answer | None:
        if len(visit.segments) != 1 or visit.query:
            return None
        word, _, digits = visit.segments[0].partition("-")
        if word not in _PLACE:
            return None
        number = _PLACE[word] + len(STEMS) * (decimal(digits) if digits else 0)
        if not 0 <= number < self.terms or visit.segments[0] != self._name(number):
            return None
        rng = chance("term", number)
        others = [self._name(other) for other in rng.choices(range(self.terms), k=2)]
        links = [link(f"/glossary/{name}", name) for name in others]
        return Answer(page(word.title(), f"<p>{babble(rng, 11)}</p>\n<p>See {' and '.join(links)}.</p>\n"))

    def listing(self, visit: Visit) -> Answer | None:
        start = visit.number("start") if visit.query else 0
        if visit.segments != [""] or not 0 <= start < self.terms or start % TERMS_PER_PAGE:
            return None
        if visit.query and (visit.query != f"start={start}" or not start):
            return None
        return self._list(start)

    def past_the_end(self, visit: Visit) -> Answer | None:
        if visit.segments != [""] or visit.number("start") < 0:
            return None
        return self._list(visit.number("start"))

    def _list(self, start: int) -> Answer:
        first = min(start, self.terms - TERMS_PER_PAGE)  # past the end the last ones are shown
        shown = [self._name(number) for number in range(first, min(self.terms, first + TERMS_PER_PAGE))]
        links = [link(f"/glossary/{name}", name) for name in shown]
        links.append(link(f"/glossary/?start={start + TERMS_PER_PAGE}", "More terms"))
        return Answer(page("Glossary", listed(links)))


_PLACE = {word: place for place, word in enumerate(STEMS)}


@dataclass(frozen=True)
class _Files:
    """``/pub/garden/lake/``: directories as a file server lists them, in any order one likes."""

    directories: int

    def _path(self, number: int) -> str:
        names = []
        while number:
            names.append(f"{STEMS[number % len(STEMS)]}{'' if number < len(STEMS) else number}")
            number = (number - 1) // PER_DIRECTORY
        return "/".join(["/pub", *reversed(names), ""])

    def _number(self, path: str) -> int:
        number = 0
        for depth, _ in enumerate(path.split("/")[2:-1]):
            begun = "/".join([*path.split("/")[: depth + 3], ""])
            below = range(PER_DIRECTORY * number + 1, min(self.directories, PER_DIRECTORY * (number + 1) + 1))
            number = next((child for child in below if self._path(child) == begun), -1)
            if number < 0:
                break
        return number

    def directory(self, visit: Visit) -> Answer | None:
        return None if visit.query else self._list(visit.path, "N", "A")

    def sorted(self, visit: Visit) -> Answer | None:
        asked = re.fullmatch(r"C=([NMSD]);O=([AD])", visit.query)
        return self._list(visit.path, asked[1], asked[2]) if asked else None

    def _list(self, path: str, column: str, order: str) -> Answer | None:
        number = self._number(path) if path.endswith("/") else -1
        if number < 0:
            return None
        rng = chance("files", number)
        below = range(PER_DIRECTORY * number + 1, min(self.directories, PER_DIRECTORY * (number + 1) + 1))
        entries = [(self._path(child)[len(path) :], child, "directory", child) for child in below]
        for size in rng.choices(range(100, 10**7), k=12):
            name = f"{rng.choice(STEMS)}-{rng.choice(STEMS)}-{rng.randrange(10)}.{rng.randrange(100)}.tar.gz"
            entries.append((name, size % 4000, f"{size:,}", size))
        key = {"N": 0, "M": 1, "S": 3, "D": 2}[column]
        entries.sort(key=lambda entry: entry[key], reverse=order == "D")
        heads = [
            link(f"?C={other};O={'D' if other == column and order == 'A' else 'A'}", text)
            for other, text in _COLUMNS.items()
        ]
        rows = [
            row(
                link(name, name) if name.endswith("/") else name,
                f"2021-03-{1 + day % 28:02d} 1{day % 10}:22",
                size,
                "&nbsp;",
            )
            for name, day, size, _ in entries
        ]
        table = f"<table>{row(*heads, kind='th')}{''.join(rows)}</table>\n{link('../', 'Parent Directory')}\n"
        return Answer(page(f"Index of {path}", table))


_COLUMNS = {"N": "Name", "M": "Last modified", "S": "Size", "D": "Description"}


def _tree(visit: Visit) -> Answer | None:
    """Answer with a person of a family tree, whose parents have parents: the names come from the path."""
    if visit.segments[:1] != ["tree"] or visit.segments[-1] or visit.query:
        return None
    line = visit.segments[1:-1]
    if not line or any(one not in ("a", "b") for one in line):
        return None
    said = " of ".join("father" if one == "a" else "mother" for one in reversed(line[-3:]))
    links = [link(f"{visit.path}{one}/", f"The {text}") for one, text in (("a", "father"), ("b", "mother"))]
    links.append(link(visit.path.removesuffix(f"{line[-1]}/") if len(line) > 1 else "/", "Back"))
    return Answer(
        page(
            f"The {said}", f"<p>Nothing is known about this person. Do you know more? Write to us.</p>\n{listed(links)}"
        )
    )


def _narrower(visit: Visit) -> Answer | None:
    """Answer with a term whose number grows by a digit with every step down."""
    number = visit.number("id")
    if visit.segments != ["term.aspx"] or number < 0:
        return None
    name = STEMS[number % len(STEMS)]
    links = [link(f"/thesaurus/term.aspx?id={number * 10 + i}", f"Narrower term {i + 1}") for i in range(5)]
    links += [link(f"/thesaurus/term.aspx?id={number // 10}", "Broader term"), link("/glossary/", "Glossary")]
    return Answer(page(f"Term: {name}", f"<p>{name.title()} has five narrower terms.</p>\n{listed(links)}"))
