"""A crawl on a disk that fills up, in a process of its own: SIGBUS, if it came, would end it.

Run as ``python full_disk_child.py MODE DIRECTORY``; prints what happened as JSON. MODE is ``tmpfs`` (the directory is
on a file system of 2 MB) or ``limit`` (RLIMIT_FSIZE), and after a colon ``room`` (it is made in the middle), ``close``
(just before closing), ``never`` or ``start`` (there is none from the beginning).
"""

from __future__ import annotations

import json
import logging
import random
import resource
import secrets
import sys
from hashlib import sha1
from pathlib import Path

from scrapy_bloom import open_filter
from scrapy_bloom.old.errors import UnusableError

TOTAL = 34_000
LIMIT = 60_000
"""Largest file in bytes, between those of the layers for 8,000 and 16,000 fingerprints."""


def fingerprint(number: int) -> bytes:
    return sha1(b"%d" % number).digest()


def fill_disk(mode: str, directory: Path) -> None:
    if mode == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
        return
    with (directory.parent / "ballast").open("wb", buffering=0) as ballast:
        try:
            while ballast.write(bytes(4096)) == 4096:
                pass
        except OSError:
            return


def make_room(mode: str, directory: Path) -> None:
    if mode == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        (directory.parent / "ballast").unlink()


def main(mode: str, when: str, directory: Path) -> dict[str, object]:
    log: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: log.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    logging.getLogger("scrapy_bloom").addHandler(handler)
    if when == "start":
        if mode == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, resource.RLIM_INFINITY))
        else:
            fill_disk(mode, directory)
        try:
            open_filter(directory, 1_000)
        except UnusableError as error:
            return {"error": str(error), "files": sorted(path.name for path in directory.glob("*.bloom*"))}
        return {"error": None}
    chain = open_filter(directory, 1_000)
    done = 0
    while done < 5_000:  # three layers, the third half full
        chain.add(fingerprint(done))
        done += 1
    fill_disk(mode, directory)
    while not log:
        chain.add(fingerprint(done))
        done += 1
    first_in_memory = done - 1
    while done < TOTAL // 2:
        chain.add(fingerprint(done))
        done += 1
    if when == "room":
        make_room(mode, directory)
    while done < TOTAL:
        chain.add(fingerprint(done))
        done += 1
    chain._check()
    all_known = all(fingerprint(number) in chain for number in range(TOTAL))
    before_close = len(log)
    files = len(list(directory.glob("layer-*.bloom")))
    layers = len(chain.layers)
    if when == "close":
        make_room(mode, directory)
    chain.close()
    if when == "never":
        make_room(mode, directory)
    with open_filter(directory, 1_000) as again:
        again._check()
        known = [number for number in range(TOTAL) if fingerprint(number) in again]
        count = len(again)
    return {
        "log": log[:before_close],
        "closing": log[before_close:],
        "first_in_memory": first_in_memory,
        "all_known": all_known,
        "files": files,
        "layers": layers,
        "known": len(known),
        "known_to": max(known) + 1,
        "count": count,
    }


if __name__ == "__main__":
    secrets.randbits = random.Random(sys.argv[1]).getrandbits  # as in conftest.py: a false positive always or never
    json.dump(main(*sys.argv[1].split(":"), Path(sys.argv[2])), sys.stdout)
