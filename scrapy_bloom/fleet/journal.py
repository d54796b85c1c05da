"""Which bytes of a worker's file of items are of pages whose acknowledgement counted.

A worker writes the items of a page to a file of its own, then a line to the journal beside it, and then acknowledges
the page. If it is killed in between, or its lease has run out, another worker fetches the page again, and its items are
in two files. The server knows whose acknowledgement counted, and :func:`counted_ranges` asks it.

A line is a JSON list: shard, token of the worker's life, number of the call, and for each page its id and the size of
the file after its items. A life begins with a list of one number, the size that the file had then: what follows the
last page of an earlier life was of pages that it did not acknowledge.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from scrapy_bloom.fleet.queue import Done

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scrapy_bloom.fleet.queue import Message, Queue


class Journal:
    """The journal of a worker's life, at *path*; its file of items is at *items*. Goes on with what is there."""

    def __init__(self, path: Path, items: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._items = items
        self._write([self.mark()])

    def mark(self) -> int:
        """Return the size of the file of items."""
        return self._items.stat().st_size if self._items.exists() else 0

    def note(self, shard: int, token: str, number: int, messages: Sequence[Message]) -> None:
        """Note which pages the call *number* is about to acknowledge."""
        if pages := [[each.id.decode(), each.mark] for each in messages if isinstance(each, Done)]:
            self._write([shard, token, number, pages])

    def _write(self, line: list[Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def counted_ranges(
    path: Path, queue: Queue, positions: list[int], *, is_over: bool
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return begin and end of the bytes of a worker's items that count, as far as it is known, and new positions.

    *path* is its journal, and *positions*, in journal and items, are those of an earlier answer. If the worker lives,
    what it has noted and not yet acknowledged is left for the next time; when it *is_over*, that never counted.
    """
    journal_position, items_position = positions
    ranges: list[tuple[int, int]] = []
    if not path.exists():
        return ranges, positions
    with path.open("rb") as file:
        file.seek(journal_position)
        lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
    notes = [json.loads(line) for line in lines]
    newest_life = max((i for i, note in enumerate(notes) if len(note) == 1), default=0)
    calls: dict[int, dict[bytes, bytes]] = {}
    refused: dict[int, set[bytes]] = {}
    client: Any = queue.server.client
    for shard in {note[0] for note in notes if len(note) > 1}:
        # In this order: a call that counts as carried out has noted what it refused.
        calls[shard] = client.hgetall(f"{queue.key(shard)}:calls")
        refused[shard] = client.smembers(f"{queue.key(shard)}:refused")
    for i, (line, note) in enumerate(zip(lines, notes, strict=True)):
        if len(note) == 1:
            items_position = max(items_position, note[0])
            journal_position += len(line)
            continue
        shard, token, number, pages = note
        is_carried_out = number <= int(calls[shard].get(token.encode(), 0))
        if not is_carried_out and not is_over and i > newest_life:
            break
        for id_, mark in pages:
            if mark > items_position:
                if is_carried_out and f"{token} {id_}".encode() not in refused[shard]:
                    ranges.append((items_position, mark))
                items_position = mark
        journal_position += len(line)
    return ranges, [journal_position, items_position]
