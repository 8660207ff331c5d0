"""Which lines of the product's functions some bytes run, by the interpreter's own tracing. Knows files and lines."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from fuzz_parser import ROOT

Line = tuple[str, int]  # a file under the root, and a line in it


@functools.cache
def lines_of(file: str) -> frozenset[Line]:
    """Return the lines of all functions of a file: what is run when it is imported does not count."""
    code = compile((ROOT / file).read_text(encoding="utf-8"), file, "exec")
    return frozenset((file, line) for each in _functions(code) for line in _lines(each))


def run_lines(files: tuple[str, ...], work: Callable[[], object]) -> set[Line]:
    """Return the lines of `files` that `work` runs."""
    seen: set[Line] = set()
    names: dict[str, str] = {}

    def in_function(frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
        if event == "line":
            seen.add((names[frame.f_code.co_filename], frame.f_lineno))
        return in_function

    def on_call(frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any] | None:
        path = frame.f_code.co_filename
        if path not in names:
            names[path] = _under_root(path)
        return in_function if names[path] in files else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        work()
    finally:
        sys.settrace(before)
    return seen & frozenset().union(*map(lines_of, files))


def _under_root(path: str) -> str:
    try:
        return Path(path).resolve().relative_to(ROOT).as_posix()
    except ValueError:
        return ""


def _functions(code: CodeType, *, is_function: bool = False) -> Iterator[CodeType]:
    if is_function:
        yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _functions(each, is_function=bool(each.co_flags & 0x2))  # CO_NEWLOCALS: no class's body


def _lines(code: CodeType) -> set[int]:
    # The first is that of the head: a call is no line of it.
    return {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}
