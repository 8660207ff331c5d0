"""What prefilling in another pod costs one lonely request: 1P1D over colocated, on one machine, in one run.

Each pod has one core and one engine thread: the prefill pod the first core, the decode pod and the colocated one the
last, and in every second round the other way round, because cores of one machine are not alike: 3 % apart were seen,
which is all that the price may be. Peers stay where they are. Requests come one at a time to systems that take turns,
with prompts of random token ids that no cache has seen. At the client, which has no core of its own either: TTFT, from
sending to the first token; the gap between token 0 and token 1; TPOT, the median of the later gaps. From the decode
pod's report: how long bytes were on their way and how much of that decoding waited for. `--peer vllm=PYTHON` measures
vLLM in the same way beside it, its pair over NIXL. Its servers poll when idle, so they are paused while others are
measured; the pair does not get over a pause, and is measured by itself when all others are done. A short request to
the same system goes before each measured one, as a cluster in use has it: a virtual machine's memory that rested for
seconds is slow at first, and a prefill pod, which has nothing to do while answers are decoded, would pay for that, not
for disaggregation. `--cold` leaves it out.

    disaggregations-price   TTFT of the pair over that of its colocated pod, medians
    hand-over-gap           token 0 -> token 1 over TPOT, median over the requests
    overlap                 1 - exposed / transfer, over 1 - 1/chunks: the last chunk has nothing to hide behind
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("support")))

import pagewire_servers
import vllm_servers
from origin import parser_of, write_figures
from pagewire_servers import PagewireServers
from peer_python import python_of
from processes import leave_on_signals
from repeats import quartiles
from token_stream import TokenStream
from vllm_servers import VllmColocated, VllmPair

from pagewire.core.local_models import find

TOKEN_IDS = range(1000, 40_000)
PAUSE_S = 0.05  # between requests: what the last one leaves to be done is not the next one's
WAKING_TOKENS = 32  # of the request before a measured one
FIRST_PORT = 18_300


System = PagewireServers | VllmColocated | VllmPair


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a request, and what it is called."""

    name: str
    read: Callable[[TokenStream], float | None]


def _report(name: str) -> Callable[[TokenStream], float | None]:
    def read(found: TokenStream) -> float | None:
        report = found.own.get("report") or {}
        return float(report[name]) if report.get("blocks_shipped") else None

    return read


def _overlap(found: TokenStream) -> float | None:
    transfer_s, exposed_s, chunks = (_report(name)(found) for name in ("transfer_s", "exposed_s", "chunks"))
    if transfer_s is None or exposed_s is None or chunks is None or chunks < 2 or transfer_s == 0:
        return None
    return max(0.0, 1 - exposed_s / transfer_s) / (1 - 1 / chunks)


MEASURES = (
    Measure("ttft_s", lambda found: found.ttft_s),
    Measure("gap_s", lambda found: found.first_gap_s),
    Measure("tpot_s", lambda found: found.tpot_s),
    Measure("hand-over-gap", lambda found: found.first_gap_s / found.tpot_s),
    Measure("transfer_s", _report("transfer_s")),
    Measure("exposed_s", _report("exposed_s")),
    Measure("chunks", _report("chunks")),
    Measure("bytes_shipped", _report("bytes_shipped")),
    Measure("overlap", _overlap),
)
Runs = dict[str, dict[int, list[TokenStream]]]
Figures = dict[str, dict[int, dict[str, dict[str, Any]]]]


def measure(systems: Sequence[System], options: argparse.Namespace) -> Runs:
    """Send every prompt length to every system `repeats` times, systems and lengths taking turns."""
    generator = random.Random(options.seed)
    found: Runs = {system.name: defaultdict(list) for system in systems}
    pauses = len(systems) > 1
    for system in systems if pauses else ():
        _pause(system)
    for repeat in range(options.warmups + options.repeats):
        for system in systems:
            if isinstance(system, PagewireServers):
                system.turn_cores(repeat % 2)
        for length in options.prompts:
            first = repeat % len(systems)
            for system in (*systems[first:], *systems[:first]):
                waking = [] if options.cold else [generator.choice(TOKEN_IDS) for _ in range(WAKING_TOKENS)]
                prompt = [generator.choice(TOKEN_IDS) for _ in range(length)]
                result = _run(system, waking, prompt, options.output, pauses=pauses)
                if repeat >= options.warmups:
                    found[system.name][length].append(result)
        print(f"round {repeat + 1} of {options.warmups} + {options.repeats}", file=sys.stderr)
    return found


def _run(system: System, waking: Sequence[int], prompt: Sequence[int], num_tokens: int, *, pauses: bool) -> TokenStream:
    for server in system.servers if pauses else ():
        server.resume()
    time.sleep(PAUSE_S)
    if waking:
        system.run(waking, 2)
        time.sleep(PAUSE_S)
    try:
        return system.run(prompt, num_tokens)
    finally:
        time.sleep(PAUSE_S)
        if pauses:
            _pause(system)


def _pause(system: System) -> None:
    for server in system.servers:
        server.pause()


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the median, the quartiles, the extremes and the values themselves."""
    first, middle, third = quartiles(values)
    return {
        "median": middle, "p25": first, "p75": third, "min": min(values), "max": max(values),
        "values": [round(value, 6) for value in values],
    }  # fmt: skip


def figures_of(found: Runs) -> Figures:
    """Return the spread of each measure by system and prompt length."""
    figures: Figures = {}
    for name, by_length in found.items():
        figures[name] = {}
        for length, results in by_length.items():
            figures[name][length] = {}
            for each in MEASURES:
                values = [value for value in map(each.read, results) if value is not None]
                if values:
                    figures[name][length][each.name] = spread(values)
    return figures


def phases_of(found: Runs) -> dict[str, dict[int, dict[str, dict[str, float]]]]:
    """Return, for each system, length and process, the median seconds from each stamp to the next."""
    return {
        name: {length: _phases(results) for length, results in by_length.items()}
        for name, by_length in found.items()
        if any(result.own for results in by_length.values() for result in results)
    }


def _phases(results: Sequence[TokenStream]) -> dict[str, dict[str, float]]:
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        for timeline in result.own["timelines"]:
            stamps = sorted(timeline["stamps"], key=lambda stamp: float(stamp["at_s"]))
            for before, after in pairwise(stamps):
                step = f"{before['phase']} -> {after['phase']}"
                times[timeline["process"]][step].append(after["at_s"] - before["at_s"])
    return {
        process: {step: round(statistics.median(values), 6) for step, values in steps.items()}
        for process, steps in times.items()
    }


def transports_of(found: Runs) -> dict[str, list[str]]:
    """Return what each system's reports say that bytes travelled by."""
    said: dict[str, set[str]] = defaultdict(set)
    for name, by_length in found.items():
        for result in (result for results in by_length.values() for result in results):
            transport = (result.own.get("report") or {}).get("transport")
            if transport:
                said[name].add(transport)
    return {name: sorted(transports) for name, transports in said.items()}


def targets_of(figures: Figures, baselines: dict[str, str]) -> dict[str, dict[str, dict[int, float]]]:
    """Return the figures that targets are set for; `baselines` names the colocated system of each pair."""
    targets: dict[str, dict[str, dict[int, float]]] = {"disaggregations-price": {}, "hand-over-gap": {}, "overlap": {}}
    for name, by_length in figures.items():
        if name in baselines:
            base = figures[baselines[name]]
            targets["disaggregations-price"][name] = {
                length: found["ttft_s"]["median"] / base[length]["ttft_s"]["median"]
                for length, found in by_length.items()
            }
        targets["hand-over-gap"][name] = {n: found["hand-over-gap"]["median"] for n, found in by_length.items()}
        overlap = {n: found["overlap"]["median"] for n, found in by_length.items() if "overlap" in found}
        if overlap:
            targets["overlap"][name] = overlap
    return targets


def table(figures: Figures, targets: dict[str, dict[str, dict[int, float]]]) -> Iterator[str]:
    """Return the lines for people: medians, quartiles in brackets, milliseconds."""
    yield (
        f"{'prompt':>6} {'system':22} {'TTFT ms':>24} {'price':>6} {'token 0 -> 1 ms':>22} {'TPOT ms':>8} {'gap':>5} "
        f"{'transfer, exposed ms':>21} {'hidden':>7} {'overlap':>7}"
    )
    for length in next(iter(figures.values())):
        for name, by_length in figures.items():
            found = by_length[length]
            price = targets["disaggregations-price"].get(name, {}).get(length)
            moved, hidden = "-", "-"
            if "transfer_s" in found:
                transfer_s, exposed_s = found["transfer_s"]["median"], found["exposed_s"]["median"]
                moved = f"{transfer_s * 1e3:.1f}, {exposed_s * 1e3:.1f}"
                hidden = f"{1 - exposed_s / transfer_s:.0%}" if transfer_s else "-"
            overlap = targets["overlap"].get(name, {}).get(length)
            yield (
                f"{length:6} {name:22} {_milliseconds(found['ttft_s']):>24} {_ratio(price):>6} "
                f"{_milliseconds(found['gap_s']):>22} {found['tpot_s']['median'] * 1e3:8.1f} "
                f"{_ratio(found['hand-over-gap']['median']):>5} {moved:>21} {hidden:>7} {_ratio(overlap):>7}"
            )


def _milliseconds(found: dict[str, Any]) -> str:
    return f"{found['median'] * 1e3:.1f} [{found['p25'] * 1e3:.1f} .. {found['p75'] * 1e3:.1f}]"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def systems_of(options: argparse.Namespace, folder: Path, stack: ExitStack) -> tuple[list[System], dict[str, str]]:
    """Start what takes turns; return it, and the colocated system that each pair is compared with."""
    cores = pagewire_servers.two_cores()
    systems: list[System] = []
    baselines: dict[str, str] = {}

    def add(system: System, baseline: str = "") -> None:
        stack.callback(system.stop)
        systems.append(system)
        if baseline:
            baselines[system.name] = baseline

    for python in options.peer:  # first: compiling takes both cores
        add(vllm_servers.colocated(python, core=cores[1], **_of_peer(options, folder)))
    if not options.peer_only:
        base = pagewire_servers.colocated(options.model, options.device, cores[1], folder)
        add(base)
        for transport, groups in product(options.transports, options.layer_groups):
            pair = pagewire_servers.disaggregated(options.model, options.device, cores, folder, transport, groups)
            add(pair, base.name)
    return systems, baselines


def measure_pair(python: str, options: argparse.Namespace, folder: Path) -> Runs:
    """Start the peer's pair, measure it with nothing else on the machine, and end it."""
    pair = vllm_servers.pair(python, cores=pagewire_servers.two_cores(), **_of_peer(options, folder))
    try:
        return measure([pair], options)
    finally:
        pair.stop()


def _of_peer(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return {
        "model": str(find(options.model) or options.model), "folder": folder, "port": FIRST_PORT,
        "is_eager": options.peer_eager, "frees_helpers": not options.peer_bound,
    }  # fmt: skip


def main() -> None:
    """Start, measure, print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="smollm2", help="name of a local model, or a Hugging Face folder")
    parser.add_argument("--random", metavar="SHAPE", help="a model of random weights in the shape of Qwen3-0.6B or so")
    parser.add_argument("--device", default="cpu", help="of all engines; on a GPU they take turns on it")
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 512, 2048], help="prompt lengths in tokens")
    parser.add_argument("--output", type=int, default=64, help="tokens to generate")
    parser.add_argument("--repeats", type=int, default=11, help="measured requests of each length for each system")
    parser.add_argument("--warmups", type=int, default=2, help="requests before those")
    parser.add_argument("--transports", nargs="+", default=[""], help="a 1P1D of each; default: what the pods agree on")
    parser.add_argument("--layer-groups", type=int, nargs="+", default=[0], help="a 1P1D of each, with each transport")
    parser.add_argument(
        "--peer", type=python_of("vllm"), action="append", default=[], metavar="vllm=PYTHON", help="vLLM too"
    )
    parser.add_argument("--peer-eager", action="store_true", help="vLLM without compilation")
    parser.add_argument("--peer-bound", action="store_true", help="vLLM's helping threads stay on its one core too")
    parser.add_argument("--peer-only", action="store_true", help="without Pagewire")
    parser.add_argument("--cold", action="store_true", help="no request before the measured ones")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    options = parser.parse_args()
    leave_on_signals()
    with tempfile.TemporaryDirectory(prefix="pagewire-bench-") as folder:
        if options.random:
            options.model = _written(options.random, Path(folder) / options.random, options.device)
        with ExitStack() as stack:
            systems, baselines = systems_of(options, Path(folder), stack)
            found = measure(systems, options)
            report(found, baselines, options)
        for python in options.peer:
            found |= measure_pair(python, options, Path(folder))
            report(found, {**baselines, VllmPair.name: VllmColocated.name}, options)


def _written(shape: str, folder: Path, device: str) -> str:
    """Write a model of random weights and return its folder; by a process of its own, which leaves the device."""
    script = Path(__file__).parent / "support" / "random_models.py"
    subprocess.run([sys.executable, "-P", str(script), shape, str(folder), device], check=True)
    return str(folder)


def report(found: Runs, baselines: dict[str, str], options: argparse.Namespace) -> None:
    """Print what was found so far, and write it where it was asked for."""
    figures = figures_of(found)
    targets = targets_of(figures, baselines)
    print("\n".join(table(figures, targets)), flush=True)
    told = {**targets, "figures": figures, "phases_s": phases_of(found), "transports": transports_of(found)}
    peers = {name: version for python in options.peer for name, version in vllm_servers.versions(python).items()}
    write_figures(options.json, told, "torch", "grpcio", peers=peers)


if __name__ == "__main__":
    main()
