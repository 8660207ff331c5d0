"""The heap is kept, and given back, wherever the C library can be told to."""

from __future__ import annotations

import platform
import subprocess
import sys

from pagewire.core.heap import keep_heap

HELD = """
import psutil
from pagewire.core.heap import give_back, keep_heap
keep_heap()
pieces = [bytearray(1 << 20) for _ in range(200)]
resident = psutil.Process().memory_info
del pieces
before = resident().rss
print(give_back(), before - resident().rss)
"""


def test_the_heap_is_kept_where_the_c_library_can_be_told() -> None:
    assert keep_heap() is (platform.libc_ver()[0] == "glibc")


def test_what_is_free_goes_back_when_it_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", HELD], check=True, capture_output=True, text=True)
    could, num_bytes = done.stdout.split()
    is_glibc = platform.libc_ver()[0] == "glibc"
    assert could == str(is_glibc)
    assert not is_glibc or int(num_bytes) > 150 << 20
