"""``scrapy bloom plot``: the picture of a filter."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from scrapy_bloom import open_filter
from scrapy_bloom.old.commands.command_line import main
from scrapy_bloom.old.commands.curves import curves_of_job, curves_of_plan
from scrapy_bloom.old.commands.terminal import OK, USAGE
from scrapy_bloom.old.files.inspect import inspect
from tests.old.support.fingerprints import fingerprints

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of 250 URLs, in layers for 100 and 200."""
    directory = tmp_path_factory.mktemp("job")
    with open_filter(directory / "requests.bloom", 100) as chain:
        for fingerprint in fingerprints(250):
            chain.add(fingerprint)
    return directory


@pytest.mark.slow
def test_the_picture_of_a_job(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Is an SVG whose text is text, says what each line is, and is the same file every time."""
    first, second = tmp_path / "a" / "job.svg", tmp_path / "b" / "job.svg"
    for path in (first, second):
        path.parent.mkdir()
        assert main(["plot", str(job), "-o", str(path), "--json"]) == OK
    assert json.loads(capsys.readouterr().out.partition("}")[2]) == {"output": str(second), "urls": 250}
    assert first.read_bytes() == second.read_bytes()
    root = ElementTree.fromstring(first.read_text(encoding="utf-8"))  # our own file
    texts = "\n".join(text for text in root.itertext() if text.strip())
    for expected in (
        "this filter",
        "fixed filter for",
        "Scrapy's set",
        "promised: 1e-06",
        "now: 250",
        "150 of 200 URLs,",
    ):
        assert expected in texts
    assert "date" not in first.read_text(encoding="utf-8").lower()


def test_a_chain_stays_below_its_rate_where_a_fixed_filter_saturates() -> None:
    """What the picture is there to show, in numbers: at four times the planned URLs, too."""
    curves = curves_of_plan(10**7, 1e-4, 10**6)
    assert max(curves.chain_rate) <= 1e-4
    assert curves.fixed_rate[-1] > 0.99
    assert curves.urls[-1] == 4e7
    assert sorted(curves.chain_rate) == curves.chain_rate
    at_capacity = list(curves.urls).index(10**6)
    assert curves.fixed_rate[at_capacity] == pytest.approx(1e-4, rel=0.05)
    assert [layer.urls for layer in curves.layers] == [10**6, 2 * 10**6, 4 * 10**6, 3 * 10**6]


def test_the_layers_of_a_job_are_those_on_disk(job: Path) -> None:
    """Counts and capacities, and the bytes that the files have."""
    found = inspect(job / "requests.bloom")
    curves = curves_of_job(found)
    assert [(layer.urls, layer.capacity) for layer in curves.layers] == [(100, 100), (150, 200)]
    now = max(at for at, count in enumerate(curves.urls) if count <= 250)
    assert curves.chain_bytes[now] == found.nbytes


@pytest.mark.slow
def test_the_layers_of_merged_filters_are_all_drawn(job: Path, tmp_path: Path) -> None:
    """Each in a row of its own, though two are called the same."""
    with open_filter(tmp_path / "other" / "requests.bloom", 100) as chain:
        for fingerprint in fingerprints(70):
            chain.add(fingerprint)
    assert main(["merge", str(tmp_path / "merged"), str(job), str(tmp_path / "other")]) == OK
    path = tmp_path / "merged.svg"
    assert main(["plot", str(tmp_path / "merged"), "-o", str(path)]) == OK
    texts = "\n".join(ElementTree.fromstring(path.read_text(encoding="utf-8")).itertext())  # our own file
    for expected in ("100 of 100 URLs,", "150 of 200 URLs,", "70 of 100 URLs,"):
        assert expected in texts


@pytest.mark.slow
def test_a_filter_that_forgets_can_be_drawn_at_any_age(tmp_path: Path) -> None:
    """Layers that were dropped long ago count for nothing, and layers of the same size make no endless picture."""
    now = [1_700_000_000.0]
    with open_filter(tmp_path / "filter", 80, max_age=800, clock=lambda: now[0]) as chain:
        for batch in range(60):
            for fingerprint in fingerprints(10, start=10 * batch):
                chain.add(fingerprint)
            now[0] += 100
    curves = curves_of_job(inspect(tmp_path / "filter"))
    assert 5 <= len(curves.layers) <= 10
    assert curves.layers[-1].index > 40
    assert max(curves.chain_rate) < 1
    assert curves.urls[-1] >= 4 * curves.now


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nothing-here -o a.svg", "holds no filter"),
        pytest.param("--urls 9 -o a.doc", "Give a file that ends with .svg, .png or .pdf.", marks=pytest.mark.slow),
        pytest.param("--urls 9 -o no/such/directory/a.svg", "No such file or directory", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what is wrong, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert main(["plot", *arguments.split()]) == USAGE
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", "--urls", "1e3", "-o", str(tmp_path / "a.svg")]) == USAGE
    told = capsys.readouterr().err
    assert 'pip install "scrapy-bloom[plot]"' in told
    assert told.count("\n") == 1
