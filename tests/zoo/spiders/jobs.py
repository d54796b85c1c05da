"""What happens between two runs, and beside a crawl: other programs, other spiders, other places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.zoo.spiders import NO_FLEET, Lists, ZooSpider, path_of

if TYPE_CHECKING:
    from pathlib import Path

COLLEAGUE = '{"page": "from a colleague"}'


class Colleague(Lists):
    """Between two runs, another program appends lines to the same file: they stay."""

    name = "colleague"
    skip = NO_FLEET

    @staticmethod
    def between(directory: Path) -> None:
        with (directory / "items.jsonlines").open("a") as file:
            file.write(COLLEAGUE + "\n")

    @staticmethod
    def extra(runs: int) -> list[str]:
        return [COLLEAGUE] * runs


class SecondProgram(Colleague):
    """The same with CSV, whose lines of another program have a column less."""

    name = "second-program"
    feed = {"format": "csv"}

    @staticmethod
    def between(directory: Path) -> None:
        with (directory / "items.csv").open("a") as file:
            file.write("from a colleague\n")

    @staticmethod
    def extra(runs: int) -> list[str]:
        return ["from a colleague"] * runs


class Sorted(Lists):
    """Between two runs, another program adds a field to each line and sorts them: its file is gone on with."""

    name = "sorted"
    skip = (*NO_FLEET, "kill")  # after a kill, nobody can say which of these lines are of pages that come again

    @staticmethod
    def between(directory: Path) -> None:
        file = directory / "items.jsonlines"
        lines = sorted(line for line in file.read_text().splitlines(keepends=True) if '"by"' not in line)
        file.write_text("".join(lines) + '{"page": "a header of somebody", "by": "somebody"}\n')

    @staticmethod
    def extra(runs: int) -> list[str]:
        return ['{"page": "a header of somebody", "by": "somebody"}']


class MovedProject(Lists):
    """The project's directory is moved between two runs: the crawl goes on there, with its files."""

    name = "moved-project"
    moves = True
    skip = NO_FLEET
    feeds = {"items.jl": {"format": "jsonlines"}, "items.csv": {"format": "csv"}}


class _OneOfThree(Lists):
    def item(self, response: Any) -> Any:
        return {"page": path_of(response), "spider": self.name}


class _Second(_OneOfThree):
    name = "second"


class _Third(_OneOfThree):
    name = "third"


class ThreeSpiders(_OneOfThree):
    """Three spiders of one process append to one file, each with a job of its own."""

    name = "three-spiders"
    skip = NO_FLEET
    with_others = (_Second, _Third)
    feed = {"format": "jsonlines", "overwrite": False}


class TwoFiles(_OneOfThree):
    """Two spiders of one process, each with files that bear its name."""

    name = "two-files"
    skip = NO_FLEET
    with_others = (_Second,)
    feeds = {"%(name)s.jl": {"format": "jsonlines"}, "%(name)s.csv": {"format": "csv"}}


class AppendsToOld(Lists):
    """Feeds append to files of last week: their lines stay, and a CSV has the columns of its own items."""

    name = "appends-to-old"
    skip = NO_FLEET
    feeds = {
        "items.jl": {"format": "jsonlines", "overwrite": False},
        "items.csv": {"format": "csv", "overwrite": False},
        "other.csv": {"format": "csv", "overwrite": False, "item_export_kwargs": {"delimiter": ";"}},
    }

    @staticmethod
    def before(directory: Path) -> None:
        (directory / "items.jl").write_text('{"page": "of last week"}\n')
        (directory / "items.csv").write_text("page\nof last week\n")
        (directory / "other.csv").write_text("other;columns\nof;last week\n")


class LinkedFailures(ZooSpider):
    """Pages that fail are taken back with BLOOM_FORGET_FAILED, and linked to from everywhere: the crawl still ends."""

    name = "linked-failures"
    failed = None  # as often as it was followed
    custom_settings = {"RETRY_TIMES": 0}
    more_settings = {"BLOOM_FORGET_FAILED": True}
    hits_vary = "a link to a page that has failed is followed once more"

    def parse(self, response: Any) -> Any:
        yield from self.follow_items(response)

    def parse_item(self, response: Any) -> Any:
        yield self.item(response)
        yield from (response.follow(f"/shut/{i}", self.parse_item) for i in range(3))
