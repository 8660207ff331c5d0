"""How much KV memory is saved because the sequences of a request hold the blocks of what they begin with together.

The engine's own scheduler and block pool run a load to its end; no model computes. What sampled answers hold depends on
lengths alone. What beams hold depends on how soon they come of one another as well: their next tokens have the softmax
of normal logits of deviation `--spread`, drawn anew for each beam and step (a larger one makes surer models, whose
beams stay apart for longer). Lengths are drawn from exponential distributions with the means of two published
workloads. The share is
that of the counters `block_steps_shared` and `block_steps`: blocks saved over blocks that sequences would hold each for
itself, summed over all steps. Prompts differ, so nothing of it comes from the prefix cache. Counts, no times.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))

import torch
from origin import parser_of, write_figures

from pagewire.core.block_hash import root_hash
from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Add
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec, branches
from pagewire.engine.beam_search import Candidates
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.limits import Limits
from pagewire.engine.moves import Move
from pagewire.engine.role_policy import policy_of
from pagewire.engine.runner import OnGroup
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.step import Computed, Step

# Mean tokens of prompt and answer (Kwon et al., "Efficient Memory Management for Large Language Model Serving with
# PagedAttention", 2023, figure 11).
WORKLOADS = {"alpaca": (19.31, 58.45), "sharegpt": (161.31, 337.99)}
WIDTHS = (2, 4, 6)
LONGEST = 2048
VOCAB = 1 << 16
TOKENS = 1024  # that a beam's next one is drawn from


class NoModel:
    """Says 0 for everybody, and to beams what normal logits make likely."""

    def __init__(self, spread: float, seed: int) -> None:
        self._spread = spread
        self._chance = torch.Generator().manual_seed(seed)
        self.num_recaptures = 0

    def rehearse(self) -> None:
        """Nothing is cold."""

    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        """Return a token for each that draws one, candidates for each beam."""
        draws = {name: draw for grant in step.grants for name, draw in grant.draws().items()}
        beams = {name: draw.num_candidates for name, draw in draws.items() if draw.num_candidates}
        found = {name: Computed(token=0) for name in draws}
        if beams:
            logits = self._spread * torch.randn((len(beams), TOKENS), generator=self._chance)  # [n, V]
            best = logits.log_softmax(dim=-1).topk(max(beams.values()), dim=-1)  # [n, K]
            for name, tokens, logprobs in zip(beams, best.indices.tolist(), best.values.tolist(), strict=True):
                found[name] = Computed(candidates=Candidates(tokens=tuple(tokens), logprobs=tuple(logprobs)))
        return found


class NoMover:
    """Has no bytes to move."""

    def move(self, moves: Sequence[Move]) -> None:
        """Do nothing."""


def share(
    means: tuple[float, float], n: int, num_requests: int, block_size: int, seed: int, spread: float | None = None
) -> float:
    """Return the share of blocks that is saved over a whole run of requests for `n` answers, by beams with `spread`."""
    limits = Limits(
        max_num_batched_tokens=2048, max_num_seqs=256, chunk_size=512, block_size=block_size, max_model_len=LONGEST,
        vocab_size=VOCAB,
    )  # fmt: skip
    scheduler = Scheduler(BlockPool(256 * LONGEST // block_size), limits, policy_of(Role.COLOCATED))
    loop = EngineLoop(scheduler, NoModel(spread or 0.0, seed), ManualClock(), NoMover())
    chance, root = random.Random(seed), root_hash(model_digest="none", kv_fingerprint="none")
    for number in range(num_requests):
        prompt, answer = (min(LONGEST // 2, 1 + int(chance.expovariate(1 / mean))) for mean in means)
        spec = SequenceSpec(
            request_id=str(number),
            tokens=tuple(chance.randrange(VOCAB) for _ in range(prompt)),
            sampling=SamplingParams(max_tokens=answer, n=n, ignore_eos=True, use_beam_search=spread is not None),
            root=root,
            branches=branches(n),
        )
        loop.add(Add(spec=spec))
    while loop.step() is not None:
        pass
    load = loop.load()
    return load.block_steps_shared / load.block_steps


def main() -> None:
    """Print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=500, help="requests of each run")
    parser.add_argument("--block-size", type=int, default=16, help="tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spread", type=float, default=3.0, help="standard deviation of the logits that beams see")
    args = parser.parse_args()
    ways = {"": None, "-beams": args.spread}
    figures = {
        f"kv-saved-{name}{way}-n{n}": share(means, n, args.requests, args.block_size, args.seed, spread)
        for way, spread in ways.items()
        for name, means in WORKLOADS.items()
        for n in WIDTHS
    }
    print(f"{'KV blocks saved':<24}" + "".join(f"{f'n = {n}':>10}" for n in WIDTHS))
    for way in ways:
        for name in WORKLOADS:
            row = (figures[f"kv-saved-{name}{way}-n{n}"] for n in WIDTHS)
            print(f"{(name + way).replace('-', ', '):<24}" + "".join(f"{figure:>10.1%}" for figure in row))
    write_figures(args.json, {"figures": figures})


if __name__ == "__main__":
    main()
