"""Fuzzing of every parser, guided by coverage: named errors alone, in bounded time and memory (FUZZ_CASES=5000)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from fuzz_parser import ROOT
from fuzz_table import PARSERS

CASES = int(os.environ.get("FUZZ_CASES", "5000"))
SEED = os.environ.get("FUZZ_SEED", "1")
ENVIRON = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests' / 'support'}:{ROOT / 'src'}"}


def test_every_parser_takes_bytes_or_refuses_them_by_name(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [
        sys.executable, str(ROOT / "tests" / "support" / "fuzz_run.py"), "--cases", str(CASES), "--seed", SEED,
        "--findings", str(tmp_path / "findings"), "--json", str(figures),
    ]  # fmt: skip
    done = subprocess.run(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, env=ENVIRON
    )
    assert done.returncode == 0, done.stdout
    told = {each["parser"]: each for each in json.loads(figures.read_text(encoding="utf-8"))}
    assert told.keys() == {each.name for each in PARSERS}
    assert sum(each["cases"] for each in told.values()) >= CASES * 0.99
    unreached = [name for name, each in told.items() if not each["covered"]]
    assert not unreached, f"no line of these parsers was run: {unreached}"


def test_what_a_parser_should_not_do_is_found(tmp_path: Path) -> None:
    """The fuzzer itself: three faults are planted in a parser, and each is a finding."""
    program = tmp_path / "planted.py"
    program.write_text(PLANTED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], text=True, stdout=subprocess.PIPE, check=True, cwd=tmp_path,
        env=ENVIRON,
    )  # fmt: skip
    assert set(done.stdout.split()) == {"KeyError", "MemoryError", "TooSlow", "death"}


PLANTED = """
import os
import sys
from pathlib import Path

import fuzz_mutators
import fuzz_parser
from fuzz_run import fuzz, fill

fuzz_parser.CPU_S = 0.5

def parse(data):
    words = data.split()
    if b"key" in words:
        raise KeyError("a")
    if b"large" in words:
        bytearray(8 << 30)
    while b"slow" in words:
        pass
    if len(words) > 4 and b"dead" in words:
        os.abort()
    raise ValueError("named")

seeds = lambda: [b"key 1", b"large 1", b"slow 1", b"dead 1 1"]
parser = fuzz_parser.Parser(
    name="planted", parse=parse, seeds=seeds, errors=(ValueError,), files=(), mutate=fuzz_mutators.text
)
folder = Path(sys.argv[1])
fill(parser, folder / "corpus")
figures = fuzz(parser, 3000, 1, folder / "corpus", folder / "findings")
print(*(each["kind"] for each in figures.findings))
"""
