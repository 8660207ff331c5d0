"""Which addresses are this machine's own, by its loopback interface: what is said to them crosses no network."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_here(address: str) -> bool:
    """Tell whether a host, perhaps with a port, is one; "" is, as where nobody says a host."""
    name = urlsplit(f"//{address}").hostname or "localhost"
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
