"""Starting, killing and resuming the crawl of ``killed_crawl.py`` in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.old.support.localsite import PATIENCE

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from tests.old.support.localsite import LocalSite

ROOT = Path(__file__).parents[3]


class Crawl:
    """One process that crawls, killed at the end of the ``with`` block if it still runs."""

    def __init__(self, url: str, directory: Path, **options: Any) -> None:
        self.log_file = directory / "crawl.log"
        self.stats_file = directory / "stats.json"
        self.stats_file.unlink(missing_ok=True)
        self.log_file.unlink(missing_ok=True)
        self._options = {
            "url": url,
            "jobdir": str(directory / "job"),
            "log": str(self.log_file),
            "stats": str(self.stats_file),
            "commits": str(directory / "commits"),
            **options,
        }

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("killed_crawl.py")), json.dumps(self._options)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def wait_until(self, site: LocalSite, hits: int) -> None:
        """Wait until *site* has had *hits* requests in all; AssertionError if the crawl ends before."""
        while site.hits() < hits:
            assert self.process.poll() is None, f"ended by itself after {site.hits()} of {hits} requests"
            time.sleep(0.002)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def interrupt(self) -> None:
        """What Ctrl-C does: the crawl is asked to finish what it has begun and stop."""
        self.process.terminate()

    def wait(self) -> int:
        """Return the exit code once it has ended by itself."""
        return self.process.wait(PATIENCE * 2)

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8") if self.log_file.exists() else ""

    @property
    def stats(self) -> dict[str, Any]:
        return json.loads(self.stats_file.read_text(encoding="utf-8"))


def finish(url: str, directory: Path, **options: Any) -> Crawl:
    """Run a crawl to its own end and return it."""
    with Crawl(url, directory, **options) as crawl:
        assert crawl.wait() == 0
    assert crawl.stats["finish_reason"] == "finished"
    return crawl
