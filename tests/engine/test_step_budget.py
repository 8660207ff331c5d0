"""What a step may grant: in all, and to those that do not decode; what is taken back may be granted again."""

from __future__ import annotations

import pytest
from lone_sequences import lone_sequence

from pagewire.engine.step_budget import StepBudget


def test_a_decode_may_have_what_a_prompt_may_not() -> None:
    decode, prompt = lone_sequence([1] * 5, num_computed=4), lone_sequence([1] * 9)
    budget = StepBudget(10, 3)
    assert (budget.room(decode), budget.room(prompt)) == (10, 3)
    budget.grant(decode, 1)
    assert (budget.room(decode), budget.room(prompt)) == (9, 3)
    budget.grant(prompt, 2)
    assert (budget.room(decode), budget.room(prompt)) == (7, 1)
    assert budget.grants == {decode: 1, prompt: 2}
    budget.take_back(prompt)
    budget.take_back(prompt)
    assert (budget.room(decode), budget.room(prompt), budget.grants) == (9, 3, {decode: 1})
    budget.take_back(decode)
    assert (budget.room(decode), budget.grants) == (10, {})


def test_no_prompt_gets_more_than_is_left_in_all() -> None:
    prompt = lone_sequence([1] * 9)
    budget = StepBudget(4, 9)
    assert budget.room(prompt) == 4
    budget.grant(prompt, 4)
    assert budget.is_spent


def test_one_left_token_is_a_decode_and_two_are_a_prompt() -> None:
    budget = StepBudget(10, 1)
    assert budget.room(lone_sequence([1] * 5, num_computed=3)) == 1
    assert budget.room(lone_sequence([1] * 5, num_computed=4)) == 10
    assert budget.room(lone_sequence([1] * 5, num_saved=4)) == 10
    two = lone_sequence([1] * 5, num_computed=3)
    budget.grant(two, 1)
    assert budget.room(lone_sequence([1] * 5)) == 0
    assert not budget.is_spent


@pytest.mark.parametrize(("most_prefill", "room"), [(None, 10), (0, 1), (1, 1), (2, 2)])
def test_prompts_have_all_where_nothing_else_is_said_and_never_nothing(most_prefill: int | None, room: int) -> None:
    assert StepBudget(10, most_prefill).room(lone_sequence([1] * 20)) == room


def test_a_budget_is_spent_with_its_last_token() -> None:
    budget, decode = StepBudget(2), [lone_sequence([1]) for _ in range(2)]
    for each in decode:
        assert not budget.is_spent
        budget.grant(each, 1)
    assert budget.is_spent
