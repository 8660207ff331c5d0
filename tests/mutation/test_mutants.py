"""The mutants are those that their definition says, and a trial tells who is noticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from mutation.mutants import mutants_of
from mutation.near import near
from mutation.run import EQUIVALENT, LEFT, drawn_groups, groups, record, score_of
from pure_files import PURE_FILES
from source_tree import ROOT


def names(source: str) -> list[str]:
    return [mutant.name for mutant in mutants_of(textwrap.dedent(source), "some.py")]


@pytest.mark.parametrize(
    ("expression", "changed"),
    [
        ("a < b", ["a < b -> a <= b", "a < b -> a >= b"]),
        ("a == b", ["a == b -> a != b"]),
        ("a in b", ["a in b -> a not in b"]),
        ("a <= b < c", ["a <= b < c -> a < b < c", "a <= b < c -> a <= b <= c"]),
        ("a and b", ["a and b -> b", "a and b -> a"]),
        ("not a", ["not a -> a"]),
        ("a + b", ["a + b -> a - b"]),
        ("a // b", ["a // b -> a * b"]),
        ("a + 7", ["a + 7 -> a - 7", "a + 7 -> a + 8", "a + 7 -> a + 6"]),
        ("f(a, b)", ["f(a, b) -> f(b, a)"]),
        ("max(a, b)", ["max(a, b) -> min(a, b)"]),
        ("'text'", []),
        ("f'{a + b}'", []),
        ("b if a else c", ["a -> not a"]),
    ],
)
def test_an_expression(expression: str, changed: list[str]) -> None:
    result = f"return {expression} -> return None"
    found = names(f"def g(a, b, c):\n    return {expression}\n")
    assert found == [f"g: {change}" for change in [result, *changed]]


def test_statements_that_act_go() -> None:
    found = names("""
        class A:
            def b(self, c):
                self.d = c
                e = c
                self.d += e
                c.clear()
                raise ValueError(c)
    """)
    assert found == [
        "A.b: self.d = c -> pass",
        "A.b: self.d += e -> pass",
        "A.b: self.d += e -> self.d -= e",
        "A.b: c.clear() -> pass",
        "A.b: raise ValueError(c) -> pass",
    ]


def test_what_only_speaks_looks_or_annotates_is_left_alone() -> None:
    source = '''
        """Says 1 + 1."""
        from dataclasses import dataclass

        @dataclass(slots=True)
        class A:
            """Holds 1 < 2."""

            b: int | None

            def check(self) -> None:
                if self.b < 1:
                    raise AssertionError

            def c(self) -> bool | None:
                assert self.b > 0, "no b"
    '''
    assert names(source) == []


def test_what_runs_at_import_is_told_and_equal_changes_have_numbers() -> None:
    mutants = list(mutants_of("LEAST = 1\ndef f(a, b=2):\n    return a[0] + a[0]\n", "some.py"))
    assert [mutant.name for mutant in mutants if mutant.runs_at_import] == [
        "module: LEAST = 1 -> LEAST = 2",
        "module: LEAST = 1 -> LEAST = 0",
        "f: a, b=2 -> a, b=3",
        "f: a, b=2 -> a, b=1",
    ]
    assert [mutant.name for mutant in mutants if "a[0]" in mutant.name][1:] == [
        "f: a[0] + a[0] -> a[0] - a[0]",
        *("f: a[0] -> a[1]", "f: a[0] -> a[-1]", "f: a[0] -> a[1] #2", "f: a[0] -> a[-1] #2"),
    ]


def test_the_code_of_a_mutant_is_the_changed_one() -> None:
    space: dict[str, int] = {}
    (mutant,) = (mutant for mutant in mutants_of("a = 2 * 3 + 4\n", "some.py") if mutant.name.endswith("2 * 3 - 4"))
    assert (mutant.lines, mutant.code.co_filename) == (range(1, 2), "some.py")
    exec(mutant.code, space)
    assert space["a"] == 2


TRIAL = """
import json, sys
from mutation.trial import try_mutants
json.dump(try_mutants(["kvtransfer/lease.py"], ["tests/kvtransfer/test_lease.py::" + sys.argv[1]]), sys.stderr)
"""


def test_a_trial_tells_who_is_noticed_in_functions_and_at_import() -> None:
    test = "test_a_lease_is_bounded_positive_and_granted_once"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}/tests/support", "PYTHONHASHSEED": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", TRIAL, test], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
    )
    tried, survivors = json.loads(ran.stderr.splitlines()[-1])
    file = "kvtransfer/lease.py"
    assert len(tried[file]) == len(set(tried[file])) > len(survivors[file])
    noticed = set(tried[file]) - set(survivors[file])
    assert "LeaseTable.grant: not lease_s > 0 -> lease_s > 0" in noticed
    assert "LeaseTable.renew: lease.peer_id == peer_id -> lease.peer_id != peer_id" in survivors[file], "nobody renews"
    defaults = [name for name in survivors[file] if name.startswith("LeaseTable.__init__: self, *, grace_s")]
    assert len(defaults) == 2, "nobody looks at the defaults"


def test_a_score_tells_what_is_new_and_what_is_no_survivor_any_more() -> None:
    reasons = {"a": f"{EQUIVALENT}it is", "b": f"{LEFT}it is not", "gone": f"{LEFT}it was"}
    score = score_of("f.py", ["a", "b", "c", "d", "e"], ["a", "b", "c"], reasons, is_whole=True)
    assert (score.tried, score.killed, score.equivalent, score.share) == (5, 2, 1, 0.5)
    assert (score.new, score.stale) == (("c",), ("gone",))
    assert score_of("f.py", ["d"], [], reasons, is_whole=False).stale == ()


def test_near_a_file_stand_the_tests_of_its_name_and_those_that_import_it_the_least_first() -> None:
    assert near("kvtransfer/ticket_ledger.py", 3) == ["tests/kvtransfer/test_ticket.py"]
    assert near("text/stop_strings.py", 3)[0] == "tests/text/test_stop_strings.py"
    assert near("engine/beam_search.py", 0) == ["tests/engine/test_beam_search.py"]
    assert all(near(file, 1) for file in PURE_FILES)


def test_a_sample_is_drawn_from_all_files_and_is_the_same_for_a_seed() -> None:
    files = ["core/units.py", "kvtransfer/lease.py"]
    everyone = {(file, mutant.name) for file in files for mutant in mutants_of((ROOT / file).read_text(), file)}

    def drawn(count: int, seed: str) -> set[tuple[str, str]]:
        found = [
            (file, name) for _, names in drawn_groups(files, count, seed) for file in names for name in names[file]
        ]
        assert len(found) == len(set(found)) == min(count, len(everyone))
        return set(found)

    assert drawn(20, "1") == drawn(20, "1") != drawn(20, "2")
    assert drawn(20, "1") < everyone == drawn(1000, "1")


def test_every_file_is_in_one_group_and_every_survivor_has_a_reason() -> None:
    files = [file for group in groups() for file in group.files]
    assert len(files) == len(set(files))
    assert all((ROOT / file).is_file() for file in files)
    assert all((ROOT / test.split("::")[0]).is_file() for group in groups() for test in group.tests)
    told = record()
    assert set(told) <= set(PURE_FILES)
    for file, reasons in told.items():
        there = {mutant.name for mutant in mutants_of((ROOT / file).read_text(), file)}
        assert set(reasons) <= there, file
        assert all(len(why.removeprefix(EQUIVALENT).removeprefix(LEFT)) > 10 for why in reasons.values())
        assert all(why.startswith((EQUIVALENT, LEFT)) for why in reasons.values())
