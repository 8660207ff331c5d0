"""When disaggregation pays, and when it does not: docs/experiments/when-disaggregation-pays.md, written anew.

    python bench/when_disaggregation_pays.py [--seed 0] [--requests 60] [--output FILE]

Every figure is the simulator's, on a roofline of one model and one data sheet. For each question two pods are compared,
one prefill and one decode pod against two colocated ones, by the highest rate that keeps an SLO for nine requests in
ten; each with the better of two chunk sizes.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

from pagewire.slo.bracket import Bracketing, Evidence, crossing
from pagewire.slo.made_up import Lengths, Shape, made_up
from pagewire.slo.objectives import parse_objectives
from pagewire.slo.planning import telling
from pagewire.slo.planning.candidate import Candidate, Choices, families
from pagewire.slo.planning.device_kind import DeviceKind
from pagewire.slo.planning.judge import Judge
from pagewire.slo.planning.plan import Question, plan
from pagewire.slo.processes import Process, at_once
from pagewire.slo.roofline import ModelShape
from pagewire.slo.summary import Window
from pagewire.slo.transforms import retimed
from pagewire.slo.workload import Workload

REPORT = Path(__file__).parents[1] / "docs" / "experiments" / "when-disaggregation-pays.md"
CONFIG = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
MODEL = ModelShape.of("8B", CONFIG)
DEVICE = DeviceKind(name="gpu", flops=9.9e14, bandwidth=3.35e12, memory=80e9, price_per_hour=3.0, link=50e9)
PROMPT, ANSWER = Lengths(1000, 3000), Lengths(16, 64)
TARGET = 0.9
TTFT = "ttft=500ms"
TIGHT_MS = 10
TPOTS_MS = (50, TIGHT_MS)
LINKS = (50e9, 1e9)
MEMORIES = (80e9, 20e9)
CHUNKS = (256, 1024)
PAIRS = {"2 colocated": (0, 2), "1P:1D": (1, 1)}
PLAN_RATE = 12.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """What all probes have in common."""

    seed: int
    requests: int

    def workload(self, rate: float) -> Workload:
        """Return Poisson arrivals; at every rate the same requests."""
        shape = Shape(input=PROMPT, output=ANSWER)
        drawn = made_up("made up", shape, at_once, num_arrivals=self.requests, seed=self.seed)
        return retimed(drawn, Process(rate=rate), self.seed)

    def question(self, rate: float, slo: str, device: DeviceKind, choices: Choices) -> Question:
        """Return what a plan is asked."""
        workload = self.workload(rate)
        last_s = max(arrival.at_s for arrival in workload)
        window = Window(from_s=0.0, until_s=math.nextafter(last_s, math.inf))
        return Question(
            model=MODEL, kinds=(device,), workload=workload, window=window, objectives=parse_objectives(slo),
            target=TARGET, choices=choices, seed=self.seed,
        )  # fmt: skip

    def carried(self, pods: tuple[int, int], slo: str, device: DeviceKind) -> float:
        """Return the highest rate that a pair carries, with the better chunk size; 0 where not even the lowest."""
        choices = Choices(chunk_sizes=CHUNKS, prefill_modes=("remote",), max_pods=2)
        search = Bracketing(targets=(TARGET,), first=8.0, lowest=0.5, highest=128.0, precision=0.1, repeats=1)
        best = 0.0
        for family in families(MODEL, (device,), choices):
            if family.is_colocated != (pods[0] == 0):
                continue
            candidate, evidence = Candidate(family=family, prefill=pods[0], decode=pods[1]), Evidence()
            while (rate := search.next_rate(evidence)) is not None:
                asks = self.question(rate, slo, device, choices)
                judge = Judge(asks.workload, asks.window, asks.objectives, TARGET, self.seed)
                evidence.tell(rate, judge.outcome(candidate).attained)
            best = max(best, crossing(evidence, TARGET).met or 0.0)
        return best


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--output", type=Path, default=REPORT)
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(report(Bench(seed=args.seed, requests=args.requests)))
    args.output.write_text(text + "\n", encoding="utf-8")


def report(bench: Bench) -> Iterator[str]:
    """Yield the lines of the report."""
    yield "# When disaggregation pays"
    yield ""
    yield "**Every figure here is the simulator's, none was measured.** It runs the product's own scheduling,"
    yield "placement, admission and shipments; what steps take is a roofline of a data sheet, the same throughout."
    yield ""
    yield f"    python bench/when_disaggregation_pays.py --seed {bench.seed} --requests {bench.requests}"
    yield ""
    yield from settings(bench)
    yield from by_tpot(bench)
    yield from by_link(bench)
    yield from by_memory(bench)
    yield from planned(bench)


def settings(bench: Bench) -> Iterator[str]:
    """Yield what all figures have in common."""
    rows = {
        "model": f"a decoder of {MODEL.parameters / 1e9:.2f} x 10^9 parameters (16 bits), {MODEL.num_layers} layers, "
        f"{MODEL.num_heads} heads, {MODEL.num_kv_heads} KV heads of {MODEL.head_dim}: {MODEL.token_bytes} B a token",
        "device": f"{DEVICE.flops:.3g} FLOP/s, {DEVICE.bandwidth:.3g} B/s, {DEVICE.memory / 1e9:g} GB; "
        f"{DEVICE.efficiency:.0%} of both peaks are reached",
        "link": f"{DEVICE.link / 1e9:g} GB/s each way between two pods, {1e3 * DEVICE.link_latency_s:g} ms",
        "requests": f"{bench.requests}, Poisson, prompts of {PROMPT} and answers of {ANSWER} tokens, nothing shared",
        "SLO": f"{TTFT}, and a TPOT as told, for {TARGET:.0%} of requests",
        "clusters": f"two pods; the better of chunks of {' and '.join(map(str, CHUNKS))} tokens, blocks of 64",
        "found": f"rates by doubling and halving, to a tenth; seed {bench.seed}",
    }
    yield "| | |"
    yield "|---|---|"
    yield from (f"| {name} | {what} |" for name, what in rows.items())
    yield ""


def by_tpot(bench: Bench) -> Iterator[str]:
    """Yield what a tighter TPOT does."""
    yield "## Where tokens have to come fast"
    yield ""
    rows = [(f"{tpot} ms", f"{TTFT},tpot={tpot}ms", DEVICE) for tpot in TPOTS_MS]
    yield from table(bench, "TPOT", rows)
    yield "A colocated step that builds a chunk is as long as the chunk takes, and everybody who decodes waits for it."
    yield "With a loose TPOT that is free, and two pods that both build prompts build more than one. With a tight"
    yield "one they have to stay idle enough to keep most steps free of prompts."
    yield "The workload was chosen to show it: short answers, and a TPOT not far above a step for one sequence alone."
    yield "With answers of 64-192 tokens and a TPOT of 12 ms two colocated pods carried more than 1P:1D."
    yield ""


def by_link(bench: Bench) -> Iterator[str]:
    """Yield what a slower link does."""
    yield "## Where the link is slow"
    yield ""
    slo = f"{TTFT},tpot={TIGHT_MS}ms"
    rows = [(f"{link / 1e9:g} GB/s", slo, dataclasses.replace(DEVICE, link=link)) for link in LINKS]
    yield f"TPOT of {TIGHT_MS} ms."
    yield ""
    yield from table(bench, "link", rows)
    mean_mb = PROMPT.mean * MODEL.token_bytes / 1e6
    yield f"A mean prompt is {mean_mb:.0f} MB of KV. The first token does not wait for it, the second one does: so what"
    yield "the link takes longer than the chunks behind it is in TPOT, and prompts that queue for the link are, too."
    yield ""


def by_memory(bench: Bench) -> Iterator[str]:
    """Yield what less memory does."""
    yield "## Where the memory of decode pods is full"
    yield ""
    loose = TPOTS_MS[0]
    slo = f"{TTFT},tpot={loose}ms"
    rows = []
    for memory in MEMORIES:
        device = dataclasses.replace(DEVICE, memory=memory)
        tokens = device.kv_blocks(MODEL, 64) * 64
        rows.append((f"{memory / 1e9:g} GB ({tokens} tokens of KV a pod)", slo, device))
    yield f"TPOT of {loose} ms."
    yield ""
    yield from table(bench, "memory", rows)
    yield "Apart, every answer is held by one pod of the two, and the other one's memory holds prompts for the moment"
    yield "that they are built. Colocated, both hold answers. Who has no room waits, before its prompt is built."
    yield "With this workload 1P:1D is behind with either memory: the rows tell what a small pool costs, and no change"
    yield "of sides. `tests/slo/test_plan.py` has a case in which a smaller pool alone makes 1P:1D miss what two"
    yield "colocated pods keep."
    yield ""


def table(bench: Bench, what: str, rows: list[tuple[str, str, DeviceKind]]) -> Iterator[str]:
    """Yield a table of rates by rows of a name, an SLO and a device."""
    yield f"| {what} | {' | '.join(f'{name}, requests/s' for name in PAIRS)} | apart / colocated |"
    yield "|---|---|---|---|"
    for name, slo, device in rows:
        together, apart = (bench.carried(pods, slo, device) for pods in PAIRS.values())
        ratio = f"{apart / together:.2f}" if together else "-"
        yield f"| {name} | {_rate(together)} | {_rate(apart)} | {ratio} |"
    yield ""


def planned(bench: Bench) -> Iterator[str]:
    """Yield what the planner makes of it."""
    yield "## What `pagewire slo plan` says"
    for tpot_ms in (TPOTS_MS[0], TIGHT_MS):
        asks = bench.question(PLAN_RATE, f"{TTFT},tpot={tpot_ms}ms", DEVICE, Choices(chunk_sizes=CHUNKS, max_pods=6))
        yield ""
        yield f"{PLAN_RATE:g} requests a second, a device {DEVICE.price_per_hour:.2f} an hour:"
        yield ""
        for line in telling.lines(plan(asks, with_what_ifs=False)):
            yield f"    {line}".rstrip()


def _rate(rate: float) -> str:
    return f"{rate:.3g}" if rate else "below 0.5"


if __name__ == "__main__":
    main()
