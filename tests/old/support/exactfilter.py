"""A duplicate filter that is the worst case for a scheduler: fingerprints are in its file at once, unless held back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.job import job_dir
from scrapy.utils.request import fingerprint

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler


class ExactFilter(BaseDupeFilter):
    """Exact, and 20 bytes per fingerprint appended to ``requests.seen.exact``, unbuffered."""

    def __init__(self, jobdir: str | None) -> None:
        self.path = Path(jobdir, "requests.seen.exact") if jobdir else None
        self.known: set[bytes] = set()
        self.held: list[bytes] | None = None
        self.sealed: list[bytes] = []

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        return cls(job_dir(crawler.settings))

    def open(self) -> None:
        if self.path:
            self.file = self.path.open("ab+", buffering=0)
            self.file.seek(0)
            data = self.file.read()
            self.known.update(data[i : i + 20] for i in range(0, len(data), 20))

    def hold_back(self) -> None:
        self.held = []

    def seal(self) -> None:
        if self.held:
            self.sealed += self.held
            self.held.clear()

    def release(self) -> None:
        if self.sealed:
            self._store(b"".join(self.sealed))
            self.sealed.clear()

    def never_release(self, request: Request) -> None:
        if self.held is not None:
            self.held.remove(fingerprint(request))

    def request_seen(self, request: Request) -> bool:
        key = fingerprint(request)
        if key in self.known:
            return True
        self.known.add(key)
        if self.held is None:
            self._store(key)
        else:
            self.held.append(key)
        return False

    def _store(self, data: bytes) -> None:
        if self.path:
            self.file.write(data)

    def close(self, reason: str) -> None:
        if self.path and hasattr(self, "file"):
            self.file.close()

    def log(self, request: Request, spider: Spider) -> None:
        pass
