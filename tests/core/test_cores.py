"""Usable cores, against made-up trees of control groups of both versions, as the kernel's documents describe them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagewire.core import cores

BOUND = len(os.sched_getaffinity(0))
SECOND, FIRST = "0::/pods/one\n", "12:memory:/other\n4:cpu,cpuacct:/pods/one\n0::/\n"
ENOUGH = "9900000 100000\n"  # of 99 cores


def usable(folder: Path, membership: str, files: dict[str, str]) -> int:
    for name, text in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "membership").write_text(membership)
    return cores.usable(folder / "groups", folder / "membership")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, BOUND),
        ({"pods/one/cpu.max": "max 100000\n"}, BOUND),
        ({"pods/one/cpu.max": ENOUGH}, BOUND),
        ({"pods/one/cpu.max": "100000 100000\n"}, 1),
        ({"pods/one/cpu.max": "199000 100000\n"}, 1),  # whole cores: what is more would stand still
        ({"pods/one/cpu.max": "50000 100000\n"}, 1),
        ({"pods/one/cpu.max": ENOUGH, "pods/cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "100000 100000\n"}, 1),  # what a container sees of its own group
    ],
)
def test_quotas_of_the_second_version(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert usable(tmp_path, SECOND, files) == expected


@pytest.mark.parametrize(
    ("group", "quota", "expected"),
    [
        ("pods/one", "-1", BOUND), ("pods/one", "9900000", BOUND), ("pods/one", "100000", 1), ("pods", "100000", 1),
        (".", "100000", 1),
    ],
)  # fmt: skip
def test_quotas_of_the_first_version(tmp_path: Path, group: str, quota: str, expected: int) -> None:
    files = {
        f"cpu,cpuacct/{group}/cpu.cfs_quota_us": f"{quota}\n", f"cpu,cpuacct/{group}/cpu.cfs_period_us": "100000\n"
    }  # fmt: skip
    assert usable(tmp_path, FIRST, files) == expected


def test_where_there_are_no_control_groups_it_is_what_the_process_is_bound_to(tmp_path: Path) -> None:
    assert cores.usable(tmp_path / "none", tmp_path / "nothing") == BOUND
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert cores.usable(tmp_path / "none", tmp_path / "nothing") == 1
    finally:
        os.sched_setaffinity(0, before)
