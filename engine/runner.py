"""What computes a step, and what becomes of a step that fails: its sequences are tried one by one, once.

Knows no sequence's state. Invariant: every grant of a step has an outcome, and only its own failure ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from pagewire.engine.step import Step

log = logging.getLogger(__name__)


OnGroup = Callable[[Step, int], None]
"""Called while a step computes: the KV of that group of layers is final for its grants that are sealed."""


class Runner(Protocol):
    """What computes a step."""

    def run(self, step: Step, on_group: OnGroup) -> dict[str, int]:
        """Return the token of each grant that draws; running a step again writes the same KV to the same places."""
        ...


def compute(runner: Runner, step: Step, on_group: OnGroup) -> tuple[dict[str, int], dict[str, str]]:
    """Compute a step; return the tokens, and the message of each sequence that cannot be computed.

    `on_group` is called anew for a sequence that is tried again: what it was called for before stays true.
    """
    try:
        return runner.run(step, on_group), {}
    except Exception as error:  # whatever a model may raise ends a sequence, not the engine
        log.exception("a step of %d sequences failed", len(step.grants))
        if len(step.grants) == 1:
            return {}, {step.grants[0].request_id: f"{type(error).__name__}: {error}"}
    tokens: dict[str, int] = {}
    errors: dict[str, str] = {}
    for grant in step.grants:
        one_tokens, one_errors = compute(runner, Step(grants=(grant,)), on_group)
        tokens.update(one_tokens)
        errors.update(one_errors)
    return tokens, errors
