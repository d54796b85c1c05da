"""What happens between two runs, and beside a crawl: other programs, other spiders, other places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.zoo.spiders import NO_FLEET, Lists, ZooSpider

if TYPE_CHECKING:
    from pathlib import Path


class MovedProject(Lists):
    """The project's directory is moved between two runs: the crawl goes on there, with the files that bear its name."""

    name = "moved-project"
    moves = True
    skip = NO_FLEET
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
