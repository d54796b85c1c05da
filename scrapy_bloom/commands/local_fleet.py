"""A fleet on one machine, for ``scrapy bloom crawl``: its server, its workers, and the file of all their items."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_bloom.components.fleet_settings import address_of
from scrapy_bloom.errors import UnusableError, counted
from scrapy_bloom.fleet.own_server import OwnServer, server_executable
from scrapy_bloom.fleet.queue import Queue
from scrapy_bloom.fleet.server import DEFAULT_URL, FAILURES, Server, key_of
from scrapy_bloom.fleet.shared_queue import SharedQueue
from scrapy_bloom.settings import BloomSettings

if TYPE_CHECKING:
    import argparse

logger = logging.getLogger(__name__)

# A worker that dies so many times in a row within so many seconds of its start ends the crawl.
SHORT_SECONDS, MOST_SHORT_LIVES = 15.0, 3

_SOFT_STOPS = 2  # Ctrl-C, so many times: the next one kills the workers
_LOOK_SECONDS, _COLLECT_SECONDS = 0.1, 1.0
END_SECONDS = 30.0
"""How long the end of the crawl waits for a server that still has items."""

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


class _Worker:
    """One worker, in one process after another."""

    def __init__(self, directory: Path, order: dict[str, Any]) -> None:
        self.name, self._stats_file = directory.name, directory / "stats.json"
        self.deaths = self.short_lives = self.pages = 0
        self.reason = ""
        """Why it has ended for good; "" while it has not."""
        self.lost_items = 0
        """Items that it has scraped and that are not in the file."""
        directory.mkdir(exist_ok=True)
        self._has_file = bool(order["items"])
        self._order = json.dumps({**order, "directory": str(directory)}).encode() + b"\n"
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def look(self, *, may_start: bool) -> None:
        """Note how its process has ended, if it has, and start another one if need be."""
        if self._process is not None and self._process.poll() is not None:
            self._note_end(self._process.returncode)
            self.close()
        if self._process is not None or self.reason:
            return
        if not may_start:
            self.reason = "not started again"
        elif time.monotonic() > self._began + self.short_lives:
            self._stats_file.unlink(missing_ok=True)
            command = [sys.executable, "-m", "scrapy_bloom.commands.crawl_worker"]
            # Its own session: Ctrl-C in a terminal reaches it through the pipe, and so once.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)  # noqa: S603 - our module
            self._began = time.monotonic()
            self.send(self._order)

    def _note_end(self, code: int) -> None:
        stats = {}
        with suppress(OSError, ValueError):  # it was killed, or the disk was full
            stats = json.loads(self._stats_file.read_text(encoding="utf-8"))
        self.pages += stats.get("response_received_count", 0)
        self.reason = str(stats.get("finish_reason") or "")
        if self.reason == "finished" and self._has_file:
            self.lost_items += stats.get("item_scraped_count", 0) - stats.get("bloom/fleet/items", 0)
        if not self.reason:
            self.deaths += 1
            self.short_lives = self.short_lives + 1 if time.monotonic() < self._began + SHORT_SECONDS else 0
            logger.warning("%s has died (exit code %d)", self.name, code)

    def send(self, line: bytes) -> None:
        """Write *line* to its process: the order, or any other line for Ctrl-C."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it has died, which look() finds
                self._process.stdin.write(line)

    def close(self) -> None:
        """Kill its process, if it has one, and let go of it."""
        self.kill()
        if self._process is not None:
            self._process.wait()
            self._process.stdin.close()  # type: ignore[union-attr] # it is a pipe
            self._process = None

    def kill(self) -> None:
        """Kill its process, if it has one."""
        if self._process is not None:
            self._process.kill()


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


class LocalFleet:
    """A crawl with its server and its workers, all on this machine."""

    def __init__(self, settings: Any, directory: Path, options: argparse.Namespace, order: dict[str, Any]) -> None:
        bloom = BloomSettings.from_settings(settings)
        self._spider, self._began, self._stops, self._said = options.spider, time.monotonic(), 0, 0
        self._server, self._workers, self._problem = None, [], ""
        self.directory = directory
        output = options.output or options.overwrite
        path = open_items_file(output) if output else None
        url = bloom.redis_url
        if address_of(url, settings) == {"url": DEFAULT_URL}:
            self._server = OwnServer(directory / "server", server_executable())
            self._server.start()
            url = self._server.url
        name = sha1(f"{socket.gethostname()} {directory}".encode(), usedforsecurity=False).hexdigest()[:8]
        where = {"BLOOM_REDIS_URL": url} if url else {}
        order = {**order, "settings": order["settings"] | where, "items": name if path else ""}
        self._queue = Queue(Server(**address_of(url, settings)), key_of(bloom.redis_key, options.spider), items=name)
        self._items = FleetItems(directory, self._queue, path, overwrite=bool(options.overwrite)) if path else None
        self.keeps_items = self._items is not None
        """Whether the server may have items that are not in the file: then the directory must stay."""
        self._workers = [_Worker(directory / f"worker-{i + 1}", order) for i in range(options.workers)]

    def want_stop(self, *_: object) -> None:
        """Ask the workers to stop. The second call stops them at once, and the third call kills them."""
        self._stops += 1

    @property
    def outcome(self) -> str:
        """``"failed"``, ``"finished"`` or ``"stopped"``."""
        if self._problem:
            return "failed"
        return "finished" if any(worker.reason == "finished" for worker in self._workers) else "stopped"

    def run(self) -> None:
        """Look after server and workers until these have ended for good, and all items are in the file."""
        next_collection, reason = 0.0, ""
        while not all(worker.reason for worker in self._workers):
            self._look_after_server()
            self._look_after_workers()
            if self._items is not None and time.monotonic() > next_collection:
                next_collection = time.monotonic() + _COLLECT_SECONDS
                earlier, reason = reason, self._items.collect_all()
                if reason and not earlier:
                    logger.warning("Items wait on the server, at the end for up to %d s. %s", END_SECONDS, reason)
            time.sleep(_LOOK_SECONDS)
        self._problem = self._problem or self._problem_of_workers()
        if self._items is not None:
            self._collect_last(self._items)

    def _collect_last(self, items: FleetItems) -> None:
        """Move what is left into the file; as long as that fails, try again, unless somebody presses Ctrl-C twice."""
        deadline = time.monotonic() + END_SECONDS
        while reason := items.collect_all(is_last=True, is_finished=self.outcome == "finished"):
            if time.monotonic() > deadline or self._stops > 1:
                self._problem = (
                    f"items are not in the file: {reason.removesuffix('.')}. They wait on the server. Run the same "
                    f"command again with -s JOBDIR={self.directory.parent}, and they are added"
                )
                return
            time.sleep(_LOOK_SECONDS)
            self._look_after_server()
        self.keeps_items = False

    def _look_after_workers(self) -> None:
        for worker in self._workers:
            worker.look(may_start=self.outcome != "finished" and not self._stops)
            if worker.short_lives >= MOST_SHORT_LIVES and not self._problem:
                self._problem = f"{worker.name} dies again and again just after its start; the log says why"
                self.want_stop()
        while self._said < self._stops:
            self._said += 1
            for worker in self._workers:
                worker.kill() if self._said > _SOFT_STOPS else worker.send(b"stop\n")

    def _problem_of_workers(self) -> str:
        """Return what is wrong with how the workers have ended; "": nothing."""
        if (lost := sum(worker.lost_items for worker in self._workers)) > 0:
            return f"{counted(lost, 'item')} could not be written to the file; the log says why"
        reasons = {worker.reason for worker in self._workers}
        ends = reasons & {"fleet_failed", "fleet_lost"}
        if ends and "finished" not in reasons:
            return f"the workers have ended as {' and '.join(sorted(ends))}; the log says why"
        return ""

    def _look_after_server(self) -> None:
        if self._server is not None and self._server.has_ended():
            logger.warning("The server has died, and is started again; nothing is lost")
            self._server.start()

    def close(self) -> None:
        """End workers and server."""
        for worker in self._workers:
            worker.close()
        if self._said > _SOFT_STOPS:
            with suppress(UnusableError, *FAILURES):  # then the next crawl takes the workers for crashed
                queue = SharedQueue(self._queue.server, self._queue.prefix)
                queue.end_lives(f"{socket.gethostname()}:{self.directory}/")
        if self._server is not None:
            self._server.stop()

    def summary(self) -> dict[str, Any]:
        """Return how it ended, in plain types under stable names."""
        rows = [(worker.name, worker.pages, worker.deaths, worker.reason) for worker in self._workers]
        return {
            "spider": self._spider,
            "outcome": self.outcome + (f": {self._problem}" if self._problem else ""),
            "seconds": round(time.monotonic() - self._began, 1),
            "items_in_file": self._items.count if self._items is not None else 0,
            "workers": [dict(zip(("worker", "pages", "deaths", "ended"), row, strict=True)) for row in rows],
        }
