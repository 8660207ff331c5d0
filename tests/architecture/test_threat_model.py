"""The threat model in docs/security.md leaves no advisory and no threat out, and every test that it names is there."""

from __future__ import annotations

import ast
import functools
import re

import pytest
from source_tree import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[a-z0-9_/]+\.py)::([a-z0-9_]+)`")
# Published advisories, and threads that are as good as one. A new one goes in here first.
ADVISORIES = (
    "CVE-2025-29783",
    "CVE-2025-32444",
    "CVE-2025-47277",
    "CVE-2025-30165",
    "CVE-2025-62164",
    "CVE-2025-10164",
    "CVE-2026-3059",
    "CVE-2026-3060",
    "CVE-2026-3989",
    "CVE-2026-7301",
    "CVE-2026-26220",
    "CVE-2026-105192",
    "CVE-2026-107204",
    "CVE-2026-47619",
    "CVE-2026-47621",
    "CVE-2026-47623",
    "CVE-2026-22807",
    "CVE-2026-27893",
    "CVE-2026-5760",
    "CVE-2024-50050",
    "CVE-2026-27794",
    "CVE-2026-94622",
    "CVE-2026-94623",
    "CVE-2026-94624",
    "CVE-2026-94626",
    "CVE-2026-94627",
    "CVE-2026-105754",
    "CVE-2026-105756",
    "PYSEC-2026-4353",
    "CVE-2026-92972",
    "CVE-2026-111392",
    "CVE-2026-14890",
    "CVE-2026-86793",
    "CVE-2026-93088",
    "CVE-2026-107205",
    "CVE-2026-107206",
    "CVE-2026-107207",
    "llm-d#242",
    "llm-d#979",
    "CVE-2025-6242",
    "CVE-2026-24779",
    "vllm-ascend#11882",
    "vllm#52234",
    "CVE-2025-46570",
    "CVE-2025-25183",
    "CVE-2025-1953",
    "CVE-2026-24253",
    "CVE-2026-24254",
    "CVE-2026-24255",
    "PROMPTPEEK",
    "obormot",
    "CVE-2025-59425",
    "CVE-2025-30202",
    "CVE-2025-61620",
    "CVE-2025-62426",
    "GHSA-542m-9234-8gvf",
    "PYSEC-2026-4344",
    "PYSEC-2026-4349",
    "CVE-2026-34756",
    "PYSEC-2026-3704",
    "CVE-2025-48944",
    "CVE-2025-29770",
    "CVE-2026-44223",
    "CVE-2026-114051",
    "PYSEC-2026-4350",
    "CVE-2026-114053",
    "vllm-ascend#13363",
)
THREATS = tuple(f"T{number}" for number in range(1, 28))


@functools.cache
def names_of(path: str) -> frozenset[str]:
    """Return the names of a file's tests."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def rows() -> dict[str, str]:
    """Return the rows of the page's tables by their first word."""
    found = [line for line in PAGE.partition("## Threat model")[2].splitlines() if line.startswith("| ")]
    return {line.split()[1]: line for line in found}


@pytest.mark.parametrize("name", [*ADVISORIES, *THREATS])
def test_it_has_a_row_and_tests(name: str) -> None:
    row = rows().get(name)
    assert row is not None, f"{name} has no row"
    assert row.count("|") == 5, row
    assert TEST.search(row), f"{name} names no test"


def test_every_row_is_of_one_that_is_known() -> None:
    assert rows().keys() - {*ADVISORIES, *THREATS} <= {"advisory", "|"}


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(PAGE)
    assert len(named) > 100
    assert [(path, name) for path, name in named if name not in names_of(path)] == []
