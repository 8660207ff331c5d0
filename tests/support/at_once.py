"""A launcher over a runner that computes what is launched at once: steps begun ahead, on any machine and any model."""

from __future__ import annotations

from dataclasses import replace

from pagewire.engine.runner import Pending, Runner
from pagewire.engine.step import AHEAD, Computed, Grant, Step


class AtOnce:
    """Launches steps in which every sequence draws a token after one that is known, or was drawn here."""

    def __init__(self, runner: Runner) -> None:
        self.num_ahead = 0
        self._runner = runner
        self._drawn: dict[str, Computed] = {}

    def launch(self, step: Step) -> Pending | None:
        """Run a step of plain decodes; None for any other."""
        if not all(_is_plain(grant) for grant in step.grants):
            return None
        if step.grants[0].tokens[0] == AHEAD:
            self.num_ahead += 1
            tokens = [self._drawn[grant.request_id].token for grant in step.grants]
            known = zip(step.grants, tokens, strict=True)
            step = Step(grants=tuple(replace(grant, tokens=(token or 0,)) for grant, token in known))
        self._drawn = drawn = self._runner.run(step, lambda _step, _group: None)
        return lambda: drawn


def _is_plain(grant: Grant) -> bool:
    draw = grant.draw
    if len(grant.tokens) != 1 or draw is None or grant.forks:
        return False
    return not draw.num_candidates and not draw.sampling.edits_logits
