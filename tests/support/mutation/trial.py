"""Tests against mutants: which tests reach which line, and whether one of those that reach a mutant fails by it.

Collects the tests once, then tries each mutant in a copy of this process, where the functions that differ are given
their new code: what was imported by name stays imported, and nothing is loaded twice. A mutant of what runs at import
(a default, a constant) costs more: the copy forgets our modules and collects anew. Invariant: no mutant ever runs in
this process itself.
"""

from __future__ import annotations

import gc
import importlib.machinery
import inspect
import random
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
    """What each test reached: its lines of every watched file, and its processor time in seconds."""

    lines: dict[str, dict[str, set[int]]] = field(default_factory=dict)  # of a file, by test
    seconds: dict[str, float] = field(default_factory=dict)
    at_import: dict[str, set[int]] = field(default_factory=dict)  # lines of a file that run before any test does

    def tests_of(self, file: str, mutant: Mutant) -> list[str]:
        """Return the tests that run what a mutant changed, the quickest first."""
        return self._quickest_first(
            test for test, lines in self.lines[file].items() if not lines.isdisjoint(mutant.lines)
        )

    def tests_anew(self, file: str, mutant: Mutant) -> list[str]:
        """Return those that may notice only once all is loaded anew, for what changed runs before any test does."""
        runs_before = mutant.runs_at_import or not self.at_import[file].isdisjoint(mutant.lines)
        return self._quickest_first(self.seconds) if runs_before else []

    def limits(self, tests: Iterable[str]) -> tuple[float, float]:
        """Return the processor's and the clock's seconds after which a mutant hangs in these tests."""
        seconds = sum(self.seconds[test] for test in tests)
        return 1 + 3 * seconds, 120 + 10 * seconds

    def _quickest_first(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds[test], test))


@dataclass(frozen=True, slots=True)
class Sample:
    """Mutants in an order by chance, without those in the record, for as long as there is time."""

    seed: str
    seconds: float
    record: dict[str, list[str]]  # survivors by file


class Trials:
    """A pytest plugin whose run of the tests is the trial of every mutant of `files`, or of a sample of them."""

    def __init__(self, files: Sequence[str], sample: Sample | None) -> None:
        self.tried: dict[str, list[str]] = {file: [] for file in files}
        self.survivors: dict[str, list[str]] = {file: [] for file in files}
        self._sample = sample
        self._start_s = time.monotonic()
        self._items: dict[str, pytest.Item] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants instead of running the tests."""
        self._items = {item.nodeid: item for item in session.items}
        functions = {file: functions_of(str(PACKAGE / file)) for file in self.tried}
        gc.freeze()  # or every copy of this process would write to all that it shares with it
        reach = reach_of(list(self.tried), session.items)
        for file, mutant in self._in_turn():
            if self._sample is not None and time.monotonic() - self._start_s > self._sample.seconds:
                break
            self.tried[file].append(mutant.name)
            if self._survives(file, mutant, functions[file], reach):
                self.survivors[file].append(mutant.name)
                print(f"  survives in {file}:{mutant.lines.start}: {mutant.name}", file=sys.stderr, flush=True)
        return True

    def _in_turn(self) -> Iterator[tuple[str, Mutant]]:
        everyone = ((file, mutant) for file in self.tried for mutant in _mutants_in(file))
        if self._sample is None:
            yield from everyone
            return
        sampled = [(file, mutant) for file, mutant in everyone if mutant.name not in self._sample.record.get(file, ())]
        random.Random(self._sample.seed).shuffle(sampled)
        yield from sampled

    def _survives(self, file: str, mutant: Mutant, functions: Functions, reach: Reach) -> bool:
        swaps = None if mutant.runs_at_import else swaps_of(mutant.code, functions)
        if swaps is not None:
            tests = reach.tests_of(file, mutant)
            items = [(self._items[test], reach.limits([test])[0]) for test in tests]
            if forked(lambda: ends_with(swaps, items), *reach.limits(tests)) != 0:
                return False
        tests = reach.tests_anew(file, mutant) if swaps is not None else list(reach.seconds)
        cpu_seconds, wall_seconds = reach.limits(tests)
        return not tests or forked(lambda: ends_anew(mutant.code, tests), cpu_seconds + 20, wall_seconds) == 0


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
    files: Sequence[str], tests: Sequence[str], sample: Sample | None = None
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the mutants tried and those that survived, by file. Raises RuntimeError where the tests fail as all is."""
    settings.load_profile("mutation")
    trials = Trials(files, sample)
    code = pytest.main([*_OPTIONS, *(str(ROOT / test) for test in tests)], plugins=[_FewerExamples(), trials])
    if code != 0:
        raise RuntimeError(f"the tests do not run: {code}")
    return trials.tried, trials.survivors


# Nobody reads why a test fails.
_OPTIONS = ("-q", "-x", "-s", "--assert=plain", "--tb=no", "--no-header", "--no-summary", "-p", "no:cacheprovider")


def reach_of(files: Sequence[str], items: Sequence[pytest.Item]) -> Reach:
    """Note what each test reaches, in a copy of this process. Raises RuntimeError where one fails without a mutant."""
    answer = forked(lambda: _watched(files, items))
    if answer is None or answer["failed"]:
        raise RuntimeError(f"without any mutant: {answer and answer['failed']}")
    quickest = sorted(answer["seconds"], key=answer["seconds"].__getitem__)[:10]
    anew = forked(lambda: _watched_anew(files, quickest))
    if anew is None:
        raise RuntimeError("the tests fail when they are loaded anew")
    reach = Reach(seconds=answer["seconds"])
    for file in files:
        reach.lines[file] = {test: set(lines) for test, lines in answer["lines"][file].items()}
        reach.at_import[file] = set(anew[str(PACKAGE / file)])
    return reach


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


def _watched(files: Sequence[str], items: Sequence[pytest.Item]) -> dict[str, Any]:
    lines: dict[str, dict[str, list[int]]] = {file: {} for file in files}
    seconds: dict[str, float] = {}
    failed = []
    for item, following in zip(items, [*items[1:], None], strict=True):
        seen: dict[str, set[int]] = {str(PACKAGE / file): set() for file in files}
        start = time.process_time()
        with _noting(seen):
            reports = runtestprotocol(item, nextitem=following, log=False)
        if any(report.failed for report in reports):
            failed.append(item.nodeid)
        if any(report.skipped for report in reports):
            continue
        seconds[item.nodeid] = time.process_time() - start
        for file in files:
            if reached := seen[str(PACKAGE / file)]:
                lines[file][item.nodeid] = sorted(reached)
    return {"lines": lines, "seconds": seconds, "failed": failed}


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
