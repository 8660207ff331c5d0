"""`make mutation-test`: every mutant of the files that decide is killed by a test, or recorded with a reason.

    python -m mutation.run [FILE ...] [--seconds S --seed TEXT]

Fails where a mutant survives that `tests/mutation/survivors.toml` does not name, where it names one that is killed or
gone, and where less than 90 % are killed of those that are not equivalent. What is new is printed as lines for the
record. In so many seconds it tries mutants of the group that the seed picks, and none that is in the record: that finds
only what survives anew.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import tomllib
from dataclasses import dataclass
from typing import Any

from mutation.fork import forked
from source_tree import ROOT

FOLDER = ROOT / "tests" / "mutation"
EQUIVALENT = "equivalent: "  # how the reason begins of a mutant that nothing could tell from the original
LEFT = "left: "  # the same for one that a test could kill
LEAST_KILLED = 0.9


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


def run(group: Group, files: list[str], seed: str, seconds: float | None) -> list[Score]:
    """Try the mutants of some files of a group in a process of their own. Raises RuntimeError where that fails."""
    reasons = record()

    def work() -> Any:
        # Only there: it imports what the tests import, and each group is to import that for itself.
        from mutation.trial import Sample, try_mutants  # noqa: PLC0415

        names = {file: list(reasons.get(file, {})) for file in files}
        return try_mutants(files, group.tests, None if seconds is None else Sample(seed, seconds, names))

    answer = forked(work)
    if answer is None:
        raise RuntimeError(f"group {group.name} came to no end")
    tried, survivors = answer
    return [score_of(file, tried[file], survivors[file], reasons.get(file, {}), seconds is None) for file in files]


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="mutation-test")
    parser.add_argument("files", nargs="*", help="only these files; all of every group unless given")
    parser.add_argument("--seconds", type=float, help="only mutants of one group, by chance, until so many have passed")
    parser.add_argument("--seed", default="", help="which they are, for example a commit")
    asked = parser.parse_args()
    chosen = groups() if asked.seconds is None else [random.Random(asked.seed).choice(groups())]
    if unknown := set(asked.files) - {file for group in chosen for file in group.files}:
        parser.error(f"in no group of groups.toml: {', '.join(sorted(unknown))}")
    scores: list[Score] = []
    for group in chosen:
        files = [file for file in group.files if not asked.files or file in asked.files]
        if files:
            start = time.monotonic()
            scores += _told(run(group, files, asked.seed, asked.seconds), group.name, start)
    fails = [
        score for score in scores if score.new or score.stale or (asked.seconds is None and score.share < LEAST_KILLED)
    ]
    print(f"{len(scores)} files: {_counts(scores)}")
    return 1 if fails else 0


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
