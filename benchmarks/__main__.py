"""``python -m benchmarks NAME``: run one benchmark; without a name, list them."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

BENCHMARKS = (
    "request_seen", "memory", "pending", "compare", "fleet", "links", "loops", "estimate", "changes", "manuals",
)  # fmt: skip


def main(arguments: list[str]) -> None:
    """Run the benchmark that the first of *arguments* names, with the others as its options."""
    if not arguments or arguments[0] not in BENCHMARKS:
        print("python -m benchmarks NAME [--help]")
        for name in BENCHMARKS:
            print(f"    {name:13} {(import_module(f'benchmarks.{name}').__doc__ or '').splitlines()[0]}")
        sys.exit(1 if arguments else 0)
    name, *options = arguments
    module = import_module(f"benchmarks.{name}")
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=module.__doc__)
    parser.add_argument("--old", type=Path, metavar="DIR", help="a checkout of another version, run beside this one")
    module.run(parser, options)


if __name__ == "__main__":
    main(sys.argv[1:])
