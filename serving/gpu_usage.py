"""How busy and how full a GPU is, as its driver counts it (NVML).

Asks when asked, in the process that serves metrics: the one that computes is left alone. Knows a UUID. Invariants: what
cannot be known now is not shown, what can be is, and the next scrape asks for all of it again; the log says why once,
and again when the cause is another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from pagewire.serving.device_samples import memory, utilization
from pagewire.serving.sample import Sample

try:
    import pynvml
except ImportError:  # comes with the extra "cuda"
    pynvml = None

log = logging.getLogger(__name__)


class GpuUsage:
    """Of the GPU with this UUID."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._handle: Any = None
        self._causes: dict[str, str] = {}  # why something is not known, as the log has it

    def samples(self) -> Iterator[Sample]:
        """Yield the share of the last moments in which the device computed, and its memory."""
        if pynvml is None:
            self._say("usage", "the package nvidia-ml-py is not installed")
            return
        if self._handle is None:
            self._handle = self._asked("usage", lambda: _handle_of(self._uuid))
        handle = self._handle
        if handle is None:
            return
        busy = self._asked("utilization", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        room = self._asked("memory", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
        if busy is not None:
            yield from utilization(self._uuid, busy.gpu / 100)
        if room is not None:
            yield from memory(self._uuid, room.used, room.total)

    def _asked(self, what: str, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
                self._handle = None  # a device that was reset has another one
            self._say(what, str(error))
            return None
        if self._causes.pop(what, None) is not None:
            log.info("%s of %s is known again", what, self._uuid)
        return answer

    def _say(self, what: str, cause: str) -> None:
        if self._causes.get(what) != cause:
            self._causes[what] = cause
            log.warning("%s of %s is not known: %s", what, self._uuid, cause)


def _handle_of(uuid: str) -> object:
    pynvml.nvmlInit()
    handle: object = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return handle
