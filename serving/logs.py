"""Logging to stderr, one line an event. Called by a `main` and by nobody else.

Whoever logs of one request says so with `extra={"request_id": ...}`; as JSON that is a member of its own. Invariant: no
text that came from outside begins a line, or moves a terminal's cursor.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal

Form = Literal["text", "json"]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != ord("\t")} | {10: "\\n"}


def configure(process: str, level: str = "INFO", form: Form = "text") -> None:
    """Send this process's log to stderr as "time level process module: text", or as a JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(process) if form == "json" else _Text(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # gRPC's asyncio poller warns when a poll is taken by another thread; it says nothing about us.
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


class _Text(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__(f"%(asctime)s.%(msecs)03d %(levelname)s {process} %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line, without the traceback that may follow it."""
        record.message = record.message.translate(_CONTROLS)
        return super().formatMessage(record)

    def formatException(self, ei: ExcInfo) -> str:
        """Return the traceback with every line set in: what an error quotes must not pass for a line of the log."""
        return "\n".join(f"    {line.translate(_CONTROLS)}" for line in super().formatException(ei).splitlines())


class _Json(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return one JSON object: time (UTC), level, process, module, text; request_id and error where there are."""
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "process": self._process,
            "module": record.name,
            "text": record.getMessage(),
        }
        request_id = getattr(record, "request_id", None)
        if request_id is not None:
            said["request_id"] = str(request_id)
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said)
