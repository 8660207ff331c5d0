"""What a pod that computes on the CPU shows of it: by a /proc that is made up, and by the kernel's own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from pagewire.serving.cpu_usage import LEAST_S, CpuUsage

NAMES = ("device_utilization", "device_memory_used_bytes", "device_memory_total_bytes")
MEMORY = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\nHugePages_Total: 0\n\n"


class Machine:
    """A made-up machine of three cores, and its clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = 50.0
        self.cores = [[0] * 10 for _ in range(3)]
        (folder / "meminfo").write_text(MEMORY)
        self.write()

    def write(self) -> None:
        lines = [f"cpu{at} {' '.join(map(str, ticks))}" for at, ticks in enumerate(self.cores)]
        total = [sum(column) for column in zip(*self.cores, strict=True)]
        (self.folder / "stat").write_text("\n".join([f"cpu  {' '.join(map(str, total))}", *lines, "intr 7 0 1\n"]))

    def pass_time(self, seconds: float, *ticks: dict[int, int]) -> None:
        """Let time pass, in which each core had these ticks by column."""
        self.now_s += seconds
        for core, each in zip(self.cores, ticks, strict=True):
            for column, number in each.items():
                core[column] += number
        self.write()

    def usage(self, *cores: int) -> CpuUsage:
        return CpuUsage(cores, self.folder, lambda: self.now_s)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def shown(usage: CpuUsage) -> dict[str, float]:
    samples = list(usage.samples())
    assert all(sample.labels == {"device": "cpu"} for sample in samples)
    return {sample.name: sample.value for sample in samples}


def test_the_share_is_that_of_its_own_cores_since_the_last_look(machine: Machine) -> None:
    usage = machine.usage(0, 2)
    # user, nice, system, idle, iowait, irq, softirq, steal, and guests, who are users too
    machine.pass_time(2, {0: 30, 1: 5, 2: 10, 3: 50, 4: 5}, {0: 100}, {5: 10, 6: 10, 7: 5, 3: 75, 8: 99})
    assert shown(usage) == dict(zip(NAMES, ((45 + 25) / 200, 600 << 10, 1000 << 10), strict=True))
    machine.pass_time(2, {3: 100}, {0: 100}, {3: 100})
    assert shown(usage)["device_utilization"] == 0


def test_a_share_of_less_than_a_moment_is_not_taken(machine: Machine) -> None:
    usage = machine.usage(1)
    assert tuple(shown(usage)) == NAMES[1:]
    machine.pass_time(LEAST_S / 4, {}, {0: 10, 3: 30}, {})  # the first one is what there is
    assert shown(usage)["device_utilization"] == 0.25
    machine.pass_time(LEAST_S / 2, {}, {0: 50}, {})
    assert shown(usage)["device_utilization"] == 0.25
    machine.pass_time(LEAST_S / 2, {}, {3: 50}, {})
    assert shown(usage)["device_utilization"] == 0.5


def test_what_cannot_be_read_is_not_shown(machine: Machine) -> None:
    usage = machine.usage(0)
    (machine.folder / "meminfo").write_text("MemTotal: 1000 kB\n")
    machine.pass_time(2, {0: 1}, {}, {})
    assert tuple(shown(usage)) == NAMES[:1]
    (machine.folder / "meminfo").unlink()
    (machine.folder / "stat").unlink()
    machine.now_s += 2
    assert shown(usage) == {}


def test_a_share_is_one(machine: Machine) -> None:
    usage = machine.usage(0)
    machine.pass_time(2, {0: 100, 4: -10}, {}, {})
    assert shown(usage)["device_utilization"] == 1
    machine.pass_time(2, {0: -10, 3: 100}, {}, {})
    assert shown(usage)["device_utilization"] == 0


def test_cores_of_others_are_not_counted(machine: Machine) -> None:
    usage = machine.usage(7)
    machine.pass_time(2, {0: 1}, {0: 1}, {0: 1})
    assert tuple(shown(usage)) == NAMES[1:]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/stat")
def test_a_core_that_computes_is_seen_to() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    os.sched_setaffinity(0, {core})
    try:
        usage, until_s = CpuUsage(), time.monotonic() + LEAST_S + 0.1
        while time.monotonic() < until_s:
            pass
        found = shown(usage)
    finally:
        os.sched_setaffinity(0, before)
    assert tuple(found) == NAMES
    assert 0.9 < found["device_utilization"] <= 1
    assert found["device_memory_total_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < found["device_memory_used_bytes"] < found["device_memory_total_bytes"]
