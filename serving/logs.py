"""Logging to stderr, one line an event. Called by a `main` and by nobody else."""

from __future__ import annotations

import logging
import sys


def configure(process: str, level: str = "INFO") -> None:
    """Send this process's log to stderr as "time level process module: text"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s.%(msecs)03d %(levelname)s {process} %(name)s: %(message)s", "%H:%M:%S")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # gRPC's asyncio poller warns when a poll is taken by another thread; it says nothing about us.
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
