"""Crawl the maze with three workers that share one queue, kill one, and show that no page is lost.

    python fleet.py [PAGES]

Needs ``pip install 'scrapy-bloom[fleet]'``, which brings redis-py and a server; a ``redis-server`` on the PATH is
preferred. Serves the maze on a free port of 127.0.0.1 and runs ``scrapy bloom crawl maze --workers 3``. One of the
workers is killed in the middle, without a chance to say so; the command starts another in its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from example.site import build_site, page_address

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 3
VICTIM = "worker-1"
PATIENCE = 60  # seconds for the workers to start
IN_HAND = 40  # pages that a worker has in hand at most: 16 downloads, 8 that wait for them, and some just done


def main(pages: int) -> int:
    """Return the exit code: 0 if every page was fetched, and twice at most what the killed worker had in hand."""
    with served_site(pages) as (site_url, hits), tempfile.TemporaryDirectory() as job:
        crawl = start_crawl(pages, site_url, job)
        deadline = time.monotonic() + PATIENCE
        while len(hits) < pages / 3 and crawl.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if crawl.poll() is None:
            os.kill(json.loads(Path(job, "fleet", "members").read_text(encoding="utf-8"))[VICTIM], signal.SIGKILL)
            print(f"{VICTIM}: killed after {len(hits):,} pages of all workers")
        output, log = crawl.communicate()
        if crawl.returncode:
            sys.exit(f"the crawl failed:\n{log}")
    print(output[output.index("spider  ") :])  # what stands above are the tables of the workers
    again = sum(hits.values()) - len(hits)
    print(f"the site has {pages:,} pages; {len(hits):,} were fetched, {again:,} of them again because of the kill")
    if len(hits) == pages and again <= IN_HAND:
        print("Every page was fetched.")
        return 0
    print("PAGES ARE MISSING, or too many were fetched twice")
    return 1


def start_crawl(pages: int, site_url: str, job: str) -> subprocess.Popen[str]:
    """Start the command, which starts the workers and a server for them."""
    command = [sys.executable, "-m", "scrapy_bloom", "crawl", "maze", f"--workers={WORKERS}", "-s", f"JOBDIR={job}"]
    command += ["-a", f"pages={pages}", "-a", f"served_at={site_url}", "-s", "ROBOTSTXT_OBEY=False"]
    command += ["-s", "DOWNLOAD_DELAY=0.03"]  # so that one worker does not finish while the others are still starting
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def served_site(pages: int) -> Iterator[tuple[str, Counter[str]]]:
    """Serve the maze; yield its URL and what has been fetched how often."""
    site = build_site(pages)
    hits: Counter[str] = Counter()
    counting = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = page_address(self.path)
            with counting:
                hits[address] += 1
            body = site[address].body.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Keep the access log off the screen."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", hits
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 600))
