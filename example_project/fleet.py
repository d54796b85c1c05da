"""Crawl the maze with three workers that share one queue on Redis, kill one, and show that no page is lost.

    python fleet.py [PAGES]

Needs ``pip install 'scrapy-bloom[fleet]'``, which brings redis-py and a server; a ``redis-server`` on the PATH is
preferred. Starts the server and one local site, both on free ports of 127.0.0.1, and three ordinary
``scrapy crawl maze``, which know nothing of each other but the server. One of them is killed in the middle, without a
chance to say so, and started again. Stops everything at the end.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from example.site import build_site, page_address

from scrapy_bloom.fleet.server_executable import ADVICE, server_executable

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 3
PATIENCE = 60  # seconds for the server to answer
IN_HAND = 40  # pages that a worker has in hand at most: 16 downloads, 8 that wait for them, and some just done


def main(pages: int) -> int:
    """Return the exit code: 0 if every page was fetched, and twice at most what the killed worker had in hand."""
    with served_site(pages) as (site_url, hits), redis_server() as redis_url:
        workers = [start_worker(number, pages, site_url, redis_url) for number in range(WORKERS)]
        deadline = time.monotonic() + PATIENCE
        while len(hits) < pages / 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        workers[0].kill()
        workers[0].communicate()
        print(f"worker 0: killed after {len(hits):,} pages of all workers, and started again")
        workers[0] = start_worker(0, pages, site_url, redis_url)
        for number, worker in enumerate(workers):
            summary, log = worker.communicate()
            if worker.returncode:
                sys.exit(f"worker {number} failed:\n{log}")
            crawled = next(line for line in summary.splitlines() if line.startswith("pages crawled, this run"))
            print(f"worker {number}: {crawled}")
    again = sum(hits.values()) - len(hits)
    print(f"the site has {pages:,} pages; {len(hits):,} were fetched, {again:,} of them again because of the kill")
    if len(hits) == pages and again <= IN_HAND:
        print("Every page was fetched.")
        return 0
    print("PAGES ARE MISSING, or too many were fetched twice")
    return 1


def start_worker(number: int, pages: int, site_url: str, redis_url: str) -> subprocess.Popen[str]:
    """Start a crawl. The add-on of the project's settings makes it a worker of the fleet."""
    settings = {
        "BLOOM_REDIS_URL": redis_url,
        "BLOOM_FLEET_WORKER": f"worker {number}",  # started again, it takes back at once what it held
        "DOWNLOAD_DELAY": "0.03",  # so that one worker does not finish while the others are still starting
        "ROBOTSTXT_OBEY": "False",
    }
    command = [sys.executable, "-m", "scrapy", "crawl", "maze"]
    command += [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
    command += ["-a", f"pages={pages}", "-a", f"served_at={site_url}"]
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


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """Run a server without persistence on a free port; yield its URL."""
    executable = server_executable()
    if executable is None:
        sys.exit(f"No Redis server was found. {ADVICE}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        command = [executable, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                wait_for(port)
                yield f"redis://127.0.0.1:{port}"
            finally:
                server.terminate()


def wait_for(port: int) -> None:
    """Return as soon as something answers on *port*."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 600))
