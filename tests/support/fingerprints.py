from __future__ import annotations

import hashlib


def fingerprints(count: int, start: int = 0) -> list[bytes]:
    """Return distinct keys that look like Scrapy's fingerprints."""
    return [hashlib.sha1(b"%d" % i).digest() for i in range(start, start + count)]
