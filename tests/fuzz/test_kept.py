"""What is kept of fuzzing: parsers take their seeds, and what ran new lines or was wrong once, or refuse it by name.

Fuzzing itself is `make fuzz-test`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fuzz_parser import ROOT, Parser, bounded_memory, verdict
from fuzz_table import CORPUS, EXEMPT, PARSERS, READERS, REGRESSIONS, folder_of, kept
from source_tree import source_files

BY_NAME = pytest.mark.parametrize("parser", PARSERS, ids=lambda each: each.name)


@BY_NAME
def test_seeds_are_taken(parser: Parser) -> None:
    for seed in parser.seeds():
        parser.parse(seed)


@BY_NAME
def test_what_is_kept_is_taken_or_refused_by_name(parser: Parser) -> None:
    for path in kept(parser):
        with bounded_memory():
            finding = verdict(parser, path.read_bytes())
        assert finding is None, f"{path.relative_to(ROOT)}: {finding}"


def test_nothing_is_kept_of_nobody() -> None:
    folders = {folder_of(each) for each in PARSERS}
    assert len(folders) == len(PARSERS)
    assert {path.name for where in (CORPUS, REGRESSIONS) for path in where.iterdir()} <= folders


def test_every_file_that_reads_foreign_bytes_is_in_the_table() -> None:
    fuzzed = {file for each in PARSERS for file in each.files}
    assert all((ROOT / file).is_file() for file in fuzzed)
    reading = {file.name for file in source_files() if reads(file.path)}
    assert reading - fuzzed - EXEMPT.keys() == set(), "these read bytes, and nothing fuzzes them"
    assert EXEMPT.keys() - reading == set(), "these are exempt and read nothing"
    assert EXEMPT.keys() & fuzzed == set(), "these are exempt and fuzzed"


def reads(path: Path) -> bool:
    text = re.sub(r"^\s*#.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return READERS.search(text) is not None
