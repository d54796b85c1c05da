"""``scrapy bloom crawl`` in a project of its own, as processes that can be looked at and killed one by one."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.old.support.fleets import PATIENCE, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

    from tests.old.support.localsite import LocalSite

CONCURRENCY = 4
PAGE_SECONDS = 0.1
"""What a page of the site should take. Scrapy 2.13 takes as long again between callback and engine."""

IN_HAND = 4 * CONCURRENCY
"""Requests that a worker holds at most: in the downloader, in the scraper, acknowledged but not told yet, and half as
many as each of these that wait for the downloader; with some to spare for a busy machine."""

_runs = itertools.count()
_SPIDER = """
import os, signal
import scrapy

class Site(scrapy.Spider):
    name = "site"

    def __init__(self, url, poison="", **kwargs):
        super().__init__(**kwargs)
        self.start_urls, self.poison = [url], poison

    def parse(self, response):
        if self.poison == "start":
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"url": response.url}
        yield from response.follow_all(css="a")


class Broken(Site):
    name = "broken"

    def __init__(self, **kwargs):
        raise RuntimeError("no such thing")
"""


def make_project(directory: Path, settings: str = "") -> Path:
    """Make a Scrapy project that knows nothing of scrapy-bloom, unless *settings* do."""
    spiders = directory / "shop" / "spiders"
    spiders.mkdir(parents=True)
    (directory / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n", encoding="utf-8")
    for package in (spiders, spiders.parent):
        (package / "__init__.py").touch()
    ours = 'BOT_NAME = "shop"\nSPIDER_MODULES = ["shop.spiders"]\nTELNETCONSOLE_ENABLED = False\n'
    ours += f"REMOTE_CONTROL_ENABLED = False\nCONCURRENT_REQUESTS = {CONCURRENCY}\nRETRY_ENABLED = False\n"
    (spiders.parent / "settings.py").write_text(ours + settings, encoding="utf-8")
    (spiders / "site.py").write_text(_SPIDER, encoding="utf-8")
    return directory


class CrawlCommand:
    """One run of the command; killed with all its processes at the end of ``with``, if it has not ended."""

    def __init__(self, project: Path, site: LocalSite | None, *arguments: str, workers: int = 2, spider: str = "site"):
        self.project = project
        self.job = project / "job"
        command = [sys.executable, "-m", "scrapy_bloom", "crawl", spider, "--workers", str(workers), "--json"]
        command += ["-s", "JOBDIR=job", "-s", "LOG_LEVEL=INFO", "-s", "BLOOM_CAPACITY=1000", *arguments]
        command += ["-a", f"url={site.url()}"] if site is not None else []
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]))
        self._out, self._log = project / f"out-{next(_runs)}.txt", project / "log.txt"
        # Files rather than pipes: orphans would keep those open.
        with self._out.open("wb") as out, self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=project, stdout=out, stderr=log, env={**os.environ, "PYTHONPATH": path}
            )

    def members(self) -> dict[str, int]:
        """The processes of the crawl, by name: ``server``, ``worker-1``, ..."""
        try:
            found = json.loads((self.job / "fleet" / "members").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {name: pid for name, pid in found.items() if pid}

    def wait_for_members(self, count: int) -> dict[str, int]:
        wait_until(lambda: len(self.members()) >= count or self.process.poll() is not None, f"{count} processes")
        return self.members()

    def kill(self, name: str = "") -> None:
        """End a member of the crawl, or the process that runs it, as a power failure would."""
        if not name:
            self.process.kill()
            self.process.wait()
        else:
            os.kill(self.members()[name], signal.SIGKILL)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end; return exit code and summary."""
        code = self.process.wait(PATIENCE)
        text = self._out.read_text(encoding="utf-8")
        return code, json.loads(text) if text.startswith("{") else {}

    @property
    def log(self) -> str:
        """What this run and those before it in the same project have logged."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        members = self.members()
        if self.process.poll() is None:
            self.kill()
            for pid in members.values():
                if is_running(pid):
                    os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def items_of(project: Path, name: str = "items.jl") -> list[str]:
    """The URLs of the items in a file of JSON lines, each of which has to be whole."""
    return [json.loads(line)["url"] for line in (project / name).read_text(encoding="utf-8").splitlines()]
