"""Which worker a process is."""

from __future__ import annotations

import secrets
import socket
import uuid
from pathlib import Path

from scrapy_bloom.filter.lock import LOCK_NAME


def identity_of(directory: Path | None) -> tuple[str, str]:
    """Return the name of the worker that has locked *directory*, and a text that tells the directory from a copy.

    Two running workers never have both in common: only one process at a time can lock the file on one kernel.
    """
    host, boot = socket.gethostname(), Path("/proc/sys/kernel/random/boot_id")
    if directory is None:
        return f"{host}:{secrets.token_hex(4)}", ""
    path, lock = directory / "worker", (directory / LOCK_NAME).stat()
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    kernel = boot.read_text().strip() if boot.exists() else f"{host} {uuid.getnode()}"
    return f"{host}:{directory.parent} {path.read_text()}", f"{kernel} {lock.st_dev} {lock.st_ino}"
