"""Made-up workloads: times as their process says (by scipy's test), sharing as asked, one seed one workload."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise, product
from pathlib import Path

import pytest
from scipy import stats

from pagewire.slo.load.pieces import Vocabulary, tokens_of, tokens_of_piece
from pagewire.slo.workloads import samples
from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.formats.mooncake import read_mooncake
from pagewire.slo.workloads.formats.sharegpt import read_sharegpt
from pagewire.slo.workloads.made_up import Lengths, PrefixTree, Shape, made_up, parse_lengths
from pagewire.slo.workloads.processes import Process
from pagewire.slo.workloads.transforms import at_rate, faster, first, resized, retimed, until
from pagewire.slo.workloads.workload import Workload

SHAPE = Shape(input=Lengths(100, 300), output=Lengths(1, 20))


def drawn(seed: int = 1, shape: Shape = SHAPE, count: int = 50) -> Workload:
    return retimed(made_up("w", shape, num_arrivals=count, seed=seed), Process(rate=5.0), seed)


def gaps(process: Process, count: int = 4000) -> list[float]:
    return [b - a for a, b in pairwise([0.0, *islice(process.times(7), count)])]


def test_constant_gaps_begin_at_once() -> None:
    assert [*islice(Process(rate=4.0, cv=0.0).times(1), 4)] == [0.0, 0.25, 0.5, 0.75]


def test_poisson_gaps_are_exponential() -> None:
    assert stats.kstest(gaps(Process(rate=5.0)), stats.expon(scale=0.2).cdf).pvalue > 0.01


@pytest.mark.parametrize("cv", [0.5, 1.5, 2.0])
def test_gamma_gaps_are_of_that_variation(cv: float) -> None:
    assert stats.kstest(gaps(Process(rate=5.0, cv=cv)), stats.gamma(1 / cv**2, scale=0.2 * cv**2).cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("rate", "cv"),
    [(0.0, 1.0), (-1.0, 1.0), (float("inf"), 1.0), *((1.0, cv) for cv in (-0.1, float("nan"), 1e-4, 1001.0))],
)
def test_what_is_no_process_is_an_error(rate: float, cv: float) -> None:
    with pytest.raises(ValueError, match="is none"):
        Process(rate=rate, cv=cv)


def test_one_seed_one_workload() -> None:
    workload = drawn(1)
    assert [*workload] == [*workload] == [*drawn(1)]
    assert [*drawn(2)] != [*drawn(1)]


def test_times_do_not_change_what_is_asked() -> None:
    slow = retimed(made_up("w", SHAPE, num_arrivals=50, seed=1), Process(rate=1.0), 1)
    assert [each.turns for each in slow] == [each.turns for each in drawn(1)]


def test_lengths_are_as_asked() -> None:
    turns = [each.turns[0] for each in drawn(count=2000)]
    assert {min(t.input_tokens for t in turns), max(t.input_tokens for t in turns)} == {100, 300}
    assert {t.output_tokens for t in turns} == {*range(1, 21)}
    assert Counter(piece for t in turns for piece in t.pieces).most_common(1)[0][1] == 1  # nothing is shared


@pytest.mark.parametrize(("text", "low", "high"), [("512", 512, 512), ("1-9", 1, 9)])
def test_lengths_are_read(text: str, low: int, high: int) -> None:
    assert parse_lengths(text) == Lengths(low, high)


@pytest.mark.parametrize("text", ["", "0", "9-1", "a", "1-", "-5", "1-2-3"])
def test_what_is_no_length_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no length such as"):
        parse_lengths(text)


@pytest.mark.parametrize(("share", "depth", "branches"), [*product([0.1, 0.5, 0.9], [1, 3], [1, 3])])
def test_prompts_share_what_the_tree_says(share: float, depth: int, branches: int) -> None:
    shape = Shape(
        input=Lengths(960, 960), output=Lengths(1, 1), tree=PrefixTree(share=share, depth=depth, branches=branches)
    )
    workload = drawn(shape=shape, count=200)
    turns = [each.turns[0] for each in workload]
    per_level = round(share * 960 / depth / 16)
    assert {t.input_tokens for t in turns} == {960}
    ways = {t.pieces[: depth * per_level] for t in turns}
    assert len(ways) == branches**depth
    for level in range(1, depth + 1):
        assert len({t.pieces[: level * per_level] for t in turns}) == branches**level
    own = [piece for t in turns for piece in t.pieces[depth * per_level :]]
    assert len(own) == len({*own})
    assert not {*own} & {piece for way in ways for piece in way}


def test_sessions_go_on() -> None:
    shape = Shape(
        input=Lengths(64, 64), output=Lengths(8, 8), turns=Lengths(1, 5), later_input=Lengths(10, 20), think_s=2.0
    )
    arrivals = [*drawn(shape=shape, count=1000)]
    assert {len(each.turns) for each in arrivals} == {1, 2, 3, 4, 5}
    thinking = [turn.think_s for each in arrivals for turn in each.turns[1:]]
    assert stats.kstest(thinking, stats.expon(scale=2.0).cdf).pvalue > 0.01
    assert all(each.turns[0].think_s == 0 for each in arrivals)
    three = next(each for each in arrivals if len(each.turns) == 3)
    assert three.prompt_tokens(2) == 64 + 8 + three.turns[1].input_tokens + 8 + three.turns[2].input_tokens


@pytest.mark.parametrize(("share", "depth", "branches"), [(1.0, 1, 1), (-0.1, 1, 1), (0.5, 0, 1), (0.5, 1, 0)])
def test_what_is_no_tree_is_an_error(share: float, depth: int, branches: int) -> None:
    with pytest.raises(ValueError, match=r"share of|is none"):
        PrefixTree(share=share, depth=depth, branches=branches)


def test_a_shorter_cut_of_a_piece_begins_a_longer_one() -> None:
    words = Vocabulary(low=5, high=50)
    long = tokens_of_piece(3, 512, seed=1, vocabulary=words)
    assert tokens_of_piece(3, 100, seed=1, vocabulary=words) == long[:100]
    assert {*long} <= {*range(5, 50)}


def test_the_rate_of_a_recording_can_be_set() -> None:
    recording = read_mooncake(samples.sample("mooncake"))
    arrivals = [*at_rate(recording, 40.0)]
    assert (len(arrivals) - 1) / arrivals[-1].at_s == pytest.approx(40.0)
    before = [*recording]
    assert arrivals[7].at_s / arrivals[-1].at_s == pytest.approx(before[7].at_s / before[-1].at_s)
    assert [each.at_s for each in faster(recording, 2.0)] == [each.at_s / 2 for each in recording]
    with pytest.raises(ValueError, match="says no times"):
        at_rate(read_sharegpt(samples.sample("sharegpt")), 1.0)


def test_a_recording_can_have_the_times_of_a_process() -> None:
    talks = read_sharegpt(samples.sample("sharegpt"))
    timed = [*retimed(talks, Process(rate=2.0), seed=3)]
    assert [each.at_s for each in timed] == [*islice(Process(rate=2.0).times(3), len(timed))]
    assert [each.turns for each in timed] == [each.turns for each in talks]


@pytest.mark.parametrize("factor", [1 / 16, 0.1, 1.0, 2.0])
def test_resized_prompts_share_what_they_shared(factor: float) -> None:
    recording = read_mooncake(samples.sample("mooncake"))
    small = resized(recording, factor)
    for old, new in zip(recording, small, strict=True):
        assert new.turns[0].pieces == old.turns[0].pieces
        assert new.turns[0].input_tokens == pytest.approx(old.turns[0].input_tokens * factor, rel=0.02, abs=1)
        assert new.turns[0].output_tokens == max(1, round(old.turns[0].output_tokens * factor))
        tokens = tokens_of(new.turns[0], small.piece_tokens, seed=0, vocabulary=Vocabulary())
        assert len(tokens) == new.turns[0].input_tokens


def test_a_length_that_pieces_cannot_have_is_refused() -> None:
    recording = read_mooncake(samples.sample("mooncake"))
    for factor, nearest in ((0.0005, "0.00195312"), (0.003, "0.00390625")):
        with pytest.raises(ValueError, match=f"pieces of 512 tokens, which would be {nearest} times as long"):
            next(iter(resized(recording, factor)))
        next(iter(resized(recording, float(nearest))))


def test_texts_can_be_cut_and_not_made_longer() -> None:
    talks = read_sharegpt(samples.sample("sharegpt"))
    assert (
        next(iter(resized(talks, 0.5))).turns[0].text
        == next(iter(talks)).turns[0].text[: len(next(iter(talks)).turns[0].text) // 2]
    )
    with pytest.raises(ValueError, match="not made longer"):
        next(iter(resized(talks, 2.0)))


def test_parts_of_a_workload() -> None:
    workload = drawn()
    assert [*first(workload, 3)] == [*workload][:3]
    assert [*until(workload, 2.0)] == [each for each in workload if each.at_s < 2.0]
    last_s = max(each.at_s for each in workload)
    ends = (2.0, last_s, last_s + 1e-6)
    assert [until(workload, end_s).is_cut for end_s in ends] == [True, True, False]
    assert until(until(workload, 2.0), 3.0).is_cut


def test_a_workload_is_checked_as_it_is_gone_through() -> None:
    turn = Turn(input_tokens=20, output_tokens=1, pieces=(1, 2))
    with pytest.raises(ValueError, match=r"arrival at 1\.0 s comes after one at 2\.0 s"):
        [*Workload(name="w", source=lambda: [Arrival(at_s=t, turns=(turn,)) for t in (2.0, 1.0)], piece_tokens=16)]
    with pytest.raises(ValueError, match="20 input tokens are not 2 pieces of 512"):
        [*Workload(name="w", source=lambda: [Arrival(at_s=0.0, turns=(turn,))])]


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_tokens": 0}, {"output_tokens": 0}, {"pieces": ()}, {"text": "a"}, {"think_s": -1.0},
        {"think_s": float("nan")},
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_an_error(wrong: dict[str, object]) -> None:
    good: dict[str, object] = {"input_tokens": 1, "output_tokens": 1, "pieces": (1,)}
    with pytest.raises(ValueError, match=r"turn|think_s"):
        Turn(**{**good, **wrong})  # type: ignore[arg-type]


def test_an_unknown_sample_is_an_error() -> None:
    with pytest.raises(ValueError, match="there are mooncake, azure, burstgpt, sharegpt"):
        samples.sample("splitwise")
    assert {path.name for path in Path(samples.FOLDER).iterdir()} == {*samples.FILES.values()}
