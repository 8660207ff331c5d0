"""Usable memory, against made-up trees of control groups of both versions, as the kernel's documents describe them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pagewire.core import memory_limit

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
SECOND, FIRST = "0::/pods/one\n", "12:memory:/pods/one\n4:cpu,cpuacct:/other\n0::/\n"
UNBOUNDED = {SECOND: "max", FIRST: "9223372036854771712"}
FILES = {SECOND: "{}/memory.max", FIRST: "memory/{}/memory.limit_in_bytes"}


def usable(folder: Path, membership: str, said: dict[str, str]) -> int:
    for group, text in said.items():
        path = folder / "groups" / FILES[membership].format(group)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    folder.mkdir(exist_ok=True)
    (folder / "membership").write_text(membership)
    return memory_limit.usable_bytes(folder / "groups", folder / "membership")


@pytest.mark.parametrize("version", [SECOND, FIRST])
def test_it_is_the_least_of_the_machine_and_all_groups_above(tmp_path: Path, version: str) -> None:
    assert usable(tmp_path / "a", version, {}) == MACHINE
    assert usable(tmp_path / "b", version, {"pods/one": UNBOUNDED[version]}) == MACHINE
    assert usable(tmp_path / "c", version, {"pods/one": str(2 * MACHINE)}) == MACHINE
    assert usable(tmp_path / "d", version, {"pods/one": "4096"}) == 4096
    assert usable(tmp_path / "e", version, {"pods/one": "8192", "pods": "4096"}) == 4096
    assert usable(tmp_path / "f", version, {".": "4096"}) == 4096  # what a container sees of its own group


def test_where_there_are_no_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert memory_limit.usable_bytes(tmp_path / "none", tmp_path / "nothing") == MACHINE


@pytest.mark.parametrize(("kind", "is_memory"), [("tmpfs", True), ("ramfs", True), ("ext4", False), ("nfs4", False)])
def test_a_folder_is_memory_where_its_file_system_is(tmp_path: Path, kind: str, is_memory: bool) -> None:
    device = tmp_path.stat().st_dev
    other = "25 24 0:0 / /other rw - {} other rw".format("ext4" if is_memory else "tmpfs")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"{other}\n26 24 {os.major(device)}:{os.minor(device)} / /a rw shared:1 - {kind} x rw\n")
    for folder in (tmp_path, tmp_path / "to" / "come"):
        assert memory_limit.is_memory(folder, mounts) is is_memory
    mounts.write_text(other)
    assert not memory_limit.is_memory(tmp_path, mounts)
    assert not memory_limit.is_memory(tmp_path, tmp_path / "none")


def test_the_kernels_own_table_is_read() -> None:
    assert memory_limit.is_memory(Path("/dev/shm/not/there"))
    assert not memory_limit.is_memory(Path("/proc"))
