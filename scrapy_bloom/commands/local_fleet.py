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

from scrapy_bloom.errors import counted
from scrapy_bloom.fleet.own_server import OwnServer, server_executable
from scrapy_bloom.fleet.queue import Queue
from scrapy_bloom.fleet.server import AWAY, DEFAULT_URL, Server, address_of, key_of
from scrapy_bloom.settings import BloomSettings

if TYPE_CHECKING:
    import argparse

logger = logging.getLogger(__name__)

# A worker that dies so many times in a row within so many seconds of its start ends the crawl.
SHORT_SECONDS, MOST_SHORT_LIVES = 15.0, 3

# Removes from the list ARGV[1] the entries that are already in the file: the first ARGV[2] of all it ever had. That
# count holds only while the queue's filter has the id ARGV[3]; another id means another queue. Returns the present id,
# how many entries were ever removed, and the entries that are left.
_COLLECT = """
local list, field = KEYS[1] .. ':items:' .. ARGV[1], 'collected:' .. ARGV[1]
local chain, removed = unpack(redis.call('HMGET', KEYS[1], 'chain', field))
local known = chain == ARGV[3] and tonumber(ARGV[2]) or 0
removed = tonumber(removed or 0)
if known > removed then
    redis.call('LTRIM', list, known - removed, -1)
    redis.call('HSET', KEYS[1], field, known)
    removed = known
end
return {chain or '', removed, redis.call('LRANGE', list, 0, -1)}
"""
_LOOK_SECONDS, _COLLECT_SECONDS = 0.1, 1.0


class _Worker:
    """One worker, whatever process it is at the moment."""

    def __init__(self, directory: Path, order: dict[str, Any]) -> None:
        self.name, self._stats_file = directory.name, directory / "stats.json"
        self.deaths = self.short_lives = self.pages = 0
        self.reason = ""
        """Why it has ended for good; "" while it has not."""
        self.lost_items = 0
        """Items that it has scraped and that are not in the file."""
        directory.mkdir(exist_ok=True)
        self._has_file = bool(order["items"])
        self._line = json.dumps({**order, "directory": str(directory)}).encode() + b"\n"
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def look(self, *, may_start: bool) -> None:
        """Note how its process has ended, if it has, and start another one if need be."""
        if self._process is not None and self._process.poll() is not None:
            self._note_end(self._process.returncode)
        if self._process is not None or self.reason:
            return
        if not may_start:
            self.reason = "not started again"
        elif time.monotonic() > self._began + self.short_lives:
            self._stats_file.unlink(missing_ok=True)
            command = [sys.executable, "-m", "scrapy_bloom.commands.crawl_worker"]
            # Its own session: Ctrl-C in a terminal reaches it through the pipe, and so once.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our module
            self._began = time.monotonic()
            self.say(self._line)

    def _note_end(self, code: int) -> None:
        self._process = None
        stats = json.loads(self._stats_file.read_text(encoding="utf-8")) if self._stats_file.exists() else {}
        self.pages += stats.get("response_received_count", 0)
        self.reason = str(stats.get("finish_reason") or "")
        if self.reason == "finished" and self._has_file:
            self.lost_items += stats.get("item_scraped_count", 0) - stats.get("bloom/fleet/items", 0)
        if not self.reason:
            self.deaths += 1
            self.short_lives = self.short_lives + 1 if time.monotonic() < self._began + SHORT_SECONDS else 0
            logger.warning("%s has died (exit code %d)", self.name, code)

    def say(self, line: bytes) -> None:
        """Write to its pipe: an order, or any line for Ctrl-C."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it has died, which look() will find
                self._process.stdin.write(line)
                self._process.stdin.flush()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class LocalFleet:
    """A crawl with its server and its workers, all on this machine."""

    def __init__(self, settings: Any, directory: Path, options: argparse.Namespace, order: dict[str, Any]) -> None:
        bloom = BloomSettings.from_settings(settings)
        self._spider, self._began, self._stops, self._said = options.spider, time.monotonic(), 0, 0
        self._server, self._workers, self._problem = None, [], ""
        url = bloom.redis_url
        if address_of(url, settings) == {"url": DEFAULT_URL}:
            self._server = OwnServer(directory / "server", server_executable())
            self._server.start()
            url = self._server.url
        order["settings"] |= {"BLOOM_REDIS_URL": url} if url else {}
        name = sha1(f"{socket.gethostname()} {directory}".encode(), usedforsecurity=False).hexdigest()[:8]
        output = options.output or options.overwrite
        order["items"] = name if output else ""
        queue = Queue(Server(**address_of(url, settings)), key_of(bloom.redis_key, options.spider), items=name)
        self._items = _Items(directory, queue, output, overwrite=bool(options.overwrite))
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
        """Look after server and workers until all of these have ended for good."""
        next_collection = 0.0
        while not all(worker.reason for worker in self._workers):
            self._look_after_server()
            for worker in self._workers:
                worker.look(may_start=self.outcome != "finished" and not self._stops)
                if worker.short_lives >= MOST_SHORT_LIVES and not self._problem:
                    self._problem = f"{worker.name} dies again and again just after its start; the log says why"
                    self.want_stop()
            while self._said < self._stops:
                self._said += 1
                for worker in self._workers:
                    worker.kill() if self._said > 2 else worker.say(b"stop\n")
            if time.monotonic() > next_collection:
                self._items.collect()
                next_collection = time.monotonic() + _COLLECT_SECONDS
            time.sleep(_LOOK_SECONDS)
        if (lost := sum(worker.lost_items for worker in self._workers)) > 0 and not self._problem:
            self._problem = f"{counted(lost, 'item')} could not be written to the file; the log says why"
        self._look_after_server()
        for _ in range(2):  # the second time removes what the first has copied
            self._items.collect(is_closed=True, is_finished=self.outcome == "finished")

    def _look_after_server(self) -> None:
        if self._server is not None and self._server.has_ended():
            logger.warning("The server has died, and is started again; nothing is lost")
            self._server.start()

    def close(self) -> None:
        """End workers and server."""
        for worker in self._workers:
            worker.kill()
        if self._server is not None:
            self._server.stop()

    def summary(self) -> dict[str, Any]:
        """Return how it ended, in plain types under stable names."""
        rows = [(worker.name, worker.pages, worker.deaths, worker.reason) for worker in self._workers]
        return {
            "spider": self._spider,
            "outcome": self.outcome + (f": {self._problem}" if self._problem else ""),
            "seconds": round(time.monotonic() - self._began, 1),
            "items_in_file": self._items.count,
            "workers": [dict(zip(("worker", "pages", "deaths", "ended"), row, strict=True)) for row in rows],
        }


class _Items:
    """The file of items, at *output*. The server keeps the items of acknowledged pages until they are in the file.

    ``collected.json`` says how many entries of each shard's list were copied to the file, how long the file was then,
    and whether the crawl has closed it. If it has not, the next start cuts off what was written after that, and writes
    it again. With *overwrite*, a new crawl empties the file first.
    """

    def __init__(self, directory: Path, queue: Queue, output: str | None, *, overwrite: bool) -> None:
        self._state_file, self._queue = directory / "collected.json", queue
        self._output = Path(output).absolute() if output else None
        self.count = 0
        """Items in the file, those of earlier runs of the job included."""
        known = json.loads(self._state_file.read_text()) if self._state_file.exists() else {}
        self._copied: dict[str, list[Any]] = known.get("copied", {})  # by shard: id of its filter, and how many
        if self._output is not None and self._output.exists():
            goes_on = known.get("output") == str(self._output)
            if overwrite and (not goes_on or known.get("is_finished")):
                os.truncate(self._output, 0)
            elif goes_on:
                self.count = known.get("items", 0)
                if known.get("is_closed"):  # what comes after its length is of others
                    self._write(self._output, self._copied, [], is_closed=False, is_finished=False)
                else:
                    os.truncate(self._output, min(known["length"], self._output.stat().st_size))

    def collect(self, *, is_closed: bool = False, is_finished: bool = False) -> None:
        """Append what has come since the last time, and remove it from the server."""
        from redis import RedisError  # not before the package checks that it is installed

        if self._output is None:
            return
        try:
            copied, items = self._left_on_server()
            self._write(self._output, copied, items, is_closed=is_closed, is_finished=is_finished)
        except (RedisError, *AWAY) as error:
            logger.warning("Items wait on the server: %s", error)

    def _write(self, path: Path, copied: dict[str, list[Any]], items: list[bytes], **ends: bool) -> None:
        """Append *items* to the file at *path*, and note that; or raise OSError, and leave the file as it was."""
        count = self.count + sum(item.count(b"\n") for item in items)
        length = path.stat().st_size if path.exists() else 0
        try:
            with path.open("ab") as output:
                output.writelines(items)
                output.flush()
                os.fsync(output.fileno())
                state = {"output": str(path), "length": output.tell(), "items": count, "copied": copied, **ends}
            temporary = self._state_file.with_suffix(".new")
            temporary.write_text(json.dumps(state))
            temporary.replace(self._state_file)
        except OSError:
            with suppress(OSError):
                os.truncate(path, length)
            raise
        self._copied, self.count = copied, count

    def _left_on_server(self) -> tuple[dict[str, list[Any]], list[bytes]]:
        """Return how many entries there ever were, as in ``collected.json``, and those that are not in the file."""
        queue, client = self._queue, self._queue.server.client
        copied, items = dict(self._copied), list[bytes]()
        for shard in range(int(client.hget(queue.key(0), "shards") or 1)):
            chain, known = self._copied.get(str(shard), ["", 0])
            present_chain, removed, left = client.eval(_COLLECT, 1, queue.key(shard), queue.items, known, chain)
            items += left
            copied[str(shard)] = [present_chain.decode(), removed + len(left)]
        return copied, items
