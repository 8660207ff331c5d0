"""Pages are present before they are touched, as the kernel itself says."""

from __future__ import annotations

import collections
import mmap
import os
import re
from pathlib import Path

import pytest

from pagewire.kvtransfer.prefault import STEP_BYTES, prefault

NUM_BYTES = 2 * STEP_BYTES + 12288


def resident_bytes() -> int:
    """Return how much shared memory this process has in its page tables."""
    found = re.search(r"^RssShmem:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("writable", [True, False])
def test_all_pages_are_there_afterwards(writable: bool) -> None:
    fd = os.memfd_create("pool")
    os.ftruncate(fd, NUM_BYTES)
    memory = mmap.mmap(fd, NUM_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    before = resident_bytes()
    assert list(prefault(memory, writable=writable)) == [STEP_BYTES, 2 * STEP_BYTES, NUM_BYTES]
    assert resident_bytes() - before == NUM_BYTES
    memory.close()
    os.close(fd)


def test_where_it_cannot_be_done_nothing_is_lost() -> None:
    fd = os.memfd_create("pool")
    os.ftruncate(fd, mmap.PAGESIZE)
    read_only = mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ)
    collections.deque(prefault(read_only, writable=True), maxlen=0)  # the kernel refuses
    assert read_only[:4] == bytes(4)
    read_only.close()
    os.close(fd)
