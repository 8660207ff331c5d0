"""What a chat template may take of time and memory: a Jinja extension, and the sandbox that goes with it.

Templates are programs of whoever made the model, run on what callers write. Jinja's sandbox keeps them from Python's
insides, and leaves them all the time and memory there is. Knows Jinja, no chat. Invariant: every turn of a loop and
every call of a macro looks at the clock, and no text that a template puts together is longer than `MAX_TEXT_CHARS`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.visitor
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SOURCE_CHARS = 1 << 20
MAX_TEXT_CHARS = 32 << 20  # some times the largest body that is taken by default
MAX_SECONDS = 2.0
_MAX_POWER_BITS = 4096


class Budget(jinja2.ext.Extension):
    """Puts a look at the clock into loops and macros; `spend` sets the clock, in the thread that renders."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self._of_thread = threading.local()

    @contextmanager
    def spend(self, seconds: float) -> Iterator[None]:
        """Have what is rendered within take no more processor time: a process that stands still spends none."""
        self._of_thread.until_s = time.thread_time() + seconds
        try:
            yield
        finally:
            del self._of_thread.until_s

    def _tick(self) -> str:
        until_s: float | None = getattr(self._of_thread, "until_s", None)
        if until_s is not None and time.thread_time() > until_s:
            raise SecurityError(f"it takes longer than {MAX_SECONDS:g} s")
        return ""

    def _joined(self, *parts: object) -> str:
        return bounded(map(str, parts))

    def instrumented(self, template: jinja2.nodes.Template) -> jinja2.nodes.Template:
        """Return the parsed template with all that."""
        kinds = (jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock)
        loops: Iterable[Any] = template.find_all(kinds)
        for loop in loops:
            tick = jinja2.nodes.ExprStmt(self.call_method("_tick", lineno=loop.lineno), lineno=loop.lineno)
            loop.body.insert(0, tick.set_environment(self.environment))
        return template

    def concatenated(self, parts: list[jinja2.nodes.Expr], lineno: int) -> jinja2.nodes.Call:
        """Return what joins the parts of a "~" within the bound."""
        return self.call_method("_joined", parts, lineno=lineno)


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, whose templates are within the budget."""

    intercepted_binops = frozenset(("*", "**", "+"))

    @property
    def budget(self) -> Budget:
        """The extension of this environment."""
        (found,) = (each for each in self.extensions.values() if isinstance(each, Budget))
        return found

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        if len(source) > MAX_SOURCE_CHARS:
            raise jinja2.TemplateError(f"a chat template has at most {MAX_SOURCE_CHARS} characters, not {len(source)}")
        parsed = _Concatenations(self.budget).visit(super()._parse(source, name, filename))
        return self.budget.instrumented(parsed)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute what could be made as large as one likes, within bounds; raises SecurityError."""
        if operator == "*":
            size, times = (len(left), right) if hasattr(left, "__len__") else (_size(right), left)
            if isinstance(times, int) and size * times > MAX_TEXT_CHARS:
                raise SecurityError(f"it repeats something to more than {MAX_TEXT_CHARS} elements")
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > _MAX_POWER_BITS:
                raise SecurityError(f"it takes a power of more than {_MAX_POWER_BITS} bits")
        elif operator == "+" and _size(left) + _size(right) > MAX_TEXT_CHARS:
            raise SecurityError(f"it joins more than {MAX_TEXT_CHARS} elements")
        return super().call_binop(context, operator, left, right)


class _Concatenations(jinja2.visitor.NodeTransformer):
    """Puts the bounded join where the template has a "~"."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Call:
        """Return what stands for it."""
        self.generic_visit(node)
        call = self._budget.concatenated(node.nodes, node.lineno)
        call.set_environment(self._budget.environment)
        return call


def bounded(pieces: Iterable[str]) -> str:
    """Return the pieces as one text; raises SecurityError where it is too long."""
    kept, num_chars = [], 0
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > MAX_TEXT_CHARS:
            raise SecurityError(f"it makes a text of more than {MAX_TEXT_CHARS} characters")
        kept.append(piece)
    return "".join(kept)


def _size(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 0
