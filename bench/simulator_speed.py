"""What a simulated request costs: CPU and wall time each, and memory, of a simulation as long as one likes.

    python bench/simulator_speed.py [--requests 20000] [--cluster 8b small colocated] [--json FILE]

Requests of 512 tokens in and 64 out, Poisson, at about 80 % of what the prompts' pods bear. `8b` is 1P1D by a roofline
whose KV blocks are a message each, `small` 1P1D with costs of a small model on a CPU, `colocated` two pods of `8b`.
A simulation is one thread: on a machine with other work its CPU time is the figure.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

from origin import parser_of, write_figures

from pagewire.slo.costs.cost_model import CostModel, LinkLaw, StepLaw, StepLine
from pagewire.slo.costs.roofline import Device, ModelShape, roofline
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.tally import Tally
from pagewire.slo.simulation.composition import Composition
from pagewire.slo.simulation.simulator import Simulator
from pagewire.slo.workloads.made_up import Lengths, Shape, made_up
from pagewire.slo.workloads.processes import Process
from pagewire.slo.workloads.transforms import retimed

LARGE = roofline(
    ModelShape(name="8B", parameters=8.03e9, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128),
    Device(flops=9.9e14, bandwidth=3.3e12),
    link_bytes_per_s=25e9,
)
SMALL = CostModel(
    prefill=StepLaw(
        lines=(StepLine(step_s=0.004, prefill_token_s=1e-4, prefill_pair_s=1e-9),),
        overhead_s=0.0003,
    ),
    decode=StepLaw(
        lines=(StepLine(step_s=0.006, prefill_token_s=1e-4, decode_s=2e-4, prefill_pair_s=1e-9, decode_pair_s=1e-8),),
        overhead_s=0.0003,
    ),
    token_bytes=23_040,
    link=LinkLaw(latency_s=0.0005, bytes_per_s=1.1e9, window_bytes=8 << 20, message_bytes=1 << 20),
    frame_s=0.00031,
    intake_s=0.0007,
    intake_token_s=1.3e-6,
)
CLUSTERS = {
    "8b": (Composition(), LARGE, 48.0),
    "small": (Composition(), SMALL, 13.5),
    "colocated": (Composition(colocated=2), LARGE, 60.0),
}
TOLD_EVERY = 50_000


def main() -> None:
    """Run it."""
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--cluster", nargs="+", choices=CLUSTERS, default=[*CLUSTERS])
    args = parser.parse_args()
    rows = [played(name, args.requests) for name in args.cluster]
    write_figures(args.json, {"rows": rows})


def played(name: str, num_requests: int) -> dict[str, Any]:
    """Return the figures of one simulation; they are printed meanwhile."""
    composition, costs, rate = CLUSTERS[name]
    shape = Shape(input=Lengths(512, 512), output=Lengths(64, 64))
    asked = retimed(made_up(name, shape, num_arrivals=num_requests, seed=0), Process(rate=rate), 0)
    simulator = Simulator(composition, costs, asked, is_detailed=False)
    tally = Tally(0.0, math.inf, parse_objectives(""))
    done, began_s, began_cpu_s = 0, time.perf_counter(), time.process_time()

    def row() -> dict[str, Any]:
        cpu_s, wall_s = time.process_time() - began_cpu_s, time.perf_counter() - began_s
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{name}, {composition}: {done} requests, {1e3 * cpu_s / done:.3f} ms of CPU each, {cpu_s:.1f} s of CPU, "
            f"{wall_s:.1f} s, {simulator.now_s:.0f} s simulated, peak {peak_mib:.0f} MiB",
            flush=True,
        )
        return {
            "cluster": name, "requests": done, "cpu_s": cpu_s, "wall_s": wall_s, "simulated_s": simulator.now_s,
            "peak_mib": peak_mib,
        }  # fmt: skip

    def take(record: Record) -> None:
        nonlocal done
        done += 1
        tally.add(record)
        if done % TOLD_EVERY == 0 and done < num_requests:
            row()

    simulator.play(take)
    return {**row(), "summary": tally.summary().as_json()}


if __name__ == "__main__":
    main()
