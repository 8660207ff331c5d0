"""Jobs that wait for grammars: each comes out once, a grammar is compiled once, none is refused for want of a turn.

The compiler is made up; what a run makes of it is in `tests/cli/test_run_batch.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pagewire.core.errors import InvalidRequest, PagewireError
from pagewire.core.sampling import Grammar, GrammarKind
from pagewire.engine.grammar_desk import COMPILERS
from pagewire.engine.grammar_queue import GrammarQueue

WAIT_S = 10.0


class Compiler:
    """Compiles a text when it is let to; "bad" is refused."""

    def __init__(self) -> None:
        self.let = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.compiled: list[str] = []
        self.known: set[str] = set()

    def knows(self, grammar: Grammar) -> bool:
        return grammar.text in self.known

    def compile(self, grammar: Grammar) -> None:
        self.compiled.append(grammar.text)
        self.begun.release()
        assert self.let.acquire(timeout=WAIT_S)
        if grammar.text == "bad":
            raise InvalidRequest("bad", field=grammar.field)


def grammar(text: str, field: str = "guide") -> Grammar:
    return Grammar(kind=GrammarKind.REGEX, text=text, field=field)


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    made = Compiler()
    yield made
    made.let.release(100)


def drained(queue: GrammarQueue[int]) -> list[tuple[int, str]]:
    found = []
    while queue:
        found += [(job, type(error).__name__) for job, error in queue.take(wait=True)]
    return found


def test_jobs_of_one_grammar_come_out_together_and_it_is_compiled_once(compiler: Compiler) -> None:
    queue: GrammarQueue[int] = GrammarQueue(compiler)
    for job, text in enumerate(["a", "bad", "a", "bad", "a"]):
        queue.add(job, grammar(text))
    assert len(queue) == 5
    assert queue.take(wait=False) == []
    compiler.let.release(2)
    assert sorted(drained(queue)) == [
        (0, "NoneType"), (1, "InvalidRequest"), (2, "NoneType"), (3, "InvalidRequest"), (4, "NoneType"),
    ]  # fmt: skip
    assert sorted(compiler.compiled) == ["a", "bad"]
    assert (len(queue), queue.take(wait=True)) == (0, [])
    queue.close()


def test_an_error_names_the_field_that_held_the_grammar(compiler: Compiler) -> None:
    queue: GrammarQueue[str] = GrammarQueue(compiler)
    fields = {"guided_regex", "response_format"}
    for field in fields:
        queue.add(field, grammar("bad", field))
    compiler.let.release(2)
    found = []
    while queue:
        found += queue.take(wait=True)
    assert {(job, error.field) for job, error in found if isinstance(error, InvalidRequest)} == {
        (field, field) for field in fields
    }
    queue.close()


def test_a_grammar_without_a_turn_is_not_refused_for_that(compiler: Compiler) -> None:
    """With the desk's own queue all but the first would be sent away at the deadline."""
    queue: GrammarQueue[int] = GrammarQueue(compiler, deadline_s=1.0)
    num_jobs = COMPILERS + 4
    for job in range(num_jobs):
        queue.add(job, grammar(f"x{job}"))
    for _ in range(COMPILERS):
        assert compiler.begun.acquire(timeout=WAIT_S)
    assert not compiler.begun.acquire(timeout=0.1)
    assert len(compiler.compiled) == COMPILERS
    late: list[tuple[int, PagewireError | None]] = []
    while len(late) < COMPILERS:  # those that were begun take too long
        late += queue.take(wait=True)
    assert sorted(job for job, _ in late) == [*range(COMPILERS)]
    for _, error in late:
        assert isinstance(error, InvalidRequest)
        assert "takes more than 1 s to compile" in error.message
    compiler.let.release(100)
    assert sorted(drained(queue)) == [(job, "NoneType") for job in range(COMPILERS, num_jobs)]
    queue.close()


def test_nobody_comes_out_of_a_closed_one(compiler: Compiler) -> None:
    queue: GrammarQueue[int] = GrammarQueue(compiler)
    queue.add(0, grammar("a"))
    assert compiler.begun.acquire(timeout=WAIT_S)
    queue.close()
    compiler.let.release(1)
    assert (len(queue), queue.take(wait=True)) == (0, [])


def test_a_wait_ends_at_the_deadline_whatever_became_of_the_compiler(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: GrammarQueue[int] = GrammarQueue(compiler, deadline_s=0.1)
    monkeypatch.setattr(queue._desk, "submit", lambda *_: None)  # it never says anything
    queue.add(0, grammar("a"))
    assert queue.take(wait=True) == []
    assert len(queue) == 1
    queue.close()
