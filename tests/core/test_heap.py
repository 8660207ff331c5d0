"""The heap is kept wherever the C library can be told to."""

from __future__ import annotations

import platform

from pagewire.core.heap import keep_heap


def test_the_heap_is_kept_where_the_c_library_can_be_told() -> None:
    assert keep_heap() is (platform.libc_ver()[0] == "glibc")
