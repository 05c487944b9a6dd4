"""IP addresses as users write them."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return True if only programs on this machine can connect to ``host``."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    """Return True if ``host`` is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
