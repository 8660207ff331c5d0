"""The least that a workload needs: what its requests ask for, until when, and how many pods that is by arithmetic."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pagewire.slo.costs.cost_model import CostModel, StepLaw, StepLine
from pagewire.slo.costs.roofline import ModelShape
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.summary import Window
from pagewire.slo.planning.candidate import Family
from pagewire.slo.planning.demand import Demand, Need
from pagewire.slo.planning.device_kind import DeviceKind
from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.workload import Workload

NOTHING = Demand(needs=(), num_good=0, prefill_span_s=math.inf, decode_span_s=math.inf)


def turn(input_tokens: int, output_tokens: int, *pieces: int) -> Turn:
    return Turn(input_tokens=input_tokens, output_tokens=output_tokens, pieces=pieces, text="" if pieces else "words")


def workload(*arrivals: tuple[float, Turn], **told: Any) -> Workload:
    asked = tuple(Arrival(at_s=at_s, turns=(one,)) for at_s, one in arrivals)
    return Workload(**{"name": "w", "source": lambda: asked, "piece_tokens": 4, **told})


# Due at 1, 2 and 4 s, with answers of 1, 3 and 5 tokens.
THREE = workload((1.0, turn(4, 1, 1)), (2.0, turn(4, 3, 2)), (4.0, turn(4, 5, 3)))
ALL = Window(from_s=0.0, until_s=10.0)


def demand(of: Workload, slo: str, window: Window = ALL, target: float = 0.9) -> Demand:
    return Demand.of(of, window, parse_objectives(slo), target)


@pytest.mark.parametrize(
    ("slo", "prefill_span_s", "decode_span_s"),
    [
        ("ttft=500ms,tpot=100ms", 3.5, 3.9),
        ("ttft=500ms,tpot=100ms,e2e=600ms", 3.5, 3.6),
        ("ttft=500ms,tpot=100ms,e2e=400ms", 3.4, 3.4),
        ("ttft=500ms,tpot=2s", 3.5, 11.5),
        ("e2e=600ms", 3.6, 3.6),
        ("ttft=500ms", 3.5, math.inf),
        ("tpot=100ms", math.inf, math.inf),
        ("", math.inf, math.inf),
    ],
)
def test_work_has_to_be_done_between_the_first_arrival_and_the_last_moment(
    slo: str, prefill_span_s: float, decode_span_s: float
) -> None:
    found = demand(THREE, slo)
    assert (found.prefill_span_s, found.decode_span_s) == pytest.approx((prefill_span_s, decode_span_s))


def test_the_last_moment_is_that_of_whoever_may_take_longest() -> None:
    early = workload((1.0, turn(4, 101, 1)), (2.0, turn(4, 1, 2)))
    assert demand(early, "ttft=500ms,tpot=100ms").decode_span_s == pytest.approx(10.5)
    # Answers of one token have no gaps, so none of them waits for ever.
    short = workload((1.0, turn(4, 1, 1)), (2.0, turn(4, 1, 2)))
    assert demand(short, "ttft=500ms").decode_span_s == pytest.approx(1.5)


@pytest.mark.parametrize(("target", "good"), [(0.1, 1), (0.5, 2), (0.9, 3), (1.0, 3)])
def test_a_share_of_the_requests_has_to_be_good(target: float, good: int) -> None:
    assert demand(THREE, "ttft=500ms", target=target).num_good == good


def test_only_requests_of_the_window_count() -> None:
    found = demand(THREE, "ttft=500ms,tpot=100ms", Window(from_s=1.5, until_s=4.0), target=1.0)
    assert [need.due_s for need in found.needs] == [2.0]
    assert found.num_good == 1
    assert (found.prefill_span_s, found.decode_span_s) == pytest.approx((0.5, 0.7))


def test_what_follows_from_answers_has_no_bound() -> None:
    slo = "ttft=500ms,tpot=100ms"
    assert demand(workload((1.0, turn(4, 1, 1)), concurrency=2), slo) == NOTHING
    assert demand(THREE, slo, Window(from_s=5.0, until_s=6.0)) == NOTHING
    talk = Arrival(at_s=1.0, turns=(turn(4, 1, 1), turn(4, 1, 2)))
    lone = Arrival(at_s=1.0, turns=(turn(4, 1, 3),))
    assert demand(workload(source=lambda: (lone, talk)), slo) == NOTHING
    assert demand(workload(source=lambda: (lone,)), slo) != NOTHING


def test_prefill_answers_with_the_first_token_and_decoding_with_those_behind_it() -> None:
    need = Need(due_s=0.0, prompt=10, fresh=4, output=3)
    assert need.prefill_pairs == 1 + 2 + 3 + 4
    assert (need.steps, need.decode_pairs) == (2, 11 + 12)
    assert Need(due_s=0.0, prompt=10, fresh=4, output=1).decode_pairs == 0


def test_fresh_is_what_nobody_asked_for_before_and_a_token_at_least() -> None:
    asked = workload(
        (0.0, turn(10, 1, 1, 2, 3)),  # all new, two tokens of the last piece among them
        (1.0, turn(12, 2, 1, 2, 4)),  # a whole piece is
        (2.0, turn(10, 3, 1, 2, 3)),  # nothing is
        (3.0, turn(5, 4, 3, 5)),  # one token of the second piece is
        (4.0, turn(11, 5, 6, 6, 6)),  # a piece that comes again is the same
        (5.0, turn(900, 6)),  # a text, which nobody compared
    )
    found = demand(asked, "", Window(from_s=1.0, until_s=10.0))
    assert found.needs == (
        Need(due_s=1.0, prompt=12, fresh=4, output=2),
        Need(due_s=2.0, prompt=10, fresh=1, output=3),
        Need(due_s=3.0, prompt=5, fresh=1, output=4),
        Need(due_s=4.0, prompt=11, fresh=4, output=5),
        Need(due_s=5.0, prompt=900, fresh=1, output=6),
    )


# ----------------------------------------------------------------------------------------------------- pods, by hand

MODEL = ModelShape(name="m", parameters=1e9, num_layers=16, num_heads=16, num_kv_heads=4, head_dim=64)
KIND = DeviceKind(name="a", flops=1e14, bandwidth=4e11, memory=8e9, price_per_hour=2.0, link=10e9)
# 4 tokens decoded, 55 pairs of the prompt and 410 of the answer.
NEED = Need(due_s=0.0, prompt=100, fresh=10, output=5)
HUGE = 10**12
SIDES = {"remote": (KIND, "remote"), "auto": (KIND, "auto"), "together": (None, "local")}


def least(
    side: str, prefill: StepLaw, decode: StepLaw, asked: Demand, *, noise: float = 0.0, chunk: int = HUGE,
    seqs: int = HUGE, blocks: int = HUGE,
) -> tuple[int, int]:  # fmt: skip
    prefill_kind, mode = SIDES[side]
    family = Family(
        model=MODEL, prefill_kind=prefill_kind, decode_kind=KIND, chunk_size=chunk, policy="slo", prefill_mode=mode,
        most_seqs=seqs, costs=CostModel(prefill=prefill, decode=decode, token_bytes=16384, noise=noise),
        kv_blocks=blocks,
    )  # fmt: skip
    return asked.least(family)


def law(overhead_s: float = 0.0, **line: float) -> StepLaw:
    return StepLaw(lines=(StepLine(**line),), overhead_s=overhead_s)


def spans(prefill_s: float, decode_s: float, *needs: Need, good: int = 0) -> Demand:
    needs = needs or (NEED,)
    return Demand(needs=needs, num_good=good or len(needs), prefill_span_s=prefill_s, decode_span_s=decode_s)


FREE = law()


@pytest.mark.parametrize(
    ("prefill", "decode", "chunk", "seqs", "remote", "auto", "together"),
    [
        # Prompts are due within 2 s, answers within 8 s: a second a token is 10 s of one and 4 s of the other.
        (FREE, FREE, HUGE, HUGE, (1, 1), (1, 1), (0, 1)),
        (law(prefill_token_s=1.0), FREE, HUGE, HUGE, (5, 1), (1, 1), (0, 1)),
        (FREE, law(prefill_token_s=1.0), HUGE, HUGE, (1, 1), (1, 1), (0, 5)),
        (law(prefill_pair_s=1.0), FREE, HUGE, HUGE, (28, 1), (1, 1), (0, 1)),
        (FREE, law(prefill_pair_s=1.0), HUGE, HUGE, (1, 1), (1, 1), (0, 28)),
        (law(decode_s=10.0), FREE, HUGE, HUGE, (1, 1), (1, 1), (0, 1)),
        (FREE, law(decode_s=10.0), HUGE, HUGE, (1, 5), (1, 5), (0, 5)),
        (FREE, law(decode_pair_s=1.0), HUGE, HUGE, (1, 52), (1, 52), (0, 52)),
        # Prompts and answers of a colocated pod are due by the end of the answers, all of them.
        (FREE, law(prefill_token_s=1.0, decode_s=10.0), HUGE, HUGE, (1, 5), (1, 5), (0, 7)),
        # Steps of 2 s and 2 s between them: one for 5 tokens of a prompt, and one for 2 sequences' tokens.
        (law(overhead_s=2.0, step_s=2.0), FREE, 5, 2, (4, 1), (1, 1), (0, 1)),
        (FREE, law(overhead_s=2.0, step_s=2.0), 5, 2, (1, 1), (1, 1), (0, 4)),
        (FREE, law(overhead_s=2.0, step_s=2.0), 10, 1, (1, 2), (1, 2), (0, 2)),
        # The slowest line of a law counts.
        (
            StepLaw(lines=(StepLine(decode_s=9.0), StepLine(prefill_token_s=1.0), StepLine(prefill_token_s=0.1))),
            StepLaw(lines=(StepLine(decode_s=9.0), StepLine(decode_s=10.0), StepLine(decode_s=1.0))),
            *(HUGE, HUGE, (5, 5), (1, 5), (0, 5)),
        ),
    ],
)
def test_pods_are_as_many_as_the_work_needs_in_its_time(
    prefill: StepLaw, decode: StepLaw, chunk: int, seqs: int,
    remote: tuple[int, int], auto: tuple[int, int], together: tuple[int, int],
) -> None:  # fmt: skip
    for side, wanted in (("remote", remote), ("auto", auto), ("together", together)):
        assert least(side, prefill, decode, spans(2.0, 8.0), chunk=chunk, seqs=seqs) == wanted, side


def test_prompts_and_answers_share_the_steps_of_a_colocated_pod() -> None:
    # Four steps of decoding, one sequence each, take 4 s; the prompt's ten tokens find room in them.
    assert least("together", FREE, law(step_s=1.0), spans(10.0, 1.0), chunk=1, seqs=1) == (0, 4)


def test_kv_is_held_while_its_request_decodes() -> None:
    # 10 tokens for 4 steps of 4 s, in blocks of 64 tokens: 160 token seconds.
    for side, prefill in (("remote", 1), ("auto", 1), ("together", 0)):
        for span_s, blocks, pods in ((0.5, 1, 5), (0.5, 2, 3), (5.0, 1, 1)):
            found = least(side, FREE, law(step_s=4.0), spans(math.inf, span_s), blocks=blocks)
            assert found == (prefill, pods)
        # 640 tokens for one step of one sequence, a second for it or 10 ms for each of its pairs.
        long = Need(due_s=0.0, prompt=640, fresh=640, output=2)
        assert least(side, FREE, law(decode_s=1.0), spans(math.inf, 1.0, long), blocks=1) == (prefill, 10)
        assert least(side, FREE, law(decode_pair_s=0.01), spans(math.inf, 1.0, long), blocks=1) == (prefill, 64)


def test_those_who_need_least_are_the_good_ones() -> None:
    needs = [Need(due_s=0.0, prompt=100, fresh=fresh, output=2) for fresh in (8, 2, 4)]
    slow = law(prefill_token_s=1.0)
    for good, pods in ((1, 2), (2, 6), (3, 14)):
        assert least("remote", slow, FREE, spans(1.0, 1.0, *needs, good=good)) == (pods, 1)
        assert least("together", FREE, slow, spans(1.0, 1.0, *needs, good=good)) == (0, pods)


def test_steps_may_be_lucky_by_four_deviations() -> None:
    half = math.log(2) / 4
    slow = law(prefill_token_s=1.0, decode_s=10.0)
    assert least("remote", slow, slow, spans(1.0, 4.0)) == (10, 10)
    assert least("remote", slow, slow, spans(1.0, 4.0), noise=half) == (5, 5)
    assert least("together", slow, slow, spans(1.0, 4.0), noise=half) == (0, 7)  # 50 s / 2 in 4 s
    assert least("together", FREE, law(step_s=4.0), spans(math.inf, 0.5), blocks=1, noise=half) == (0, 3)


def test_a_pod_that_is_just_full_does_not_become_two_by_rounding() -> None:
    assert least("remote", law(prefill_token_s=0.1 + 1e-12), FREE, spans(1.0, 1.0)) == (1, 1)
    assert least("remote", law(prefill_token_s=0.1 + 1e-9), FREE, spans(1.0, 1.0)) == (2, 1)
    assert least("remote", law(prefill_token_s=0.1), FREE, spans(math.inf, 1.0)) == (1, 1)


def test_without_work_a_cluster_has_a_pod() -> None:
    for side, prefill in (("remote", 1), ("auto", 1), ("together", 0)):
        assert least(side, FREE, FREE, spans(0.25, 0.25)) == (prefill, 1)


def test_without_time_no_bound_is_known() -> None:
    """One arrival, or all at once, and a promise that nobody keeps: simulation tells, not arithmetic."""
    slow = law(prefill_token_s=1.0, decode_s=1.0)
    asked = demand(workload((1.0, turn(4, 1, 1)), (1.0, turn(4, 3, 2))), "ttft=0ms,e2e=0ms")
    assert (asked.prefill_span_s, asked.decode_span_s) == (0.0, 0.0)
    for side, prefill in (("remote", 1), ("auto", 1), ("together", 0)):
        assert least(side, slow, slow, asked) == (prefill, 1)


def test_a_share_of_requests_is_a_whole_number_of_them() -> None:
    many = workload(*((1.0, turn(4, 1, piece)) for piece in range(100)))
    assert [demand(many, "", target=target).num_good for target in (0.55, 0.551, 0.9)] == [
        55,
        56,
        90,
    ]  # 55.00000000000001


def test_requests_that_are_longer_than_the_model_goes_are_none_of_the_good() -> None:
    def within(longest: float, target: float = 0.5) -> Demand:
        return Demand.of(THREE, ALL, parse_objectives("ttft=1s"), target, longest)

    for longest, num_needs in ((9, 3), (8, 2), (7, 2), (6, 1), (4, 0)):
        assert (len(within(longest).needs), within(longest).num_good) == (num_needs, 2)
    assert [within(longest).is_possible for longest in (7, 6, 4)] == [True, False, False]
    assert within(4, target=0.9).num_good == 3
