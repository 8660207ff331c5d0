"""How busy and how full a GPU is, as its driver counts it (NVML).

Asks when asked, in the process that serves metrics: the one that computes is left alone. Knows a UUID. Invariant: where
there is no GPU, no NVML or no such device, nothing is shown, and it is said once why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pagewire.serving.sample import Sample

try:
    import pynvml
except ImportError:  # comes with the extra "cuda"
    pynvml = None

log = logging.getLogger(__name__)


class DeviceUsage:
    """Of the GPU with this UUID, "" for none."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._handle = _handle_of(uuid) if uuid else None

    def samples(self) -> Iterator[Sample]:
        """Yield the share of the last moments in which the device computed, and its memory."""
        if self._handle is None:
            return
        labels = {"device": self._uuid}
        try:
            busy = pynvml.nvmlDeviceGetUtilizationRates(self._handle)
            memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        except pynvml.NVMLError as error:
            log.warning("no more is known of %s: %s", self._uuid, error)
            self._handle = None
            return
        yield Sample("device_utilization", labels, busy.gpu / 100, "Share of time in which the device computed")
        yield Sample("device_memory_used_bytes", labels, memory.used, "Memory of the device that is taken, by anybody")
        yield Sample("device_memory_total_bytes", labels, memory.total, "Memory of the device")


def _handle_of(uuid: str) -> object | None:
    if pynvml is None:
        log.warning("nothing will be known of %s: the package nvidia-ml-py is not installed", uuid)
        return None
    try:
        pynvml.nvmlInit()
        handle: object = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        log.warning("nothing will be known of %s: %s", uuid, error)
        return None
    return handle
