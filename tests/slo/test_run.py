"""The runner against a server in this process with known timings: what it asks, when, and what it makes of answers.

Times are compared with what the server itself waited: never below it, and what must show shows by a wide margin. Nobody
is asked to be quick.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from stub_server import Asked, StubServer, serving

from pagewire.core.errors import Unavailable
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.record_files import read_records, record_file, record_of, row_of
from pagewire.slo.figures.table import table
from pagewire.slo.load.pieces import Vocabulary, tokens_of
from pagewire.slo.load.run import Run, RunPlan, Server, run
from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.made_up import Lengths, Shape, made_up
from pagewire.slo.workloads.processes import Process
from pagewire.slo.workloads.transforms import retimed, until
from pagewire.slo.workloads.workload import Workload

PLAN = RunPlan(objectives=parse_objectives("ttft=10s,tpot=10s"))
WORDS = PLAN.vocabulary
SHORT = Shape(input=Lengths(20, 40), output=Lengths(4, 4))


def constant(rate: float, count: int, shape: Shape = SHORT) -> Workload:
    return retimed(made_up("w", shape, num_arrivals=count, seed=1), Process(rate=rate, cv=0.0), 1)


def closed(users: int, count: int, shape: Shape = SHORT) -> Workload:
    return dataclasses.replace(made_up("w", shape, num_arrivals=count, seed=1), concurrency=users)


async def at_once(asked: Asked) -> None:
    for number in range(asked.body["max_tokens"]):
        await asked.token(number)
    length = len(asked.body.get("prompt", ()))
    await asked.end(prompt_tokens=length, completion_tokens=4, prompt_tokens_details={"cached_tokens": 16})


async def played(
    workload: Workload, answer: Callable[[Asked], Awaitable[None]], plan: RunPlan = PLAN, *, extends: bool = True
) -> tuple[Run, StubServer]:
    async with serving(answer) as stub:
        return await run(workload, Server(url=stub.url, extends=extends, api_key="k"), plan), stub


async def test_what_is_asked() -> None:
    workload = constant(200.0, 5)
    done, stub = await played(workload, at_once)
    assert done.model == "stub"
    for arrival, asked in zip(workload, stub.asked, strict=True):
        turn = arrival.turns[0]
        assert asked.path == "/v1/completions"
        assert asked.headers["authorization"] == "Bearer k"
        assert asked.body == {
            "model": "stub",
            "prompt": [*tokens_of(turn, workload.piece_tokens, seed=1, vocabulary=WORDS)],
            "max_tokens": 4,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "return_token_ids": True,
        }
    assert {record.request_id for record in done.records} == {asked.headers["x-request-id"] for asked in stub.asked}


async def test_plain_asks_with_openais_fields_alone() -> None:
    _, stub = await played(constant(200.0, 1), at_once, extends=False)
    assert set(stub.asked[0].body) == {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options"}


async def test_every_request_has_one_record_and_the_servers_counts() -> None:
    done, _ = await played(constant(200.0, 20), at_once)
    assert sorted(record.arrival for record in done.records) == [*range(20)]
    for record in done.records:
        assert record.is_answered
        assert (record.output_tokens, record.wanted_tokens, record.cached_tokens) == (4, 4, 16)
        assert 20 <= record.input_tokens <= 40
        assert record.sent_s >= record.intended_s
    assert done.summary.all_attained.good == done.summary.requests == 20


async def test_measures_are_not_below_what_the_server_waited() -> None:
    async def slowly(asked: Asked) -> None:
        await asyncio.sleep(0.15)
        for number in range(4):
            await asked.token(number)
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # after the last token: part of no measure
        await asked.end()

    done, _ = await played(constant(50.0, 3), slowly)
    for record in done.records:
        assert record.ttft_s is not None
        assert record.e2e_s is not None
        assert record.tpot_s is not None
        assert record.ttft_s >= 0.15
        assert len(record.gaps_s) == 3
        assert record.tpot_s == pytest.approx((record.e2e_s - record.ttft_s) / 3)
        assert record.tpot_s == pytest.approx(sum(record.gaps_s) / 3)
        assert record.e2e_s >= 0.15 + 3 * 0.05 - 0.005


async def test_open_loop_does_not_wait_for_answers() -> None:
    everybody = asyncio.Event()

    async def together(asked: Asked) -> None:
        if len(stub.asked) == 10:
            everybody.set()
        await everybody.wait()  # until all ten are there: a client that waited for an answer would send no second
        await at_once(asked)

    async with serving(together) as stub:
        done = await run(constant(500.0, 10), Server(url=stub.url), PLAN)
    assert stub.most_running == 10
    assert all(record.is_answered for record in done.records)


async def test_a_server_that_stalls_shows_in_the_percentiles() -> None:
    """Of 100 requests in 1 s, those of the first half second meet a server that answers one at a time, then not at all.

    Who measures from sending, and sends when the server has time, sees a single slow request: that is coordinated
    omission. Here each request that was due meanwhile has waited.
    """
    stall_s, one_at_a_time = 1.0, asyncio.Lock()

    async def stalling(asked: Asked) -> None:
        async with one_at_a_time:
            if len(stub.asked) >= 20 and not stalled:
                stalled.append(True)
                await asyncio.sleep(stall_s)
        await at_once(asked)

    stalled: list[bool] = []
    async with serving(stalling) as stub:
        done = await run(constant(100.0, 100), Server(url=stub.url), PLAN)
    waited = [record.ttft_s for record in done.records if record.ttft_s is not None]
    assert len(waited) == 100
    # The stall begins with the 20th request at the latest, and the 80 behind it are due within 0.8 s of it: all wait.
    assert sum(ttft_s > 0.15 for ttft_s in waited) > 60
    told = done.summary.measures["ttft"]
    assert told is not None
    assert told.p99 > 900
    assert told.p50 > 300


async def test_a_client_that_is_late_counts_from_when_a_request_was_due() -> None:
    """The process itself is busy for half a second: what it should have sent meanwhile is late, and says so."""

    async def blocking(asked: Asked) -> None:
        if len(stub.asked) == 5:
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                pass
        await at_once(asked)

    async with serving(blocking) as stub:
        done = await run(constant(100.0, 40), Server(url=stub.url), PLAN)
    late = [record for record in done.records if record.late_s > 0.1]
    assert late  # how many depends on how far the others had come
    assert all(record.ttft_s is not None and record.ttft_s >= record.late_s for record in late)
    assert any("the client is slow" in warning for warning in done.warnings())
    assert any("the client was busy" in warning for warning in done.warnings())


async def test_a_closed_loop_has_so_many_at_once() -> None:
    async def slowly(asked: Asked) -> None:
        await asyncio.sleep(0.02)
        await at_once(asked)

    done, stub = await played(closed(3, 30), slowly)
    assert stub.most_running == 3
    assert sorted(record.arrival for record in done.records) == [*range(30)]
    assert all(record.is_answered for record in done.records)


async def test_the_window_ends_behind_the_last_turn_where_no_duration_is_given() -> None:
    done, _ = await played(constant(100.0, 3, SESSIONS), at_once)
    assert done.summary.requests == len(done.records) == 9


async def test_the_window_ends_with_what_there_was_to_ask_where_that_is_before_the_duration() -> None:
    plan = RunPlan(objectives=PLAN.objectives, duration_s=1000.0)
    done, _ = await played(constant(100.0, 3, SESSIONS), at_once, plan)
    last_s = max(record.intended_s for record in done.records)
    assert last_s < done.summary.window.until_s < last_s + 1e-6
    done, _ = await played(until(constant(100.0, 3), 1000.0), at_once, plan)
    assert done.summary.window.until_s < 0.1
    done, _ = await played(closed(2, 6), at_once, plan)
    assert done.summary.requests == 6
    assert done.summary.window.until_s < 60.0
    short = RunPlan(objectives=PLAN.objectives, duration_s=0.5)
    for asked in (constant(100.0, 100), until(constant(100.0, 100), 0.5)):
        done, _ = await played(asked, at_once, short)
        assert (done.summary.requests, done.summary.window.until_s) == (50, 0.5)


async def test_turns_that_are_due_behind_the_end_are_not_asked() -> None:
    plan = RunPlan(objectives=PLAN.objectives, duration_s=0.5)
    shape = Shape(input=Lengths(16, 16), output=Lengths(4, 4), turns=Lengths(3, 3), think_s=1000.0)
    done, _ = await played(constant(100.0, 3, shape), at_once, plan)
    assert {record.turn for record in done.records} == {0}
    assert done.summary.window.until_s == 0.5


async def test_a_closed_loop_ends_with_its_time() -> None:
    async def slowly(asked: Asked) -> None:
        await asyncio.sleep(0.05)
        await at_once(asked)

    plan = RunPlan(objectives=PLAN.objectives, duration_s=0.4, warmup_s=0.1)
    done, _ = await played(closed(2, 10**9), slowly, plan)
    assert 2 <= len(done.records) <= 2 * 8 + 2
    assert (done.summary.window.from_s, done.summary.window.until_s) == (0.1, 0.4)
    assert done.summary.requests == sum(0.1 <= record.intended_s < 0.4 for record in done.records)


SESSIONS = Shape(
    input=Lengths(16, 16), output=Lengths(4, 4), turns=Lengths(3, 3), later_input=Lengths(5, 5), think_s=0.01
)


async def test_a_turn_has_what_was_said_before_it() -> None:
    workload = constant(100.0, 2, SESSIONS)
    done, stub = await played(workload, at_once)
    assert [(record.arrival, record.turn) for record in sorted(done.records, key=lambda r: (r.arrival, r.turn))] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip
    by_id = {asked.headers["x-request-id"].split("-", 2)[2]: asked.body["prompt"] for asked in stub.asked}
    for number, arrival in enumerate(workload):
        own = [[*tokens_of(turn, 16, seed=1, vocabulary=WORDS)] for turn in arrival.turns]
        answer = [0, 1, 2, 3]
        assert by_id[f"{number}-0"] == own[0]
        assert by_id[f"{number}-1"] == own[0] + answer + own[1]
        assert by_id[f"{number}-2"] == own[0] + answer + own[1] + answer + own[2]


async def test_a_turn_is_due_when_its_user_has_thought() -> None:
    done, _ = await played(constant(100.0, 3, SESSIONS), at_once)
    by_turn = {(record.arrival, record.turn): record for record in done.records}
    for number, arrival in enumerate(constant(100.0, 3, SESSIONS)):
        for turn in (1, 2):
            before, record = by_turn[number, turn - 1], by_turn[number, turn]
            assert before.last_s is not None
            assert record.intended_s >= before.last_s + arrival.turns[turn].think_s


async def test_tokens_that_a_server_does_not_name_are_made_up() -> None:
    _, stub = await played(constant(100.0, 1, SESSIONS), at_once, extends=False)
    first, second, third = (asked.body["prompt"] for asked in stub.asked)
    assert (len(first), len(second), len(third)) == (16, 25, 34)
    assert second[:16] == first
    assert third[:25] == second


async def test_texts_and_chats_carry_what_was_said() -> None:
    turns = (Turn(input_tokens=2, output_tokens=2, text="Hello."), Turn(input_tokens=2, output_tokens=2, text="Why?"))
    workload = Workload(name="w", source=lambda: [Arrival(at_s=0.0, turns=turns)])
    _, stub = await played(workload, at_once)
    assert [asked.body["prompt"] for asked in stub.asked] == ["Hello.", "Hello. t0 t1Why?"]
    chat = RunPlan(objectives=PLAN.objectives, is_chat=True)
    done, stub = await played(workload, at_once, chat)
    assert stub.asked[1].path == "/v1/chat/completions"
    assert [(each["role"], each["content"]) for each in stub.asked[1].body["messages"]] == [
        ("user", "Hello."), ("assistant", " t0 t1"), ("user", "Why?"),
    ]  # fmt: skip
    assert [record.is_answered for record in done.records] == [True, True]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_reasoning_is_tokens_too(name: str) -> None:
    async def thinking(asked: Asked) -> None:
        await asked.send({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for _ in range(2):
            await asked.send({"choices": [{"index": 0, "delta": {name: " so"}}]})
        await asyncio.sleep(0.2)
        await asked.token(0)
        await asked.end()

    plan = RunPlan(objectives=PLAN.objectives, is_chat=True)
    (record,) = (await played(constant(200.0, 1), thinking, plan, extends=False))[0].records
    assert record.ttft_s is not None
    assert record.e2e_s is not None
    assert record.ttft_s < record.e2e_s, "the first token is one of reasoning"
    assert record.output_tokens == 3


async def test_pieces_become_words_in_a_chat_and_equal_ones_equal_words() -> None:
    turns = [Turn(input_tokens=20, output_tokens=1, pieces=(7, last)) for last in (8, 9)]
    source = [Arrival(at_s=0.0, turns=(turn,)) for turn in turns]
    chat = RunPlan(objectives=PLAN.objectives, is_chat=True)
    _, stub = await played(Workload(name="w", source=lambda: source, piece_tokens=16), at_once, chat)
    one, two = (asked.body["messages"][0]["content"].split() for asked in stub.asked)
    assert (len(one), len(two)) == (20, 20)
    assert one[:16] == two[:16]
    assert one[16:] != two[16:]


async def refuse(asked: Asked) -> None:
    asked.writer.write(b"HTTP/1.1 503 No\r\ncontent-length: 4\r\nconnection: close\r\n\r\nfull")
    await asked.writer.drain()


async def break_off(asked: Asked) -> None:
    await asked.token(0)
    asked.writer.close()


async def say_error(asked: Asked) -> None:
    await asked.token(0)
    await asked.send({"error": {"message": "the pod is gone"}})


async def say_nonsense(asked: Asked) -> None:
    await asked.send("{")


async def say_nothing(asked: Asked) -> None:
    await asked.end()


async def be_silent(asked: Asked) -> None:
    await asked.token(0)
    await asyncio.sleep(60)


async def leave(asked: Asked) -> None:
    asked.writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "error", "detail"),
    [
        (refuse, "http_503", "full"),
        (break_off, "stream", "without"),
        (say_error, "stream", "the pod is gone"),
        (say_nonsense, "stream", "not JSON"),
        (say_nothing, "no_tokens", "no tokens"),
        (be_silent, "timeout", "longer than 2 s"),
        (leave, "connection", ""),
    ],
)
async def test_what_fails_is_named_and_not_good(
    answer: Callable[[Asked], Awaitable[None]], error: str, detail: str
) -> None:
    timeout_s = 2.0 if error == "timeout" else 60.0  # the others are to fail by themselves, or not at all
    plan = RunPlan(objectives=parse_objectives(""), timeout_s=timeout_s)

    async def sometimes(asked: Asked) -> None:
        await (answer if len(stub.asked) % 2 else at_once)(asked)

    async with serving(sometimes) as stub:
        done = await run(constant(100.0, 6), Server(url=stub.url), plan)
    assert done.summary.failures == {error: 3}
    assert (done.summary.all_attained.good, done.summary.all_attained.total) == (3, 6)
    assert all(detail in record.detail for record in done.records if record.error)
    assert any(f"3 requests failed: {error}" in warning for warning in done.warnings())


async def test_a_session_ends_with_the_turn_that_fails() -> None:
    async def second_fails(asked: Asked) -> None:
        await (at_once if len(stub.asked) < 2 else refuse)(asked)

    async with serving(second_fails) as stub:
        done = await run(constant(100.0, 1, SESSIONS), Server(url=stub.url), PLAN)
    assert [(record.turn, record.error) for record in done.records] == [(0, ""), (1, "http_503")]


async def test_nobody_there_is_an_error() -> None:
    async with serving(at_once) as stub:
        url = stub.url
    with pytest.raises(Unavailable, match="does not say what it serves"):
        await run(constant(100.0, 1), Server(url=url), PLAN)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
async def test_records_come_back_as_they_were(tmp_path: Path, ending: str) -> None:
    done, _ = await played(constant(100.0, 5, SESSIONS), at_once)
    path = tmp_path / f"records.{ending}"
    with record_file(path) as add:
        for record in done.records:
            add(record)
    assert read_records(path) == [*done.records]


def test_a_row_of_an_earlier_version_is_a_record_and_one_without_its_moments_is_refused_by_name() -> None:
    told = Record(
        arrival=1, turn=0, intended_s=1.0, sent_s=1.0, first_s=1.5, last_s=2.0, gaps_s=(0.5,),
        input_tokens=3, output_tokens=2, wanted_tokens=2,
    )  # fmt: skip
    row = row_of(told)
    for name in ("cached_tokens", "ttft_parts_s", "ended_s", "error", "detail", "session", "request_id"):
        del row[name]
    assert record_of(row) == told
    with pytest.raises(ValueError, match="ended_s is not a number"):
        record_of(row | {"ended_s": "late"})
    del row["first_s"]
    with pytest.raises(ValueError, match="no first_s"):
        record_of(row)


async def test_the_table_and_the_json_say_the_same() -> None:
    done, _ = await played(constant(100.0, 10), at_once)
    told = done.as_json(seed=1)
    lines = [*table(done.summary)]
    assert told["attainment"]["good"] == 10
    assert f"{told['ttft_ms']['p99']:.1f}" in lines[1]
    assert any("10 of 10" in line for line in lines)
    assert told["machine"]["cores"] > 0
    assert told["versions"].keys() >= {"python", "pagewire", "httpx"}


def test_vocabularies_are_checked() -> None:
    with pytest.raises(ValueError, match="are none"):
        Vocabulary(low=5, high=5)
