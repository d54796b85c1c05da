"""``python -m scrapy_bloom`` and ``scrapy bloom``: what they say, what they return, and that they change nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scrapy import Request

from scrapy_bloom import fingerprint, open_filter
from scrapy_bloom.old.commands.command_line import COMMANDS, main
from scrapy_bloom.old.commands.terminal import OK, PIPE_CLOSED, USAGE, WRONG, Table, print_lines, tracked
from scrapy_bloom.old.crawl.fingerprints import key_space
from scrapy_bloom.old.url.rules import resolve
from tests.old.support.damage import flip_bits, layer, overwrite
from tests.old.support.schedulers import opened

ROOT = Path(__file__).parents[2]
URLS = [f"https://example.com/?b={number}&a=1" for number in range(60)]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job of 60 URLs in three layers."""
    space = key_space("scrapy", resolve(["tracking"]))
    with open_filter(tmp_path / "job" / "requests.bloom", 10, key_space=space) as chain:
        for url in URLS:
            chain.add(fingerprint(Request(url)))
    return tmp_path / "job"


def test_info_says_what_a_job_holds(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON under stable names, and as lines with the same figures; nothing is changed."""
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in job.rglob("*") if path.is_file()}
    assert main(["info", str(job), "--json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert (found["urls"], found["pending"], found["clean"], found["findings"]) == (60, 0, True, [])
    assert [each["urls"] for each in found["layers"]] == [10, 20, 30]
    assert found["key_space"]["rules"] == "tracking"
    assert main(["info", str(job / "requests.bloom")]) == OK
    lines = capsys.readouterr().out
    assert re.search(r"^URLs +60$", lines, re.MULTILINE)
    assert re.search(r"^layer-002\.bloom +30 of 40 URLs$", lines, re.MULTILINE)
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before


def test_info_counts_pending_requests_of_a_closed_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While the crawl runs it is the number of the last commit, by host; nothing is left beside the files."""
    settings = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}
    with opened(tmp_path, **settings) as calls:
        calls.push(*(Request(url) for url in URLS))
        calls.commit()
        assert main(["info", str(tmp_path), "--json"]) == OK
        running = json.loads(capsys.readouterr().out)
        assert (running["pending"], running["pending_by_host"]) == (60, {"example.com": 60})
        assert running["in_use"] in (True, None)
    names = {path.name for path in tmp_path.iterdir()}
    assert main(["info", str(tmp_path), "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["pending"] == 60
    assert {path.name for path in tmp_path.iterdir()} == names


def test_requests_in_scrapys_own_queue_are_not_counted(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that went back to Scrapy's scheduler may have any number pending; after a clean stop an empty one
    is told."""
    state = job / "requests.queue" / "active.json"
    state.parent.mkdir()
    for text, pending in (("[0]", None), ("[]", 0)):
        state.write_text(text, encoding="utf-8")
        assert main(["info", str(job), "--json"]) == OK
        assert json.loads(capsys.readouterr().out)["pending"] == pending
    state.unlink()
    assert main(["info", str(job)]) == OK
    assert "not known: the requests are in Scrapy's own queue" in capsys.readouterr().out


def test_info_finds_a_filter_that_is_not_of_its_frontier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `verify` does: a crawl would refuse such a job."""
    settings = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}
    for name in ("one", "other"):
        with opened(tmp_path / name, **settings) as calls:
            calls.push(*(Request(url) for url in URLS))
    shutil.rmtree(tmp_path / "one" / "requests.bloom")
    shutil.copytree(tmp_path / "other" / "requests.bloom", tmp_path / "one" / "requests.bloom")
    assert main(["info", str(tmp_path / "one")]) == WRONG
    assert "was used with another filter than" in capsys.readouterr().out


def test_verify_finds_what_info_does_not_read(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bits that no key can have set are found by reading all of them; the exit code says so."""
    overwrite(layer(job / "requests.bloom"), 9000, b"\xff" * 200)
    assert main(["info", str(job)]) == OK
    assert main(["verify", str(job)]) == WRONG
    assert "! " in capsys.readouterr().out
    assert main(["verify", str(job), "--json"]) == WRONG
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert "layer-000.bloom is damaged" in finding


def test_check_says_what_was_seen(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A URL counts as seen in every spelling that the job's own rules merge, and the layer is named."""
    assert main(["check", str(job), "https://example.com/?a=1&b=59&utm_source=x#top", "--json"]) == OK
    (found,) = json.loads(capsys.readouterr().out)
    assert found["canonical"] == "https://example.com/?a=1&b=59"
    assert (found["seen"], found["layer"]) == (True, 2)
    assert found["fingerprint"] == fingerprint(Request(URLS[59])).hex()
    assert main(["check", str(job), URLS[0], "https://example.com/new"]) == WRONG
    assert capsys.readouterr().out == ("seen  https://example.com/?a=1&b=0  (layer 0)\nnew   https://example.com/new\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "nothing-here"], "nothing-here holds no job of scrapy-bloom's. Give the JOBDIR"),
        (["check", "JOB", "example.com"], "is no URL: "),
    ],
)
def test_what_makes_no_sense_is_one_line(
    job: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Errors are one line without a traceback, and the exit code tells them from findings."""
    assert main([str(job) if each == "JOB" else each for each in arguments]) == USAGE
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_damage_is_a_finding_of_info(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that no crawl would open can still be looked at."""
    flip_bits(layer(job / "requests.bloom", 1), 33)
    assert main(["info", str(job)]) == WRONG
    assert "layer-001.bloom is damaged at byte" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", ["--urls 1e8", "--urls 1e9 --workers 20"])
def test_the_plans_in_the_documentation_are_what_one_sees(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/commands.md shows the real output."""
    assert main(["plan", *arguments.split()]) == OK
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert f"scrapy_bloom plan {arguments}\n```\n\n```text\n{capsys.readouterr().out}```" in page


def test_every_command_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has its row in docs/commands.md, and its help ends with an example."""
    documented = set(
        re.findall(r"^\| `(\w+)", (ROOT / "docs" / "commands.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert documented == COMMANDS.keys()
    for name in documented:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert f"Example: python -m scrapy_bloom {name} " in capsys.readouterr().out


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, as nothing was done."""
    assert main([]) == USAGE
    told = capsys.readouterr()
    assert not told.out
    assert all(re.search(rf"^ +{name} ", told.err, re.MULTILINE) for name in COMMANDS)


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


def test_an_error_of_the_system_is_a_sentence(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the file, and says what to look at."""
    page = job / "nowhere" / "page.html"
    error = FileNotFoundError(2, "No such file or directory", str(page))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scrapy_bloom.old.commands.info.info", lambda _: _raise(error))  # a disk that fails is hard to have
        assert main(["info", str(job)]) == USAGE
    told = f"{page} cannot be used: No such file or directory. Check its name, the disk and the permissions.\n"
    assert capsys.readouterr().err == told


def _raise(error: Exception) -> None:
    raise error


def test_the_module_runs_as_a_program(job: Path) -> None:
    """`python -m scrapy_bloom` prints to the terminal and ends with the exit code."""
    command = [sys.executable, "-m", "scrapy_bloom", "info", str(job), "--json"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["urls"] == 60


def test_scrapy_hands_its_arguments_on(job: Path) -> None:
    """`scrapy bloom check` gives the same answers and exit codes, options of its own included."""
    program = """
import sys, scrapy.cmdline
from scrapy_bloom.old.commands.scrapy_command import Command
scrapy.cmdline._get_commands_dict = lambda *_: {"bloom": Command()}  # as if installed
scrapy.cmdline.execute(["scrapy", "bloom", *sys.argv[1:]])
"""
    command = [sys.executable, "-c", program, "check", str(job), "https://example.com/new", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=job, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (WRONG, "")
    assert json.loads(ran.stdout)[0]["seen"] is False


def test_a_table_on_a_terminal_is_drawn_and_elsewhere_plain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same cells either way, and nothing that a terminal would obey comes out of names that a crawl has found."""
    table = Table(["host", "pending"], [["a\x1b[31m.example", "12"], ["[bold]b", "3"]])
    print_lines([table, "line\x07"])
    plain = capsys.readouterr().out.splitlines()
    assert [line.split() for line in plain] == [
        ["host", "pending"],
        ["a\\x1b[31m.example", "12"],
        ["[bold]b", "3"],
        ["line\\x07"],
    ]
    assert len({len(line) for line in plain[:3]}) == 1
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    print_lines([table])
    drawn = capsys.readouterr().out
    assert "─" in drawn
    assert re.findall(r"[\w.\[\]\\]+", drawn)[:6] == ["host", "pending", "a\\x1b[31m.example", "12", "[bold]b", "3"]


@pytest.mark.slow
def test_scrapy_starts_no_slower(tmp_path: Path) -> None:
    """The entry point, which every `scrapy` command imports, brings in nothing but itself."""
    program = """
import sys, scrapy.cmdline, scrapy.commands
before = set(sys.modules)
import scrapy_bloom.old.commands.scrapy_command
print(*sorted(set(sys.modules) - before))
"""
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert set(ran.stdout.split()) == {
        "scrapy_bloom",
        "scrapy_bloom.old.commands",
        "scrapy_bloom.old.commands.scrapy_command",
    }


def test_a_bar_shows_how_far_a_long_command_is(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, beside the output, which stays what it is elsewhere; nothing where there is no terminal."""
    assert main(["verify", str(job), "--json"]) == OK
    quiet = capsys.readouterr()
    assert quiet.err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["verify", str(job), "--json"]) == OK
    told = capsys.readouterr()
    assert json.loads(told.out) == json.loads(quiet.out)
    assert "Reading the filter" in told.err
    assert list(tracked(iter([1, 2, 3]), "Counting")) == [1, 2, 3]
