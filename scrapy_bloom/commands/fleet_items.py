"""The file of a fleet's items: ``scrapy bloom crawl`` moves them there from the server, each once."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.errors import UnusableError
from scrapy_bloom.fleet.server import FAILURES

if TYPE_CHECKING:
    from scrapy_bloom.fleet.queue import Queue

# Removes the first entries of a list, as far as they have the stamps in ARGV[2..], and returns the first ARGV[1] of the
# rest. The stamp of an entry is its first line. After the server went back in time, entries that nobody has read may
# stand where others were, so a count would not do.
_COLLECT = """
local read = 0
for i, entry in ipairs(#ARGV > 1 and redis.call('LRANGE', KEYS[1], 0, #ARGV - 2) or {}) do
    if string.match(entry, '^[^\\n]*') ~= ARGV[i + 1] then break end
    read = i
end
if read > 0 then redis.call('LTRIM', KEYS[1], read, -1) end
return redis.call('LRANGE', KEYS[1], 0, ARGV[1] - 1)
"""
_MOST_ENTRIES = 2_000  # of one reading of a shard
_MOST_KNOWN = 100_000  # stamps that are kept to recognize entries after the server went back


def open_items_file(output: str) -> Path:
    """Return the absolute path of *output*, once it can be written. Raises UnusableError."""
    path = Path(output).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        raise UnusableError(path, f"cannot be written: {error}", advice="Nothing was started.") from error
    return path


class FleetItems:
    """The file of items at *path*. The server keeps the items of acknowledged pages until they are in the file.

    ``collected.json`` in *directory* has the stamps of the entries that were read last, the length of the file after
    these, and whether the crawl has closed the file. If it has not, the next start cuts off what was written after that
    length, and writes it again. With *overwrite*, a new crawl empties the file first.
    """

    def __init__(self, directory: Path, queue: Queue, path: Path, *, overwrite: bool) -> None:
        self._state_file, self._queue, self._path = directory / "collected.json", queue, path
        self.count = 0
        """Items in the file, those of earlier runs of the job included."""
        noted = json.loads(self._state_file.read_text()) if self._state_file.exists() else {}
        self._read: dict[str, list[str]] = noted.get("read", {})  # stamps by shard
        self._known = dict.fromkeys(stamp for stamps in self._read.values() for stamp in stamps)
        goes_on = noted.get("output") == str(path)
        if overwrite and (not goes_on or noted.get("is_finished")):
            os.truncate(path, 0)
        elif goes_on:
            self.count = noted.get("items", 0)
            if not noted.get("is_closed"):  # otherwise others may have written to the file since
                os.truncate(path, min(noted["length"], path.stat().st_size))
        self._write([], self._read)

    def collect(self) -> bool:
        """Move what the server has into the file, in part if it is much; return whether there was anything.

        Raises RedisError if the server is away. OSError, too, may mean that. Raises UnusableError if the file cannot be
        written.
        """
        queue, client = self._queue, self._queue.server.client
        read, fresh = {}, list[bytes]()
        for shard in range(int(client.hget(queue.key(0), "shards") or 1)):
            stamps = self._read.get(str(shard), [])
            entries = client.eval(_COLLECT, 1, f"{queue.key(shard)}:items:{queue.items}", _MOST_ENTRIES, *stamps)
            parts = [entry.partition(b"\n") for entry in entries]
            read[str(shard)] = [stamp.decode() for stamp, _, _ in parts]
            fresh += [items for stamp, _, items in parts if stamp.decode() not in self._known]
        if read != self._read:
            self._write(fresh, read)
        return any(read.values())

    def collect_all(self, *, is_last: bool = False, is_finished: bool = False) -> str:
        """Move everything into the file; return "", or the reason why that failed.

        *is_last*: note that what others write to the file from now on stays, and whether the crawl *is_finished*.
        """
        try:
            while self.collect():
                pass
            if is_last:
                self._write([], self._read, is_closed=True, is_finished=is_finished)
        except FAILURES as error:
            return f"{self._queue.server.where}: {error}"
        except UnusableError as error:
            return str(error)
        return ""

    def _write(self, items: list[bytes], read: dict[str, list[str]], **ends: bool) -> None:
        """Append *items* to the file, and note that; or leave the file as it was, and raise UnusableError."""
        count = self.count + sum(entry.count(b"\n") for entry in items)
        length = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("ab") as output:
                output.writelines(items)
                output.flush()
                os.fsync(output.fileno())
                where = {"output": str(self._path), "length": output.tell()}
            temporary = self._state_file.with_suffix(".new")
            temporary.write_text(json.dumps({"items": count, "read": read, **ends, **where}))
            temporary.replace(self._state_file)
        except OSError as error:
            with suppress(OSError):
                os.truncate(self._path, length)
            raise UnusableError(self._path, f"cannot be written: {error}", advice="Free some space.") from error
        self.count, self._read = count, read
        self._known |= dict.fromkeys(stamp for stamps in read.values() for stamp in stamps)
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
