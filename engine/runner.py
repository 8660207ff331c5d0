"""What computes a step, and what becomes of a step that fails: its sequences are tried one by one, once.

Knows no sequence's state. Invariants: every grant of a step has an outcome, and only its own failure ends it; where
nothing can be computed any more, that is nobody's failure, and ends the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from pagewire.core.errors import InvalidRequest, PagewireError, Poisoned
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.step import Computed, Step

log = logging.getLogger(__name__)


OnGroup = Callable[[Step, int], None]
"""Called while a step computes: the KV of that group of layers is final for its grants that are sealed."""


Pending = Callable[[], dict[str, Computed]]
"""Waits for a step that was launched, and returns what was found out; raises what its computation raised."""


class Launcher(Protocol):
    """What begins steps without waiting for them: they are computed one after another."""

    def launch(self, step: Step) -> Pending | None:
        """Begin a step, None where it is one for `Runner.run`, which needs it to be begun by nobody.

        Its tokens may be `AHEAD`: those that the step launched before draws for the same sequences.
        """
        ...


class Runner(Protocol):
    """What computes a step."""

    @property
    def num_recaptures(self) -> int:
        """Device graphs that had to be captured anew since the warm-up: each stalls a step."""
        ...

    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        """Return what was found out, by request id; running a step again writes the same KV to the same places.

        What a grant has nothing to find out for is left out.
        """
        ...

    def rehearse(self) -> None:
        """Compute a token for nobody, by the same code and weights as a step; leave no trace of it."""
        ...


class DeviceLost(RuntimeError):
    """Not even a token for nobody can be computed: the engine is over."""


def compute(runner: Runner, step: Step, on_group: OnGroup) -> tuple[dict[str, Computed], dict[str, PagewireError]]:
    """Compute a step; return what was found out, and the error of each sequence that cannot be computed.

    Raises RankLost or DeviceLost where the engine is over.

    `on_group` is called anew for a sequence that is tried again: what it was called for before stays true. First all
    is tried without what was drafted, where that may be what fails.
    """
    has_drafts = any(grant.checks for grant in step.grants)
    is_last_try = len(step.grants) == 1 and not has_drafts
    try:
        return runner.run(step, on_group), {}
    except InvalidRequest as error:  # a sequence asked what cannot be: its own failure, by name
        if is_last_try:
            return {}, {step.grants[0].request_id: error}
    except RankLost:  # nobody's failure, and nothing can be computed any more
        raise
    except Exception as error:  # whatever a model may raise ends a sequence, not the engine
        log.exception("a step of %d sequences failed", len(step.grants))
        if is_last_try:
            _rehearse(runner)
            return {}, {step.grants[0].request_id: Poisoned(f"{type(error).__name__}: {error}")}
    if has_drafts:
        return compute(runner, Step(grants=tuple(grant.undrafted() for grant in step.grants)), on_group)
    computed: dict[str, Computed] = {}
    errors: dict[str, PagewireError] = {}
    for grant in step.grants:
        one_computed, one_errors = compute(runner, Step(grants=(grant,)), on_group)
        computed.update(one_computed)
        errors.update(one_errors)
    return computed, errors


def _rehearse(runner: Runner) -> None:
    """Raise DeviceLost where it is not a sequence that fails: after some errors of CUDA all of a process's calls do."""
    try:
        runner.rehearse()
    except Exception as error:  # whatever a device may raise
        raise DeviceLost(f"nothing can be computed any more: {type(error).__name__}: {error}") from error
