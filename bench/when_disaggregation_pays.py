"""When disaggregation pays, and when it does not: docs/experiments/when-disaggregation-pays.md, written anew.

    python bench/when_disaggregation_pays.py [--seed 0] [--requests 60] [--output FILE]

Every figure is the simulator's, with costs of one model and one data sheet by two laws: what a step reads and what it
computes add up, as in the laws that `pagewire slo calibrate` fits, or the less hides behind the more, as in a roofline.
For each question two pods are compared, one prefill and one decode pod against two colocated ones, by the highest rate
that keeps an SLO for nine requests in ten; each with the best of its chunk sizes and sequences a step.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

from pagewire.slo.bracket import Bracketing, Evidence, crossing
from pagewire.slo.cost_model import StepLaw, StepLine
from pagewire.slo.made_up import Lengths, Shape, made_up
from pagewire.slo.objectives import parse_objectives
from pagewire.slo.planning import telling
from pagewire.slo.planning.candidate import MAX_NUM_SEQS, Candidate, Choices, families
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
HIDES = DeviceKind(name="gpu", flops=9.9e14, bandwidth=3.35e12, memory=80e9, price_per_hour=3.0, link=50e9)
PROMPT, ANSWER = Lengths(1000, 3000), Lengths(16, 64)
TARGET = 0.9
TTFT = "ttft=500ms"
TIGHT_MS = 10
TPOTS_MS = (50, 20, 12, TIGHT_MS)
LINKS = (50e9, 5e9, 1e9)
MEMORIES = (80e9, 20e9, 18.5e9)
CHUNKS = (128, 256, 1024)
SEQUENCES = (1, 2, 4, MAX_NUM_SEQS)
PAIRS = {"2 colocated": (0, 2), "1P:1D": (1, 1)}
PLAN_RATE = 10.0


def added(law: StepLaw) -> StepLaw:
    """Return a law whose lines add up, where of `law` the slowest is all that a step takes."""
    names = [each.name for each in dataclasses.fields(StepLine)]
    line = StepLine(**{name: sum(getattr(each, name) for each in law.lines) for name in names})
    return StepLaw(lines=(line,), overhead_s=law.overhead_s)


COSTS = HIDES.cost_model(MODEL)
ADDS = dataclasses.replace(
    HIDES, costs=dataclasses.replace(COSTS, prefill=added(COSTS.prefill), decode=added(COSTS.decode))
)


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
        """Return the highest rate that a pair carries, with the best of its settings; 0 where not even the lowest."""
        is_colocated = pods[0] == 0
        seqs = SEQUENCES if is_colocated else (MAX_NUM_SEQS,)  # apart, fewer are for nothing
        choices = Choices(chunk_sizes=CHUNKS, max_num_seqs=seqs, prefill_modes=("remote",), max_pods=2)
        search = Bracketing(targets=(TARGET,), first=8.0, lowest=0.5, highest=128.0, precision=0.1, repeats=1)
        best = 0.0
        for family in families(MODEL, (device,), choices):
            if family.is_colocated != is_colocated:
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
    yield "placement, admission and shipments; what steps take is made of a data sheet, by a law that is the same in"
    yield "every row of a table."
    yield ""
    yield f"    python bench/when_disaggregation_pays.py --seed {bench.seed} --requests {bench.requests}"
    yield ""
    yield from settings(bench)
    yield from by_tpot(bench)
    yield from by_link(bench)
    yield from by_memory(bench)
    yield from where_it_hides(bench)
    yield from planned(bench)


def settings(bench: Bench) -> Iterator[str]:
    """Yield what all figures have in common."""
    weights_s = COSTS.decode.lines[0].step_s
    token_s = COSTS.decode.lines[1].prefill_token_s
    rows = {
        "model": f"a decoder of {MODEL.parameters / 1e9:.2f} x 10^9 parameters (16 bits), {MODEL.num_layers} layers, "
        f"{MODEL.num_heads} heads, {MODEL.num_kv_heads} KV heads of {MODEL.head_dim}: {MODEL.token_bytes} B a token",
        "device": f"{HIDES.flops:.3g} FLOP/s, {HIDES.bandwidth:.3g} B/s, {HIDES.memory / 1e9:g} GB; "
        f"{HIDES.efficiency:.0%} of both peaks are reached",
        "a step": f"{1e3 * weights_s:.1f} ms to read the weights, {1e6 * token_s:.0f} us of arithmetic a token, "
        f"and {1e3 * COSTS.decode.overhead_s:g} ms",
        "the law": "**they add up**, as in what `pagewire slo calibrate` fits, unless a section says otherwise",
        "link": f"{HIDES.link / 1e9:g} GB/s each way between two pods, {1e3 * HIDES.link_latency_s:g} ms",
        "requests": f"{bench.requests}, Poisson, prompts of {PROMPT} and answers of {ANSWER} tokens, nothing shared",
        "SLO": f"{TTFT}, and a TPOT as told, for {TARGET:.0%} of requests",
        "clusters": f"two pods; the best of chunks of {', '.join(map(str, CHUNKS))} tokens, blocks of 64; a step "
        "computes as many tokens as a chunk has, those who decode first; colocated pods with the best of "
        f"{', '.join(map(str, SEQUENCES))} sequences a step",
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
    yield from table(bench, "TPOT", tpots(ADDS))
    yield "A colocated step that builds a chunk is longer by what the chunk takes, and everybody who decodes waits for"
    yield "it. With a loose TPOT that is cheap, and two pods that both build prompts build more than one. With a tight"
    yield "one they have to keep most steps free of prompts: by being idle, or by taking one or two sequences at a"
    yield "time. The pod that decodes alone never has a prompt, so 1P:1D carries what its prefill pod builds."
    yield ""


def by_link(bench: Bench) -> Iterator[str]:
    """Yield what a slower link does."""
    yield "## Where the link is slow"
    yield ""
    slo = f"{TTFT},tpot={TIGHT_MS}ms"
    rows = [(f"{link / 1e9:g} GB/s", slo, dataclasses.replace(ADDS, link=link)) for link in LINKS]
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
    slo = f"{TTFT},tpot={TIGHT_MS}ms"
    rows = []
    for memory in MEMORIES:
        device = dataclasses.replace(ADDS, memory=memory)
        tokens = device.kv_blocks(MODEL, 64) * 64
        rows.append((f"{memory / 1e9:g} GB ({tokens} tokens of KV a pod)", slo, device))
    yield f"TPOT of {TIGHT_MS} ms."
    yield ""
    yield from table(bench, "memory", rows)
    yield "Apart, every answer is held by one pod of the two, and the other one's memory holds prompts for the moment"
    yield "that they are built. Colocated, both hold answers, and with a TPOT this tight they hold few at a time. Who"
    yield "has no room waits, before its prompt is built."
    yield ""


def where_it_hides(bench: Bench) -> Iterator[str]:
    """Yield what becomes of it where arithmetic costs nothing while weights are read."""
    yield "## Where a chunk hides behind the weights"
    yield ""
    yield "The same by the other law, a roofline: a step takes the longer of what it reads and what it computes."
    yield ""
    yield from table(bench, "TPOT", tpots(HIDES))
    yield "A step that reads all weights for a few tokens computes some 250 more for nothing, and colocated pods with"
    yield "chunks of 256 build prompts in what is idle. Then there is nothing to gain by taking prefill apart, however"
    yield "tight the TPOT. Devices lie between the two laws, so **measure before you decide**: `pagewire slo calibrate`"
    yield "fits what your own steps do, and `pagewire slo plan` takes it (`costs`)."
    yield ""
    yield "An earlier version of this page had 1P:1D ahead here, 16 to 5.19 at 10 ms. Its colocated pods were badly"
    yield "set: their steps had room for 256 tokens beside a chunk, and a second prompt's chunk took it."
    yield ""


def tpots(device: DeviceKind) -> list[tuple[str, str, DeviceKind]]:
    """Return a row for each TPOT."""
    return [(f"{tpot} ms", f"{TTFT},tpot={tpot}ms", device) for tpot in TPOTS_MS]


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
    yield ""
    yield "Costs add up again. It chooses among the same chunks, and a step takes"
    yield f"{MAX_NUM_SEQS} sequences at most, as it does unless `--max-num-seqs` names other numbers: so its colocated"
    yield "clusters are not those of the tables."
    for tpot_ms in (TPOTS_MS[0], TIGHT_MS):
        asks = bench.question(PLAN_RATE, f"{TTFT},tpot={tpot_ms}ms", ADDS, Choices(chunk_sizes=CHUNKS, max_pods=6))
        yield ""
        yield f"{PLAN_RATE:g} requests a second, a device {HIDES.price_per_hour:.2f} an hour:"
        yield ""
        for line in telling.lines(plan(asks, with_what_ifs=False)):
            yield f"    {line}".rstrip()


def _rate(rate: float) -> str:
    return f"{rate:.3g}" if rate else "below 0.5"


if __name__ == "__main__":
    main()
