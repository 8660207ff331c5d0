"""Where the time to the first token went: means by part, of all and of the slowest twentieth, drawn end to end."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from drawn_figures import bars, drawn, has_grid, labelled, legend, spans, told, xs, ys
from made_up_runs import experiment_of, failed, record, trial_of

from pagewire.slo.figures.experiment import Trial
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.ttft_parts import PARTS
from pagewire.slo.report.breakdown import Stack, breakdown, stack, stacks


def parted(number: int, ttft_s: float, **parts_s: float) -> Record:
    """Return a request that spent `parts_s` in parts, and nothing in any other."""
    return record(number, float(number), ttft_s, (0.01,), ttft_parts_s=dict.fromkeys(PARTS, 0.0) | parts_s)


def run(*records: Record, name: str = "") -> Trial:
    return dataclasses.replace(trial_of(records), name=name)


def seen_ms(each: Stack) -> dict[str, float]:
    return {part: value for part, value in each.parts_ms.items() if value}


def test_what_no_part_tells_is_elsewhere() -> None:
    found = stack("x", [parted(0, 0.3, router=0.1, compute=0.1, first_step=0.5), parted(1, 0.1, compute=0.05)])
    assert (found.name, found.count) == ("x", 2)
    assert found.ttft_ms == pytest.approx(200)
    assert seen_ms(found) == pytest.approx({"router": 50, "compute": 75, "elsewhere": 75, "first_step": 250})


def test_a_part_that_a_record_does_not_name_took_no_time() -> None:
    found = stack("x", [record(0, 0.0, 0.2, (), ttft_parts_s={"router": 0.1})])
    assert seen_ms(found) == pytest.approx({"router": 100, "elsewhere": 100})


@pytest.mark.parametrize(("count", "slowest"), [(1, 1), (20, 1), (21, 2), (60, 3)])
def test_the_slowest_are_a_twentieth_rounded_up(count: int, slowest: int) -> None:
    ttfts_s = [((7 * k) % count) / 100 for k in range(count)]  # in no order
    all_of_it, slow = stacks("x", run(*(parted(k, ttft_s) for k, ttft_s in enumerate(ttfts_s))))
    assert (all_of_it.name, slow.name) == ("x, all", "x, slowest 5 %")
    for found, expected in ((all_of_it, ttfts_s), (slow, sorted(ttfts_s)[-slowest:])):
        assert found.count == len(expected)
        assert found.ttft_ms == pytest.approx(1e3 * sum(expected) / len(expected))


def test_only_answers_that_hold_their_parts_are_broken_down() -> None:
    cut = dataclasses.replace(parted(1, 9.0, router=9.0), error="closed")
    some = run(parted(0, 0.1, router=0.1), cut, record(2, 2.0, 0.5, ()), failed(3, 3.0))
    assert [each.count for each in stacks("x", some)] == [1, 1]
    assert [each.ttft_ms for each in stacks("x", some)] == pytest.approx([100, 100])
    none = run(record(2, 2.0, 0.5, ()), failed(3, 3.0))
    assert stacks("x", none) == []
    assert breakdown(experiment_of(none), [none]) is None


def test_a_part_has_a_column_where_any_run_spent_time_in_it() -> None:
    trials = [
        run(parted(0, 0.2, router=0.1, compute=0.1), name="a"),
        run(parted(0, 0.2, admission=0.0004, compute=0.15, exposed_transfer=0.002), name="b"),
    ]
    found = breakdown(experiment_of(*trials), trials)
    assert found is not None
    assert [*found.columns] == [
        "run", "requests", "TTFT ms", "router queue ms", "decode admission ms", "compute ms", "elsewhere ms",
        "exposed transfer ms",
    ]  # fmt: skip
    assert found.rows[0] == ("a, all", 1, "200.0", "100.0", "0.0", "100.0", "0.0", "0.0")
    assert found.rows[2] == ("b, all", 1, "200.0", "0.0", "0.4", "150.0", "49.6", "2.0")
    assert [row[0] for row in found.rows] == [f"{name}, {of}" for name in "ab" for of in ("all", "slowest 5 %")]
    assert breakdown(experiment_of(*trials), trials[:1]) is not None, "that some are shown is enough"


def test_what_took_most_is_said_of_a_few_and_of_many_of_the_slowest() -> None:
    trials = [run(parted(0, 0.1 * k, compute=0.08 * k), parted(1, 0.0), name=f"run {k}") for k in (1, 4, 3, 2)]
    three, four = (breakdown(experiment_of(*some), some) for some in (trials[:3], trials))
    assert three is not None
    assert four is not None
    assert three.says.startswith("run 1, all: 50 ms, most of it compute (80 %); run 1, slowest 5 %: 100 ms, ")
    assert three.says.count(";") == 5
    assert four.says == "run 4, slowest 5 %: 400 ms, most of it compute (80 %)."


def test_every_run_takes_as_much_room_as_any() -> None:
    trials = [run(parted(0, 0.1), name=f"run {k}") for k in range(4)]
    found = [breakdown(experiment_of(*trials), trials[:count]) for count in (1, 2, 4)]
    one, two, four = (each.height_in for each in found if each is not None)
    assert 0 < two - one < one
    assert four - two == pytest.approx(2 * (two - one))


def test_who_waited_for_nothing_spent_no_share_anywhere() -> None:
    none = run(parted(0, 0.0))
    found = breakdown(experiment_of(none), [none])
    assert found is not None
    assert "0 ms, most of it router queue (0 %)" in found.says


def test_parts_are_drawn_end_to_end_each_with_a_look_of_its_own() -> None:
    every = {part: 0.01 * k for k, part in enumerate(PARTS, 1)}
    trials = [run(parted(0, 0.2, **every), name="a"), run(parted(0, 0.1, router=0.15, compute=0.05), name="b")]
    figure = breakdown(experiment_of(*trials), trials)
    (axes,) = drawn(figure)
    ends = [0, 10, 30, 60, 100, 150, 200, 260, 330]
    assert spans(axes, 0) == [pytest.approx(span) for span in pairwise(ends)]
    # More in the parts than in all: clocks of two processes. What is less than nothing is not drawn.
    assert spans(axes, 2) == [
        pytest.approx(span) for span in ((0, 150), *[(150, 150)] * 2, (150, 200), *[(200, 200)] * 4)
    ]
    looks = [(bar.get_facecolor(), bar.get_hatch()) for bar in bars(axes)[::4]]
    assert len({*looks}) == len({hatch for _, hatch in looks}) == 8
    assert all(bar.get_height() < 1 for bar in bars(axes)), "no run reaches into another"
    assert legend(figure) == [
        "TTFT", "router queue", "decode admission", "prefill queue", "compute",
        "queue and compute, where it decodes", "elsewhere", "exposed transfer", "first step",
    ]  # fmt: skip


def test_every_run_has_its_name_and_its_ttft() -> None:
    trials = [run(parted(0, 0.2), parted(1, 0.4), name="a"), run(parted(0, 0.1), name="b")]
    (axes,) = drawn(breakdown(experiment_of(*trials), trials))
    ttft = labelled(axes)["TTFT"]
    assert xs(ttft) == pytest.approx([300, 400, 100, 100])
    assert ys(ttft) == [0, 1, 2, 3]
    assert ttft.get_linestyle() == "None"
    assert [*axes.get_yticks()] == [0, 1, 2, 3]
    assert told(axes.get_yticklabels()) == ["a, all", "a, slowest 5 %", "b, all", "b, slowest 5 %"]
    assert axes.yaxis_inverted(), "the first one stands on top"
    assert axes.get_xlabel() == "ms"
    assert has_grid(axes) == (True, False)
