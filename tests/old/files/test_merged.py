"""Filters that others were merged into: what they know, what they promise, and what damage does to them."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_bloom import open_filter
from scrapy_bloom.old.errors import DamagedError, KeySpaceError, UnusableError
from scrapy_bloom.old.files import layerfile
from scrapy_bloom.old.files.inspect import inspect
from scrapy_bloom.old.files.lookup import layers_of
from scrapy_bloom.old.files.merge import UNFINISHED_NAME, Design, merge
from tests.old.files.test_layerfile import FINGERPRINTS, GOLDEN, ORIGIN, SPEC
from tests.old.support.damage import cut, filled, flip_bits, layer, overwrite, restamp
from tests.old.support.fingerprints import fingerprint, fingerprints

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN_MERGED = GOLDEN.with_name("merged")
DESIGN = Design(capacity=50, error_rate=1e-9, growth=2.0, key_space={})


def merged(job: Path, *sources: Path, design: Design = DESIGN) -> Path:
    merge(job, sources, design)
    return job / "requests.bloom"


def source(path: Path, numbers: set[int], forgotten: set[int] = frozenset(), **design: float) -> Path:  # type: ignore[assignment]
    with open_filter(path, **{"capacity": 20, "error_rate": 1e-9, **design}) as chain:  # type: ignore[arg-type]
        for number in sorted(numbers):
            chain.add(fingerprint(number))
        for number in forgotten:
            chain.forget(fingerprint(number))
    return path


NUMBERS = st.sets(st.integers(0, 60))


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.sampled_from([1e-9, 1e-10])), min_size=1, max_size=3), NUMBERS, NUMBERS)
def test_a_merged_filter_has_seen_what_any_of_them_has_seen(
    tmp_path_factory: pytest.TempPathFactory,
    crawls: list[tuple[set[int], set[int], float]],
    later: set[int],
    failed: set[int],
) -> None:
    """And nothing else: what one had taken back is seen only if another one has it. What is added, taken back and added
    again afterwards behaves as in any filter, also after it was closed, opened and merged once more."""
    path = tmp_path_factory.mktemp("merge")
    crawls[0][0].add(0)
    expected = set()
    for place, (seen, forgotten, rate) in enumerate(crawls):
        source(path / str(place), seen, forgotten, error_rate=rate)
        expected |= seen - forgotten
    expected_before = set(expected)
    out = merged(path / "job", *(path / str(place) for place in range(len(crawls))))
    with open_filter(out) as chain:
        assert {number for number in range(120) if fingerprint(number) in chain} == expected
        for number in later:
            assert chain.add(fingerprint(number)) == (number not in expected)
            expected.add(number)
        for number in failed:
            assert chain.forget(fingerprint(number)) == (number in expected)
        chain._check()
    expected -= failed
    assert [place is not None for place in layers_of(out, fingerprints(120))] == [n in expected for n in range(120)]
    with open_filter(out) as chain:
        assert {number for number in range(120) if fingerprint(number) in chain} == expected
        assert all(chain.add(fingerprint(number)) for number in failed)
        chain._check()
        assert len(chain) == inspect(out).urls
    once_more = merged(path / "again", out, path / "0")
    with open_filter(once_more) as chain:
        found = {number for number in range(120) if fingerprint(number) in chain}
        assert found == expected | failed | (crawls[0][0] - crawls[0][1])
    assert expected_before <= found


@pytest.mark.slow
def test_the_rate_that_is_stated_is_the_rate_that_is_met(tmp_path: Path) -> None:
    """Full filters at 3 % and 5 % merged: as many of 20,000 new fingerprints are taken for seen as the estimate says,
    give or take five standard errors (and a tenth for the model), and no more than promised."""
    paths = [tmp_path / "0", tmp_path / "1"]
    for place, rate in enumerate((0.03, 0.05)):
        with open_filter(paths[place], 40_000, rate) as chain:
            for each in fingerprints(40_000, 100_000 * place):
                chain.add(each)
    out = merged(tmp_path / "job", *paths, design=Design(1000, 1e-6, 2.0, {}))
    with open_filter(out, 1000, 1e-6) as chain:
        rate = chain.estimated_error_rate()
        hits = sum(each in chain for each in fingerprints(20_000, 500_000))
        assert abs(hits - 20_000 * rate) < 5 * math.sqrt(20_000 * rate) + 0.1 * 20_000 * rate
        assert chain.error_rate == pytest.approx(0.2 * (0.03 + 0.05) + 1e-6), "a fifth of each for its first layer"
        assert rate < 1.05 * chain.error_rate
        before = chain.expected_false_positives()
        added = sum(chain.add(each) for each in fingerprints(100, 900_000))
        assert chain.expected_false_positives() - before == pytest.approx(added * rate, rel=0.2)
        assert inspect(out).error_rate == pytest.approx(chain.error_rate)
    assert inspect(out).expected_lost == pytest.approx(before + added * rate, rel=0.05)


def test_a_merged_filter_grows(tmp_path: Path) -> None:
    """New layers are its own, know of the others, and leave the files of those as they were."""
    out = merged(tmp_path / "job", filled(tmp_path / "0", 30), design=Design(10, 1e-9, 2.0, {}))
    before = (out / "merged-000" / "layer-000.bloom").read_bytes()
    with open_filter(out, 10) as chain:
        assert sum(map(chain.add, fingerprints(60))) == 30
        assert [each.count for each in chain.layers] == [30, 10, 20]
        chain._check()
    assert (out / "merged-000" / "layer-000.bloom").read_bytes() == before
    assert [layerfile.read_header(layer(out, index)).origin.merged for index in (0, 1)] == [1, 1]
    with open_filter(out, 10) as chain:
        assert not any(map(chain.add, fingerprints(60)))


def test_key_spaces_of_all_parts_are_compared(tmp_path: Path) -> None:
    """A crawl with other rules than one of them is refused, as with any filter."""
    with open_filter(tmp_path / "0", 10, key_space={"rules": "tracking"}) as chain:
        chain.add(b"x")
    out = merged(tmp_path / "job", tmp_path / "0", design=replace(DESIGN, key_space={"rules": "tracking"}))
    with pytest.raises(KeySpaceError):
        open_filter(out, key_space={"rules": "www"})
    open_filter(out, key_space={"rules": "tracking"}).close()
    out = merged(tmp_path / "odd", tmp_path / "0", design=replace(DESIGN, key_space={"rules": "www"}))
    with pytest.raises(KeySpaceError):
        open_filter(out, key_space={"rules": "www"})


@pytest.mark.parametrize(
    "damage",
    [
        lambda out: shutil.rmtree(out / "merged-001"),
        lambda out: shutil.rmtree(out / "merged-000"),
        lambda out: layer(out / "merged-000").unlink(),
        lambda out: layer(out / "merged-000", 1).unlink(),
        lambda out: flip_bits(layer(out / "merged-001"), 40),
        pytest.param(lambda out: overwrite(layer(out / "merged-000"), 9000, b"\xff" * 200), marks=pytest.mark.slow),
        pytest.param(lambda out: cut(layer(out / "merged-000"), 5000), marks=pytest.mark.slow),
        pytest.param(lambda out: layer(out).unlink(), marks=pytest.mark.slow),
        pytest.param(
            lambda out: shutil.copy(layer(out / "merged-001"), layer(out / "merged-000")), marks=pytest.mark.slow
        ),
    ],
)
def test_damage_in_any_part_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """A part that is gone, cut, flipped or exchanged is an error on opening that names the file, and a finding of those
    who only look; the lock is free again."""
    out = merged(tmp_path / "job", filled(tmp_path / "0", 30, capacity=10), filled(tmp_path / "1", 8, capacity=10))
    open_filter(out).close()
    damage(out)
    for _ in range(2):
        with pytest.raises(DamagedError) as caught:
            open_filter(out)
    assert str(out) in caught.value.where
    assert any("is damaged" in finding for finding in inspect(out, read_bits=True).findings)


def test_an_unreadable_count_of_a_part_is_made_anew(tmp_path: Path) -> None:
    """The bits count, as in any filter; only a crawl of its own would write the number down again."""
    out = merged(tmp_path / "job", filled(tmp_path / "0", 30, capacity=100))
    flip_bits(layer(out / "merged-000"), 4072)
    with open_filter(out) as chain:
        assert not any(map(chain.add, fingerprints(30)))
        assert 27 <= len(chain) <= 33
    assert any("is unreadable" in finding for finding in inspect(out).findings)


def test_what_stands_in_the_way_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    """A filter that is there, and filters without URLs; what a killed attempt has left is no filter and is replaced."""
    filled(tmp_path / "0", 5)
    filled(tmp_path / "empty", 0)
    with pytest.raises(UnusableError, match="hold no URLs"):
        merge(tmp_path / "job", [tmp_path / "empty"], DESIGN)
    assert not (tmp_path / "job").exists()
    (tmp_path / "job" / UNFINISHED_NAME / "merged-000").mkdir(parents=True)
    out = merged(tmp_path / "job", tmp_path / "0", tmp_path / "empty")
    assert not (tmp_path / "job" / UNFINISHED_NAME).exists()
    assert len(inspect(out).layers) == 2
    with pytest.raises(UnusableError, match="exists already"):
        merged(tmp_path / "job", tmp_path / "0")


def write_golden(directory: Path) -> None:
    (directory / "merged-000").mkdir(parents=True)
    shutil.copy(GOLDEN, layer(directory / "merged-000"))
    file = layerfile.create(layer(directory), replace(SPEC, seed=0x80000001), replace(ORIGIN, merged=1))
    file.write_state(clean=True)
    file.close()


def test_the_bytes_written_are_those_of_format_version_2(tmp_path: Path) -> None:
    """A filter that another was merged into is the golden one, byte for byte."""
    write_golden(tmp_path / "new")
    for path in (Path("layer-000.bloom"), Path("merged-000", "layer-000.bloom")):
        assert (tmp_path / "new" / path).read_bytes() == (GOLDEN_MERGED / path).read_bytes()


def test_the_golden_filter_is_read_back(tmp_path: Path) -> None:
    """Opened, it knows what the other one knew, and a reader of version 1 would have refused it."""
    with open_filter(shutil.copytree(GOLDEN_MERGED, tmp_path / "copy")) as chain:
        assert all(each in chain for each in FINGERPRINTS)
        assert (len(chain), len(chain.layers)) == (len(FINGERPRINTS), 2)
    assert layer(GOLDEN_MERGED).read_bytes()[8:12] == b"\2\0\0\0"


def test_parts_that_disagree_about_their_number_are_damage(tmp_path: Path) -> None:
    """All layers of a filter say how many others were merged into it."""
    out = merged(tmp_path / "job", filled(tmp_path / "0", 5), design=Design(10, 1e-9, 2.0, {}))
    with open_filter(out, 10) as chain:
        assert all(map(chain.add, fingerprints(30, 100)))
    restamp(layer(out, 1), layerfile.MERGED_AT, 3)
    with pytest.raises(DamagedError, match=r"notes 3 merged filters, and layer-000\.bloom notes 1"):
        open_filter(out)


def test_what_was_taken_back_after_a_merge_stays_so_when_merged_again(tmp_path: Path) -> None:
    """A filter's own list of what was taken back counts for what had been merged into it, too; nobody else has seen
    that page, so it is new. The counts are right, though the filter had no URL of its own."""
    out = merged(tmp_path / "job", source(tmp_path / "0", set(range(10)), {1}))
    with open_filter(out) as chain:
        assert chain.forget(fingerprint(3))
    again = merged(tmp_path / "again", out, source(tmp_path / "1", {20}))
    with open_filter(again) as chain:
        assert {n for n in range(30) if fingerprint(n) in chain} == {0, 2, *range(4, 10), 20}
        assert len(chain) == inspect(again).urls == 9
        assert chain.add(fingerprint(30))
        assert all(chain.forget(fingerprint(n)) for n in range(4, 10))
    last = merged(tmp_path / "last", again)
    with open_filter(last) as chain:
        assert {n for n in range(40) if fingerprint(n) in chain} == {0, 2, 20, 30}
        assert len(chain) == inspect(last).urls == 4
