"""Files that decide do no I/O: no device, no loop, no clock of their own, no chance.

So the same code runs in production, under a virtual clock in fault simulation and in the SLO simulator. What a pure
file imports of ours is pure as well.
"""

from __future__ import annotations

import ast

import pytest
from mutation.run import groups
from pure_files import PURE_FILES
from source_tree import ROOT, SourceFile, source_files

# Not decisions, but mappings and protocols that pure files may stand on.
HARMLESS = ("client/codec.py", "core/clock.py", "protos/")

IMPURE = {
    "torch", "triton", "numpy", "grpc", "redis", "asyncio", "socket", "threading", "subprocess", "os", "time", "random",
    "secrets", "mmap", "logging", "uvicorn", "starlette",
}  # fmt: skip


def own_files(name: str) -> list[str]:
    """Return the files of ours that `name` imports."""
    found = []
    for _, what in SourceFile(ROOT / name).imports():
        parts = what.split(".")
        if parts[0] != "pagewire":
            continue
        # `from pagewire.a.b import C` is file a/b.py; `from pagewire.a import b` is too.
        for length in (len(parts), len(parts) - 1):
            path = "/".join(parts[1:length]) + ".py"
            if (ROOT / path).is_file():
                found.append(path)
                break
        else:
            found.append("/".join(parts[1:-1]))
    return found


def test_a_file_that_says_it_is_pure_is_held_to_it() -> None:
    told = {file.name for file in source_files() if "Pure." in (ast.get_docstring(file.tree()) or "")}
    assert sorted(told - set(PURE_FILES)) == []


@pytest.mark.parametrize("name", PURE_FILES)
def test_a_file_that_decides_does_no_io(name: str) -> None:
    imports = SourceFile(ROOT / name).imports()
    found = [f"{name}:{line}: {what}" for line, what in imports if what.split(".")[0] in IMPURE]
    assert found == []


@pytest.mark.parametrize("name", PURE_FILES)
def test_what_it_imports_of_ours_is_pure_too(name: str) -> None:
    found = [other for other in own_files(name) if other not in PURE_FILES and not other.startswith(HARMLESS)]
    assert found == []


def test_only_what_decides_is_tried_by_mutants() -> None:
    assert {file for group in groups() for file in group.files} <= set(PURE_FILES)
