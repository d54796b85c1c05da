from __future__ import annotations

import hashlib


def fingerprint(number: int) -> bytes:
    """Return what looks like one of Scrapy's, another for each number."""
    return hashlib.sha1(b"%d" % number).digest()


def fingerprints(count: int, start: int = 0) -> list[bytes]:
    return [fingerprint(number) for number in range(start, start + count)]
