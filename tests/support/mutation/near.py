"""Which test files stand near a file of ours: the one that bears its name, and those that import it, the least first.

What imports the least of ours besides states most directly what the file does, and is the cheapest. Where none imports
it, those count whose imports reach it in the fewest steps. Reads names and imports and runs nothing. Knows nothing of
mutants.
"""

from __future__ import annotations

import functools
from collections import deque
from pathlib import Path

from source_tree import ROOT, SourceFile

# Whose tests run in the process that collects them; those elsewhere start pods, containers or browsers.
FOLDERS = ("client", "core", "decode_service", "engine", "kvtransfer", "router", "serving", "slo", "text")


def near(file: str, most: int) -> list[str]:
    """Return the test file of a file's name, and at most so many others, all as few imports away from it as any is."""
    found = sorted((steps[file], len(steps), test) for test in _test_files() if file in (steps := _steps(test)))
    name = f"tests/{file.split('/')[0]}/test_{Path(file).name}"
    named = [name] if name in _test_files() else []
    return [*named, *[test for steps, _, test in found if steps == found[0][0] and test != name][:most]]


@functools.cache
def _test_files() -> tuple[str, ...]:
    paths = (path for folder in FOLDERS for path in sorted((ROOT / "tests" / folder).glob("test_*.py")))
    return tuple(path.relative_to(ROOT).as_posix() for path in paths)


@functools.cache
def _steps(name: str) -> dict[str, int]:
    """Return how many imports lead from a file to each that it reaches."""
    steps = {name: 0}
    waiting = deque([name])
    while waiting:
        here = waiting.popleft()
        for other in _imported(here):
            if other not in steps:
                steps[other] = steps[here] + 1
                waiting.append(other)
    return steps


@functools.cache
def _imported(name: str) -> frozenset[str]:
    """Return the files of ours that a file imports, wherever the import stands."""
    return frozenset(file for _, what in SourceFile(ROOT / name).imports() if (file := _file_of(what)))


@functools.cache
def _file_of(what: str) -> str | None:
    """Return the file that a dotted name is in: `pagewire.a.b.C` and `pagewire.a.b` are in a/b.py."""
    parts = what.split(".")
    base = Path() if parts[0] == "pagewire" else Path("tests/support")
    parts = parts[1:] if parts[0] == "pagewire" else parts
    for length in (len(parts), len(parts) - 1):
        file = base.joinpath(*parts[:length]).with_suffix(".py") if length > 0 else base
        if length > 0 and (ROOT / file).is_file():
            return file.as_posix()
    return None
