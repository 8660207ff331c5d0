"""When disaggregation pays, and when it does not: docs/experiments/when-disaggregation-pays.md, written anew.

    python bench/when_disaggregation_pays.py [--seed 0] [--requests 60] [--output FILE]
    python bench/when_disaggregation_pays.py --costs FILE --model MODEL [--memory 80e9] [--prompt N-M] [--answer N-M]

Every figure is the simulator's, with costs of one model and one data sheet by two laws: what a step reads and what it
computes add up, as in the laws that `pagewire slo calibrate` fits, or the less hides behind the more, as in a roofline.
For each question two pods are compared, one prefill and one decode pod against two colocated ones, by the highest rate
that keeps an SLO for nine requests in ten; each with the best of its chunk sizes and sequences a step.

The last tables are by laws that `pagewire slo calibrate` fitted to real pods. With --costs the page stays as it is, and
one such table goes to stdout, by the laws in FILE. Its bounds, and the rates it begins at, are the page's in as many
prompts and steps of that file's own.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

from pagewire.cli.slo_plan import read_model
from pagewire.slo.bracket import Bracketing, Evidence, crossing
from pagewire.slo.cost_model import CostModel, StepLaw, StepLine, StepShape
from pagewire.slo.made_up import Lengths, Shape, made_up, parse_lengths
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
TTFT_MS = 500
TTFT = f"ttft={TTFT_MS}ms"
TIGHT_MS = 10
TPOTS_MS = (50, 20, 12, TIGHT_MS)
LINKS = (50e9, 5e9, 1e9)
MEMORIES = (80e9, 20e9, 18.5e9)
CHUNKS = (128, 256, 1024)
SEQUENCES = (1, 2, 4, MAX_NUM_SEQS)
PAIRS = {"2 colocated": (0, 2), "1P:1D": (1, 1)}
PLAN_RATE = 10.0
REAL_COSTS = Path(__file__).parent / "results" / "costs-26.json"
REAL_CONFIG = {
    "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "intermediate_size": 1536, "vocab_size": 49152,
}  # fmt: skip
REAL_MODEL = ModelShape.of("SmolLM2-135M", REAL_CONFIG)
REAL_LENGTHS = ((Lengths(64, 256), Lengths(64, 192)), (PROMPT, ANSWER))
FIRST_RATE = 8.0


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
    model: ModelShape = MODEL
    first_rate: float = FIRST_RATE
    prompt: Lengths = PROMPT
    answer: Lengths = ANSWER

    def workload(self, rate: float) -> Workload:
        """Return Poisson arrivals; at every rate the same requests."""
        shape = Shape(input=self.prompt, output=self.answer)
        drawn = made_up("made up", shape, at_once, num_arrivals=self.requests, seed=self.seed)
        return retimed(drawn, Process(rate=rate), self.seed)

    def question(self, rate: float, slo: str, device: DeviceKind, choices: Choices) -> Question:
        """Return what a plan is asked."""
        workload = self.workload(rate)
        last_s = max(arrival.at_s for arrival in workload)
        window = Window(from_s=0.0, until_s=math.nextafter(last_s, math.inf))
        return Question(
            model=self.model, kinds=(device,), workload=workload, window=window, objectives=parse_objectives(slo),
            target=TARGET, choices=choices, seed=self.seed,
        )  # fmt: skip

    def carried(self, pods: tuple[int, int], slo: str, device: DeviceKind) -> float:
        """Return the highest rate that a pair carries, with the best of its settings; 0 where not even the lowest."""
        is_colocated = pods[0] == 0
        seqs = SEQUENCES if is_colocated else (MAX_NUM_SEQS,)  # apart, fewer are for nothing
        choices = Choices(chunk_sizes=CHUNKS, max_num_seqs=seqs, prefill_modes=("remote",), max_pods=2)
        first = self.first_rate
        search = Bracketing(
            targets=(TARGET,), first=first, lowest=first / 16, highest=first * 16, precision=0.1, repeats=1
        )
        best = 0.0
        for family in families(self.model, (device,), choices):
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
    parser.add_argument("--costs", type=Path, help="cost model that `pagewire slo calibrate` wrote, for one table")
    parser.add_argument("--model", type=Path, help="model that it is of: its name, its folder or config.json")
    parser.add_argument("--memory", type=float, default=HIDES.memory, help="bytes of each pod's device, with --costs")
    parser.add_argument("--prompt", type=parse_lengths, default=PROMPT, help="tokens of a prompt, with --costs")
    parser.add_argument("--answer", type=parse_lengths, default=ANSWER, help="tokens of an answer, with --costs")
    args = parser.parse_args()
    if args.costs is not None:
        if args.model is None:
            parser.error("--costs takes --model")
        model, costs = read_model(args.model), CostModel.from_json(args.costs.read_text(encoding="utf-8"))
        bench = Bench(seed=args.seed, requests=args.requests, model=model, prompt=args.prompt, answer=args.answer)
        print("\n".join(by_costs(bench, costs, args.memory)))
        return
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
    yield from of_real_pods(bench)


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


def by_costs(bench: Bench, costs: CostModel, memory: float) -> Iterator[str]:
    """Yield what a tighter TPOT does by the laws of a file, its bounds in as many prompts and steps as the page's."""
    pages = ADDS.cost_model(MODEL)
    slower = [prompt_s(costs, bench.prompt) / prompt_s(pages), step_s(costs, bench.prompt) / step_s(pages)]
    bench = dataclasses.replace(bench, first_rate=FIRST_RATE / slower[0])
    device = DeviceKind(
        name="file", memory=memory, price_per_hour=1.0, link=costs.link.bytes_per_s,
        link_latency_s=costs.link.latency_s, costs=costs,
    )  # fmt: skip
    source = costs.about.get("source", "not told")
    least, most = bench.first_rate / 16, bench.first_rate * 16
    prompt_ms, step_ms = (1e3 * each(costs, bench.prompt) for each in (prompt_s, step_s))
    yield f"Prompts of {bench.prompt} and answers of {bench.answer} tokens. Laws of source {source!r}: a mean prompt"
    yield f"takes {prompt_ms:.3g} ms, a step alone {step_ms:.3g} ms. Rates from {least:.2g} to {most:.3g} a second."
    yield ""
    rows = []
    for tpot_ms in TPOTS_MS:
        slo = f"ttft={TTFT_MS * slower[0]:.4g}ms,tpot={tpot_ms * slower[1]:.4g}ms"
        rows.append((slo, slo, device))
    yield from table(bench, "SLO", rows)


def prompt_s(costs: CostModel, prompt: Lengths = PROMPT) -> float:
    """Return what a mean prompt takes by a prefill pod's law, built in chunks of 256."""
    tokens = int(prompt.mean)
    pairs, chunks = tokens * (tokens + 1) // 2, -(-tokens // 256)
    return costs.prefill.seconds(StepShape(prefill_tokens=tokens, prefill_pairs=pairs)) + (chunks - 1) * sum(
        (costs.prefill.overhead_s, max(line.step_s for line in costs.prefill.lines))
    )


def step_s(costs: CostModel, prompt: Lengths = PROMPT) -> float:
    """Return what a step for one sequence alone takes, with a mean prompt behind it."""
    return costs.decode.decode_seconds(1, int(prompt.mean))


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
        rates = " | ".join(_rate(each, bench.first_rate / 16) for each in (together, apart))
        yield f"| {name} | {rates} | {ratio} |"
    yield ""


def planned(bench: Bench) -> Iterator[str]:
    """Yield what the planner makes of it."""
    yield "## What `pagewire slo plan` says"
    yield ""
    yield "By the law of the tables, in which costs add up (`ADDS` in the script): lines of a data sheet, summed by"
    yield "hand, not measured on any pod. It chooses among the same chunks, and a step takes"
    yield f"{MAX_NUM_SEQS} sequences at most, as it does unless `--max-num-seqs` names other numbers: so its colocated"
    yield "clusters are not those of the tables."
    choices = Choices(chunk_sizes=CHUNKS, max_pods=6)
    for tpot_ms in (TPOTS_MS[0], TIGHT_MS):
        asks = bench.question(PLAN_RATE, f"{TTFT},tpot={tpot_ms}ms", ADDS, choices)
        yield ""
        yield f"{PLAN_RATE:g} requests a second, a device {HIDES.price_per_hour:.2f} an hour:"
        yield ""
        for line in telling.lines(plan(asks, with_what_ifs=False)):
            yield f"    {line}".rstrip()
    yield ""
    yield "**By the other law the answer to the last question is the opposite.** What `pagewire slo calibrate"
    yield "--flops` makes of the same data sheet is a roofline, and so is what a plan makes of `flops` and `bandwidth`"
    yield "in its devices. By it:"
    yield ""
    asks = bench.question(PLAN_RATE, f"{TTFT},tpot={TIGHT_MS}ms", HIDES, choices)
    yield f"    {telling.why(plan(asks, with_what_ifs=False))}"
    yield ""
    yield "So a data sheet alone does not decide between the two. It takes laws that were fitted to real pods."
    yield ""


def of_real_pods(bench: Bench) -> Iterator[str]:
    """Yield the table by the laws of pods that were measured, for two kinds of requests."""
    costs = CostModel.from_json(REAL_COSTS.read_text(encoding="utf-8"))
    yield "## By the laws of real pods"
    yield ""
    yield f"`bench/results/{REAL_COSTS.name}` is what `pagewire slo calibrate` fitted to one prefill and one decode"
    yield "pod of SmolLM2-135M-Instruct in bfloat16, each with a core of an AMD EPYC (family 26, no AMX). By it the"
    yield "simulator kept real runs of that cluster to a tenth ([how good it is](../slo-simulator.md#how-good-it-is))."
    yield "Here two such pods do not share a machine. The laws are the same in all rows, and bounds are the page's in"
    yield "as many prompts and steps of these pods."
    yield ""
    for prompt, answer in REAL_LENGTHS:
        yield from by_costs(dataclasses.replace(bench, model=REAL_MODEL, prompt=prompt, answer=answer), costs, 4e9)
    yield "So by one fitted law, unchanged, taking prefill apart gains where tokens have to come fast, and loses where"
    yield "they need not, or where prompts are so long that one of two pods cannot build what two can. With the"
    yield "tightest TPOT of all, both hardly run two answers at once. A chunk beside a batch is put together of prompts"
    yield "and batches that were seen apart: how much of it hides, `calibrate` does not see."
    yield ""
    yield "    pagewire slo calibrate --url HOST:PORT --output costs.json"
    yield "    python bench/when_disaggregation_pays.py --costs costs.json --model MODEL --memory BYTES"
    yield ""
    yield "prints the same of your own pods."


def _rate(rate: float, lowest: float) -> str:
    return f"{rate:.3g}" if rate else f"below {lowest:.2g}"


if __name__ == "__main__":
    main()
