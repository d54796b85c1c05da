"""The figures that a crawl keeps: small for ever, and whatever becomes of the file, only figures are missing."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.old.files.figures import FIGURES_NAME, MAX_ROWS, Figures, FiguresFile, read_figures, thinned

if TYPE_CHECKING:
    from pathlib import Path

FIRST = Figures(1_700_000_000, 1, 10, 90, 9, 1, 2, 3, 4, 5, 4_000_000, 1.5e-07)


def later(seconds: int, first: Figures = FIRST) -> Figures:
    return first._replace(time=first.time + seconds, pages=first.pages + seconds)


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    """By one run and by the next, under the names of the columns."""
    path = tmp_path / FIGURES_NAME
    for number in range(2):
        file = FiguresFile(path)
        assert file.last == (later(5) if number else None)
        file.append(later(10 * number))
        file.append(later(10 * number + 5))
    assert read_figures(path) == [later(0), later(5), later(10), later(15)]
    assert path.read_text(encoding="utf-8").startswith("time,run,urls,duplicates,pages,")


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows are appended: old and new ones are thinned alike, and the newest is always there."""
    monkeypatch.setattr("scrapy_bloom.old.files.figures.MAX_ROWS", 40)
    file = FiguresFile(tmp_path / FIGURES_NAME)
    for number in range(1000):
        file.append(later(5 * number))
        if number % 13 == 0:
            assert len(read_figures(tmp_path / FIGURES_NAME)) <= 40
    rows = read_figures(tmp_path / FIGURES_NAME)
    assert rows[0] == later(0)
    assert rows[-1] == later(4995)
    gaps = [after.time - before.time for before, after in pairwise(rows)]
    assert max(gaps) <= 4 * 4995 / 20


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60), st.integers(1, 20))
def test_thinning_keeps_the_newest_row(times: list[int], most: int) -> None:
    """Whatever the clock did, at most so many rows are left, in their order, and the last one is among them."""
    rows = [FIRST._replace(time=time, pages=number) for number, time in enumerate(times)]
    kept = thinned(rows, most)
    assert 0 < len(kept) <= most
    assert kept[-1] == rows[-1]
    assert kept == sorted(kept, key=lambda row: row.pages)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-3], id="cut off"),
        pytest.param(lambda data: data + b"1700000009,2,3", id="half a row"),
        pytest.param(lambda data: data + b"a,b,c\n\0\0\xff\xfe\n,,,,,,,,,,,\n" + b"9" * 40 + b",1\n", id="rubbish"),
        pytest.param(lambda data: data + b'"' * 9 + b"\n", id="quotes"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: bytes(range(256)) * 9, id="foreign"),
        pytest.param(lambda data: data + b"\n" * (5 << 20), id="far too large"),
    ],
)
def test_damage_costs_figures_only(tmp_path: Path, damage: object) -> None:
    """What is readable is read, nothing is raised, and the next row can be appended and read."""
    path = tmp_path / FIGURES_NAME
    file = FiguresFile(path)
    file.append(later(0))
    file.append(later(5))
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert set(read_figures(path)) <= {later(0), later(5)}
    FiguresFile(path).append(later(10))
    assert read_figures(path)[-1] == later(10)
    assert path.stat().st_size < 1000


def test_columns_of_another_version_are_found_by_name(tmp_path: Path) -> None:
    """A file with further columns in another order is read, and becomes ours with the next row."""
    path = tmp_path / FIGURES_NAME
    names, values = Figures._fields[::-1], [str(value) for value in FIRST[::-1]]
    path.write_text(",".join(["new", *names]) + "\n" + ",".join(["x", *values]) + "\n", encoding="utf-8")
    assert read_figures(path) == [FIRST]
    FiguresFile(path).append(later(5))
    assert read_figures(path) == [FIRST, later(5)]


def test_what_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    """While something is in the way, append() raises; afterwards it goes on without a gap in the file's lines."""
    path = tmp_path / "job" / FIGURES_NAME
    file = FiguresFile(path)
    with pytest.raises(OSError, match=FIGURES_NAME.replace(".", r"\.")):
        file.append(later(0))
    path.parent.mkdir()
    file.append(later(5))
    assert read_figures(path) == [later(5)]
    assert MAX_ROWS * len(path.read_bytes().splitlines()[1]) < 1 << 20
