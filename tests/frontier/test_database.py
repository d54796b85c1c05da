"""The counts of the lanes, which are written as changes and summed up now and then."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from scrapy_bloom.files.frontier_check import contents, problems
from scrapy_bloom.frontier import database as module
from scrapy_bloom.frontier.database import Batch, Database, read_counts

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
