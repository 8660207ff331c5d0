"""Our folders are importable as `pagewire.x` alone: `kernels` stays free for the package of that name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from source_tree import FOLDERS, ROOT

WHERE = """
import importlib.util
for name in {names!r}:
    spec = importlib.util.find_spec(name)
    places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or [])]
    for place in places:
        print(name, place)
"""


def shadowed(text: str) -> list[str]:
    return [line for line in text.splitlines() if Path(line.split(" ", 1)[1]).resolve().is_relative_to(ROOT)]


def test_no_folder_is_a_top_level_name_in_the_tests() -> None:
    assert str(ROOT) not in [str(Path(entry or ".").resolve()) for entry in sys.path]


def test_no_folder_is_a_top_level_name_in_a_process_started_from_the_root() -> None:
    code = WHERE.format(names=FOLDERS)
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert shadowed(done.stdout) == []


def test_the_check_sees_a_shadow_where_there_is_one() -> None:
    command = [sys.executable, "-c", WHERE.format(names=["kernels"])]
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    assert shadowed(done.stdout) != []
