"""Commands that wait for a grammar: each goes on exactly once, whatever comes first. The compiler is made up."""

from __future__ import annotations

import threading

import pytest

from pagewire.core.errors import Cancelled, EngineFailed, InvalidRequest, Overloaded, PagewireError
from pagewire.core.sampling import Grammar, GrammarKind
from pagewire.engine.grammar_desk import COMPILERS, GrammarDesk

WAIT_S = 10.0


class Compiler:
    """Compiles while `go` is set; "bad" is refused, "broken" breaks."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.known: set[str] = set()

    def knows(self, grammar: Grammar) -> bool:
        return grammar.text in self.known

    def compile(self, grammar: Grammar) -> None:
        self.begun.release()
        assert self.go.wait(WAIT_S)
        if grammar.text == "bad":
            raise InvalidRequest("bad", field=grammar.field)
        if grammar.text == "broken":
            raise RuntimeError("broken")
        self.known.add(grammar.text)


class Call:
    """A call that is to be made once."""

    def __init__(self) -> None:
        self.made = threading.Event()
        self.errors: list[PagewireError | None] = []

    def __call__(self, error: PagewireError | None) -> None:
        self.errors.append(error)
        self.made.set()

    def error(self) -> PagewireError | None:
        assert self.made.wait(WAIT_S)
        (error,) = self.errors
        return error


def grammar(text: str) -> Grammar:
    return Grammar(kind=GrammarKind.REGEX, text=text, field="guide")


def test_what_needs_no_compiling_goes_on_at_once() -> None:
    compiler, call, other = Compiler(), Call(), Call()
    desk = GrammarDesk(compiler)
    desk.submit("a", None, call)
    compiler.known.add("x")
    desk.submit("b", grammar("x"), other)
    assert (call.errors, other.errors) == ([None], [None])
    desk.close()


@pytest.mark.parametrize(("text", "kind"), [("good", type(None)), ("bad", InvalidRequest), ("broken", EngineFailed)])
def test_a_call_is_made_with_what_became_of_its_grammar(text: str, kind: type) -> None:
    compiler, call = Compiler(), Call()
    desk = GrammarDesk(compiler)
    desk.submit("a", grammar(text), call)
    assert call.errors == []
    compiler.go.set()
    assert isinstance(call.error(), kind)
    desk.withdraw("a")
    assert len(call.errors) == 1
    desk.close()


def test_an_abort_makes_the_call_and_nothing_makes_it_again() -> None:
    compiler, call, other = Compiler(), Call(), Call()
    desk = GrammarDesk(compiler)
    desk.submit("a", grammar("x"), call)
    assert compiler.begun.acquire(timeout=WAIT_S)
    desk.withdraw("a")
    assert isinstance(call.error(), Cancelled)
    compiler.go.set()
    desk.submit("b", grammar("y"), other)
    assert other.error() is None
    assert len(call.errors) == 1
    desk.withdraw("nobody")
    desk.close()


def test_all_that_wait_are_withdrawn_together() -> None:
    compiler, calls = Compiler(), [Call() for _ in range(COMPILERS + 1)]
    desk = GrammarDesk(compiler)
    for i, call in enumerate(calls):
        desk.submit(str(i), grammar(f"x{i}"), call)
    desk.withdraw_all()
    assert all(isinstance(call.error(), Cancelled) for call in calls)
    compiler.go.set()
    desk.withdraw_all()
    desk.close()


def test_a_deadline_refuses_what_compiles_too_long_and_sends_away_what_had_no_turn() -> None:
    compiler = Compiler()
    calls = [Call() for _ in range(COMPILERS + 2)]
    desk = GrammarDesk(compiler, deadline_s=0.2)
    for i, call in enumerate(calls):
        desk.submit(str(i), grammar(f"x{i}"), call)
    for _ in range(COMPILERS):
        assert compiler.begun.acquire(timeout=WAIT_S)
    errors = [call.error() for call in calls]
    compiler.go.set()
    assert [type(error) for error in errors] == [InvalidRequest] * COMPILERS + [Overloaded] * 2
    assert isinstance(errors[0], InvalidRequest)
    assert errors[0].field == "guide"
    desk.close()
    assert all(len(call.errors) == 1 for call in calls)
