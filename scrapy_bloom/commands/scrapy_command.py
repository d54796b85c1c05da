"""``scrapy bloom ...``: the same commands under Scrapy's own. Knows nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.commands import ScrapyCommand

if TYPE_CHECKING:
    from argparse import Namespace


class Command(ScrapyCommand):
    """For the entry point ``scrapy.commands``."""

    requires_project = False
    requires_crawler_process = False
    default_settings = {"LOG_ENABLED": False}  # noqa: RUF012 - Scrapy's way of declaring them

    def syntax(self) -> str:
        """Return the arguments for the help text."""
        return "COMMAND [arguments]   (scrapy bloom COMMAND --help says more)"

    def short_desc(self) -> str:
        """Return the line in the list of commands."""
        return "Look at jobs of scrapy-bloom"

    def run(self, args: list[str], opts: Namespace) -> None:  # noqa: ARG002 - Scrapy's arguments
        """Do what *args* say; Scrapy hands on the options that it does not know."""
        from scrapy_bloom.commands.command_line import main

        self.exitcode = main(args, program="scrapy bloom")
