"""Finds the ways in which a server may lose the queue of a fleet, or let strangers write to it: :func:`risks_of`.

Knows what a server says about itself and how it was reached. Asks nothing, and decides nothing.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def risks_of(info: Mapping[str, Any], host: str | None, *, has_credentials: bool) -> list[str]:
    """Return a sentence or two for each risk: what is wrong, what that may cost, and what to do.

    Args:
        info: The answer to ``INFO``; what it does not tell is no risk.
        host: Name or address that the server was reached at; None for a Unix socket.
        has_credentials: Whether the server asked for a password, or for a certificate of the client's.

    """
    risks = []
    if info.get("aof_enabled") == 0:
        risks.append(
            "appendonly is off: if the server is killed, the pending requests of its last minutes, or all of them, are "
            "lost. Set appendonly yes in its configuration, or run CONFIG SET appendonly yes."
        )
    policy = str(info.get("maxmemory_policy", ""))
    if policy.startswith("allkeys") and info.get("maxmemory"):
        risks.append(
            f"maxmemory-policy is {policy}: once it has used up its maxmemory, the server deletes pending requests. "
            "Set maxmemory-policy noeviction; a full server then makes the crawl wait."
        )
    if not has_credentials and host is not None and not _is_loopback(host):
        risks.append(
            f"it is reached at {host} without a password: whoever else can reach it can make pages disappear from the "
            "crawl. Set requirepass, or an ACL user, and put the password into BLOOM_REDIS_URL; or let it listen on "
            "127.0.0.1 only."
        )
    return risks


def _is_loopback(host: str) -> bool:
    """Return whether *host* is this machine under an address that no other can reach."""
    try:
        found = {str(address[4][0]) for address in socket.getaddrinfo(host, None)}
        return bool(found) and all(ip_address(one.partition("%")[0]).is_loopback for one in found)
    except (OSError, ValueError):  # a name that can no longer be resolved
        return False
