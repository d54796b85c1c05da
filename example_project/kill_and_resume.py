"""Kill a crawl of the maze with SIGKILL, again and again, resume it each time, and show that no page was lost.

    python kill_and_resume.py [PAGES [KILLS]]

Starts ``scrapy crawl maze`` in a new job directory and kills it once some more pages are recorded and their links are
on disk as pending requests. The next run goes on with those. The last run finishes, and its summary says how many pages
of the site were crawled over all runs, counted from the record that the spider writes, not from the filter.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 120  # seconds without news until a crawl counts as hung
SECONDS_PER_RUN = 1.5  # commits come once a second; at full speed the maze would be crawled before the first


def main(pages: int, kills: int) -> int:
    """Return the exit code: 0 if every run resumed what the one before it had left, and every page was crawled."""
    with tempfile.TemporaryDirectory() as directory:
        job = Path(directory, "job")
        command = [sys.executable, "-m", "scrapy", "crawl", "maze", "-a", f"pages={pages}", "-s", f"JOBDIR={job}"]
        command += ["-s", f"DOWNLOAD_DELAY={SECONDS_PER_RUN * (kills + 1) / pages:.4f}"]
        pending = []
        for kill in range(kills):
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as crawl:
                goal = pages * (kill + 1) // (kills + 2)
                wait_until(crawl, job, lambda goal=goal: crawled_pages(job) >= goal)
                before = committed(job)
                wait_until(crawl, job, lambda before=before: committed(job) != before)
                crawled = crawled_pages(job)
                wait_until(crawl, job, lambda crawled=crawled: crawled_pages(job) > crawled)  # the commit is over
                crawl.kill()  # SIGKILL, which no process can catch
            pending.append(pending_requests(job))
            print(f"kill {kill + 1}: after {crawled_pages(job)} pages, {pending[-1]} requests are pending", flush=True)
        last = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        print(last.stdout)
        everything = f"all {pages:,} pages of the site" in last.stdout
        killed = "1 kill" if kills == 1 else f"{kills} kills"
        print(f"{killed}, and every page was crawled." if everything else "PAGES ARE MISSING")
        return 0 if everything and all(pending) else 1


def wait_until(crawl: subprocess.Popen[bytes], job: Path, reached: Callable[[], bool]) -> None:
    """Return when *reached* says so. SystemExit if *crawl* ends before, or records no page for `PATIENCE` seconds."""
    crawled, last_news = crawled_pages(job), time.monotonic()
    while not reached():
        if crawl.poll() is not None or time.monotonic() - last_news > PATIENCE:
            raise SystemExit(f"the crawl ended or hung after {crawled} pages, before it could be killed")
        time.sleep(0.02)
        if (now := crawled_pages(job)) > crawled:
            crawled, last_news = now, time.monotonic()


def crawled_pages(job: Path) -> int:
    """Return how many pages the spider has recorded in *job*, those fetched twice counted twice."""
    record = job / "pages-crawled.txt"
    return record.read_text(encoding="utf-8").count("page\t") if record.exists() else 0


def committed(job: Path) -> int:
    """Return when the scheduler wrote pending requests to disk last, in nanoseconds since 1970."""
    log = job / "requests.frontier-wal"
    return log.stat().st_mtime_ns if log.exists() else 0


def pending_requests(job: Path) -> int:
    """Return how many requests the next run of *job* will find. Looks at a copy: opening the file changes it."""
    with tempfile.TemporaryDirectory() as copy:
        for path in job.glob("requests.frontier*"):
            shutil.copy(path, copy)
        connection = sqlite3.connect(Path(copy, "requests.frontier"))
        (count,) = connection.execute("SELECT count(*) FROM requests").fetchone()
        connection.close()
        return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", type=int, nargs="?", default=1000, help="pages of the site (default: %(default)s)")
    parser.add_argument("kills", type=int, nargs="?", default=5, help="how often to kill (default: %(default)s)")
    options = parser.parse_args()
    sys.exit(main(options.pages, options.kills))
