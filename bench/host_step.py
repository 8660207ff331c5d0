"""What a step of decodes costs the engine in Python: choosing it, its tensors, and accounting for it.

A real engine's loop over a real scheduler and pool, in this process, whose model computes nothing: every sequence is
given a token in every step. One thread. Microseconds, the least and the median of `--steps` steps, and per sequence.
`--json PATH` writes them, machine and command.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))

import torch
from origin import parser_of, write_figures

from pagewire.core.clock import MonotonicClock
from pagewire.core.engine_messages import Add
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine.batch import Batch
from pagewire.engine.block_pool import BlockPool
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.limits import Limits
from pagewire.engine.packed_batch import pack
from pagewire.engine.role_policy import policy_of
from pagewire.engine.runner import OnGroup
from pagewire.engine.scheduler import Scheduler
from pagewire.engine.step import Computed, Step

BLOCK = 16
PARTS = ("choose", "tensors", "packed", "account")  # "packed" are the tensors once more, as a device gets them
TOKEN = 77
AHEAD = 256  # tokens that the first of them have, at most, when the last begins
ROOT = b"host-step-bench-"
CPU = torch.device("cpu")


class Idle:
    """A runner that draws the same token for everybody."""

    num_recaptures = 0

    def run(self, step: Step, _on_group: OnGroup) -> dict[str, Computed]:
        """See `Runner`."""
        return {name: Computed(token=TOKEN) for grant in step.grants for name in grant.draws()}

    def rehearse(self) -> None:
        """See `Runner`."""


def loop_of(num_sequences: int, context: int, num_steps: int) -> EngineLoop:
    """Return a loop in which so many sequences of `context` tokens decode, for as many steps."""
    longest = context + num_steps + AHEAD
    limits = Limits(
        max_num_batched_tokens=max(8192, num_sequences), max_num_seqs=num_sequences, chunk_size=8192, block_size=BLOCK,
        max_model_len=longest, vocab_size=1 << 15,
    )  # fmt: skip
    pool = BlockPool(num_sequences * (2 + longest // BLOCK))
    loop = EngineLoop(Scheduler(pool, limits, policy_of(Role.COLOCATED)), Idle(), MonotonicClock())
    numbers = random.Random(0)
    sampling = SamplingParams(temperature=0.0, max_tokens=num_steps + AHEAD, ignore_eos=True)
    for number in range(num_sequences):
        tokens = tuple(numbers.randrange(limits.vocab_size) for _ in range(context))
        loop.add(Add(spec=SequenceSpec(request_id=f"r{number}", tokens=tokens, sampling=sampling, root=ROOT)))
    while True:
        step = loop.begin()
        assert step is not None
        loop.commit(step, Idle().run(step, lambda _step, _group: None), {}, 0.01)
        if len(step.grants) == num_sequences and step.num_tokens == num_sequences:
            return loop


def measure(num_sequences: int, context: int, num_steps: int) -> dict[str, list[float]]:
    """Return the seconds of each part, step by step."""
    loop, found = loop_of(num_sequences, context, num_steps), defaultdict(list)
    for _ in range(num_steps):
        marks = [time.perf_counter()]
        step = loop.begin()
        marks.append(time.perf_counter())
        assert step is not None
        Batch.of(step, BLOCK, CPU).ragged.native_tables()
        marks.append(time.perf_counter())
        pack(step, BLOCK, CPU)
        marks.append(time.perf_counter())
        computed = Idle().run(step, lambda _step, _group: None)
        began_s = time.perf_counter()
        loop.commit(step, computed, {}, 0.01)
        marks.append(time.perf_counter() - (began_s - marks[-1]))
        for name, (start_s, end_s) in zip(PARTS, pairwise(marks), strict=True):
            found[name].append(end_s - start_s)
    return dict(found)


def main() -> None:
    """Measure, print, and write the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[32, 64, 256, 256])
    parser.add_argument(
        "--context", type=int, nargs="+", default=[512, 4096, 512, 8192], help="tokens, one for each of those"
    )
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for num_sequences, context in zip(options.sequences, options.context, strict=True):
        parts = measure(num_sequences, context, options.steps)
        figures[f"{num_sequences} x {context}"] = {
            name: {"least-us": 1e6 * min(each), "median-us": 1e6 * statistics.median(each)}
            for name, each in parts.items()
        }
        for name, each in figures[f"{num_sequences} x {context}"].items():
            told = ", ".join(f"{key} {value:.0f} ({value / num_sequences:.2f} each)" for key, value in each.items())
            print(f"{num_sequences:4} x {context:5}  {name:8} {told}", flush=True)
    write_figures(options.json, {"figures": figures}, "torch")


if __name__ == "__main__":
    main()
