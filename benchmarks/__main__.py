"""``python -m benchmarks``: run all benchmarks in their quick form, or one of them with options of its own."""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

BENCHMARKS = (
    "add",
    "request_seen",
    "fingerprint",
    "memory",
    "reopen",
    "growth",
    "crawl",
    "loops",
    "news",
    "frontier",
    "pending",
    "hosts",
    "fleet",
    "workers",
    "shards",
    "compare",
)


def main(arguments: list[str] | None = None) -> None:
    """Run what *arguments* (by default the command line's) name."""
    modules = {name: import_module(f"benchmarks.{name}") for name in BENCHMARKS}
    titles = {name: (module.__doc__ or "").splitlines()[0] for name, module in modules.items()}
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Without a name: run all of them in their quick form, which takes about five minutes.",
    )
    commands = parser.add_subparsers(dest="name", metavar="name")
    for name, module in modules.items():
        command = commands.add_parser(name, help=titles[name], description=module.__doc__)
        module.add_options(command)
        command.add_argument("--plot", type=Path, metavar="FILE", help="draw the result into FILE (needs matplotlib)")
    options = parser.parse_args(arguments)
    if options.name:
        picture = modules[options.name].run(options)
        if options.plot:
            picture.save(options.plot)
        return
    for name in modules:
        print(f"{name:13} {titles[name]}")
    for name, module in modules.items():
        start = time.monotonic()
        print(f"\n=== {name}: {titles[name]}\n")
        module.run(parser.parse_args([name]))
        print(f"({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
