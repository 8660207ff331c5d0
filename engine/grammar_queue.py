"""Where jobs of a run wait for their grammars, which are compiled beside the steps, ahead of the jobs' turn.

Knows a job as a thing that was handed in; nothing of engines. A grammar is compiled once, however many jobs ask for it.
Grammars come to the desk as it has a thread for them, so its deadline is for the compiling alone, and a grammar that
has no turn yet is not refused for that. For one thread. Invariant: a job comes out at most once, with the error that
its grammar met or None; after `close` none does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from pagewire.core.errors import PagewireError
from pagewire.core.sampling import Grammar
from pagewire.engine.grammar_desk import COMPILERS, DEADLINE_S, Compiler, GrammarDesk

Item = TypeVar("Item")


class GrammarQueue(Generic[Item]):
    """The jobs that wait, by their grammars."""

    def __init__(self, compiler: Compiler, deadline_s: float = DEADLINE_S) -> None:
        self._desk = GrammarDesk(compiler, deadline_s)
        self._deadline_s = deadline_s
        self._settled: SimpleQueue[tuple[Grammar, PagewireError | None]] = SimpleQueue()  # other threads put
        self._waiting: dict[Grammar, list[Item]] = {}  # in the order in which their first ones came
        self._asked: set[Grammar] = set()  # of those, what the desk has
        self._count = 0
        self._names: Iterator[int] = count()

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return self._count

    def add(self, item: Item, grammar: Grammar) -> None:
        """Let a job wait for its grammar."""
        self._waiting.setdefault(grammar, []).append(item)
        self._count += 1
        self._ask()

    def take(self, *, wait: bool) -> list[tuple[Item, PagewireError | None]]:
        """Return the jobs that need not wait any longer; with `wait` none only where no job waits, or at a deadline."""
        found: list[tuple[Item, PagewireError | None]] = []
        while self._waiting:
            try:
                if wait and not found:
                    grammar, error = self._settled.get(timeout=self._deadline_s)
                else:
                    grammar, error = self._settled.get_nowait()
            except Empty:
                break
            self._asked.discard(grammar)
            jobs = self._waiting.pop(grammar)
            self._count -= len(jobs)
            found += [(job, error) for job in jobs]
            self._ask()
        return found

    def close(self) -> None:
        """Compile nothing more, and forget who waits."""
        self._desk.close()
        self._waiting.clear()
        self._asked.clear()
        self._count = 0

    def _ask(self) -> None:
        for grammar in self._waiting:
            if len(self._asked) == COMPILERS:
                return
            if grammar not in self._asked:
                self._asked.add(grammar)
                self._desk.submit(str(next(self._names)), grammar, partial(self._settle, grammar))

    def _settle(self, grammar: Grammar, error: PagewireError | None) -> None:
        self._settled.put((grammar, error))
