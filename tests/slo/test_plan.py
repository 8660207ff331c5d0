"""The planner: its bound and its search against brute force, what it says of changes, and both published directions.

Shapes and devices are small and made up, so that a simulated run takes a moment. Directions are tried on the law that
`slo calibrate` fits, with several chunks to choose from: made up first, then as it was fitted to a real pair of pods.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest

from pagewire.slo.costs.calibration import DecodeSeen, PromptSeen, Seen, calibrated
from pagewire.slo.costs.cost_model import CostModel, StepShape
from pagewire.slo.costs.roofline import ModelShape
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.summary import Window
from pagewire.slo.planning import telling
from pagewire.slo.planning.candidate import Candidate, Choices, Family, families
from pagewire.slo.planning.demand import Demand
from pagewire.slo.planning.device_files import read_kinds
from pagewire.slo.planning.device_kind import DeviceKind
from pagewire.slo.planning.judge import Judge, Outcome
from pagewire.slo.planning.plan import Plan, Question, longer_prompts, plan
from pagewire.slo.planning.search import cheapest
from pagewire.slo.planning.spending import ALONE, BESIDE, HERE, REST, ROOM, spending
from pagewire.slo.workloads.made_up import Lengths, PrefixTree, Shape, made_up
from pagewire.slo.workloads.processes import Process
from pagewire.slo.workloads.transforms import retimed
from pagewire.slo.workloads.workload import Workload

MODEL = ModelShape(name="m", parameters=1e9, num_layers=16, num_heads=16, num_kv_heads=4, head_dim=64)
# A token takes 2 ms / 100 of arithmetic, a step 5 ms of memory.
DEVICE = DeviceKind(name="a", flops=1e14, bandwidth=4e11, efficiency=1.0, memory=8e9, price_per_hour=2.0, link=10e9)
CHOICES = Choices(chunk_sizes=(512,), prefill_modes=("remote",), max_pods=4)


def asked(
    *,
    rate: float,
    requests: int = 60,
    prompt: str = "200-1200",
    answer: str = "16-48",
    seed: int = 1,
    share: float = 0.0,
) -> Workload:
    lengths = [Lengths(*map(int, each.split("-"))) for each in (prompt, answer)]
    shape = Shape(input=lengths[0], output=lengths[1], tree=PrefixTree(share=share))
    return retimed(made_up("test", shape, num_arrivals=requests, seed=seed), Process(rate=rate), seed)


def question(
    workload: Workload, slo: str, *, kinds: tuple[DeviceKind, ...] = (DEVICE,), choices: Choices = CHOICES,
    target: float = 0.9, model: ModelShape = MODEL,
) -> Question:  # fmt: skip
    last_s = max(arrival.at_s for arrival in workload)
    return Question(
        model=model, kinds=kinds, workload=workload, objectives=parse_objectives(slo), target=target, choices=choices,
        window=Window(from_s=0.0, until_s=math.nextafter(last_s, math.inf)), seed=3,
    )  # fmt: skip


def judge_of(asks: Question) -> Judge:
    return Judge(asks.workload, asks.window, asks.objectives, asks.target, asks.seed)


def demand_of(asks: Question) -> Demand:
    return Demand.of(asks.workload, asks.window, asks.objectives, asks.target)


def everything(of: tuple[Family, ...], max_pods: int) -> list[Candidate]:
    return [
        Candidate(family=family, prefill=prefill, decode=decode)
        for family in of
        for prefill in ((0,) if family.is_colocated else range(1, max_pods))
        for decode in range(1, max_pods + 1 - prefill)
    ]


def brute_force(of: tuple[Family, ...], judge: Judge, max_pods: int) -> Outcome | None:
    outcomes = [judge.outcome(each) for each in everything(of, max_pods)]
    met = [each for each in outcomes if each.is_met]
    return min(met, key=order, default=None)


def order(outcome: Outcome) -> tuple[float, bool, float]:
    return outcome.candidate.price, not outcome.candidate.family.is_colocated, -outcome.attained.share


def sides(of: tuple[Family, ...]) -> tuple[tuple[Family, ...], tuple[Family, ...]]:
    return tuple(each for each in of if each.is_colocated), tuple(each for each in of if not each.is_colocated)


def told(outcome: Outcome | None) -> tuple[float, bool, float] | None:
    return None if outcome is None else order(outcome)


def drawn(seed: int) -> Question:
    """Return a small question of which nobody knows the answer."""
    chance = random.Random(seed)
    slow = dataclasses.replace(
        DEVICE, name="b", flops=DEVICE.flops * chance.uniform(0.3, 1.0), link=10 ** chance.uniform(8, 10),
        bandwidth=DEVICE.bandwidth * chance.uniform(0.5, 2.0), price_per_hour=chance.choice([0.7, 1.0, 2.0]),
    )  # fmt: skip
    workload = asked(rate=chance.uniform(20, 100), requests=30, seed=seed, share=chance.choice([0.0, 0.5]))
    slo = f"ttft={chance.randint(60, 400)}ms,tpot={chance.randint(5, 15)}ms"
    choices = Choices(chunk_sizes=(256,), prefill_modes=(chance.choice(["remote", "auto"]),), max_pods=3)
    return question(workload, slo, kinds=(DEVICE, slow), choices=choices)


QUESTIONS = range(6)


@pytest.mark.parametrize("seed", QUESTIONS)
def test_the_search_finds_what_brute_force_finds_and_the_bound_leaves_out_none_that_meets(seed: int) -> None:
    asks = drawn(seed)
    of, judge, demand = families(MODEL, asks.kinds, asks.choices), judge_of(asks), demand_of(asks)
    for some in (of, *sides(of)):
        truth = brute_force(some, judge, asks.choices.max_pods)
        found = cheapest(some, demand, judge, max_pods=asks.choices.max_pods)
        assert told(found) == told(truth)
    for outcome in judge.outcomes:
        prefill, decode = demand.least(outcome.candidate.family)
        is_below = outcome.candidate.prefill < prefill or outcome.candidate.decode < decode
        assert not (is_below and outcome.is_met), outcome


def test_the_questions_drawn_have_answers_of_many_kinds() -> None:
    """Brute force would agree with a search that finds nothing, were there never anything to find."""
    answers: set[str | None] = set()
    for asks in map(drawn, QUESTIONS):
        for some in sides(families(MODEL, asks.kinds, asks.choices)):
            found = cheapest(some, demand_of(asks), judge_of(asks), max_pods=asks.choices.max_pods)
            answers.add(None if found is None else found.candidate.pods)
    assert len(answers) >= 6
    assert None in answers


def test_the_bound_is_that_of_arithmetic() -> None:
    # 100 prompts of 1000 tokens within 0.99 s and 10 ms: 2 x 1e9 FLOP x 1e5 tokens / 1e14 FLOP/s are 2 s in 1 s.
    workload = retimed(
        made_up("t", Shape(input=Lengths(1000, 1000), output=Lengths(2, 2)), num_arrivals=100, seed=0),
        Process(rate=100.0, cv=0.0), 0,
    )  # fmt: skip
    asks = question(workload, "ttft=10ms,tpot=10ms", target=0.99)
    colocated, apart = families(MODEL, asks.kinds, CHOICES)
    assert demand_of(asks).least(apart) == (3, 1)  # with their pairs and steps, above 2
    assert demand_of(asks).least(colocated) == (0, 3)
    # What was asked before may be cached: of all but the first prompt only the last token is sure to be computed.
    same = dataclasses.replace(workload, source=lambda: (dataclasses.replace(a, turns=first) for a in workload))
    first = next(iter(workload)).turns
    assert demand_of(dataclasses.replace(asks, workload=same)).least(apart) == (1, 1)


def test_fewer_requests_are_simulated_than_by_brute_force() -> None:
    asks = question(asked(rate=40), "ttft=300ms,tpot=15ms", choices=dataclasses.replace(CHOICES, max_pods=8))
    of, judge = families(MODEL, asks.kinds, asks.choices), judge_of(asks)
    assert cheapest(of, demand_of(asks), judge, max_pods=8) is not None
    assert len(judge.outcomes) < len(everything(of, 8)) / 3


def test_a_run_that_ends_early_has_the_verdict_of_the_whole_one() -> None:
    asks = question(asked(rate=60), "ttft=80ms,tpot=12ms")
    judge = judge_of(asks)
    for candidate in everything(families(MODEL, asks.kinds, CHOICES), 3):
        whole = judge.whole(candidate).summary.all_attained
        outcome = judge.outcome(candidate)
        assert outcome.is_met == (whole.share >= asks.target)
        assert outcome.attained.share >= whole.share


# ----------------------------------------------------------------------------------------------------- both directions


def adding_up() -> CostModel:
    """Return what `slo calibrate` fits to pods of DEVICE whose steps read first and compute then.

    DEVICE's own law is a roofline, in which 250 tokens or so of a chunk hide behind the weights. Here none do.
    """
    sheet = DEVICE.cost_model(MODEL)

    def step_s(shape: StepShape) -> float:
        return sheet.decode.overhead_s + sum(line.seconds(shape) for line in sheet.decode.lines)

    seen = Seen()
    for tokens in (32, 96, 256, 512, 768, 1024):
        chunks = [range(start, min(start + 256, tokens)) for start in range(0, tokens, 256)]
        shapes = [StepShape(prefill_tokens=len(each), prefill_pairs=sum(each) + len(each)) for each in chunks]
        compute_s, intake_s = sum(map(step_s, shapes)), sheet.intake_s + sheet.intake_token_s * tokens
        ttft_s = intake_s + compute_s + 7 * sheet.frame_s
        seen.prompts.append(
            PromptSeen(tokens=tokens, steps=len(chunks), compute_s=compute_s, intake_s=intake_s, ttft_s=ttft_s)
        )
    for batch, context in ((1, 64), (1, 512), (4, 64), (4, 256), (8, 256), (16, 64)):
        shape = StepShape(decodes=batch, decode_pairs=batch * context)
        seen.decodes.append(DecodeSeen(batch=batch, context=context, step_s=step_s(shape)))
    return calibrated(seen, token_bytes=sheet.token_bytes, about={"source": "made up"})


ADDS = dataclasses.replace(DEVICE, costs=adding_up())
CHUNKS = (128, 256, 512)
# Few sequences at a time are what keeps a colocated pod's steps free of prompts: its best, where tokens come fast.
WIDE = dataclasses.replace(CHOICES, chunk_sizes=CHUNKS, max_num_seqs=(256, 4, 1))


def busy(rate: float = 40.0) -> Workload:
    return asked(rate=rate, requests=80, prompt="600-1400", answer="32-64")


def shares(asks: Question, *counts: tuple[int, int]) -> list[float]:
    """Return which share the apart or colocated clusters of these counts attain, with the best of their settings."""
    colocated, apart = sides(families(asks.model, asks.kinds, asks.choices))
    judge = judge_of(asks)
    return [
        max(
            judge.whole(Candidate(family=each, prefill=p, decode=d)).summary.all_attained.share
            for each in (apart if p else colocated)
        )
        for p, d in counts
    ]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_what_calibrate_fits_hides_no_chunk_behind_the_weights(chunk: int) -> None:
    alone = StepShape(decodes=4, decode_pairs=4000)
    beside = dataclasses.replace(alone, prefill_tokens=chunk, prefill_pairs=chunk * (chunk + 1) // 2)
    law, sheet = ADDS.cost_model(MODEL).decode, DEVICE.cost_model(MODEL).decode
    assert len(law.lines) == 1
    assert law.seconds(alone) == pytest.approx(sheet.overhead_s + sum(line.seconds(alone) for line in sheet.lines))
    built_s = 2 * MODEL.parameters / DEVICE.flops * chunk
    assert law.seconds(beside) - law.seconds(alone) > 0.99 * built_s
    assert sheet.seconds(beside) - sheet.seconds(alone) < 0.6 * built_s


def test_apart_is_cheaper_where_tokens_have_to_come_fast() -> None:
    loose = question(busy(rate=60.0), "ttft=400ms,tpot=40ms", kinds=(ADDS,), choices=WIDE)
    found = plan(loose, with_what_ifs=False)
    assert found.chosen is found.colocated
    assert (found.colocated.price or 0.0) < (found.apart.price or math.inf)
    tight = question(busy(), "ttft=400ms,tpot=6.5ms", kinds=(ADDS,), choices=WIDE)
    found = plan(tight, with_what_ifs=False)
    assert found.chosen is found.apart
    assert (found.apart.price or 0.0) < (found.colocated.price or math.inf)
    assert found.rival is not None
    assert found.rival.spending.missed(tight.target) == "tpot"
    assert found.rival.spending.measures["tpot"].parts_s[BESIDE] > 0.001
    assert "TPOT" in telling.why(found)


def test_together_is_cheaper_where_a_chunk_hides_behind_the_weights() -> None:
    """The same question by a roofline: what it hides makes the direction, so the law has to be measured."""
    hidden = question(busy(), "ttft=400ms,tpot=6.5ms", choices=WIDE)
    found = plan(hidden, with_what_ifs=False)
    assert found.chosen is found.colocated
    assert (found.colocated.price or 0.0) < (found.apart.price or math.inf)


def test_few_sequences_at_a_time_are_a_choice_where_tokens_have_to_come_fast() -> None:
    # A colocated pod that takes one sequence at a time builds no prompt beside it: a full batch misses that TPOT.
    choices = dataclasses.replace(CHOICES, max_num_seqs=(256, 1), max_pods=1)
    found = plan(question(asked(rate=3.0), "ttft=2s,tpot=5.7ms", choices=choices), with_what_ifs=False)
    assert found.chosen is found.colocated
    assert found.colocated.outcome is not None
    assert str(found.colocated.outcome.candidate) == "1C a (chunk 512, 1 at a time, prefix_affinity)"
    assert found.colocated.outcome.candidate.as_json()["max_num_seqs"] == 1


def test_apart_loses_what_it_gains_where_the_link_is_slow() -> None:
    slow = dataclasses.replace(ADDS, link=2e8)
    fast_asks, slow_asks = (
        question(busy(), "ttft=400ms,tpot=9ms", kinds=(kind,), choices=WIDE) for kind in (ADDS, slow)
    )
    (fast_apart, together), (slow_apart, still) = (shares(each, (1, 1), (0, 2)) for each in (fast_asks, slow_asks))
    assert fast_apart > together == still > slow_apart


def test_apart_loses_where_the_memory_of_decode_pods_is_full() -> None:
    # Beside the weights, 2 GB, lies KV of 205 MB for 13 sequences; two colocated pods have twice as much.
    small = dataclasses.replace(ADDS, memory=2.45e9)
    asks = question(
        asked(rate=16.0, requests=80, prompt="600-1000", answer="120-200"), "ttft=400ms,tpot=14ms", kinds=(small,),
        choices=WIDE,
    )  # fmt: skip
    apart, together = shares(asks, (1, 1), (0, 2))
    assert together > apart
    roomy, _ = shares(dataclasses.replace(asks, kinds=(ADDS,)), (1, 1), (0, 2))
    assert roomy > apart


# ------------------------------------------------------------------------------------- both directions, by real pods


# A prefill and a decode pod of SmolLM2-135M, a core each: a prompt of 160 takes 77 ms, a step alone 7 ms.
FITTED = Path(__file__).parents[2] / "bench" / "results" / "simulator-1p1d.json"
FITTED_MODEL = ModelShape(
    name="SmolLM2-135M", parameters=134_479_872, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64
)
FITTED_CHOICES = dataclasses.replace(CHOICES, chunk_sizes=(128, 256), max_num_seqs=(256, 4, 2), max_pods=5)


def fitted(*, link: float | None = None, memory: float = 4e9) -> DeviceKind:
    costs = CostModel.from_json(json.dumps(json.loads(FITTED.read_text(encoding="utf-8"))["costs"]))
    return DeviceKind(
        name="pod",
        memory=memory,
        price_per_hour=1.0,
        link=link or costs.link.bytes_per_s,
        link_latency_s=costs.link.latency_s,
        costs=costs,
    )


def by_fitted(slo: str, kind: DeviceKind, rate: float = 10.0) -> Question:
    workload = asked(rate=rate, requests=120, prompt="64-256", answer="16-64")
    return question(workload, f"ttft=311ms,{slo}", kinds=(kind,), choices=FITTED_CHOICES, model=FITTED_MODEL)


def test_by_laws_of_real_pods_apart_is_cheaper_where_tokens_have_to_come_fast() -> None:
    found = plan(by_fitted("tpot=10ms", fitted()), with_what_ifs=False)
    assert found.chosen is found.apart
    assert (found.apart.price or math.inf) < (found.colocated.price or math.inf)
    found = plan(by_fitted("tpot=40ms", fitted()), with_what_ifs=False)
    assert found.chosen is found.colocated
    assert (found.colocated.price or math.inf) < (found.apart.price or math.inf)


def test_by_laws_of_real_pods_together_is_cheaper_where_the_link_is_slow() -> None:
    found = plan(by_fitted("tpot=12ms", fitted(link=3e7)), with_what_ifs=False)
    assert found.chosen is found.colocated
    assert found.rival is not None
    assert found.rival.spending.missed(0.9) == "tpot"


def test_by_laws_of_real_pods_apart_loses_where_the_memory_of_decode_pods_is_full() -> None:
    roomy, small = (by_fitted("tpot=12ms", fitted(memory=memory), 6.5) for memory in (4e9, 0.325e9))
    (roomy_apart, roomy_together), (apart, together) = (shares(each, (1, 1), (0, 2)) for each in (roomy, small))
    assert roomy_apart > roomy_together
    assert together > apart


# ------------------------------------------------------------------------------------------------- the plan as a whole


def a_plan() -> Plan:
    return plan(question(busy(), "ttft=400ms,tpot=6.5ms", kinds=(ADDS,)))


def test_a_plan_is_the_same_again_and_tells_what_changes_mean() -> None:
    found, again = a_plan(), a_plan()
    assert telling.as_json(found) == telling.as_json(again)
    changes = {each.name: each for each in found.what_ifs}
    assert set(changes) == {"links half as fast", "prompts twice as long", "half as many requests again"}
    chosen = found.chosen
    assert chosen is not None
    assert chosen.price is not None
    longer = changes["prompts twice as long"]
    assert not longer.is_met
    assert longer.best is None or longer.best.candidate.price > chosen.price
    text = "\n".join(telling.lines(found))
    for expected in ("1P a + 1D a", "TTFT of 400 ms", "TPOT of 6.5 ms", "prompts twice as long", "an hour"):
        assert expected in text


def test_what_the_time_went_into_adds_up() -> None:
    found = plan(question(busy(), "ttft=400ms,tpot=8ms"), with_what_ifs=False)
    for side in (found.colocated, found.apart):
        assert side.spending is not None
        for measure in side.spending.measures.values():
            assert sum(measure.parts_s.values()) == pytest.approx(measure.mean_s)
            assert min(measure.parts_s.values()) > 0
    assert found.apart.spending is not None
    tpot = found.apart.spending.measures["tpot"]
    assert tpot.parts_s[ALONE] >= 0.005  # the weights are read once a step


def test_a_request_alone_spends_its_tokens_on_steps() -> None:
    asks = question(asked(rate=0.01, requests=3), "ttft=1s,tpot=1s")
    (colocated, _), judge = families(MODEL, asks.kinds, CHOICES), judge_of(asks)
    whole = judge.whole(Candidate(family=colocated, prefill=0, decode=1))
    measures = spending(whole, 0.9).measures
    parts = measures["tpot"].parts_s
    assert parts[ALONE] == pytest.approx(sum(parts.values()), rel=0.05)
    assert {*measures["ttft"].parts_s} == {HERE, REST}  # and waits for nothing, KV memory neither


def test_who_finds_the_memory_full_waits_for_it() -> None:
    asks = question(asked(rate=1000.0, requests=6, prompt="1000-1000"), "ttft=10s")
    (family, _), judge = families(MODEL, asks.kinds, CHOICES), judge_of(asks)
    small = dataclasses.replace(family, kv_blocks=18)  # of 64: one request at a time
    parts = spending(judge.whole(Candidate(family=small, prefill=0, decode=1)), 0.9).measures["ttft"].parts_s
    assert max(parts, key=parts.__getitem__) == ROOM


def test_no_cluster_will_do() -> None:
    found = plan(question(asked(rate=5.0, requests=20), "tpot=1ms"))
    assert found.chosen is None
    assert telling.why(found) == "No cluster of 4 pods or fewer keeps tpot=1ms for 0.9 of requests."
    assert found.what_ifs == ()


def test_requests_that_are_longer_than_the_model_goes_are_good_on_no_cluster() -> None:
    workload = asked(rate=20.0, prompt="400-400", answer="20-20", requests=40)
    short = dataclasses.replace(MODEL, max_positions=419)
    found = plan(question(workload, "ttft=10s", model=short), with_what_ifs=False)
    assert (found.chosen, found.runs) == (None, 0)
    assert "40 of 40 requests are longer than the 419 positions of m: every cluster refuses them." in telling.lines(
        found
    )
    just = plan(question(workload, "ttft=10s", model=dataclasses.replace(short, max_positions=420)))
    assert just.chosen is not None
    assert telling.as_json(just)["requests_too_long"] == 0
    doubled = {each.name: each for each in just.what_ifs}["prompts twice as long"]
    assert (doubled.is_met, doubled.best) == (False, None)


def test_a_window_before_which_all_was_asked_is_an_error() -> None:
    shape = Shape(input=Lengths(40, 40), output=Lengths(2, 2), turns=Lengths(2, 2))
    sessions = retimed(made_up("s", shape, num_arrivals=3, seed=1), Process(rate=1.0), 1)
    late = dataclasses.replace(question(sessions, "ttft=1s"), window=Window(from_s=500.0, until_s=600.0))
    with pytest.raises(ValueError, match="no request is due in the window"):
        plan(late)


def test_prompts_twice_as_long_share_what_they_shared() -> None:
    before = asked(rate=1.0, requests=10, share=0.5)
    pairs = zip(before, longer_prompts(before), strict=True)
    for old, new in pairs:
        assert new.turns[0].input_tokens == 2 * old.turns[0].input_tokens
        assert (new.turns[0].pieces, new.turns[0].output_tokens) == (old.turns[0].pieces, old.turns[0].output_tokens)


# ------------------------------------------------------------------------------------------------- what it is told

KIND = '[[kind]]\nname = "x"\nflops = 1e14\nbandwidth = 1e12\nmemory = 8e9\nprice_per_hour = 1\nlink = 1e9\n'


def test_kinds_are_read_and_a_calibrated_one_is_taken_unchanged(tmp_path: Path) -> None:
    costs = dataclasses.replace(DEVICE.cost_model(MODEL), frame_s=0.007)
    (tmp_path / "costs.json").write_text(costs.to_json())
    measured = '[[kind]]\nname = "y"\ncosts = "costs.json"\nmemory = 8e9\nprice_per_hour = 2.5\nlink = 10e9\n'
    (tmp_path / "kinds.toml").write_text(KIND + measured)
    plain, calibrated = read_kinds(tmp_path / "kinds.toml")
    assert (plain.flops, plain.price_per_hour) == (1e14, 1)
    taken: CostModel = calibrated.cost_model(MODEL)
    assert (taken.prefill, taken.decode, taken.frame_s) == (costs.prefill, costs.decode, 0.007)
    with pytest.raises(ValueError, match="y: its costs are of a model with"):
        calibrated.cost_model(dataclasses.replace(MODEL, num_layers=2))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no"),
        ("[[kind", "Expected"),
        (KIND.replace("flops", "flop"), "x: 'flop' is none of"),
        (KIND.replace("link = 1e9", ""), "x has no link"),
        (KIND.replace("link = 1e9", "link = 0"), "x: link must be positive"),
        (KIND.replace("8e9", '"8GB"'), "x: memory is not a number: '8GB'"),
        (KIND.replace("flops = 1e14", ""), "x: no device"),
        (KIND + KIND, "two kinds are called 'x'"),
        (KIND.replace('"x"', "1"), "has no name"),
    ],
)
def test_a_file_of_kinds_that_is_none_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "kinds.toml").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_kinds(tmp_path / "kinds.toml")


def test_a_model_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="m does not fit"):
        families(MODEL, (dataclasses.replace(DEVICE, memory=1e9),), CHOICES)
