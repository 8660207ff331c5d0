"""Where the time to the first token went, from stamps: of one process each, and what is unknown is left out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from stub_server import Asked, StubServer, serving

from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.slo.figures.objectives import Objectives
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.record_files import read_records, record_file
from pagewire.slo.figures.ttft_parts import PARTS, ttft_parts_s
from pagewire.slo.load.run import RunPlan, Server, run
from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.workload import Workload


def timeline(process: str, **at_s: float) -> Timeline:
    return Timeline(process=process, stamps=tuple(Stamp(Phase(phase), each) for phase, each in at_s.items()))


# Each process has a clock of its own: none of these differences is between two of them.
ROUTER = timeline("router", received=100.0, tokenized=100.001, submitted=100.010, first_token=100.400)
DECODE = timeline(
    "decode", accepted=5.0, reserved=5.020, first_tokens_received=5.380, last_block_verified=5.400, joined=5.410,
    first_step=5.440,
)  # fmt: skip
PREFILL = timeline(
    "prefill", run_received=900.0, prefix_fetched=900.030, prefill_begun=900.100, last_chunk_computed=900.350
)


def test_the_parts_of_a_prompt_that_was_built_elsewhere() -> None:
    found = ttft_parts_s([ROUTER, DECODE, PREFILL])
    assert found is not None
    assert found == pytest.approx(
        {
            "router": 0.010, "admission": 0.020, "prefill_queue": 0.070, "compute": 0.280, "queue_and_compute": 0.0,
            "exposed_transfer": 0.030, "first_step": 0.030,
        }
    )  # fmt: skip
    assert tuple(found) == PARTS


def test_a_prompt_that_is_built_where_it_decodes_does_not_tell_its_queue_apart() -> None:
    found = ttft_parts_s([ROUTER, timeline("decode", accepted=1.0, reserved=1.1, joined=1.2, first_step=1.5)])
    assert found is not None
    assert found["queue_and_compute"] == pytest.approx(0.3)
    assert found["compute"] == found["prefill_queue"] == found["first_step"] == 0


@pytest.mark.parametrize(
    "timelines", [[], [ROUTER], [DECODE, PREFILL], [timeline("router", received=1.0), DECODE, PREFILL]]
)
def test_too_little_is_nothing(timelines: list[Timeline]) -> None:
    assert ttft_parts_s(timelines) is None


def without(one: Timeline, *phases: str) -> Timeline:
    """Return a timeline in which some moments were never stamped."""
    return dataclasses.replace(one, stamps=tuple(each for each in one.stamps if each.phase not in phases))


def later(one: Timeline, phase: str, by_s: float) -> Timeline:
    """Return a timeline in which one moment is later."""
    moved = [Stamp(each.phase, each.at_s + by_s * (each.phase == phase)) for each in one.stamps]
    return dataclasses.replace(one, stamps=tuple(moved))


@pytest.mark.parametrize(
    ("router", "decode", "prefill", "changed"),
    [
        (without(ROUTER, "submitted"), DECODE, PREFILL, {"router": 0.0}),
        (ROUTER, without(DECODE, "reserved"), PREFILL, {"admission": 0.0}),
        (ROUTER, without(DECODE, "first_step"), PREFILL, {"first_step": 0.0}),
        (ROUTER, without(DECODE, "first_tokens_received"), PREFILL, {"exposed_transfer": 0.0}),
        (ROUTER, later(DECODE, "first_tokens_received", 0.1), PREFILL, {"exposed_transfer": 0.0}),
        (ROUTER, DECODE, without(PREFILL, "prefix_fetched"), {"prefill_queue": 0.1, "compute": 0.25}),
        (ROUTER, DECODE, without(PREFILL, "last_chunk_computed"), {"compute": 0.03}),
        (ROUTER, DECODE, later(PREFILL, "prefix_fetched", 0.2), {"prefill_queue": 0.0, "compute": 0.48}),
        (
            ROUTER,
            DECODE,
            without(PREFILL, "prefill_begun"),
            {
                "prefill_queue": 0.0,
                "compute": 0.0,
                "exposed_transfer": 0.0,
                "first_step": 0.0,
                "queue_and_compute": 0.03,
            },
        ),
    ],
)
def test_what_was_not_stamped_or_came_in_another_order_took_no_time(
    router: Timeline, decode: Timeline, prefill: Timeline, changed: dict[str, float]
) -> None:
    whole, found = ttft_parts_s([ROUTER, DECODE, PREFILL]), ttft_parts_s([router, decode, prefill])
    assert whole is not None
    assert found == pytest.approx({**whole, **changed})
    assert ttft_parts_s([prefill, decode, router]) == found


def told(*timelines: Timeline) -> dict[str, Any]:
    return {
        "timelines": [
            {"process": each.process, "stamps": [{"phase": at.phase.value, "at_s": at.at_s} for at in each.stamps]}
            for each in timelines
        ]
    }


async def recorded(ours: dict[str, Any], *, extends: bool = True) -> tuple[Record, StubServer]:
    async def answer(asked: Asked) -> None:
        await asked.token(1)
        await asked.send({"choices": [], "usage": {"completion_tokens": 1}, "pagewire": ours})
        await asked.end()

    workload = Workload(
        name="w", source=lambda: [Arrival(at_s=0.0, turns=(Turn(input_tokens=1, output_tokens=1, text="a"),))]
    )
    async with serving(answer) as stub:
        done = await run(workload, Server(url=stub.url, extends=extends), RunPlan(objectives=Objectives({})))
    return done.records[0], stub


async def test_a_run_asks_for_timelines_and_its_files_hold_their_parts(tmp_path: Path) -> None:
    ours = told(ROUTER, DECODE, PREFILL)
    ours["timelines"][0]["stamps"].append({"phase": "of_a_newer_server", "at_s": 1.0})
    record, stub = await recorded(ours)
    assert record.ttft_parts_s == ttft_parts_s([ROUTER, DECODE, PREFILL])
    assert stub.asked[0].headers["x-pagewire-timeline"] == "1"
    bare = dataclasses.replace(record, ttft_parts_s=None)
    for name, rows in (("r.jsonl", [record, bare]), ("r.parquet", [bare, record]), ("none.parquet", [bare])):
        with record_file(tmp_path / name) as add:
            for each in rows:
                add(each)
        assert read_records(tmp_path / name) == rows


async def test_others_are_not_asked_and_say_nothing() -> None:
    record, stub = await recorded({}, extends=False)
    assert "x-pagewire-timeline" not in stub.asked[0].headers
    assert (record.error, record.ttft_parts_s) == ("", None)
