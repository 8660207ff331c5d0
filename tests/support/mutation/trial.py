"""Tests against mutants: which tests reach which line, and whether one of those that reach a mutant fails by it.

Collects the tests once, then tries each mutant in a copy of this process, where the functions that differ are given
their new code: what was imported by name stays imported, and nothing is loaded twice. A mutant of what runs at import
(a default, a constant) costs more: the copy forgets our modules and collects anew. Where only some mutants are asked
for, the tests are bounded too: what is not run cannot kill, so that counts too few, never too many. Invariant: no
mutant ever runs in this process itself.
"""

from __future__ import annotations

import gc
import importlib.machinery
import inspect
import math
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, settings
from mutation.fork import allow, forked
from mutation.mutants import Mutant, mutants_of
from source_tree import ROOT

Functions = dict[tuple[str, int], list[FunctionType]]  # by qualified name and first line

PACKAGE = ROOT / "src" / "pagewire"
MOST_EXAMPLES = 60
WATCHED_S = 12.0  # of the processor's, for the tests of one file where only some mutants are asked for
ENOUGH_S = 10.0  # of the processor's, for the tests that reach one of them, the quickest first
# The same examples every time, and no search for a smaller one: the first failure is enough.
settings.register_profile(
    "mutation",
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@dataclass(slots=True)
class Reach:
    """What each test reached: its lines of every watched file, and its time in seconds."""

    lines: dict[str, dict[str, set[int]]] = field(default_factory=dict)  # of a file, by test
    seconds: dict[str, float] = field(default_factory=dict)  # of the processor's
    clock: dict[str, float] = field(default_factory=dict)
    at_import: dict[str, set[int]] = field(default_factory=dict)  # lines of a file that run before any test does
    enough_s: float = math.inf

    def tests_of(self, file: str, mutant: Mutant) -> list[str]:
        """Return the tests that run what a mutant changed, the quickest first."""
        return self._quickest_first(
            test for test, lines in self.lines[file].items() if not lines.isdisjoint(mutant.lines)
        )

    def runs_before(self, file: str, mutant: Mutant) -> bool:
        """Whether what changed runs before any test does, so that some may notice only once all is loaded anew."""
        return mutant.runs_at_import or not self.at_import[file].isdisjoint(mutant.lines)

    def tests_anew(self, file: str) -> list[str]:
        """Return the tests for such a mutant: those that run the file at all, then the others, the quickest first."""
        near = self._quickest_first(self.lines[file])
        return self._within([*near, *self._quickest_first(set(self.seconds) - set(near))])

    def limits(self, tests: Iterable[str]) -> tuple[float, float]:
        """Return the processor's and the clock's seconds after which a mutant hangs in these tests."""
        tests = list(tests)
        return 1 + 3 * sum(self.seconds[test] for test in tests), 30 + 10 * sum(self.clock[test] for test in tests)

    def _quickest_first(self, tests: Iterable[str]) -> list[str]:
        return self._within(sorted(tests, key=lambda test: (self.seconds[test], test)))

    def _within(self, tests: Sequence[str]) -> list[str]:
        """Return the first of these, as many as take no more than enough."""
        sums = accumulate(self.seconds[test] for test in tests)
        return [test for test, seconds in zip(tests, sums, strict=True) if seconds <= self.enough_s]


class Trials:
    """A pytest plugin whose run of the tests is the trial of every mutant of `files`, or of those drawn."""

    def __init__(self, files: Sequence[str], drawn: Mapping[str, Collection[str]] | None) -> None:
        self.tried: dict[str, list[str]] = {file: [] for file in files}
        self.survivors: dict[str, list[str]] = {file: [] for file in files}
        self._drawn = drawn
        self._items: dict[str, pytest.Item] = {}
        self._anew: dict[str, list[str]] = {}  # the tests that pass when all is loaded anew, by file

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants instead of running the tests."""
        self._items = {item.nodeid: item for item in session.items}
        functions = {file: functions_of(str(PACKAGE / file)) for file in self.tried}
        gc.freeze()  # or every copy of this process would write to all that it shares with it
        reach = reach_of(list(self.tried), session.items, is_bounded=self._drawn is not None)
        for file, mutant in self._in_turn():
            self.tried[file].append(mutant.name)
            if self._survives(file, mutant, functions[file], reach):
                self.survivors[file].append(mutant.name)
                print(f"  survives in {file}:{mutant.lines.start}: {mutant.name}", file=sys.stderr, flush=True)
        return True

    def _in_turn(self) -> Iterator[tuple[str, Mutant]]:
        for file in self.tried:
            for mutant in _mutants_in(file):
                if self._drawn is None or mutant.name in self._drawn[file]:
                    yield file, mutant

    def _survives(self, file: str, mutant: Mutant, functions: Functions, reach: Reach) -> bool:
        swaps = None if mutant.runs_at_import else swaps_of(mutant.code, functions)
        if swaps is not None:
            tests = reach.tests_of(file, mutant)
            items = [(self._items[test], reach.limits([test])[0]) for test in tests]
            if forked(lambda: ends_with(swaps, items), *reach.limits(tests)) != 0:
                return False
        if swaps is not None and not reach.runs_before(file, mutant):
            return True
        if file not in self._anew:
            tests = reach.tests_anew(file)
            self._anew[file] = pass_anew(tests, *_limits_anew(reach, tests))
        tests = self._anew[file]
        return not tests or forked(lambda: ends_anew(mutant.code, tests), *_limits_anew(reach, tests)) == 0


def _limits_anew(reach: Reach, tests: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of the processor and of the clock after which they hang, that all is loaded among them."""
    cpu_seconds, wall_seconds = reach.limits(tests)
    return cpu_seconds + 20, wall_seconds + 120


def _mutants_in(file: str) -> Iterator[Mutant]:
    path = PACKAGE / file
    return mutants_of(path.read_text(), str(path))


class _FewerExamples:
    """A pytest plugin that bounds how long a property is tried, or each survivor would cost minutes."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            function = getattr(item, "obj", None)
            for owner, name in (
                (getattr(item, "cls", None), "settings"),
                (function, "_hypothesis_internal_use_settings"),
            ):
                chosen = getattr(owner, name, None)
                if isinstance(chosen, settings) and chosen.max_examples > MOST_EXAMPLES:
                    setattr(getattr(owner, "__func__", owner), name, settings(chosen, max_examples=MOST_EXAMPLES))


def try_mutants(
    files: Sequence[str], tests: Sequence[str], drawn: Mapping[str, Collection[str]] | None = None
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the mutants tried, all or those drawn by file, and those that survived, by file.

    Raises RuntimeError where the tests fail as all is.
    """
    settings.load_profile("mutation")
    trials = Trials(files, drawn)
    code = pytest.main([*_OPTIONS, *(str(ROOT / test) for test in tests)], plugins=[_FewerExamples(), trials])
    if code != 0:
        raise RuntimeError(f"the tests do not run: {code}")
    return trials.tried, trials.survivors


# Nobody reads why a test fails.
_OPTIONS = (
    "-q",
    "-x",
    "-s",
    "--assert=plain",
    "--tb=no",
    "--no-header",
    "--no-summary",
    "-p",
    "no:cacheprovider",
    "-m",
    "not (cluster or smollm2 or gpu)",
)


def reach_of(files: Sequence[str], items: Sequence[pytest.Item], is_bounded: bool) -> Reach:
    """Note what each test reaches, in a copy of this process; where bounded, only for so long in a file.

    Raises RuntimeError where a test fails without a mutant; where bounded, such a test only kills nothing.
    """
    answer = forked(lambda: _watched(files, items, WATCHED_S if is_bounded else math.inf))
    if answer is None or (answer["failed"] and not is_bounded):
        raise RuntimeError(f"without any mutant: {answer and answer['failed']}")
    for test in answer["failed"]:
        print(f"  left out, for it fails without any mutant: {test}", file=sys.stderr, flush=True)
    quickest = sorted(answer["seconds"], key=answer["seconds"].__getitem__)[:10]
    anew = forked(lambda: _watched_anew(files, quickest))
    if anew is None:
        raise RuntimeError("the tests fail when they are loaded anew")
    reach = Reach(seconds=answer["seconds"], clock=answer["clock"], enough_s=ENOUGH_S if is_bounded else math.inf)
    for file in files:
        reach.lines[file] = {test: set(lines) for test, lines in answer["lines"][file].items()}
        reach.at_import[file] = set(anew[str(PACKAGE / file)])
    return reach


def pass_anew(tests: Sequence[str], cpu_seconds: float, wall_seconds: float) -> list[str]:
    """Return those of some tests that pass, without a mutant, after all was loaded anew."""

    class Noting:
        def __init__(self) -> None:
            self.failed: set[str] = set()

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                self.failed.add(report.nodeid)

    def work() -> list[str]:
        noting = Noting()
        ended = ends_anew(compile("", "", "exec"), ["--maxfail=1000000", *tests], noting)
        return [test for test in tests if test not in noting.failed] if ended in (0, 1) else []

    passed: list[str] = forked(work, cpu_seconds, wall_seconds) or []
    return passed


def _watched_anew(files: Sequence[str], tests: Sequence[str]) -> dict[str, list[int]]:
    """Return the lines within functions that run while all is loaded anew, and see that the tests pass then."""
    seen: dict[str, set[int]] = {str(PACKAGE / file): set() for file in files}
    watch = _noting(seen, only_functions=True)

    class UntilTests:
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtestloop(self) -> None:
            watch.__exit__()

    nothing = compile("", "", "exec")
    with watch:
        assert ends_anew(nothing, tests, UntilTests()) == 0
    return {path: sorted(lines) for path, lines in seen.items()}


def _watched(files: Sequence[str], items: Sequence[pytest.Item], most_seconds: float) -> dict[str, Any]:
    lines: dict[str, dict[str, list[int]]] = {file: {} for file in files}
    seconds: dict[str, float] = {}
    clock: dict[str, float] = {}
    failed = []
    spent: dict[Path, float] = {}  # by test file
    for item, following in zip(items, [*items[1:], None], strict=True):
        if spent.get(item.path, 0.0) > most_seconds:
            continue
        seen: dict[str, set[int]] = {str(PACKAGE / file): set() for file in files}
        start, start_clock = time.process_time(), time.monotonic()
        with _noting(seen):
            reports = runtestprotocol(item, nextitem=following, log=False)
        spent[item.path] = spent.get(item.path, 0.0) + time.process_time() - start
        if any(report.failed for report in reports):
            failed.append(item.nodeid)
        if any(report.skipped or report.failed for report in reports):
            continue
        seconds[item.nodeid] = time.process_time() - start
        clock[item.nodeid] = time.monotonic() - start_clock
        for file in files:
            if reached := seen[str(PACKAGE / file)]:
                lines[file][item.nodeid] = sorted(reached)
    return {"lines": lines, "seconds": seconds, "clock": clock, "failed": failed}


class _noting:
    """Note the lines of the files in `seen` that run within the block, in any thread that starts there."""

    def __init__(self, seen: dict[str, set[int]], only_functions: bool = False) -> None:
        self._seen = seen
        self._only_functions = only_functions

    def __enter__(self) -> None:
        threading.settrace(self._frame)
        sys.settrace(self._frame)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _frame(self, frame: FrameType, event: str, _: object) -> Any:
        lines = self._seen.get(frame.f_code.co_filename)
        if lines is None or (self._only_functions and not frame.f_code.co_flags & inspect.CO_NEWLOCALS):
            return None

        def note(frame: FrameType, event: str, _: object) -> Any:
            lines.add(frame.f_lineno)
            return note

        lines.add(frame.f_lineno)
        return note


def functions_of(path: str) -> Functions:
    """Return all functions of a file that live now, by qualified name and first line."""
    found: Functions = {}
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == path:
            code = function.__code__
            found.setdefault((code.co_qualname, code.co_firstlineno), []).append(function)
    return found


def swaps_of(module: CodeType, functions: Functions) -> list[tuple[FunctionType, CodeType]] | None:
    """Return which function is to be given which code; None where that cannot say what the mutant is."""
    codes: dict[tuple[str, int], CodeType] = {}
    for code in _functions_in(module):
        key = (code.co_qualname, code.co_firstlineno)
        if key in codes:
            return None  # two lambdas on a line
        codes[key] = code
    swaps = [(one, codes[key]) for key, found in functions.items() for one in found if one.__code__ != codes[key]]
    return None if any(one.__code__.co_freevars != code.co_freevars for one, code in swaps) else swaps


def _functions_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & inspect.CO_NEWLOCALS and not constant.co_name.endswith(("comp>", "<genexpr>")):
                yield constant
            yield from _functions_in(constant)


def ends_with(swaps: Iterable[tuple[FunctionType, CodeType]], items: Iterable[tuple[pytest.Item, float]]) -> int:
    """Return how many tests fail with the functions so changed: 0, or 1 as soon as one does, within its seconds."""
    for function, code in swaps:
        function.__code__ = code
    for item, cpu_seconds in items:
        allow(cpu_seconds)
        if any(report.failed for report in runtestprotocol(item, nextitem=None, log=False)):
            return 1
    return 0


def ends_anew(code: CodeType, tests: Sequence[str], *plugins: object) -> int:
    """Return pytest's exit code after our modules and the tests were loaded anew, one file's code being `code`."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        is_ours = file.startswith((f"{PACKAGE}/", f"{ROOT}/tests/")) and not file.startswith(f"{PACKAGE}/protos/")
        if is_ours and not name.startswith("mutation."):
            del sys.modules[name]
    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
        return code if loader.path == code.co_filename else plain(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]
    return int(pytest.main([*_OPTIONS, *tests], plugins=[_FewerExamples(), *plugins]))
