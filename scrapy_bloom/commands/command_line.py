"""Reads the arguments of ``python -m scrapy_bloom`` and prints the answers, for people or as JSON.

Does not know what is in a job directory. Exit codes: 0 all is well, 1 something is wrong with the job (or a URL is new,
for ``check``), 2 the question makes no sense.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import BloomError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OK, WRONG, USAGE = 0, 1, 2


def parser(program: str) -> argparse.ArgumentParser:
    """Return the parser of the command line, in whose help texts the program is called *program*."""
    top = argparse.ArgumentParser(prog=program, description="Look at jobs of scrapy-bloom. Nothing here changes a job.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, run, about, example in (
        ("info", _info, "say what a job holds", "jobs/books"),
        ("verify", _verify, "read all of a job and report everything that is wrong with it", "jobs/books"),
        (
            "check",
            _check,
            "say whether a job has seen URLs; exit code 1 if any is new",
            "jobs/books https://example.com/",
        ),
        ("plan", _plan, "say what a crawl of so many URLs will cost", "--urls 1e8"),
    ):
        command = commands.add_parser(
            name, help=about, description=f"{about.capitalize()}.", epilog=f"Example: {program} {name} {example}"
        )
        command.set_defaults(run=run)
        command.add_argument("--json", action="store_true", help="print JSON")
        if name != "plan":
            command.add_argument("directory", metavar="DIR", help="a JOBDIR")
        if name == "check":
            command.add_argument("urls", metavar="URL", nargs="+")
        if name == "plan":
            command.add_argument("--urls", type=_count, required=True, help="URLs of the whole crawl, such as 1e8")
            command.add_argument("--error-rate", type=_rate, default=1e-6, help="BLOOM_ERROR_RATE (default: 1e-6)")
    return top


def main(arguments: Sequence[str] | None = None, *, program: str = "python -m scrapy_bloom") -> int:
    """Do what *arguments* say, those of the process if None, and return the exit code."""
    options = parser(program).parse_args(arguments)
    try:
        code: int = options.run(options)
    except (BloomError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is where commands print
        return USAGE
    return code


def _info(options: argparse.Namespace) -> int:
    from scrapy_bloom.commands.info import info

    return _show_job(info(options.directory), options)


def _verify(options: argparse.Namespace) -> int:
    from scrapy_bloom.commands.info import info

    return _show_job(info(options.directory, read_bits=True), options)


def _show_job(found: dict[str, Any], options: argparse.Namespace) -> int:
    _print(found, options, _job_lines)
    return WRONG if found["findings"] else OK


def _check(options: argparse.Namespace) -> int:
    from scrapy_bloom.commands.check import check

    found = check(options.directory, options.urls)
    _print(found, options, _check_lines)
    return OK if all(each["seen"] for each in found) else WRONG


def _plan(options: argparse.Namespace) -> int:
    from scrapy_bloom.commands.plan import plan

    _print(plan(options.urls, options.error_rate), options, _plan_lines)
    return OK


def _print(found: Any, options: argparse.Namespace, lines: Callable[[Any], list[str]]) -> None:
    print(json.dumps(found, indent=2) if options.json else "\n".join(lines(found)))  # noqa: T201 - as above


def _job_lines(found: dict[str, Any]) -> list[str]:
    state = "in use" if found["in_use"] else "closed cleanly" if found["clean"] else "not closed"
    pending = "not known while it is in use or after a kill" if found["pending"] is None else f"{found['pending']:,}"
    rows = [
        ("filter", found["directory"]),
        ("state", f"{state}; last opened by {found['last_opened_by'] or 'nobody known'}"),
        (
            "URLs",
            f"{found['urls']:,}{'' if found['clean'] else ' when last noted, more since'}"
            + (f", and {found['forgotten']:,} taken back" if found["forgotten"] else ""),
        ),
        ("pending", pending),
        ("bytes", f"{found['bytes']:,}"),
        ("expected lost", f"{found['expected_lost']:.2g} pages"),
        ("error rate", "not known" if found["error_rate"] is None else f"{found['error_rate']:g} at most"),
        (
            "made by",
            ", ".join(f"{name}: {value or 'none'}" for name, value in found["key_space"].items()) or "not known",
        ),
        *(
            (
                layer["file"],
                f"{'?' if layer['urls'] is None else format(layer['urls'], ',')} of {layer['capacity']:,} URLs",
            )
            for layer in found["layers"]
        ),
    ]
    return [f"{label:<16}{value}" for label, value in rows] + [f"! {finding}" for finding in found["findings"]]


def _check_lines(found: list[dict[str, Any]]) -> list[str]:
    return [
        f"{'seen' if each['seen'] else 'new ':<5} {each['canonical']}"
        + (f"  (layer {each['layer']})" if each["seen"] else "")
        for each in found
    ]


def _plan_lines(found: dict[str, Any]) -> list[str]:
    default, right = found["default_capacity"], found["right_capacity"]
    return [
        f"{'':24}{'layers':>8}{'bytes':>20}{'expected lost':>16}",
        *(
            f"{label:<24}{cost['layers']:>8}{cost['bytes']:>20,}{cost['expected_lost']:>16.2g}"
            for label, cost in (("BLOOM_CAPACITY as it is", default), ("BLOOM_CAPACITY = URLs", right))
        ),
        f"{'Scrapy (memory)':<24}{'':>8}{found['scrapy_bytes']:>20,}{0:>16}",
        "",
        *(f"{name} = {value!r}" for name, value in found["settings"].items()),
    ]


def _count(text: str) -> int:
    number = float(text)
    if not 1 <= number <= 1e12:
        raise ValueError
    return int(number)


def _rate(text: str) -> float:
    rate = float(text)
    if not 1e-10 <= rate <= 0.5:
        raise ValueError
    return rate
