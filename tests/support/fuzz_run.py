"""Fuzzes the parsers of `fuzz_table`, guided by coverage: python fuzz_run.py --cases 5000 --seed 1 [--only NAME] ...

Atheris mutates, instruments and guides; each parser has a process of its own, with bounds of time and memory, so that
one that hangs, or ends its process, is a finding like any other. Cases are shared out by cost; the same cases and seed
are the same run. `--keep` adds to the corpus what ran lines that nothing kept before did, `--json` tells the figures.
Exit code 1 where there are findings; their bytes lie under `--findings`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import io
import json
import mmap
import os
import re
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz_parser import Parser

try:
    import atheris
except ImportError:
    sys.exit("fuzzing needs atheris, which has wheels for Linux on x86-64 and Python 3.11 to 3.13 (see pyproject.toml)")

MAX_BYTES = 65_536
SILENCE_S = 600  # libFuzzer's own bound, for what never comes back to Python
MAX_KEPT = 24  # of a parser: a corpus stays small
_STATE = struct.Struct("<QI")  # cases so far, length of the bytes that are being parsed


@dataclass(slots=True, kw_only=True)
class Figures:
    """What a run of one parser came to; `covered` of `lines` of its files' functions were run by what is kept of it."""

    parser: str
    cases: int
    seconds: float
    findings: list[dict[str, str]]
    covered: int = 0
    lines: int = 0


class Watched:
    """What a fuzzing process is about, as its parent sees it even when it has died."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _STATE.size + MAX_BYTES)

    def begin(self, cases: int, data: bytes) -> None:
        """Say what is parsed next."""
        _STATE.pack_into(self._memory, 0, cases, len(data))
        self._memory[_STATE.size : _STATE.size + len(data)] = data

    @property
    def cases(self) -> int:
        """How many were begun."""
        return int(_STATE.unpack_from(self._memory)[0])

    @property
    def data(self) -> bytes:
        """The last bytes."""
        length = _STATE.unpack_from(self._memory)[1]
        return self._memory[_STATE.size : _STATE.size + length]


def fuzz(parser: Parser, cases: int, seed: int, corpus: Path, findings: Path) -> Figures:
    """Run `cases` cases of a parser; what it finds lies in `findings`, what is new in `corpus`."""
    watched, began_s = Watched(), time.monotonic()
    log = corpus.with_suffix(".findings")
    process = os.fork()
    if not process:
        _fuzz_here(parser, cases, seed, corpus, log, watched)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    found = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    if status:
        text = f"the process of {parser.name} ended with {status}"
        found.append({"kind": "death", "place": "", "text": text, "data": watched.data.hex()})
    for each in found:
        data = bytes.fromhex(each.pop("data"))
        path = findings / parser_folder(parser) / f"{each['kind']}-{hashlib.sha1(data).hexdigest()[:10]}".lower()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        each["bytes"] = str(path)
    seconds = round(time.monotonic() - began_s, 1)
    return Figures(parser=parser.name, cases=watched.cases, seconds=seconds, findings=found)


def _fuzz_here(parser: Parser, cases: int, seed: int, corpus: Path, log: Path, watched: Watched) -> None:
    """Fuzz, and end this process."""
    from fuzz_parser import bounded_memory, verdict  # noqa: PLC0415

    words = words_of(parser)
    known: set[tuple[str, str]] = set()
    count = 0

    def one(data: bytes) -> None:
        nonlocal count
        count += 1
        watched.begin(count, data)
        finding = verdict(parser, data)
        if finding is not None and (finding.kind, finding.place) not in known:
            known.add((finding.kind, finding.place))
            with log.open("a", encoding="utf-8") as out:
                print(json.dumps({**asdict(finding), "data": data.hex()}), file=out)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.4:
            return bytes(atheris.Mutate(data, max_size))
        return parser.mutate(data, random, words)[:max_size]

    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    arguments = [
        "fuzz", f"-runs={cases}", f"-seed={seed}", f"-max_len={MAX_BYTES}", f"-timeout={SILENCE_S}",
        f"-artifact_prefix={corpus.parent}/", "-len_control=0", "-rss_limit_mb=0", str(corpus),
    ]  # fmt: skip
    with bounded_memory():
        atheris.Setup(arguments, one, custom_mutator=mutate)
        atheris.Fuzz()
    raise AssertionError("libFuzzer ends the process by itself")


def words_of(parser: Parser) -> list[str]:
    """Return the words of a parser's seeds."""
    found = (re.findall(r"[A-Za-z_][\w-]*", seed.decode(errors="replace")) for seed in parser.seeds())
    return sorted({word for words in found for word in words if len(word) < 40})


def parser_folder(parser: Parser) -> str:
    """Return what a parser's folder is called."""
    from fuzz_table import folder_of  # noqa: PLC0415

    return folder_of(parser)


def fill(parser: Parser, corpus: Path) -> None:
    """Put seeds and all that is kept into a corpus that a run begins with."""
    from fuzz_table import kept  # noqa: PLC0415

    corpus.mkdir(parents=True)
    for data in (*parser.seeds(), *(path.read_bytes() for path in kept(parser))):
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)


def cover(parser: Parser, corpus: Path, figures: Figures, *, keeps: bool) -> None:
    """Tell how much a run's corpus covers, and keep what adds to that; the smallest first."""
    from fuzz_coverage import Line, lines_of, run_lines  # noqa: PLC0415
    from fuzz_parser import verdict  # noqa: PLC0415
    from fuzz_table import CORPUS, kept  # noqa: PLC0415

    seen: set[Line] = set()
    before = [*parser.seeds(), *(path.read_bytes() for path in kept(parser))]
    new = sorted((path.read_bytes() for path in corpus.iterdir()), key=lambda data: (len(data), data))
    added: list[bytes] = []
    for data in (*before, *new):
        lines = run_lines(parser.files, functools.partial(verdict, parser, data))
        if lines - seen and data not in before and len(data) <= 4096 and len(added) < MAX_KEPT:
            added.append(data)
        seen |= lines
    if keeps:
        for data in added:
            path = CORPUS / parser_folder(parser) / hashlib.sha1(data).hexdigest()[:16]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    figures.covered, figures.lines = len(seen), sum(len(lines_of(file)) for file in parser.files)


def in_a_fork(work: Callable[[], Any]) -> Any:
    """Return what `work` returns, as JSON has it, of a process of its own; None where that died."""
    read, write = os.pipe()
    process = os.fork()
    if not process:
        os.close(read)
        with os.fdopen(write, "w", encoding="utf-8") as out:
            json.dump(work(), out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as told:
        text = told.read()
    os.waitpid(process, 0)
    return json.loads(text) if text else None


def main(argv: list[str]) -> int:
    """Fuzz every parser, or the one that is named; return the exit code."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", type=int, default=5000, help="of all parsers together")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", default="", help="the parser of this name")
    options.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    options.add_argument("--json", type=Path, help="where the figures go")
    options.add_argument("--keep", action="store_true", help="add to the corpus")
    asked = options.parse_args(argv)
    # Atheris says of every module that it instruments it.
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(["pagewire"]):
        from fuzz_table import PARSERS  # noqa: PLC0415
    parsers = [each for each in PARSERS if asked.only in ("", each.name)]
    weight = sum(1 / each.cost for each in parsers)
    told: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="pagewire-fuzz-corpus-") as scratch:
        for number, parser in enumerate(parsers):
            corpus = Path(scratch) / str(number)
            fill(parser, corpus)
            cases = max(1, round(asked.cases / weight / parser.cost))
            figures = fuzz(parser, cases, asked.seed, corpus, asked.findings)

            def covered(parser: Parser = parser, corpus: Path = corpus, figures: Figures = figures) -> list[int]:
                cover(parser, corpus, figures, keeps=asked.keep)
                return [figures.covered, figures.lines]

            figures.covered, figures.lines = in_a_fork(covered) or (0, 0)
            told.append(figures)
            print(row(figures), flush=True)
    findings = sum(len(each.findings) for each in told)
    print(f"{sum(each.cases for each in told)} cases, {findings} findings")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(each) for each in told], indent=1) + "\n", encoding="utf-8")
    return 1 if findings else 0


def row(figures: Figures) -> str:
    """Return a line of the table, and one for each finding."""
    share = f"{figures.covered}/{figures.lines}"
    lines = [f"{figures.parser:<28} {figures.cases:>8} cases {figures.seconds:>7.1f} s   lines {share:>9}"]
    for each in figures.findings:
        lines.append(f"    {each['kind']} at {each['place']}: {each['text'][:150]!r} ({each['bytes']})")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
