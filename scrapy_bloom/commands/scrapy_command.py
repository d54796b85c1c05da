"""``scrapy bloom ...``: hands over to our command line. ``scrapy`` imports this module at every call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.commands import ScrapyCommand

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


class Command(ScrapyCommand):
    """For the entry point ``scrapy.commands``."""

    requires_project = False
    requires_crawler_process = False
    default_settings = {"LOG_ENABLED": False}  # noqa: RUF012 - Scrapy's way of declaring them

    def syntax(self) -> str:
        """Return the arguments for the help text."""
        return "COMMAND ..."

    def short_desc(self) -> str:
        """Return the line in the list of commands."""
        return "Look at jobs of scrapy-bloom, repair them, and crawl with several processes"

    def add_options(self, parser: ArgumentParser) -> None:
        """Leave ``--help`` to the commands; Scrapy would show only its own options."""
        super().add_options(parser)
        parser.add_argument("-h", "--help", dest="wants_help", action="store_true")

    def run(self, args: list[str], opts: Namespace) -> None:
        """Run the command in *args*, which has the options that Scrapy does not know. It put the others in settings."""
        from scrapy_bloom.commands.command_line import main

        typed = [*args, *(["--help"] if opts.wants_help else [])]
        self.exitcode = main(typed, program="scrapy bloom", settings=self.settings)
