"""What figures must be read with: the machine and the versions. No host names, no paths."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from pagewire.core import cores

CPU_INFO = Path("/proc/cpuinfo")


def machine() -> dict[str, Any]:
    """Return the processor, how many cores this process may use, memory in GiB, and the system."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _processor(),
        "cores": cores.usable(),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, of Pagewire and of `packages`, those of them that are installed."""
    found = {"python": platform.python_version()}
    for package in ("pagewire", *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    if CPU_INFO.is_file():
        for line in CPU_INFO.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
