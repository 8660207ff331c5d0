"""How much KV memory is saved because the sequences of a request hold their prompt's blocks together.

The engine's own scheduler and block pool run a load to its end; no model computes, because what is held depends on
lengths alone. Lengths are drawn from exponential distributions with the means of two published workloads. The share is
that of the counters `block_steps_shared` and `block_steps`: blocks saved over blocks that sequences would hold each for
itself, summed over all steps. Prompts differ, so nothing of it comes from the prefix cache. Counts, no times.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))

from machine import command, machine, versions

from pagewire.core.block_hash import root_hash
from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Add
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec, branches
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


class NoModel:
    """Says 0 for everybody."""

    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        """Return a token for each that draws one."""
        return {name: Computed(token=0) for grant in step.grants for name in grant.draws()}


class NoMover:
    """Has no bytes to move."""

    def move(self, moves: Sequence[Move]) -> None:
        """Do nothing."""


def share(means: tuple[float, float], n: int, num_requests: int, block_size: int, seed: int) -> float:
    """Return the share of blocks that is saved over a whole run of requests for `n` answers."""
    limits = Limits(
        max_num_batched_tokens=2048, max_num_seqs=256, chunk_size=512, block_size=block_size, max_model_len=LONGEST,
        vocab_size=VOCAB,
    )  # fmt: skip
    scheduler = Scheduler(BlockPool(256 * LONGEST // block_size), limits, policy_of(Role.COLOCATED))
    loop = EngineLoop(scheduler, NoModel(), ManualClock(), NoMover())
    chance, root = random.Random(seed), root_hash(model_digest="none", kv_fingerprint="none")
    for number in range(num_requests):
        prompt, answer = (min(LONGEST // 2, 1 + int(chance.expovariate(1 / mean))) for mean in means)
        spec = SequenceSpec(
            request_id=str(number),
            tokens=tuple(chance.randrange(VOCAB) for _ in range(prompt)),
            sampling=SamplingParams(max_tokens=answer, n=n, ignore_eos=True),
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500, help="requests of each run")
    parser.add_argument("--block-size", type=int, default=16, help="tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    args = parser.parse_args()
    figures = {
        f"kv-saved-{name}-n{n}": share(means, n, args.requests, args.block_size, args.seed)
        for name, means in WORKLOADS.items()
        for n in WIDTHS
    }
    print(f"{'KV blocks saved':<24}" + "".join(f"{f'n = {n}':>10}" for n in WIDTHS))
    for name in WORKLOADS:
        print(f"{name:<24}" + "".join(f"{figures[f'kv-saved-{name}-n{n}']:>10.1%}" for n in WIDTHS))
    if args.json is not None:
        whole = {"figures": figures, "machine": machine(), "versions": versions(), "command": command(sys.argv)}
        args.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
