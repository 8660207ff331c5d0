"""A beam search on made-up log probabilities: against all outputs there are, and step by step where it prunes.

That it is transformers' search, with a model and an engine around it, is `test_beam_search.py`'s.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.sampling import EarlyStopping, FinishReason, SamplingParams
from pagewire.engine.beam_search import BeamSearch, Candidates, Extension

END = 9
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
NEVER, FALSE, TRUE = EarlyStopping.NEVER, EarlyStopping.FALSE, EarlyStopping.TRUE
Outputs = dict[int, tuple[int, ...]]


def search(
    width: int,
    *,
    limit: int = 4,
    penalty: float = 1.0,
    stopping: EarlyStopping = FALSE,
    ends: tuple[int, ...] = (END,),
    num_results: int = 0,
) -> BeamSearch:
    return BeamSearch(
        width=width,
        num_results=num_results or width,
        length_penalty=penalty,
        early_stopping=stopping,
        limit=limit,
        ends=frozenset(ends),
    )


def said(**logprobs: float) -> Candidates:
    """Return candidates by names such as `t3`, the likeliest first."""
    falling = sorted(logprobs.items(), key=lambda each: -each[1])
    return Candidates(tokens=tuple(int(name[1:]) for name, _ in falling), logprobs=tuple(value for _, value in falling))


def extension(index: int, parent: int, token: int) -> Extension:
    return Extension(index=index, parent=parent, token=token)


def grown(outputs: Outputs, extensions: list[Extension]) -> Outputs:
    return {each.index: (*outputs[each.parent], each.token) for each in extensions}


class Tree:
    """Log probabilities of each token after each output, made up by chance and always the same."""

    def __init__(self, seed: int, tokens: tuple[int, ...]) -> None:
        self.seed = seed
        self.tokens = tokens

    def after(self, output: tuple[int, ...]) -> dict[int, float]:
        chance = random.Random(f"{self.seed} {output}")
        weights = {token: chance.uniform(0.05, 1.0) for token in self.tokens}
        return {token: math.log(weight / sum(weights.values())) for token, weight in weights.items()}

    def candidates(self, output: tuple[int, ...], most: int) -> Candidates:
        falling = sorted(self.after(output).items(), key=lambda each: -each[1])[:most]
        return Candidates(tokens=tuple(token for token, _ in falling), logprobs=tuple(value for _, value in falling))

    def total(self, output: tuple[int, ...]) -> float:
        return math.fsum(self.after(output[:place])[token] for place, token in enumerate(output))


def run(beams: BeamSearch, tree: Tree) -> int:
    """Search to the end; return how many tokens the longest beam had."""
    outputs: Outputs = {0: ()}
    for length in itertools.count(1):
        for index, output in outputs.items():
            beams.hear(index, tree.candidates(output, beams.num_candidates))
        extensions = beams.advance(outputs)
        assert [each.index for each in extensions] == sorted({each.index for each in extensions})
        if not extensions:
            return length
        outputs = grown(outputs, extensions)
        assert len(set(outputs.values())) == len(outputs) <= beams.width
    raise AssertionError


@given(
    seed=st.integers(0, 999),
    limit=st.integers(1, 4),
    ends=st.sampled_from([(), (END,), (END, 8)]),
    penalty=st.sampled_from([0.0, 1.0, 2.5, -1.0]),
    num_results=st.integers(1, 5),
)
def test_with_room_for_all_the_best_of_all_outputs_are_found(
    seed: int, limit: int, ends: tuple[int, ...], penalty: float, num_results: int
) -> None:
    tree = Tree(seed, (1, 2, END) if len(ends) < 2 else (1, 8, END))
    beams = search(200, limit=limit, ends=ends, penalty=penalty, stopping=NEVER, num_results=num_results)
    assert run(beams, tree) == limit
    every = [
        output
        for length in range(1, limit + 1)
        for output in itertools.product(tree.tokens, repeat=length)
        if not any(token in ends for token in output[:-1]) and (output[-1] in ends or length == limit)
    ]
    scores = {output: tree.total(output) / len(output) ** penalty for output in every}
    best = sorted(every, key=lambda output: -scores[output])[:num_results]
    found = beams.results()
    assert [each.tokens for each in found] == best
    for each in found:
        assert each.total == pytest.approx(tree.total(each.tokens))
        assert each.score == pytest.approx(scores[each.tokens])
        assert each.finish_reason is (STOP if each.tokens[-1] in ends else LENGTH)


@given(seed=st.integers(0, 999), limit=st.integers(1, 5))
def test_one_beam_follows_the_likeliest_token(seed: int, limit: int) -> None:
    tree = Tree(seed, (1, 2, 3, END))
    output: tuple[int, ...] = ()
    while len(output) < limit and END not in output:
        after = tree.after(output)
        output = (*output, max(after, key=lambda token: after[token]))
    beams = search(1, limit=limit, stopping=TRUE)
    run(beams, tree)
    assert beams.results()[0].tokens == output


def test_a_search_is_what_the_caller_asked_for() -> None:
    asked = SamplingParams(
        n=2, use_beam_search=True, beam_width=3, length_penalty=0.5, early_stopping=NEVER, stop_token_ids=(4,)
    )
    made = BeamSearch.of(asked, limit=7, eos_token_ids={END})
    assert (made.width, made.num_results, made.limit) == (3, 2, 7)
    assert (made.length_penalty, made.early_stopping, made.ends) == (0.5, NEVER, {4, END})
    assert made.num_candidates == 5, "two that end, and as many as it is wide that do not"
    deaf = SamplingParams(n=2, use_beam_search=True, stop_token_ids=(4,), ignore_eos=True)
    assert BeamSearch.of(deaf, limit=7, eos_token_ids={END}).ends == {4}


def test_beams_keep_their_index_with_their_first_continuation_and_others_take_what_is_free() -> None:
    beams = search(3)
    beams.hear(0, said(t1=-1.0, t2=-2.0, t3=-3.0, t4=-4.0))
    first = beams.advance({0: ()})
    assert first == [extension(0, 0, 1), extension(1, 0, 2), extension(2, 0, 3)]
    beams.hear(0, said(t5=-9.0, t6=-9.5))
    beams.hear(1, said(t5=-7.0, t6=-7.5))
    beams.hear(2, said(t5=-1.0, t6=-1.5))
    # By total: 2 with 5 (-4), 2 with 6 (-4.5), 1 with 5 (-9): beam 0 is dropped, and its index is free.
    assert beams.advance(grown({0: ()}, first)) == [extension(0, 2, 6), extension(1, 1, 5), extension(2, 2, 5)]


def test_the_log_probabilities_of_a_beam_go_with_it_to_its_new_index() -> None:
    beams = search(2)
    beams.hear(0, said(t1=-1.0, t2=-2.0))
    outputs = grown({0: ()}, beams.advance({0: ()}))
    beams.hear(0, said(t3=-8.0))
    beams.hear(1, said(t4=-1.0, t5=-2.5))
    outputs = grown(outputs, beams.advance(outputs))
    assert outputs == {0: (2, 5), 1: (2, 4)}  # -4.5 and -3
    beams.hear(0, said(t6=-1.0))
    beams.hear(1, said(t7=-2.0, t8=-2.25))
    assert grown(outputs, beams.advance(outputs)) == {1: (2, 4, 7), 0: (2, 4, 8)}  # -5, -5.25; the other had -5.5


def test_what_is_heard_again_replaces_what_was_and_is_forgotten_with_the_step() -> None:
    beams = search(1)
    beams.hear(0, said(t1=-1.0))
    beams.hear(0, said(t2=-1.0))
    assert beams.advance({0: ()}) == [extension(0, 0, 2)]
    with pytest.raises(KeyError):
        beams.advance({0: (2,)})


def test_of_equal_totals_the_lower_beam_comes_first_and_then_the_lower_token() -> None:
    beams = search(2)
    beams.hear(0, Candidates(tokens=(7, 3, 5), logprobs=(-1.0, -1.0, -1.0)))
    outputs = grown({0: ()}, beams.advance({0: ()}))
    assert outputs == {0: (3,), 1: (5,)}
    for index in (1, 0):
        beams.hear(index, Candidates(tokens=(6, 2), logprobs=(-1.0, -1.0)))
    assert beams.advance(outputs) == [extension(0, 0, 2), extension(1, 0, 6)]


def test_tokens_and_log_probabilities_come_in_pairs() -> None:
    beams = search(1)
    beams.hear(0, Candidates(tokens=(1, 2), logprobs=(-1.0,)))
    with pytest.raises(ValueError, match="zip"):
        beams.advance({0: ()})


def test_an_end_counts_only_among_the_first_of_all_continuations() -> None:
    """As many as the search is wide: a worse one that ends is no hypothesis, and those that go on are all the same."""
    beams = search(2)
    beams.hear(0, said(t1=-1.0, t9=-2.0, t2=-3.0, t3=-4.0))
    outputs = grown({0: ()}, beams.advance({0: ()}))
    assert (outputs, [each.tokens for each in beams.results()]) == ({0: (1,), 1: (2,)}, [(END,)])
    beams.hear(0, said(t1=-0.5, t2=-0.75, t9=-1.0))
    beams.hear(1, said(t9=-5.0))
    assert grown(outputs, beams.advance(outputs)) == {0: (1, 1), 1: (1, 2)}
    assert [each.tokens for each in beams.results()] == [(END,)], "of -2.0 it would have been the third"


def test_as_many_continuations_are_looked_at_as_may_end_before_enough_go_on() -> None:
    """With two ends and two beams: four that end may come first, and two more are to go on."""
    beams = search(2, ends=(8, 9), limit=9, stopping=NEVER)
    beams.hear(0, said(t1=-1.0, t2=-1.5))
    outputs = grown({0: ()}, beams.advance({0: ()}))
    for index in outputs:
        beams.hear(index, said(t8=-1.0, t9=-1.25, t3=-3.0, t4=-9.0))
    assert grown(outputs, beams.advance(outputs)) == {0: (1, 3), 1: (2, 3)}
    assert [each.tokens for each in beams.results()] == [(1, 8), (1, 9)]


def test_only_the_best_hypotheses_are_kept_and_of_equal_ones_the_earlier_first() -> None:
    beams = search(2, limit=3, penalty=1.0, num_results=1)
    beams.hear(0, said(t9=-2.0, t1=-2.5, t2=-3.0))
    outputs = grown({0: ()}, beams.advance({0: ()}))
    beams.hear(0, said(t9=-1.5, t3=-1.75))  # -4 for two tokens: as good as -2 for one
    beams.hear(1, said(t3=-4.0))
    outputs = grown(outputs, beams.advance(outputs))
    assert [each.tokens for each in beams.results()] == [(END,)]
    beams.num_results = 9
    assert [(each.tokens, each.total, each.score) for each in beams.results()] == [
        ((END,), -2.0, -2.0),
        ((1, END), -4.0, -2.0),
    ]


@pytest.mark.parametrize(
    ("stopping", "penalty", "logprob", "is_over"),
    [
        (TRUE, 1.0, -2.0, True),
        (TRUE, 9.0, -2.5, True),
        # As it is it is no better than what was found.
        (FALSE, 1.0, -2.0, True),
        (FALSE, 9.0, -2.5, True),
        # With a penalty above 0, four tokens of -7.5 in all would be better: -1.875.
        (NEVER, 1.0, -7.5, False),
        (NEVER, 1.0, -8.0, True),
        (NEVER, 0.5, -3.75, False),
        (NEVER, 0.5, -4.0, True),
        # Without one, more tokens are never better.
        (NEVER, 0.0, -2.0, True),
        (NEVER, -1.0, -2.5, True),
    ],
)
def test_a_search_is_over_when_what_goes_on_cannot_be_among_the_best(
    stopping: EarlyStopping, penalty: float, logprob: float, is_over: bool
) -> None:
    """One beam, which found an output of one token at -2, and goes on with another token at `logprob`."""
    beams = search(1, limit=4, penalty=penalty, stopping=stopping)
    beams.hear(0, said(t9=-2.0, t10=logprob))
    assert (beams.advance({0: ()}) == []) is is_over
    assert [(each.tokens, each.total) for each in beams.results()] == [((END,), -2.0)]


def test_where_more_tokens_cost_what_goes_on_is_weighed_by_those_that_it_has() -> None:
    beams = search(2, limit=9, penalty=-1.0, stopping=NEVER)
    beams.hear(0, said(t1=-1.0, t9=-5.0, t2=-6.0))
    outputs = grown({0: ()}, beams.advance({0: ()}))
    beams.hear(0, said(t3=-0.5, t9=-3.0))  # two tokens each: -3 for what goes on, and -8 for what is found
    beams.hear(1, said(t3=-1.0))
    assert grown(outputs, beams.advance(outputs)) == {0: (1, 3), 1: (2, 3)}
    assert [each.score for each in beams.results()] == [-5.0, -8.0]


def test_what_goes_on_is_weighed_by_the_tokens_that_it_has_against_the_worst_that_is_kept() -> None:
    beams = search(2, limit=9, penalty=1.0)
    beams.hear(0, said(t9=-1.0, t1=-1.25, t2=-1.5))
    outputs = grown({0: ()}, beams.advance({0: ()}))
    assert len(beams.results()) == 1, "one is missing, so it goes on"
    beams.hear(0, said(t9=-2.75, t3=-2.5))  # -4.0 for two tokens: -2; what goes on has -1.875
    beams.hear(1, said(t4=-9.0))
    outputs = grown(outputs, beams.advance(outputs))
    assert [each.score for each in beams.results()] == [-1.0, -2.0]
    assert outputs[0] == (1, 3)
    beams.hear(0, said(t5=-2.25))  # -6 for three tokens
    beams.hear(1, said(t5=-0.5))
    assert beams.advance(outputs) == [], "-2 is no better than the second"


def test_what_is_no_longer_among_the_best_is_not_what_beams_are_weighed_against() -> None:
    beams = search(2, limit=9, penalty=0.0)
    beams.hear(0, said(t1=-0.1, t9=-3.0, t2=-3.5))
    outputs = grown({0: ()}, beams.advance({0: ()}))
    beams.hear(0, said(t3=-0.1, t9=-1.9))
    beams.hear(1, said(t3=-9.0))
    outputs = grown(outputs, beams.advance(outputs))
    assert [each.total for each in beams.results()] == [-2.0, -3.0]
    beams.hear(0, said(t9=-0.8, t4=-2.3))
    beams.hear(1, said(t3=-9.0))
    assert beams.advance(outputs) == [], "-2.5 in all is better than -3, but that is gone"
    assert [each.total for each in beams.results()] == pytest.approx([-1.0, -2.0])


def test_at_the_limit_all_that_is_among_the_first_is_found() -> None:
    beams = search(2, limit=1)
    beams.hear(0, said(t1=-1.0, t9=-2.0, t2=-3.0))
    assert beams.advance({0: ()}) == []
    assert [(each.tokens, each.finish_reason) for each in beams.results()] == [((1,), LENGTH), ((END,), STOP)]
