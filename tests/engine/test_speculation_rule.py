"""Who is drafted for, and how much: the choice with which the mean time per token is least, held against all others."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from engine_runs import greedy
from guesses import measured
from hypothesis import given
from hypothesis import strategies as st
from lone_sequences import limits, lone_sequence

from pagewire.core.sampling import Grammar, GrammarKind
from pagewire.core.sequence_spec import branches
from pagewire.engine.drafter import FORCED, PRIOR, RUN, WEIGHT, Drafter
from pagewire.engine.sequence import Sequence
from pagewire.engine.speculation import NEAR, PROBE, Speculation, _gains
from pagewire.engine.step_meter import StepMeter


def test_only_what_is_drawn_from_its_logits_alone_is_drafted_for() -> None:
    speculation = Speculation(4, measured(5))
    fine = lone_sequence([1, 2, 3, 1, 2], num_computed=4)
    beam = lone_sequence([1, 2, 3, 1, 2], num_computed=4)
    beam.group.search = object()  # type: ignore[assignment]
    forks = lone_sequence([1, 2, 3, 1, 2], unforked=branches(2))
    spilled = lone_sequence([1, 2, 3, 1, 2], spilled=[3])
    last = lone_sequence([1, 2, 3, 1, 2], greedy(1))
    assert speculation.draft([beam, forks, spilled, last, fine], limits(), 9) == {fine: (3, 1, 2, 3)}


def test_what_a_grammar_forces_is_drafted_before_what_is_looked_up() -> None:
    asked: list[tuple[str, Grammar, tuple[int, ...]]] = []

    def forced(*guided: Any) -> tuple[int, ...]:
        asked.append(guided)
        return (7, 8, 9, 10, 11) if len(asked) == 1 else ()

    grammar = Grammar(kind=GrammarKind.REGEX, text="a")
    speculation = Speculation(4, measured(1, 2), forced)
    speculation._largest = 8
    free, guided = (
        lone_sequence([1, 2, 3, 1, 2]),
        lone_sequence([1, 2, 3, 1, 2], greedy(20, grammar=grammar), output=[1, 2]),
    )
    assert speculation.draft([free, guided], limits(), 99) == {free: (3, 1, 2, 3), guided: (7, 8, 9, 10)}
    speculation.hear(guided, 4, 0, has_wrong=True)
    assert guided.drafter is not None
    assert guided.drafter.acceptance.of(FORCED) < PRIOR
    assert speculation.draft([guided], limits(), 99) == {guided: (1, 2, 1, 2)}
    assert guided.drafter.length == RUN
    assert asked == [("r", grammar, (1, 2))] * 2
    nobody_forces = Speculation(4, measured(1))
    assert nobody_forces.draft([guided], limits(), 99) == {guided: (1, 2, 1, 2)}


@pytest.mark.parametrize(
    ("max_tokens", "longest", "most", "most_then"), [(20, 40, 4, 4), (4, 40, 3, 2), (2, 40, 1, 0), (20, 8, 2, 1)]
)
def test_no_more_is_drafted_than_may_be_said(max_tokens: int, longest: int, most: int, most_then: int) -> None:
    speculation = Speculation(4, measured(1))
    sequence = lone_sequence([1, 2, 3, 1, 2], greedy(max_tokens))

    def num_drafted() -> int:
        return len(speculation.draft([sequence], limits(max_model_len=longest), 9).get(sequence, ()))

    assert num_drafted() == most
    sequence.output.append(3)
    assert num_drafted() == most_then


@given(
    acceptances=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3),
    num_decodes=st.integers(3, 6),
    plain_s=st.sampled_from([0.001, 0.3, 1.0]),
    more_s=st.lists(st.floats(0.0, 2.0), min_size=9, max_size=9).map(sorted),
)
def test_no_other_choice_has_a_lower_mean_time(
    acceptances: list[float], num_decodes: int, plain_s: float, more_s: list[float]
) -> None:
    """Whatever rows cost: those of stairs, too."""
    meter = StepMeter()
    meter.observe(0, num_decodes, plain_s)
    meter._rows.observe(1, 1, 0.5, 0)  # what fewer rows take, too
    for count, seconds in enumerate(more_s, 1):
        meter._rows.observe(num_decodes, count, seconds, 0)
    speculation = Speculation(3, meter)
    found: dict[Sequence, tuple[int, ...]] = {}
    for acceptance in acceptances:
        sequence = lone_sequence([1])
        sequence.drafter = Drafter([1])
        sequence.drafter.acceptance._shares[sequence.drafter.length] = acceptance
        found[sequence] = (7, 8, 9)

    def mean_s(counts: tuple[int, ...]) -> float:
        said = [sum(a**depth for depth in range(count + 1)) for a, count in zip(acceptances, counts, strict=True)]
        shares = sum(1 / each for each in said) + num_decodes - len(said)
        return shares * (plain_s + (more_s[sum(counts) - 1] if any(counts) else 0.0))

    gains = _gains(found)
    best = gains[: speculation._best([gain for gain, _ in gains], num_decodes)]
    chosen = tuple(sum(each is sequence for _, each in best) for sequence in found)
    every = itertools.product(range(4), repeat=len(found))
    assert mean_s(chosen) == pytest.approx(min(mean_s(each) for each in every))


def test_every_number_of_drafted_tokens_is_tried_now_and_then() -> None:
    """None too: what steps take with them, and without, is known from those that had so many."""
    meter = StepMeter()
    speculation, sequence = Speculation(4, meter), lone_sequence([1, 2, 3, 1, 2])

    def drafted(num_steps: int) -> list[int]:
        found = [speculation.draft([sequence], limits(), 9) for _ in range(num_steps)]
        return [len(each.get(sequence, ())) for each in found]

    assert drafted(PROBE - 1) == [0] * (PROBE - 1)  # nothing is known yet
    meter.observe(0, 1, 1.0)
    found = drafted(8 * PROBE)
    assert found[::PROBE] == [0, 2, 0, 3, 0, 4, 0, 1]
    assert {count for place, count in enumerate(found) if place % PROBE} == {4}, "they cost nothing yet"
    meter._rows.observe(1, 1, 5.0, 0)
    found = drafted(8 * PROBE)
    assert found[::PROBE] == [0, 2, 0, 3, 0, 4, 0, 1]
    assert {count for place, count in enumerate(found) if place % PROBE} == {0}


def test_where_there_is_nothing_to_draft_or_no_room_nobody_is_drafted_for() -> None:
    speculation = Speculation(4, measured(1))
    says_something, says_nothing = lone_sequence([1, 2, 3, 1, 2]), lone_sequence([1, 2, 3])
    for _ in range(4 * PROBE):  # and nobody probes
        assert speculation.draft([says_something], limits(), 0) == {}
        assert speculation.draft([says_nothing], limits(), 9) == {}
    assert speculation.draft([says_something], limits(), 1) == {says_something: (3,)}


def test_no_step_has_many_more_drafts_than_were_tried() -> None:
    """So that what a step of hundreds of rows takes is not learned by making everybody wait for one."""
    speculation = Speculation(9, measured(8))
    sequences = [lone_sequence([1, 2, 3, 1, 2]) for _ in range(8)]
    found = [sum(map(len, speculation.draft(sequences, limits(), 999).values())) for _ in range(5)]
    assert found == [NEAR, 3 * NEAR, 7 * NEAR, 15 * NEAR, 72]


def test_who_begins_expects_what_proved_right_of_others() -> None:
    speculation, first = Speculation(4, measured(1)), lone_sequence([1, 2, 3, 1, 2])
    speculation.draft([first], limits(), 99)
    speculation.hear(first, 4, 0, has_wrong=True)
    second = lone_sequence([1, 2, 3, 1, 2])
    speculation.draft([second], limits(), 99)
    assert second.drafter is not None
    assert second.drafter.acceptance.of(RUN) == PRIOR * (1 - WEIGHT)
    speculation.hear(second, 4, 3, has_wrong=True)
    assert (speculation.num_drafted, speculation.num_accepted) == (8, 3)
    assert first.drafter is not None
    assert first.drafter.acceptance.of(RUN) == PRIOR * (1 - WEIGHT)
