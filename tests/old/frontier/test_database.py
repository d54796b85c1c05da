"""The counts of the lanes, which are written as changes and summed up now and then, and reading ahead."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom.old.files.frontier_check import contents, problems
from scrapy_bloom.old.frontier import database as module
from scrapy_bloom.old.frontier.database import Batch, Database, read_counts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("sum_up_after", [0, 10, 10_000])
def test_counts_agree_with_the_rows_after_every_commit(
    tmp_path: Path, sum_up_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often they are summed up, each lane counts as many requests as it has, also for a second reader; a
    reopened file has lanes for these and no others, and the changes take no more room than twice the sum."""
    monkeypatch.setattr(module, "_SUM_UP_AFTER", sum_up_after)
    rng = random.Random(sum_up_after)
    path = tmp_path / "requests.frontier"
    pending: list[tuple[int, int]] = []
    last_id, named = 0, set()
    for _ in range(3):
        database = Database.open(path)
        expected = {lane for _, lane in pending}
        assert {lane.id for lane in database.lanes()} == expected
        named &= expected
        for _ in range(12):
            added = {last_id + n: (rng.randrange(1, 30), b"body") for n in range(1, rng.randrange(2, 12))}
            new = {lane for lane, _ in added.values()} - named
            finished = [pending.pop(rng.randrange(len(pending))) for _ in range(rng.randrange(len(pending) + 1))]
            last_id += len(added)
            database.write(Batch({f"lane {lane}": lane for lane in new}, added, finished, 0, last_id))
            named |= new
            pending += [(id_, lane) for id_, (lane, _) in added.items()]
            with closing(sqlite3.connect(path)) as reader:
                rows = dict(reader.execute("SELECT lane, count(*) FROM requests GROUP BY lane"))
                assert {lane: count for lane, count in read_counts(reader).items() if count} == rows
                assert contents(reader).pending == len(pending)
                assert problems(path, reader) == []
                (size,) = reader.execute("SELECT sum(length(body)) FROM counts").fetchone()
                assert size <= 16 * (3 * 29 + sum_up_after) + 4 * 12
        database.abandon()


@pytest.mark.parametrize("seed", range(3))
def test_the_next_rows_are_the_nearest_whatever_is_thought_likely(tmp_path: Path, seed: int) -> None:
    """A likely row counts only if it is there, is of that lane and not taken; else the index has the nearest one. Ten
    bytes are exceeded by one row."""
    rng = random.Random(seed)
    rows = {id_: rng.randrange(1, 12) for id_ in rng.sample(range(1, 120), 60)}
    database = Database.open(tmp_path / "requests.frontier")
    added = {id_: (lane, b"body %d" % id_) for id_, lane in rows.items()}
    database.write(Batch({f"lane {lane}": lane for lane in set(rows.values())}, added, [], 0, 120))
    known = 0
    for _ in range(40):
        lanes = {lane: rng.random() < 0.5 for lane in rng.sample(range(1, 14), 6)}
        taken = set(rng.sample(sorted(rows), 20))
        nearest = {}
        for lane, newest in lanes.items():
            if ids := [id_ for id_, its in rows.items() if its == lane and id_ not in taken]:
                nearest[lane] = max(ids) if newest else min(ids)
        foreign = rng.sample([id_ for id_ in range(-1, 121) if rows.get(id_) not in lanes or id_ in taken], 4)
        right = [id_ for id_ in nearest.values() if rng.random() < 0.5]
        likely = {**{id_: rng.choice(list(lanes)) for id_ in foreign}, **{id_: rows[id_] for id_ in right}}
        found = database.next_of_each(lanes, likely, taken, 10_000)
        assert {lane: (row.id, row.body) for lane, row in found.items()} == {
            lane: (id_, b"body %d" % id_) for lane, id_ in nearest.items()
        }
        assert 1 <= len(database.next_of_each(lanes, likely, taken, 10)) <= 2
        known += len(right)
    assert known > 40
    database.abandon()
