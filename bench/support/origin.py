"""What figures must be read with, and are written with: machine, versions, command. No host names, no paths."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

INSTRUCTIONS = ("avx2", "avx_vnni", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser for a benchmark that says what it is, with `--json`, a file for its figures."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, with machine and versions")
    return parser


def write_figures(
    path: Path | None, figures: Mapping[str, Any], *packages: str, gpu: str = "", peers: Mapping[str, str] | None = None
) -> None:
    """Write figures as JSON with their `origin`, where a file was named."""
    if path is not None:
        path.write_text(json.dumps({**figures, **origin(*packages, gpu=gpu, peers=peers)}, indent=1) + "\n")


def origin(*packages: str, gpu: str = "", peers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the machine, with its GPU where one is named, the versions of `packages` and `peers`, and the command."""
    return {
        "machine": machine() | ({"gpu": gpu} if gpu else {}),
        "versions": versions(*packages) | (peers or {}),
        "command": command(sys.argv),
    }


def machine() -> dict[str, Any]:
    """Return the processor, its cores and wide instructions, and memory in GiB."""
    told: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        told.setdefault(key.strip(), value.strip())
    flags = told.get("flags", "").split()
    return {
        "cpu": told.get("model name", platform.machine()),
        "family-model": f"{told.get('cpu family', '?')}-{told.get('model', '?')}",
        "cores": os.cpu_count(),
        "instructions": [name for name in INSTRUCTIONS if name in flags],
        "memory-gib": round(psutil.virtual_memory().total / 2**30, 1),
    }


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, of this tree and of `packages`."""
    found = {"python": platform.python_version(), "pagewire": _commit()}
    return found | {package: metadata.version(package) for package in packages}


def command(arguments: Sequence[str]) -> str:
    """Return a command line in which every path is its last part."""
    return shlex.join(_last_part(argument) for argument in arguments)


def _last_part(argument: str) -> str:
    head, equals, tail = argument.rpartition("=")
    return head + equals + (Path(tail).name if "/" in tail else tail)


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    said = (
        subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() if shutil.which("git") else ""
    )
    try:
        return said or metadata.version("pagewire")
    except metadata.PackageNotFoundError:  # a copy of the tree, on a machine where it is not installed
        return "not known"
