"""When disaggregation pays, and when it does not: docs/experiments/when-disaggregation-pays.md, written anew.

    python bench/when_disaggregation_pays.py [--seed 0] [--requests 60] [--output FILE]
    python bench/when_disaggregation_pays.py --costs FILE --model MODEL [--memory 80e9 ...] [--link 1e9 ...]
        [--tpot MS ...] [--prompt N-M] [--answer N-M] [--requests 200] [--seeds 0 1 2]

Every figure is the simulator's, unless a section says otherwise with costs of one model and one data sheet by two laws:
what a step reads and what it computes add up, as in the laws that `pagewire slo calibrate` fits, or the less hides
behind the more, as in a roofline. For each question two pods are compared, one prefill and one decode pod against two
colocated ones, by the highest rate that keeps an SLO for nine requests in ten; each with the best of its chunk sizes
and sequences a step.

The last section is by laws that `pagewire slo calibrate` fitted to real pods. With --costs the page stays as it is, and
one such table goes to stdout, by the laws in FILE: a row for each TPOT, link and memory, with the range over seeds. Its
bound of TTFT, that of TPOT unless told, and the rates it begins at, are the page's in as many prompts and steps of that
file's own.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pagewire.cli.slo_plan import read_model
from pagewire.slo.costs.calibrate import PROMPTS
from pagewire.slo.costs.cost_model import CostModel, StepLaw, StepLine, StepShape
from pagewire.slo.costs.roofline import ModelShape
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.summary import Window
from pagewire.slo.planning import telling
from pagewire.slo.planning.candidate import MAX_NUM_SEQS, Candidate, Choices, families
from pagewire.slo.planning.device_kind import DeviceKind
from pagewire.slo.planning.judge import Judge
from pagewire.slo.planning.plan import Plan, Question, plan
from pagewire.slo.sweeps.bracket import Bracketing, Evidence, crossing
from pagewire.slo.workloads.made_up import Lengths, Shape, made_up, parse_lengths
from pagewire.slo.workloads.processes import Process
from pagewire.slo.workloads.transforms import retimed
from pagewire.slo.workloads.workload import Workload

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
TIGHT = f"{TTFT},tpot={TIGHT_MS}ms"
TPOTS_MS = (50, 20, 12, TIGHT_MS)
LINKS = (50e9, 5e9, 1e9)
MEMORIES = (80e9, 20e9, 18.5e9)
CHUNKS = (128, 256, 1024)
SEQUENCES = (1, 2, 4, MAX_NUM_SEQS)
PAIRS = {"2 colocated": (0, 2), "1P:1D": (1, 1)}
PLAN_RATE = 10.0
REAL_COSTS = "bench/results/simulator-1p1d.json"
REAL_CONFIG = {
    "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
REAL_MODEL = ModelShape.of("SmolLM2-135M", REAL_CONFIG)
REAL_KIND = f"--costs {REAL_COSTS} --model smollm2 --prompt 64-256 --answer 16-64 --requests 200 --seeds 0 1 2"
REAL_TPOT_MS, REAL_LOOSE_MS, REAL_MEMORY, SLOW_LINK = 12, 40, 4e9, 3e7
BY_TPOT = f"{REAL_KIND} --memory {REAL_MEMORY / 1e9:g}e9 --tpot {REAL_LOOSE_MS} 14 {REAL_TPOT_MS} 10"
BY_LINK = f"{REAL_KIND} --memory {REAL_MEMORY / 1e9:g}e9 --tpot {REAL_TPOT_MS} --link 1e8 {SLOW_LINK / 1e7:g}e7"
BY_MEMORY = f"{REAL_KIND} --tpot {REAL_TPOT_MS} --memory 0.335e9 0.325e9"
LONG = f"{REAL_KIND} --memory {REAL_MEMORY / 1e9:g}e9 --tpot {REAL_LOOSE_MS} {REAL_TPOT_MS}".replace(
    "64-256", str(PROMPT)
).replace("200", "60")
# Finer than the page's: gains of a tenth are told apart.
REAL_SEQUENCES = (1, 2, 3, 4, 6, 8, MAX_NUM_SEQS)
REAL_PRECISION = 0.03
SKIPPED = 0.01
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
    seeds: tuple[int, ...] = ()  # where there are several
    sequences: tuple[int, ...] = SEQUENCES
    precision: float = 0.1
    skips: bool = False  # settings that do not carry a hundredth more than the best so far: for speed

    def workload(self, rate: float) -> Workload:
        """Return Poisson arrivals; at every rate the same requests."""
        shape = Shape(input=self.prompt, output=self.answer)
        drawn = made_up("made up", shape, num_arrivals=self.requests, seed=self.seed)
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
        seqs = self.sequences if is_colocated else (MAX_NUM_SEQS,)  # apart, fewer are for nothing
        choices = Choices(chunk_sizes=CHUNKS, max_num_seqs=seqs, prefill_modes=("remote",), max_pods=2)
        best = 0.0
        for family in families(self.model, (device,), choices):
            if family.is_colocated != is_colocated:
                continue
            candidate, evidence = Candidate(family=family, prefill=pods[0], decode=pods[1]), Evidence()
            search = self.search(best)
            while (rate := search.next_rate(evidence)) is not None:
                asks = self.question(rate, slo, device, choices)
                judge = Judge(asks.workload, asks.window, asks.objectives, TARGET, self.seed)
                evidence.tell(rate, judge.outcome(candidate).attained)
            best = max(best, crossing(evidence, TARGET).met or 0.0)
        return best

    def search(self, best: float) -> Bracketing:
        """Return a search for the highest rate of settings, or for more than `best` where others may be skipped."""
        most = self.first_rate * 16
        is_known = self.skips and best > 0
        least = min(best * (1 + SKIPPED), most) if is_known else self.first_rate / 16
        first = least if is_known else self.first_rate
        return Bracketing(
            targets=(TARGET,), first=first, lowest=least, highest=most, precision=self.precision, repeats=1
        )

    def by_seed(self) -> list[Bench]:
        """Return one for each seed."""
        return [dataclasses.replace(self, seed=each, seeds=()) for each in self.seeds or (self.seed,)]


def main() -> None:
    """Run it."""
    args = parser().parse_args()
    if args.costs is not None:
        if args.model is None:
            parser().error("--costs takes --model")
        costs, model = read_costs(args.costs), read_model(args.model)
        bench = bench_of(args, model, costs)
        print("\n".join([*about(bench, costs), *by_costs(bench, costs, args.memory, args.link, args.tpot)]))
        return
    args.output.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(report(Bench(seed=args.seed, requests=args.requests)))
    args.output.write_text(text + "\n", encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--output", type=Path, default=REPORT)
    parser.add_argument(
        "--costs", type=Path, help="what `pagewire slo calibrate` or bench/simulator.py wrote, for a table"
    )
    parser.add_argument("--model", type=Path, help="model that it is of: its name, its folder or config.json")
    parser.add_argument("--memory", type=float, nargs="+", default=[HIDES.memory], help="bytes of each pod's device")
    parser.add_argument(
        "--link", type=float, nargs="+", default=[], help="bytes/s between two pods, for what was fitted"
    )
    parser.add_argument("--tpot", type=float, nargs="+", default=[], help="bounds in ms, for the page's in steps")
    parser.add_argument("--prompt", type=parse_lengths, default=PROMPT, help="tokens of a prompt")
    parser.add_argument("--answer", type=parse_lengths, default=ANSWER, help="tokens of an answer")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="in place of --seed")
    return parser


def read_costs(file: Path) -> CostModel:
    """Return the laws in a file, its own or those that it has beside figures; raises ValueError on anything else."""
    text = file.read_text(encoding="utf-8")
    whole = json.loads(text)
    beside = whole.get("costs") if isinstance(whole, dict) else None
    return CostModel.from_json(json.dumps(beside) if beside else text)


def bench_of(args: argparse.Namespace, model: ModelShape, costs: CostModel) -> Bench:
    """Return what a command line asks by laws of a file; rates begin at the page's in as many of its prompts."""
    first_rate = FIRST_RATE * prompt_s(ADDS.cost_model(MODEL)) / prompt_s(costs, args.prompt)
    return Bench(
        seed=args.seed, requests=args.requests, model=model, first_rate=first_rate, prompt=args.prompt,
        answer=args.answer, seeds=tuple(args.seeds), sequences=REAL_SEQUENCES, precision=REAL_PRECISION, skips=True,
    )  # fmt: skip


def report(bench: Bench) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from text(f"""
        # When disaggregation pays

        **Every figure here is the simulator's, none was measured.** It runs the product's own scheduling,
        placement, admission and shipments. What steps take is made of one data sheet and one model, unless a
        section says otherwise, by a law that is the same in every row of a table.

            python bench/when_disaggregation_pays.py --seed {bench.seed} --requests {bench.requests}
    """)
    yield from settings(bench)
    yield from by_tpot(bench)
    yield from by_link(bench)
    yield from by_memory(bench)
    yield from where_it_hides(bench)
    yield from planned(bench)
    yield from of_real_pods()


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
    yield from text("## Where tokens have to come fast")
    yield from table(bench, "TPOT", tpots(ADDS))
    yield from text("""
        A colocated step that builds a chunk is longer by what the chunk takes, and everybody who decodes waits for
        it. With a loose TPOT that is cheap, and two pods that both build prompts build more than one. With a tight
        one they have to keep most steps free of prompts: by being idle, or by taking one or two sequences at a
        time. The pod that decodes alone never has a prompt, so 1P:1D carries what its prefill pod builds.
    """)


def by_link(bench: Bench) -> Iterator[str]:
    """Yield what a slower link does."""
    yield from text(f"""
        ## Where the link is slow

        TPOT of {TIGHT_MS} ms.
    """)
    rows = [(f"{link / 1e9:g} GB/s", TIGHT, dataclasses.replace(ADDS, link=link)) for link in LINKS]
    yield from table(bench, "link", rows)
    mean_mb = PROMPT.mean * MODEL.token_bytes / 1e6
    yield from text(f"""
        A mean prompt is {mean_mb:.0f} MB of KV. The first token does not wait for it, the second one does: so what
        the link takes longer than the chunks behind it is in TPOT, and prompts that queue for the link are, too.
    """)


def by_memory(bench: Bench) -> Iterator[str]:
    """Yield what less memory does."""
    yield from text(f"""
        ## Where the memory of decode pods is full

        TPOT of {TIGHT_MS} ms.
    """)
    rows = []
    for memory in MEMORIES:
        device = dataclasses.replace(ADDS, memory=memory)
        tokens = device.kv_blocks(MODEL, 64) * 64
        rows.append((f"{memory / 1e9:g} GB ({tokens} tokens of KV a pod)", TIGHT, device))
    yield from table(bench, "memory", rows)
    yield from text("""
        Apart, every answer is held by one pod of the two, and the other one's memory holds prompts for the moment
        that they are built. Colocated, both hold answers, and with a TPOT this tight they hold few at a time. Who
        has no room waits, before its prompt is built.
    """)


def where_it_hides(bench: Bench) -> Iterator[str]:
    """Yield what becomes of it where arithmetic costs nothing while weights are read."""
    yield from text("""
        ## Where a chunk hides behind the weights

        The same by the other law, a roofline: a step takes the longer of what it reads and what it computes.
    """)
    yield from table(bench, "TPOT", tpots(HIDES))
    yield from text("""
        A step that reads all weights for a few tokens computes some 250 more for nothing, and colocated pods with
        chunks of 256 build prompts in what is idle. Then there is nothing to gain by taking prefill apart, however
        tight the TPOT. Devices lie between the two laws, so **measure before you decide**: `pagewire slo calibrate`
        fits what your own steps do, and `pagewire slo plan` takes it (`costs`).

        An earlier version of this page had 1P:1D ahead here, 16 to 5.19 at 10 ms. Its colocated pods were badly
        set: their steps had room for 256 tokens beside a chunk, and a second prompt's chunk took it.
    """)


def about(bench: Bench, costs: CostModel) -> Iterator[str]:
    """Yield what tables by the laws of a file have in common."""
    prompt_ms, step_ms = (1e3 * each(costs, bench.prompt) for each in (prompt_s, step_s))
    yield from wrapped(
        f"Prompts of {bench.prompt} and answers of {bench.answer} tokens, {bench.requests} requests. Laws of source "
        f"{costs.about.get('source', 'not told')!r}: a mean prompt takes {prompt_ms:.3g} ms, a step alone "
        f"{step_ms:.3g} ms. The least and the most of seeds {', '.join(str(each.seed) for each in bench.by_seed())}; "
        f"rates from {bench.first_rate / 16:.2g} to {bench.first_rate * 16:.3g} a second, to {bench.precision:.0%}; "
        f"colocated pods with the best of {', '.join(map(str, bench.sequences))} sequences a step."
    )


def by_costs(
    bench: Bench, costs: CostModel, memories: Sequence[float], links: Sequence[float] = (),
    tpots_ms: Sequence[float] = (),
) -> Iterator[str]:  # fmt: skip
    """Yield a row for each memory, link and TPOT by the laws of a file; unless told, TPOTs are the page's in steps."""
    ttft = f"ttft={ttft_ms(costs, bench.prompt):.4g}ms"
    slower = step_s(costs, bench.prompt) / step_s(ADDS.cost_model(MODEL))
    rows = []
    for memory, link, tpot_ms in itertools.product(
        memories, links or [costs.link.bytes_per_s], tpots_ms or [slower * each for each in TPOTS_MS]
    ):
        device, slo = pod(costs, memory, link), f"{ttft},tpot={tpot_ms:.4g}ms"
        tokens = device.kv_blocks(bench.model, 64) * 64
        rows.append((f"{slo}, {link:.3g} B/s, {memory / 1e9:g} GB ({tokens} tokens of KV a pod)", slo, device))
    yield from table(bench, "SLO, link, memory", rows)


def pod(costs: CostModel, memory: float, link: float) -> DeviceKind:
    """Return what a pod by the laws of a file is."""
    return DeviceKind(
        name="pod", memory=memory, price_per_hour=1.0, link=link, link_latency_s=costs.link.latency_s, costs=costs
    )


def ttft_ms(costs: CostModel, prompt: Lengths) -> float:
    """Return the page's bound in as many prompts of a file's laws."""
    return TTFT_MS * prompt_s(costs, prompt) / prompt_s(ADDS.cost_model(MODEL))


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
    """Yield a table of rates by rows of a name, an SLO and a device; of several seeds, from the least to the most."""
    yield f"| {what} | {' | '.join(f'{name}, requests/s' for name in PAIRS)} | apart / colocated |"
    yield "|---|---|---|---|"
    for name, slo, device in rows:
        pairs = [[each.carried(pods, slo, device) for pods in PAIRS.values()] for each in bench.by_seed()]
        rates = [_range(each, f"below {bench.first_rate / 16:.2g}") for each in zip(*pairs, strict=True)]
        ratios = [apart / together for together, apart in pairs if together]
        ratio = " to ".join(dict.fromkeys(f"{each:.2f}" for each in (min(ratios), max(ratios)))) if ratios else "-"
        yield f"| {name} | {' | '.join(rates)} | {ratio} |"
    yield ""


def planned(bench: Bench) -> Iterator[str]:
    """Yield what the planner makes of it."""
    yield from text(f"""
        ## What `pagewire slo plan` says

        By the law of the tables, in which costs add up (`ADDS` in the script): lines of a data sheet, summed by
        hand, not measured on any pod. It chooses among the same chunks, and a step takes
        {MAX_NUM_SEQS} sequences at most, as it does unless `--max-num-seqs` names other numbers: so its colocated
        clusters are not those of the tables.
    """)
    choices = Choices(chunk_sizes=CHUNKS, max_pods=6)
    for tpot_ms in (TPOTS_MS[0], TIGHT_MS):
        asks = bench.question(PLAN_RATE, f"{TTFT},tpot={tpot_ms}ms", ADDS, choices)
        yield from text(f"{PLAN_RATE:g} requests a second, a device {HIDES.price_per_hour:.2f} an hour:")
        yield from shown(telling.lines(plan(asks, with_what_ifs=False)))
    yield from text("""
        **By the other law the answer to the last question is the opposite.** What `pagewire slo calibrate
        --flops` makes of the same data sheet is a roofline, and so is what a plan makes of `flops` and `bandwidth`
        in its devices. By it:
    """)
    yield from shown([telling.why(plan(bench.question(PLAN_RATE, TIGHT, HIDES, choices), with_what_ifs=False))])
    yield from text(
        "So a data sheet alone does not decide between the two. It takes laws that were fitted to real pods."
    )


def of_real_pods() -> Iterator[str]:
    """Yield the tables by the laws of pods that were measured, each as its command prints it, and what plans say."""
    costs = read_costs(Path(__file__).parents[1] / REAL_COSTS)
    yield from text("## By the laws of real pods")
    kind = asked(REAL_KIND)
    yield from wrapped(
        f"The `costs` in `{REAL_COSTS}` are what `pagewire slo calibrate` fitted to one prefill and one decode pod of "
        "SmolLM2-135M-Instruct in bfloat16, each with a core of an AMD EPYC (family 26, no AMX); command, machine and "
        "versions stand beside them. By them the simulator came within a tenth of the medians of that file's real runs "
        "([how good it is](../slo-simulator.md#how-good-it-is)). The laws are the same in all rows."
    )
    yield from wrapped(
        "Those two pods shared a machine. Here no two do, and nothing is taken of one another. But **the link as "
        f"fitted, {costs.link.bytes_per_s / 1e9:.3g} GB/s and {1e3 * costs.link.latency_s:.3g} ms, is one between two "
        f"processes of one machine**, and its fit is off by {costs.residuals['link']['mean_relative']:.0%} in the "
        "mean: what a slower one does stands below. TTFT is the page's in as many prompts of these pods."
    )
    yield from about(bench_of(kind, REAL_MODEL, costs), costs)
    yield from commanded(BY_TPOT, costs)
    yield from wrapped(
        "By one fitted law, unchanged, taking prefill apart gains where tokens have to come fast, and loses where they "
        "need not. This kind of requests was picked by a scan with the same seeds; `--seeds` tries others. "
        "A slow link, and memory that is full, with all else as in the row of "
        f"{REAL_TPOT_MS} ms:"
    )
    yield from commanded(BY_LINK, costs)
    yield from commanded(BY_MEMORY, costs)
    yield from long_prompts(costs)
    yield from wrapped(
        "A chunk beside a batch is put together of prompts and batches that were seen apart: how much of it hides, "
        "`calibrate` does not see."
    )
    yield from planned_by(bench_of(kind, REAL_MODEL, costs), costs)
    yield from wrapped(
        "What the tables have is printed by these commands, the last of them for long prompts. With a file that "
        "`pagewire slo calibrate --url HOST:PORT --output FILE` wrote after `--costs`, and its model after `--model`, "
        "they print the same of your own pods:"
    )
    yield from (f"    python bench/when_disaggregation_pays.py {each}" for each in (BY_TPOT, BY_LINK, BY_MEMORY, LONG))


def asked(flags: str) -> argparse.Namespace:
    """Return what a command of the page asks."""
    return parser().parse_args(shlex.split(flags))


def commanded(flags: str, costs: CostModel) -> Iterator[str]:
    """Yield the table that a command of the page prints."""
    args = asked(flags)
    yield from by_costs(bench_of(args, REAL_MODEL, costs), costs, args.memory, args.link, args.tpot)


def long_prompts(costs: CostModel) -> Iterator[str]:
    """Yield what prompts do that are longer than any that was fitted."""
    args = asked(LONG)
    rows = [line.strip("| ").split(" | ") for line in [*commanded(LONG, costs)][2:-1]]
    bounds: dict[str, list[str]] = {}
    for (_, together, apart, ratio), tpot_ms in zip(rows, args.tpot, strict=True):
        bounds.setdefault(rates := f"{together} requests a second, and 1P:1D {apart} ({ratio} of it)", [])
        bounds[rates].append(f"{tpot_ms:g} ms")
    told = "; ".join(f"{rates}, by a TPOT of {' and of '.join(those)}" for rates, those in bounds.items())
    yield from wrapped(
        f"`calibrate` fits prompts of up to {max(PROMPTS):,} tokens. Held to go on to prompts of {args.prompt}, with "
        f"the same answers and {args.requests} requests, the law has two colocated pods carry {told}: a prompt takes "
        f"{prompt_s(costs, args.prompt):.2g} s, answers are short beside it, and one of two pods cannot build what two "
        "can."
    )


def planned_by(bench: Bench, costs: CostModel) -> Iterator[str]:
    """Yield what the planner makes of the laws of a file."""
    bench = bench.by_seed()[0]
    choices = Choices(chunk_sizes=CHUNKS, max_num_seqs=SEQUENCES, prefill_modes=("remote",), max_pods=6)
    fitted = pod(costs, REAL_MEMORY, costs.link.bytes_per_s)

    def found(tpot_ms: float, kind: DeviceKind, *, with_what_ifs: bool = False) -> Plan:
        slo = f"ttft={ttft_ms(costs, bench.prompt):.4g}ms,tpot={tpot_ms:g}ms"
        return plan(bench.question(PLAN_RATE, slo, kind, choices), with_what_ifs=with_what_ifs)

    yield from wrapped(
        f"`pagewire slo plan` by the same laws, for {PLAN_RATE:g} requests a second (seed {bench.seed}), pods of "
        f"{fitted.memory / 1e9:g} GB at {fitted.price_per_hour:.2f} an hour, with the same chunks and "
        f"{', '.join(map(str, SEQUENCES))} sequences a step to choose from:"
    )
    yield from shown(telling.lines(found(REAL_TPOT_MS, fitted, with_what_ifs=True)))
    yield from text(f"Asked for a TPOT of {REAL_LOOSE_MS} ms, it says the opposite:")
    yield from shown([telling.why(found(REAL_LOOSE_MS, fitted))])
    yield from text(f"And for {REAL_TPOT_MS} ms with a link of {SLOW_LINK / 1e6:g} MB/s:")
    yield from shown([telling.why(found(REAL_TPOT_MS, dataclasses.replace(fitted, link=SLOW_LINK)))])


def text(block: str) -> Iterator[str]:
    """Yield the lines of a block as they stand, and an empty one behind it."""
    yield from textwrap.dedent(block).strip("\n").rstrip().split("\n")
    yield ""


def wrapped(paragraph: str) -> list[str]:
    """Return the lines of a paragraph, and an empty one behind it."""
    return [*textwrap.wrap(paragraph, 112, break_long_words=False, break_on_hyphens=False), ""]


def shown(lines: Iterable[str]) -> Iterator[str]:
    """Yield what a command says, indented, and an empty line behind it."""
    yield from (f"    {line}".rstrip() for line in lines)
    yield ""


def _range(rates: Sequence[float], below: str) -> str:
    ends = min(rates), max(rates)
    return " to ".join(dict.fromkeys(f"{each:.3g}" if each else below for each in ends))


if __name__ == "__main__":
    main()
