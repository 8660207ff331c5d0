"""Writes the lock files of the images: every package by version and hash, from pyproject.toml and constraints.txt.

    python compose/lock.py UV        (make lock)

PyTorch itself is in none of them, since each index has a build of its own under one version; what its CUDA build brings
is in `cuda.lock`. Knows uv's command line. Invariant: a package is in one of `pod.lock` and `cuda.lock`, not in both.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
TORCH = re.search(r"^TORCH_VERSION := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
CUDA = re.compile(r"nvidia-|cuda-|triton|nixl")
HEADER = "# By `make lock`, from pyproject.toml and constraints.txt.\n"


def main(uv: str) -> None:
    """Write build.lock, router.lock, pod.lock and cuda.lock beside this file."""
    cuda = compiled(uv, ["--extra", "cuda", "--extra", "trace", "pyproject.toml"])
    pod = {**compiled(uv, ["--extra", "engine", "--extra", "trace", "pyproject.toml"]), **compiled(uv, ["-"], "pip\n")}
    write("build", compiled(uv, ["-"], "setuptools\n"))
    write("router", compiled(uv, ["--extra", "router", "--extra", "trace", "pyproject.toml"]))
    write("pod", {name: entry for name, entry in pod.items() if not CUDA.match(name)})
    write("cuda", {name: entry for name, entry in cuda.items() if CUDA.match(name)})


def compiled(uv: str, arguments: list[str], requirements: str = "") -> dict[str, str]:
    """Return what uv resolves, each package's lines under its name."""
    assert TORCH is not None
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as torch:
        torch.write(f"torch=={TORCH[1]}\n")
        torch.flush()
        command = [
            uv, "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-package",
            "torch", "--python-version", "3.11", "--python-platform", "linux", "--constraint", "constraints.txt",
            "--constraint", torch.name, *arguments,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, input=requirements, check=True, text=True, stdout=subprocess.PIPE)
    entries = re.split(r"^(?=[a-z0-9])", done.stdout, flags=re.MULTILINE)
    return {entry.partition("==")[0]: entry for entry in entries if "==" in entry.partition("\n")[0]}


def write(name: str, entries: dict[str, str]) -> None:
    """Write one lock file, by name of package."""
    (FOLDER / f"{name}.lock").write_text(HEADER + "".join(entries[each] for each in sorted(entries)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
