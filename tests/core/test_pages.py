"""Pages are present before they are touched, as the kernel itself says."""

from __future__ import annotations

import collections
import mmap
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pagewire.core import pages
from pagewire.core.buffer_address import BufferAddress
from pagewire.core.pages import HUGE_BYTES, STEP_BYTES, prefault

NUM_BYTES = 2 * STEP_BYTES + 12288
ADDR_COMPAT_LAYOUT = 0x0200000  # of <linux/personality.h>
PLACED = """
import ctypes, os, sys
if sys.argv[2:]:  # the layout is that of what this process becomes
    ctypes.CDLL(None).personality(int(sys.argv[2]))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1]])
from pagewire.core import pages
from pagewire.core.buffer_address import BufferAddress
size, fd, kept = int(sys.argv[1]), os.memfd_create("pool"), []
os.ftruncate(fd, size)
for _ in range(4):
    kept.append(pages.map_file(fd, size, writable=True))
    with BufferAddress(kept[-1]) as address:
        print(address)
"""


def resident_bytes(memory: mmap.mmap) -> int:
    """Return how much of a mapping is in this process's page tables: counted page by page, as no sum of them all is."""
    with BufferAddress(memory) as address:
        place = f"{address:x}-{address + len(memory):x}"
    found = re.search(rf"^{place} .*?^Rss:\s+(\d+) kB", Path("/proc/self/smaps").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, place
    return int(found[1]) * 1024


@pytest.mark.parametrize("writable", [True, False])
def test_all_pages_are_there_afterwards(writable: bool) -> None:
    fd = os.memfd_create("pool")
    os.ftruncate(fd, NUM_BYTES)
    memory = pages.map_file(fd, NUM_BYTES, writable=writable)
    assert resident_bytes(memory) == 0
    assert list(prefault(memory, writable=writable)) == [STEP_BYTES, 2 * STEP_BYTES, NUM_BYTES]
    assert resident_bytes(memory) == NUM_BYTES
    memory.close()
    os.close(fd)


@pytest.mark.parametrize("writable", [True, False])
def test_a_file_is_mapped_where_huge_pages_fit(writable: bool) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"first" + bytes(NUM_BYTES))
        file.flush()
        maps = [pages.map_file(file.fileno(), NUM_BYTES, writable=writable) for _ in range(3)]
        for memory in maps:
            assert memory[:5] == b"first"
            with BufferAddress(memory) as address:
                assert address % HUGE_BYTES == 0
        if writable:
            maps[0][:5] = b"other"
            assert maps[2][:5] == b"other"
        for memory in maps:
            memory.close()


# Holes that are smaller than a huge page, as every process has, and such that the file just fits, as mappings leave.
SMALL_HOLES = (HUGE_BYTES // 2, 8 * mmap.PAGESIZE) * 8
TIGHT_HOLES = (NUM_BYTES + HUGE_BYTES // 2 + mmap.PAGESIZE,) * 8


@pytest.mark.parametrize("sizes", [SMALL_HOLES, TIGHT_HOLES], ids=["small", "tight"])
def test_holes_in_the_address_space_do_not_matter(sizes: tuple[int, ...]) -> None:
    """Every second mapping of these sizes goes again: holes higher up than the place that the file is to get."""
    walls = [mmap.mmap(-1, size) for size in sizes]
    for wall in walls[::2]:
        wall.close()
    fd = os.memfd_create("pool")
    os.ftruncate(fd, NUM_BYTES)
    memory = pages.map_file(fd, NUM_BYTES, writable=True)
    with BufferAddress(memory) as address:
        assert address % HUGE_BYTES == 0
    for left in (memory, *walls[1::2]):
        left.close()
    os.close(fd)


def test_which_way_addresses_are_given_out_does_not_matter() -> None:
    """Upwards, in a process that asks for the old layout; where nobody may ask, downwards once more."""
    command = [sys.executable, "-P", "-c", PLACED, str(NUM_BYTES), str(ADDR_COMPAT_LAYOUT)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert [int(address) % HUGE_BYTES for address in run.stdout.split()] == [0] * 4


def test_what_is_short_is_refused() -> None:
    with tempfile.TemporaryFile() as file, pytest.raises(ValueError, match="file size"):
        pages.map_file(file.fileno(), HUGE_BYTES, writable=True)


def test_anonymous_memory_is_zero_and_stays_so_while_it_is_made_present() -> None:
    memory = pages.map_anonymous(NUM_BYTES)
    memory[:5] = b"first"
    assert list(prefault(memory, writable=True))[-1] == NUM_BYTES
    assert memory[:5] == b"first"
    assert not any(memory[at] for at in range(5, NUM_BYTES, 4096))
    memory.close()


def test_where_it_cannot_be_done_nothing_is_lost() -> None:
    fd = os.memfd_create("pool")
    os.ftruncate(fd, mmap.PAGESIZE)
    read_only = mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ)
    collections.deque(prefault(read_only, writable=True), maxlen=0)  # the kernel refuses
    assert read_only[:4] == bytes(4)
    read_only.close()
    os.close(fd)
