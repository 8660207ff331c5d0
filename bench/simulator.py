"""The simulator against a real cluster: calibrated on one, then a workload played on both, with the misses.

    python bench/simulator.py [--prefill 1 --decode 1 | --colocated N] [--rate 1.5] [--requests 60] [--runs 5]

Starts `pagewire up`, fits a cost model, plays the same trace `--runs` times with `pagewire slo run`, simulates it, and
prints each percentile: the real runs' median and range, the simulated figure, and whether it is within 10 % or within
that range. The trace has lengths that the fit did not see. `--json` keeps each run's summary and the cost model too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

from origin import parser_of, write_figures
from pagewire_servers import up
from processes import leave_on_signals

PERCENTILES = ("p50", "p90", "p99")
MEASURES = ("ttft_ms", "tpot_ms", "e2e_ms")
WITHIN = 0.10
COSTS = "costs.json"


def main() -> None:
    """Run it."""
    args = arguments()
    leave_on_signals()
    with tempfile.TemporaryDirectory() as folder:
        real, simulated = figures(args, Path(folder))
        costs = json.loads((Path(folder) / COSTS).read_text(encoding="utf-8"))
    rows = compared(real, simulated)
    print(f"{'':<12}{'real':>10}{'least':>10}{'most':>10}{'simulated':>11}{'off by':>9}")
    for row in rows:
        print(
            f"{row['figure']:<12}{row['real']:>10.1f}{row['least']:>10.1f}{row['most']:>10.1f}"
            f"{row['simulated']:>11.1f}{row['off']:>9.1%}{'' if row['holds'] else '  MISS'}"
        )
    print(f"{sum(not row['holds'] for row in rows)} of {len(rows)} missed")
    write_figures(args.json, {"rows": rows, "costs": costs, "real": real, "simulated": simulated}, "torch")


def arguments() -> argparse.Namespace:
    """Return what was asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--prefill", type=int, default=1)
    parser.add_argument("--decode", type=int, default=1)
    parser.add_argument("--colocated", type=int, default=0)
    parser.add_argument("--rate", type=float, default=1.5)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--input", default="80-700")
    parser.add_argument("--output", default="16-80")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    return parser.parse_args()


def figures(args: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the summaries of the real runs, and the simulated one."""
    pods = ["--prefill", f"{args.prefill}", "--decode", f"{args.decode}"]
    if args.colocated:  # in place of both, as where it is simulated
        pods = ["--prefill", "0", "--decode", "0", "--colocated", f"{args.colocated}"]
    load = [
        "--rate", f"{args.rate}", "--requests", f"{args.requests}", "--input", args.input, "--output", args.output,
    ]  # fmt: skip
    costs = folder / COSTS
    cluster, said = up(pods, folder / "up.log")
    try:
        url, grpc = said["router"]["http"], said["router"]["grpc"]
        run("slo", "calibrate", "--url", grpc, "--rounds", f"{args.rounds}", "--output", f"{costs}")
        real = []
        for number in range(args.runs):
            # A seed of its own for what prompts say: the cache of the run before must not help. Times stay the same.
            told = folder / f"real-{number}.json"
            vocabulary = f"{1000 + 5000 * number}-{5999 + 5000 * number}"
            run("slo", "run", "--url", url, *load, "--token-ids", vocabulary, "--json", f"{told}")
            real.append(summary_of(told))
    finally:
        cluster.stop()
    told = folder / "simulated.json"
    num_pods = args.colocated or args.prefill + args.decode
    shared = ["--pods-per-machine", f"{num_pods}"]  # all of them: this one
    run("slo", "simulate", "--costs", f"{costs}", *pods, *shared, *load, "--json", f"{told}")
    return real, summary_of(told)


def compared(real: list[dict[str, Any]], simulated: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each percentile of each measure."""
    rows = []
    for measure in MEASURES:
        for percentile in PERCENTILES:
            values = [each[measure][percentile] for each in real]
            middle, said = statistics.median(values), simulated[measure][percentile]
            off = said / middle - 1
            rows.append({
                "figure": f"{measure.removesuffix('_ms')} {percentile}", "real": middle, "least": min(values),
                "most": max(values), "simulated": said, "off": off,
                "holds": abs(off) <= WITHIN or min(values) <= said <= max(values),
            })  # fmt: skip
    return rows


def summary_of(path: Path) -> dict[str, Any]:
    """Return the figures in a file of `pagewire slo run` or `simulate`."""
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return told


def run(*command: str) -> None:
    """Run a sub-command of pagewire."""
    subprocess.run([sys.executable, "-P", "-m", "pagewire.cli.main", *command], check=True)


if __name__ == "__main__":
    main()
