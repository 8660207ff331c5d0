"""How many pods a workload takes at least, by arithmetic alone: no smaller cluster can keep its promises. Pure.

Of the good requests every prompt is built, and every token decoded, between the first one's arrival and the moment at
which the last one would be late. In that time the pods have to find the work: each token and pair once, with nothing in
the steps but them, and of requests those that take least. Tokens that anybody asked for before count as cached. KV is
held while its request decodes, at best in steps that it has for itself.

Invariant: what is below the bound misses its target. (But where a step's time is left to chance: there a factor is
taken that a step falls below once in 30,000.) Workloads whose times follow from answers have no bound but one pod.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagewire.slo.costs.cost_model import CostModel, StepLaw
from pagewire.slo.figures.objectives import Objectives
from pagewire.slo.figures.summary import Window
from pagewire.slo.planning.candidate import BLOCK_SIZE, Family
from pagewire.slo.workloads.workload import Workload

LUCK = 4.0  # standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One request: `fresh` tokens of its prompt of `prompt` that nobody asked for before, and its answer's length."""

    due_s: float
    prompt: int
    fresh: int
    output: int

    @property
    def steps(self) -> int:
        """Tokens that are decoded."""
        return self.output - 1

    @property
    def prefill_pairs(self) -> int:
        """Pairs of a fresh token and one that it looks at, at least."""
        return self.fresh * (self.fresh + 1) // 2

    @property
    def decode_pairs(self) -> int:
        """The same of the decoded ones."""
        return self.steps * self.prompt + self.steps * (self.steps + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the requests that count need, and until when."""

    needs: tuple[Need, ...]
    num_good: int
    prefill_span_s: float
    decode_span_s: float

    @classmethod
    def of(
        cls, workload: Workload, window: Window, objectives: Objectives, target: float, longest: float = math.inf
    ) -> Demand:
        """Return what the requests of a window need, of which a share of `target` has to be good.

        Those of more than `longest` tokens, the answer's included, are refused: they need nothing and are not good.
        """
        counted = [need for need in _needs(workload) if window.holds(need.due_s)]
        needs = tuple(need for need in counted if need.prompt + need.output <= longest)
        has_bound = counted and not workload.concurrency and all(len(each.turns) == 1 for each in workload)
        num_good = math.ceil(target * len(counted) - 1e-9) if has_bound else 0  # 0.55 of 100 are 55, in floats too
        if not has_bound or not needs:
            return cls(needs=(), num_good=num_good, prefill_span_s=math.inf, decode_span_s=math.inf)
        e2e_s = objectives.bounds_s.get("e2e", math.inf)
        first_s = min(e2e_s, objectives.bounds_s.get("ttft", math.inf))
        tpot_s = objectives.bounds_s.get("tpot", math.inf)
        begin_s = needs[0].due_s
        late_s = (each.due_s + min(e2e_s, first_s + (each.steps * tpot_s if each.steps else 0.0)) for each in needs)
        return cls(
            needs=needs,
            num_good=num_good,
            prefill_span_s=needs[-1].due_s + first_s - begin_s,
            decode_span_s=max(late_s) - begin_s,
        )

    @property
    def is_possible(self) -> bool:
        """Whether enough requests can be good on any cluster at all."""
        return self.num_good <= len(self.needs)

    def least(self, family: Family) -> tuple[int, int]:
        """Return how many prefill and decode pods, or 0 and colocated pods, a cluster of a family has at least."""
        costs = family.costs
        luck = math.exp(-LUCK * costs.noise)
        room = family.kv_blocks * BLOCK_SIZE
        held = _pods(self._least_sum(self._held_s(costs)) * luck, room * self.decode_span_s)
        if family.is_colocated:
            prompts_s = self._busy_s(costs.decode, family, prefills=True, decodes=False)
            both_s = self._busy_s(costs.decode, family, prefills=True, decodes=True)
            return 0, max(held, _pods(prompts_s * luck, self.prefill_span_s), _pods(both_s * luck, self.decode_span_s))
        decode_s = self._busy_s(costs.decode, family, prefills=False, decodes=True)
        decode = max(held, _pods(decode_s * luck, self.decode_span_s))
        if family.prefill_mode != "remote":  # decode pods may build prompts, too
            return 1, decode
        prefill_s = self._busy_s(costs.prefill, family, prefills=True, decodes=False)
        return _pods(prefill_s * luck, self.prefill_span_s), decode

    def _busy_s(self, law: StepLaw, family: Family, *, prefills: bool, decodes: bool) -> float:
        """Return the seconds that one pod would take for the good requests' prompts, answers, or both."""
        longest = 0.0
        for line in law.lines:
            step_s = line.step_s + law.overhead_s
            # A step may do both: so the steps that decoding takes are counted, and those of prompts where alone.
            prompt_s = line.prefill_token_s + (0.0 if decodes else step_s / family.chunk_size)
            token_s = line.decode_s + step_s / family.max_num_seqs
            took_s = (
                (prompt_s * each.fresh + line.prefill_pair_s * each.prefill_pairs if prefills else 0.0)
                + (token_s * each.steps + line.decode_pair_s * each.decode_pairs if decodes else 0.0)
                for each in self.needs
            )
            longest = max(longest, self._least_sum(took_s))
        return longest

    def _held_s(self, costs: CostModel) -> Iterable[float]:
        """Yield the slots that each request holds, times seconds."""
        return (each.fresh * each.steps * costs.decode.decode_seconds(1, each.prompt) for each in self.needs)

    def _least_sum(self, values: Iterable[float]) -> float:
        return sum(sorted(values)[: self.num_good])


def _pods(work_s: float, span_s: float) -> int:
    # A pod that is full to the last bit must not become two by rounding.
    return max(1, math.ceil(work_s / span_s - 1e-9)) if span_s > 0 else 1


def _needs(workload: Workload) -> Sequence[Need]:
    """Return the first turn of each arrival; of a session no more is needed, since it has no bound."""
    seen: set[int] = set()
    needs: list[Need] = []
    for arrival in workload:
        turn = arrival.turns[0]
        last = len(turn.pieces) - 1
        fresh = 0  # equal texts, which have no pieces, are not told apart here
        for place, piece in enumerate(turn.pieces):
            if piece not in seen:
                seen.add(piece)
                rest = turn.input_tokens - last * workload.piece_tokens
                fresh += rest if place == last else workload.piece_tokens
        fresh = max(1, fresh)  # the last token is computed in any case
        needs.append(Need(due_s=arrival.at_s, prompt=turn.input_tokens, fresh=fresh, output=turn.output_tokens))
    return needs
