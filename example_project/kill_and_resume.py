"""Kill a crawl of the maze with SIGKILL, again and again, resume it each time, and show that no page was lost.

    python kill_and_resume.py [PAGES [KILLS]]

Starts ``scrapy crawl maze`` in a job directory of its own, kills it once it has recorded some more pages, and lets the
last run finish: its summary says how many pages of the site were crawled over all runs, counted from the record that
the spider writes, not from the filter.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATIENCE = 120  # seconds without a new page until a crawl counts as hung


def main(pages: int, kills: int) -> int:
    """Return the exit code: 0 if every page was crawled."""
    with tempfile.TemporaryDirectory() as job:
        command = [sys.executable, "-m", "scrapy", "crawl", "maze", "-a", f"pages={pages}", "-s", f"JOBDIR={job}"]
        for kill in range(kills):
            goal = pages * (kill + 1) // (kills + 2)
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as crawl:
                crawled = wait_for_pages(Path(job), goal, crawl)
                crawl.kill()  # SIGKILL, which no process can catch
            print(f"kill {kill + 1}: after {crawled} pages", flush=True)
        last = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        print(last.stdout)
        everything = f"all {pages:,} pages of the site" in last.stdout
        killed = "1 kill" if kills == 1 else f"{kills} kills"
        print(f"{killed}, and every page was crawled." if everything else "PAGES ARE MISSING")
        return 0 if everything else 1


def wait_for_pages(job: Path, goal: int, crawl: subprocess.Popen[bytes]) -> int:
    """Return how many pages the record of *job* holds, as soon as there are *goal* of them."""
    record = job / "pages-crawled.txt"
    crawled, last_news = 0, time.monotonic()
    while crawled < goal:
        if crawl.poll() is not None or time.monotonic() - last_news > PATIENCE:
            raise SystemExit(f"the crawl ended or hung after {crawled} pages, before it could be killed")
        time.sleep(0.01)
        now = record.read_text(encoding="utf-8").count("page\t") if record.exists() else 0
        if now > crawled:
            crawled, last_news = now, time.monotonic()
    return crawled


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", type=int, nargs="?", default=1000, help="pages of the site (default: %(default)s)")
    parser.add_argument("kills", type=int, nargs="?", default=5, help="how often to kill (default: %(default)s)")
    options = parser.parse_args()
    sys.exit(main(options.pages, options.kills))
