"""``python -m scrapy_bloom`` and ``scrapy bloom``: exit codes, help, what reaches a terminal; and ``plan``."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import scrapy_bloom
from scrapy_bloom.commands.command_line import COMMANDS, main
from scrapy_bloom.commands.plan import plan
from scrapy_bloom.commands.terminal import OK, PIPE_CLOSED, USAGE, table, tracked, write
from tests.commands.conftest import Scrapy

ROOT = Path(__file__).parents[2]


def test_every_command_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its row in docs/commands.md, and its help ends with an example."""
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)", page, re.MULTILINE)) == COMMANDS.keys()
    for name in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == OK
        assert f"Example: python -m scrapy_bloom {name} " in capsys.readouterr().out


def test_the_documentation_shows_the_real_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/commands.md has what `plan` prints."""
    assert main(["plan", "--urls", "1e8"]) == OK
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert f"```text\n{capsys.readouterr().out}```" in page


@pytest.mark.parametrize("urls", [10**6, 10**7, 10**9])
def test_the_right_capacity_takes_least_and_loses_least(urls: int) -> None:
    """It takes no more memory than the default, a fleet's server somewhat more, and all others many times as much."""
    default, right, fleet, *others = plan(urls, 1e-6)["ways"]
    assert right["bytes_in_memory"] <= default["bytes_in_memory"]
    assert right["bytes_in_memory"] < fleet["bytes_in_memory"] < 2 * right["bytes_in_memory"]
    assert all((way["bytes_in_memory"] or way["bytes_on_disk"]) > 5 * right["bytes_in_memory"] for way in others)
    assert right["pages_lost"] <= default["pages_lost"] < urls * 1e-6


def test_the_settings_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """The last lines are Python for ``settings.py``, with the values of the plan."""
    assert main(["plan", "--urls", "2.5e7", "--error-rate", "1e-4"]) == OK
    pasted: dict[str, object] = {}
    for line in re.findall(r"^[A-Z_]+ = .*$", capsys.readouterr().out, re.MULTILINE):
        exec(line, pasted)
    assert (pasted["BLOOM_CAPACITY"], pasted["BLOOM_ERROR_RATE"]) == (25_000_000, 1e-4)
    assert "ADDONS" in pasted


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The version of the package is the one of the distribution."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == OK
    assert capsys.readouterr().out == f"scrapy-bloom {scrapy_bloom.__version__}\n"
    assert scrapy_bloom.__version__ == version("scrapy-bloom")


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["crawl", "books", "--workers", "0"], "from 1 to 256"),
        (["crawl", "books", "--workers", "two"], "from 1 to 256"),
        (["crawl", "books", "-o", "items.csv"], ".jl or .jsonl or .jsonlines"),
        (["crawl", "books", "-O", "items.json"], ".jl or .jsonl or .jsonlines"),
        (["crawl", "books", "-o", "items.jl:csv"], ".jl or .jsonl or .jsonlines"),
        (["crawl", "books", "-o", "s3://bucket/items.jl"], "local file"),
        (["crawl", "books", "-o", "a.jl", "-O", "b.jl"], "not allowed with argument -o"),
        (["crawl"], "SPIDER"),
        (["crawl", "books", "-s", "JOBDIR"], "NAME=VALUE"),
        (["export", "books", "-s", "JOBDIR"], "NAME=VALUE"),
        (["plan", "--urls", "none"], "argument --urls: none is no"),
        (["plan", "--urls", "0"], "argument --urls: 0 is no"),
        (["plan", "--urls", "1e6", "--error-rate", "1"], "argument --error-rate: 1 is no"),
        (["check", "jobs/books"], "--file"),
        (["nothing"], "info, plan"),
    ],
)
def test_what_cannot_be_typed_is_one_line_that_says_what_can(
    capsys: pytest.CaptureFixture[str], arguments: list[str], allowed: str
) -> None:
    """Neither a traceback nor the usage of all options comes before it."""
    try:
        code: object = main(arguments)
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr()
    assert (code, told.out, told.err.count("\n")) == (USAGE, "", 1)
    assert allowed in told.err.replace("'", "")


FRESH = """
import contextlib, importlib.util, io, json, runpy, sys
import scrapy.cmdline, scrapy.commands
before = set(sys.modules)
import scrapy_bloom.commands.scrapy_command
print(*sorted(set(sys.modules) - before))
find_spec = importlib.util.find_spec
sys.modules |= {"redis": None, "msgpack": None}  # as if not installed
importlib.util.find_spec = lambda name, *rest: None if name in ("redis", "msgpack") else find_spec(name, *rest)
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    sys.argv[1:] = json.loads(line)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module("scrapy_bloom", run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""
INSTALL = 'pip install "scrapy-bloom[fleet]", or in a checkout pip install ".[fleet]"'
TYPED: list[tuple[str, int, str]] = [
    ("check nowhere http://a.example/", USAGE, "nowhere"),
    ("crawl --help", OK, "--workers"),
    ("crawl books", USAGE, INSTALL),
    ("import redis://localhost books", USAGE, INSTALL),
    ("info redis://localhost bloom:books", USAGE, INSTALL),
    ("report redis://localhost bloom:books -o page.html", USAGE, INSTALL),
]


def test_a_process_imports_little_and_needs_no_extra() -> None:
    """The entry point, which every `scrapy` command imports, brings in nothing but itself. ``python -m scrapy_bloom``
    prints to standard output and returns the exit code of the command. Without the extra, those of a fleet say what to
    install, in one line, for an installation from an index and for one from a checkout; their help needs no extra."""
    lines = "\n".join(json.dumps(typed.split()) for typed, *_ in TYPED)
    command = [sys.executable, "-c", FRESH]
    ran = subprocess.run(command, cwd=ROOT, input=lines, capture_output=True, text=True, check=True)
    imported, *answers = ran.stdout.splitlines()
    names = ["scrapy_bloom", "scrapy_bloom.commands", "scrapy_bloom.commands.scrapy_command"]
    assert imported.split() == names
    for (_, code, told), answer in zip(TYPED, answers, strict=True):
        found, out, err = json.loads(answer)
        assert (found, err.count("\n"), bool(out)) == (code, code != OK, code == OK), err
        assert told in out + err


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, as nothing was done."""
    assert main([]) == USAGE
    told = capsys.readouterr()
    assert not told.out
    assert all(re.search(rf"^ +{name} ", told.err, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("name", ["info", "verify", "check", "report", "requeue", "forget"])
def test_no_job_is_one_line_that_names_the_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The exit code tells a directory without a job from findings, and nothing is made there."""
    more = {
        "check": ["http://a.example/"],
        "forget": ["http://a.example/"],
        "requeue": ["--failed"],
        "report": ["-o", str(tmp_path / "page.html")],
    }.get(name, [])
    nowhere = tmp_path / "nowhere"
    assert main([name, str(nowhere), *more]) == USAGE
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n"), str(nowhere) in told.err) == ("", 1, True)
    assert not any(tmp_path.iterdir())


def test_scrapy_hands_its_arguments_on(scrapy: Scrapy) -> None:
    """`scrapy bloom` gives the same answers and exit codes, also for options that Scrapy does not know."""
    ran = scrapy("bloom", "plan", "--urls", "1e6", "--json")
    assert (ran.returncode, ran.stderr) == (OK, "")
    assert '"urls": 1000000' in ran.stdout


def test_a_reader_that_has_had_enough_is_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `| head`: nothing is said, and the exit code is that of a program that SIGPIPE ends."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody_reads:
        monkeypatch.setattr(sys, "stdout", nobody_reads)
        assert main(["plan", "--urls", "1e6"]) == PIPE_CLOSED
    monkeypatch.undo()
    assert not capsys.readouterr().err


def test_names_that_a_crawl_has_found_cannot_talk_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters are written out, and square brackets are no markup."""
    write([table(["host", "pending"], [["a\x1b[31m.example", "12"], ["[bold]b", "3"]]), "line\x07"])
    header, _, *rows, line = capsys.readouterr().out.splitlines()
    assert [each.split() for each in (header, *rows)] == [
        ["host", "pending"],
        ["a\\x1b[31m.example", "12"],
        ["[bold]b", "3"],
    ]
    assert line == "line\\x07"


def test_a_bar_is_shown_on_a_terminal_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes to standard error, beside the output, and the items come through unchanged."""
    assert list(tracked(iter([1, 2, 3]), "Counting")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert list(tracked([1, 2, 3], "Counting")) == [1, 2, 3]
    told = capsys.readouterr()
    assert (told.out, "Counting" in told.err) == ("", True)
