"""Finds the command that was typed and runs it.

The module of a command has ``add_arguments(parser)`` and ``run(options) -> int``, and is imported only when its command
is typed.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

import scrapy_bloom
from scrapy_bloom.commands.terminal import INTERRUPTED, PIPE_CLOSED, USAGE
from scrapy_bloom.errors import BloomError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scrapy.settings import Settings


COMMANDS = {
    "info": ("show what a job holds and how its crawl is doing", "jobs/books"),
    "plan": ("show what a crawl of so many URLs will cost", "--urls 1e8"),
    "check": ("show whether a job has seen URLs; exit code 1 if any is new", "jobs/books https://example.com/"),
    "verify": ("read a whole job and report all problems", "jobs/books"),
    "import": ("mark the pages of another crawl as seen", "jobs/books urls.txt.gz"),
    "seed": ("make URLs or the pages of sitemaps pending, as start requests are", "jobs/books sitemap.xml.gz"),
    "export": ("take a job back to Scrapy's own queue and filter", "jobs/books"),
    "requeue": ("put requests that failed back into the queue", "jobs/books --failed"),
    "forget": ("take URLs back: a later link to them is followed again", "jobs/books https://example.com/"),
    "changes": ("show what is new, changed or gone since the last cycle", "jobs/books --gone"),
    "report": ("write one page about a crawl", "jobs/books -o books.html"),
    "crawl": ("run a spider in several processes that share its pending requests", "books --workers 4 -o items.jl"),
}
"""Commands by name, each with its description and an example of its arguments."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print in one line what is wrong and where to look."""
        self.exit(USAGE, f"{self.prog}: {message}. {self.prog} --help says more.\n")


def main(
    arguments: Sequence[str] | None = None, *, program: str = "python -m scrapy_bloom", settings: Settings | None = None
) -> int:
    """Run the command in *arguments*, or those of the process if None, and return the exit code.

    Commands that need the *settings* of a project look for those of the working directory if they are None.
    """
    typed = sys.argv[1:] if arguments is None else list(arguments)
    parser = _Parser(prog=program, epilog=f"{program} COMMAND --help says more.")
    parser.add_argument("--version", action="version", version=f"scrapy-bloom {scrapy_bloom.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (about, example) in COMMANDS.items():
        command = commands.add_parser(name, help=about, epilog=f"Example: {program} {name} {example}")
        command.add_argument("--json", action="store_true", help="print JSON")
        if typed[:1] == [name]:
            module = import_module(f"scrapy_bloom.commands.{'import_seen' if name == 'import' else name}")
            module.add_arguments(command)
    if not typed:
        parser.print_help(sys.stderr)
        return USAGE
    options = parser.parse_args(typed, argparse.Namespace(settings=settings))
    try:
        code: int = module.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output, such as `head`, has closed the pipe. Python flushes the rest into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except BloomError as error:
        return _failed(str(error))
    except OSError as error:
        problem = f"{error.filename} cannot be used" if error.filename else "A file cannot be used"
        return _failed(f"{problem}: {error.strerror or error}. Check its name, the disk and the permissions.")
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _failed(message: str) -> int:
    print(message, file=sys.stderr)  # noqa: T201 - an error is one line, without a traceback
    return USAGE
