"""`make mutation-test`: every mutant of the files that decide is killed by a test, or recorded with a reason.

    python -m mutation.run [FILE ...] [--sample N --seed TEXT] [--jobs N]

Fails where a mutant survives that `tests/mutation/survivors.toml` does not name, where it names one that is killed or
gone, and where less than 90 % are killed of those that are not equivalent. What is new is printed as lines for the
record. A sample is drawn from all pure files, those in no group too, and tried by the tests that stand near them: it
tells what share of all is killed, and how sure that is.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from mutation.fork import forked
from mutation.mutants import mutants_of
from mutation.near import near
from pure_files import PURE_FILES
from source_tree import ROOT

FOLDER = ROOT / "tests" / "mutation"
EQUIVALENT = "equivalent: "  # how the reason begins of a mutant that nothing could tell from the original
LEFT = "left: "  # the same for one that a test could kill
LEAST_KILLED = 0.9
NEAR = 3  # test files for each file of a sample


@dataclass(frozen=True, slots=True)
class Group:
    """Files that are tried together, and the tests that are to kill their mutants."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """What became of a file's mutants."""

    file: str
    tried: int
    killed: int
    equivalent: int
    new: tuple[str, ...]
    stale: tuple[str, ...]

    @property
    def share(self) -> float:
        """How many were killed of those that could be."""
        return self.killed / max(self.tried - self.equivalent, 1) if self.tried > self.equivalent else 1.0


def groups() -> list[Group]:
    """Return what `groups.toml` says."""
    read = tomllib.loads((FOLDER / "groups.toml").read_text())
    return [Group(name, tuple(group["files"]), tuple(group["tests"])) for name, group in read.items()]


def record() -> dict[str, dict[str, str]]:
    """Return the reasons by mutant by file."""
    return tomllib.loads((FOLDER / "survivors.toml").read_text())


def score_of(file: str, tried: list[str], survivors: list[str], reasons: dict[str, str], is_whole: bool) -> Score:
    """Hold a file's survivors against the record."""
    known = [name for name in survivors if name in reasons]
    stale = [name for name in reasons if name not in survivors and (is_whole or name in tried)]
    return Score(
        file,
        tried=len(tried),
        killed=len(tried) - len(survivors),
        equivalent=sum(reasons[name].startswith(EQUIVALENT) for name in known),
        new=tuple(name for name in survivors if name not in reasons),
        stale=tuple(stale),
    )


def run(group: Group, drawn: dict[str, list[str]] | None = None) -> list[Score]:
    """Try the mutants of a group, or those drawn by file, in a process of its own.

    Raises RuntimeError where that fails.
    """
    reasons = record()

    def work() -> Any:
        # Only there: it imports what the tests import, and each group is to import that for itself.
        from mutation.trial import try_mutants  # noqa: PLC0415

        return try_mutants(group.files, group.tests, drawn)

    answer = forked(work, is_quiet=False)
    if answer is None:
        raise RuntimeError(f"group {group.name} came to no end")
    tried, survivors = answer
    return [score_of(file, tried[file], survivors[file], reasons.get(file, {}), drawn is None) for file in group.files]


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="mutation-test")
    parser.add_argument("files", nargs="*", help="only these files; all of every group, or all pure ones, unless given")
    parser.add_argument("--sample", type=int, help="so many mutants, drawn from those of all pure files")
    parser.add_argument("--seed", default="", help="which they are, for example a commit")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes at once")
    asked = parser.parse_args()
    known = {file for group in groups() for file in group.files} if asked.sample is None else set(PURE_FILES)
    if unknown := set(asked.files) - known:
        parser.error(f"not among the files that are tried: {', '.join(sorted(unknown))}")
    work: Sequence[tuple[Group, dict[str, list[str]] | None]]
    if asked.sample is None:
        chosen = [
            replace(one, files=tuple(f for f in one.files if f in asked.files or not asked.files)) for one in groups()
        ]
        work = [(group, None) for group in chosen if group.files]
    else:
        work = drawn_groups(asked.files or PURE_FILES, asked.sample, asked.seed)

    def told(one: tuple[Group, dict[str, list[str]] | None]) -> list[Score]:
        start = time.monotonic()
        return _told(run(*one), one[0].name, start)

    with ThreadPoolExecutor(asked.jobs) as at_once:
        scores = [score for some in at_once.map(told, work) for score in some]
    print(f"{len(scores)} files: {_counts(scores)}")
    if asked.sample is not None:
        return _told_of_sample(scores)
    return 1 if any(score.new or score.stale or score.share < LEAST_KILLED for score in scores) else 0


def drawn_groups(files: Sequence[str], count: int, seed: str) -> list[tuple[Group, dict[str, list[str]]]]:
    """Return `count` mutants drawn from all of these files, each as likely, and with them the tests that stand near.

    One group is one folder, whose tests are loaded once; the larger ones come first.
    """
    everyone = [(file, mutant.name) for file in files for mutant in mutants_of((ROOT / file).read_text(), file)]
    drawn: dict[str, dict[str, list[str]]] = {}
    for file, name in random.Random(seed).sample(everyone, min(count, len(everyone))):
        drawn.setdefault(file.split("/")[0], {}).setdefault(file, []).append(name)
    print(f"{count} of {len(everyone)} mutants of {len(files)} files", flush=True)
    stated = {file: group.tests for group in groups() for file in group.files}
    found = []
    for folder, names in sorted(drawn.items(), key=lambda item: -sum(map(len, item[1].values()))):
        ranks = zip_longest(*([*stated.get(file, ()), *near(file, NEAR)] for file in names))
        tests = dict.fromkeys(test for rank in ranks for test in rank if test is not None)
        found.append((Group(folder, tuple(names), tuple(tests)), names))
    return found


def _told_of_sample(scores: list[Score]) -> int:
    """Print what the sample says of all, with Wilson's interval at 95 %; return the exit code."""
    # Only now: what this process had loaded, its copies would share with the tests.
    from pagewire.slo.figures.statistics import wilson  # noqa: PLC0415

    tried, killed, equivalent = (
        sum(getattr(score, name) for score in scores) for name in ("tried", "killed", "equivalent")
    )
    for what, of in (("of all", tried), ("of those that are not equivalent", tried - equivalent)):
        sure = wilson(killed, of)
        print(
            f"killed, {what}: {killed} of {of}, {killed / of:.1%} (95 % confidence: {sure.low:.1%} to {sure.high:.1%})"
        )
    is_new = any(score.new or score.stale for score in scores)
    return 1 if is_new or killed < LEAST_KILLED * (tried - equivalent) else 0


def _counts(scores: list[Score]) -> str:
    tried, killed, equivalent = (
        sum(getattr(score, name) for score in scores) for name in ("tried", "killed", "equivalent")
    )
    left = tried - killed - equivalent
    return f"{tried} mutants, {killed} killed, {equivalent} equivalent, {left} left"


def _told(scores: list[Score], group: str, start: float) -> list[Score]:
    print(f"{group}: {time.monotonic() - start:.0f} s")
    for score in scores:
        print(f"  {score.file}: {_counts([score])}: {score.share:.1%}")
        if score.new:
            print(f'["{score.file}"]  # new survivors')
        for name in score.new:
            print(f'{json.dumps(name, ensure_ascii=False)} = ""')
        for name in score.stale:
            print(f"  no survivor any more: {name}")
    sys.stdout.flush()
    return scores


if __name__ == "__main__":
    sys.exit(main())
