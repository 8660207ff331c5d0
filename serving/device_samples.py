"""How busy and how full a device is, as /metrics shows it, whatever the device is."""

from __future__ import annotations

from collections.abc import Iterator

from pagewire.serving.sample import Sample


def utilization(device: str, share: float) -> Iterator[Sample]:
    """Yield the share of the last moments in which a device computed, for anybody."""
    text = "Share of time in which the device computed, for anybody"
    yield Sample("device_utilization", {"device": device}, share, text)


def memory(device: str, used: int, total: int) -> Iterator[Sample]:
    """Yield the bytes of a device's memory that are taken, by anybody, and all of them."""
    labels = {"device": device}
    yield Sample("device_memory_used_bytes", labels, used, "Memory of the device that is taken, by anybody")
    yield Sample("device_memory_total_bytes", labels, total, "Memory of the device")
