"""A Redis or Valkey server of a benchmark's own, on loopback, without persistence, at Redis' default sizes."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis
from processes import ServerProcess, free_port

START_S = 20.0


@contextlib.contextmanager
def redis_process(program: str) -> Iterator[str]:
    """Run `program` and yield its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder]
        server = ServerProcess([program, *flags], Path(folder) / "log", {}, reads_stdout=False)
        try:
            url = f"redis://127.0.0.1:{port}"
            deadline_s = time.monotonic() + START_S
            with redis.Redis.from_url(url) as client:
                while True:
                    try:
                        client.ping()
                        break
                    except redis.ConnectionError:
                        if time.monotonic() > deadline_s:
                            raise RuntimeError(server.tail) from None
                        time.sleep(0.05)
            yield url
        finally:
            server.stop()
