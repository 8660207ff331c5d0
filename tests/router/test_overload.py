"""A real router before fake pods that are full, slow to come free, or fail: who waits, who is refused and with what.

Fake pods report what a test sets, and a heartbeat is a twentieth of a second: so the queue, its order and its answers
are shown end to end. Whether a real pod's blocks are what it says is shown elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import secrets
import socket
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import raw_stream
from fake_pod import FakePod
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from router_rig import RunningRouter, StartRouter, eventually, leap

from pagewire.core.errors import Draining, InvalidRequest, Overloaded, PagewireError, PodLost, UnsupportedField
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.protos import inference_pb2 as pb
from pagewire.router import dispatch
from pagewire.router.ask import Ask
from pagewire.router.concurrency_limit import ConcurrencyLimit
from pagewire.router.config import SloGateMode
from pagewire.router.dispatch import Dispatcher
from pagewire.router.events import Chunk, Event
from pagewire.router.keys import KEY_BYTES, NewKey
from pagewire.router.request_counts import RequestCounts, Tokens
from pagewire.router.slo_gate import SloJudge
from pagewire.router.tenants import Tenant
from pagewire.router.turns import Turn, Turns

PROMPT = list(range(3, 35))  # two blocks
ANSWER = 16  # one block more
FULL = Load(blocks_total=100, blocks_free=2, num_running=1)
ROOM = Load(blocks_total=100, blocks_free=90, num_running=1)


async def ask(router: RunningRouter, prompt: object = PROMPT, **fields: object) -> httpx.Response:
    return await router.complete(prompt, **{"max_tokens": ANSWER, "ignore_eos": True, **fields})


async def waiting(router: RunningRouter, count: int) -> None:
    async def is_so() -> bool:
        return await router.metric("pagewire_router_requests_waiting") == count

    await eventually(is_so)


def refused(response: httpx.Response) -> float:
    assert response.status_code == 429, response.text
    assert response.json()["error"]["code"] == "overloaded"
    return float(response.headers["retry-after"])


async def test_a_request_waits_for_room_and_is_served_when_there_is_some(start: StartRouter) -> None:
    pod = FakePod("d0")
    pod.load = FULL
    async with start(pod) as router:
        await router.has_heard()
        running = asyncio.create_task(ask(router))
        await waiting(router, 1)
        assert pod.submits == []
        pod.load = ROOM
        assert (await running).status_code == 200
        assert await router.metric("pagewire_router_requests_waiting") == 0
        assert await router.metric("pagewire_router_queue_wait_seconds_count") == 1


async def test_what_is_promised_counts_before_any_report_shows_it(start: StartRouter) -> None:
    pod = FakePod("d0")
    pod.load = has_room = Load(blocks_total=100, blocks_free=5, num_running=1)
    pod.hold_at = 0
    async with start(pod) as router:
        await router.has_heard()
        first = asyncio.create_task(ask(router))
        await pod.until(lambda: pod.running == 1)
        pod.load = FULL  # as a report shows it that comes before the second request does: on a busy machine one may
        second = asyncio.create_task(ask(router))
        await waiting(router, 1)
        assert len(pod.submits) == 1
        pod.load = has_room
        pod.release()
        assert [(await each).status_code for each in (first, second)] == [200, 200]


async def test_without_a_limit_the_pods_decide(start: StartRouter) -> None:
    pod = FakePod("d0")
    pod.load = FULL
    async with start(pod, kv_limit=False) as router:
        await router.has_heard()
        assert (await ask(router)).status_code == 200


async def test_a_wait_that_is_over_is_429_with_a_time_to_come_back(start: StartRouter) -> None:
    pod = FakePod("d0")
    pod.load = FULL
    async with start(pod, max_wait_s=0.05) as router:
        await router.has_heard()
        assert refused(await ask(router)) >= 1
        text = (await router.http.get("/metrics")).text
        assert 'pagewire_router_refusals_total{reason="queue_wait"} 1.0' in text
        assert pod.submits == []


async def test_a_full_queue_is_429_with_a_time_to_come_back_at_both_doors(start: StartRouter) -> None:
    pod = FakePod("d0")
    pod.load = FULL
    async with start(pod, max_waiting=1) as router:
        await router.has_heard()
        running = asyncio.create_task(ask(router))
        await waiting(router, 1)
        assert 1 <= refused(await ask(router)) <= 60
        request = pb.GenerateRequest(text="hello " * 20, sampling=pb.Sampling(max_tokens=50))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            [answer async for answer in router.rpc.Generate(request)]
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = rpc_status.from_call(raised.value)
        info = error_details_pb2.RetryInfo()
        assert any(detail.Unpack(info) for detail in status.details)
        assert 1 <= info.retry_delay.seconds <= 60
        assert 'pagewire_router_refusals_total{reason="queue_full"} 2.0' in (await router.http.get("/metrics")).text
        assert pod.submits == []
        pod.load = ROOM
        assert (await running).status_code == 200


async def test_a_pod_that_has_room_is_taken_and_the_full_one_is_not(start: StartRouter) -> None:
    full, free = FakePod("d0"), FakePod("d1")
    full.load, free.load = FULL, ROOM
    async with start(full, free, policy="round_robin") as router:
        await router.has_heard()
        assert [(await ask(router)).status_code for _ in range(4)] == [200] * 4
        assert (len(full.submits), len(free.submits)) == (0, 4)


@pytest.mark.parametrize(
    ("small", "is_busy", "fields", "takes"),
    [
        (2, False, {}, False),
        (3, False, {}, True),
        (3, False, {"n": 2}, False),
        (4, False, {"n": 2}, True),
        (5, False, {"n": 2, "use_beam_search": True, "temperature": 0}, False),
        (6, False, {"n": 2, "use_beam_search": True, "temperature": 0}, True),
        (2, True, {}, False),
    ],
)
async def test_a_pool_that_could_never_hold_a_request_is_not_asked_where_another_could(
    start: StartRouter, small: int, is_busy: bool, fields: dict[str, Any], takes: bool
) -> None:
    """A prompt of two blocks with an answer of one more, or of one for each; beams want another one each to spare."""
    pods = FakePod("d0"), FakePod("d1")
    pods[0].load, pods[1].load = Load(blocks_total=small, blocks_free=small), (FULL if is_busy else ROOM)
    async with start(*pods, policy="round_robin") as router:
        await router.has_heard()
        asked = [asyncio.create_task(ask(router, **fields)) for _ in range(4)]
        if is_busy:  # to wait for the one that could is better than to be refused
            await waiting(router, 4)
            pods[1].load = ROOM
        assert [(await each).status_code for each in asked] == [200] * 4
        assert (len(pods[0].submits) > 0) == takes


async def test_a_pool_that_is_too_small_is_asked_where_there_is_no_other(start: StartRouter) -> None:
    large, small = FakePod("d0"), FakePod("d1")
    large.load, small.load = ROOM, Load(blocks_total=2, blocks_free=2)
    large.refusal = PodLost("gone")
    async with start(large, small) as router:
        await router.has_heard()
        assert (await ask(router)).status_code == 200
        assert (len(large.submits), len(small.submits)) == (1, 1)


TOO_MUCH = InvalidRequest("the prompt does not fit the KV pool together", field="prompt")


async def test_what_is_too_much_for_one_pool_is_for_a_larger_one(start: StartRouter) -> None:
    """A pod knows better what it needs than whoever counts blocks: with a window, say, or in parts."""
    small, large = [FakePod(f"d{number}") for number in range(4)], FakePod("e0")
    large.load = ROOM
    for pod in small:
        pod.load, pod.refusal = replace(ROOM, blocks_total=99), TOO_MUCH
    async with start(*small, large, policy="round_robin", max_attempts=2, retry_burst=0, retry_ratio=0.0) as router:
        await router.has_heard()
        assert [(await ask(router)).status_code for _ in range(5)] == [200] * 5
        assert len(large.submits) == 5
        assert any(pod.submits for pod in small), "who takes turns was asked"


@pytest.mark.parametrize(
    ("refusal", "num_asked"),
    [
        *((InvalidRequest("too much", field=field), 3) for field in ("prompt", "max_tokens", "n")),
        (InvalidRequest("the grammar cannot be compiled", field="response_format"), 1),
        (InvalidRequest("no field is to blame"), 1),
        (UnsupportedField("no such adapter", field="adapter"), 1),
    ],
)
async def test_larger_pools_are_asked_for_what_was_too_much_alone_and_not_all_of_them(
    start: StartRouter, refusal: InvalidRequest, num_asked: int
) -> None:
    pods = [FakePod(f"d{number}") for number in range(6)]
    for number, pod in enumerate(pods):
        # The first has the least to do.
        pod.load = replace(ROOM, blocks_total=100 + number, num_running=number)
        pod.refusal = refusal
    async with start(*pods, max_attempts=3) as router:
        await router.has_heard()
        answer = await ask(router)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, refusal.message)
        assert [len(pod.submits) for pod in pods] == [1] * num_asked + [0] * (6 - num_asked)


async def test_what_is_wrong_is_told_though_another_pod_had_no_room(start: StartRouter) -> None:
    busy, other = FakePod("d0"), FakePod("d1")
    busy.load, other.load = ROOM, replace(ROOM, num_running=1)
    busy.refusal = Overloaded("no room", retry_after_s=7.0)
    other.refusal = InvalidRequest("the grammar cannot be compiled", field="response_format")
    async with start(busy, other) as router:
        await router.has_heard()
        answer = await ask(router)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, other.refusal.message)
        assert [len(pod.submits) for pod in (busy, other)] == [1, 1]


@pytest.mark.parametrize("earlier", [None, Overloaded("no room", retry_after_s=7.0), PodLost("gone")])
async def test_what_is_too_much_for_the_largest_is_wrong_unless_another_had_no_time(
    start: StartRouter, earlier: PagewireError | None
) -> None:
    large, small = FakePod("d0"), FakePod("d1")
    large.load, small.load = ROOM, replace(ROOM, blocks_total=2)
    large.refusal, small.refusal = earlier or TOO_MUCH, TOO_MUCH
    async with start(large, small) as router:
        await router.has_heard()
        answer = await ask(router)
        assert answer.json()["error"]["code"] == (earlier or TOO_MUCH).cause
        assert (len(large.submits), len(small.submits)) == (1, 0 if earlier is None else 1)


async def test_when_every_pod_refuses_it_is_429(start: StartRouter) -> None:
    pods = FakePod("d0"), FakePod("d1")
    for pod in pods:
        pod.refusal = Overloaded("no room", retry_after_s=7.0)
    async with start(*pods) as router:
        assert refused(await ask(router)) == 7
        assert [len(pod.submits) for pod in pods] == [1, 1]


async def test_the_more_urgent_goes_first_and_takes_the_place_of_the_least(start: StartRouter) -> None:
    pod = FakePod("d0")
    pod.load = FULL
    async with start(pod, max_waiting=3) as router:
        await router.has_heard()
        running = []
        for count, priority in enumerate((5, -5, 0)):
            running.append(asyncio.create_task(ask(router, priority=priority)))
            await waiting(router, count + 1)
        running.append(asyncio.create_task(ask(router, priority=-9)))
        refused(await running[0])
        pod.load = ROOM
        assert [(await each).status_code for each in running[1:]] == [200] * 3
        assert [submit.spec.priority for submit in pod.submits] == [-9, -5, 0]
        assert 'refusals_total{reason="overtaken"} 1.0' in (await router.http.get("/metrics")).text


async def test_who_goes_away_while_it_waits_leaves_the_queue(start: StartRouter) -> None:
    pod = FakePod("d0")
    pod.load = FULL
    async with start(pod) as router:
        await router.has_heard()
        over_http = asyncio.create_task(ask(router))
        over_grpc = router.rpc.Generate(pb.GenerateRequest(text="hello " * 20, sampling=pb.Sampling(max_tokens=50)))
        await waiting(router, 2)
        over_http.cancel()
        over_grpc.cancel()
        await waiting(router, 0)
        pod.load = ROOM
        assert (await ask(router)).status_code == 200
        assert len(pod.submits) == 1
        assert await router.metric("pagewire_router_requests_active") == 0


async def test_a_deadline_ends_the_wait(start: StartRouter) -> None:
    pod = FakePod("d0")
    pod.load = FULL
    async with start(pod, request_timeout_s=0.2) as router:
        await router.has_heard()
        assert (await ask(router)).status_code == 504
        await waiting(router, 0)


async def test_a_large_answer_that_nobody_asked_for_is_not_set_aside(start: StartRouter) -> None:
    pod = FakePod("d0")
    pod.load = Load(blocks_total=100, blocks_free=5, num_running=1)
    pod.hold_at = 1
    async with start(pod, open_answer_tokens=16) as router:
        await router.has_heard()
        running = asyncio.create_task(router.http.post("/v1/chat/completions", json={
            "messages": [{"role": "user", "content": "hi"}], "stream": False,
        }))  # fmt: skip
        await pod.until(lambda: pod.running == 1)
        running.cancel()


async def test_a_pod_that_fails_is_kept_out_named_and_comes_back(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = FakePod("d0"), FakePod("d1")
    bad.refusal = PodLost("its engine is gone")
    async with start(bad, good, policy="round_robin", breaker_failures=3, eject_s=120.0) as router:
        for _ in range(8):
            assert (await ask(router)).status_code == 200
        assert len(bad.submits) == 3
        health = await router.http.get("/health")
        assert health.status_code == 200
        assert health.json()["ejected"] == {"d0@1": "failures_in_a_row"}
        assert health.json()["pods"]["colocated"] == 1
        assert await router.metric("pagewire_router_pods_ejected") == 1
        assert await router.metric("pagewire_router_ejections_total") == 1
        bad.refusal = None
        leap(monkeypatch, 120.0)
        await router.has(2)
        for _ in range(6):
            assert (await ask(router)).status_code == 200
        assert len(bad.submits) >= 3 + 2
        assert (await router.http.get("/health")).json()["ejected"] == {}


async def test_the_last_pod_is_never_kept_out_and_a_lost_link_is_one_failure(start: StartRouter) -> None:
    alone = FakePod("d0")
    alone.refusal = PodLost("its engine is gone")
    async with start(alone, breaker_failures=2, placement_wait_s=0.01) as router:
        for _ in range(4):
            assert (await ask(router)).status_code == 503
        alone.refusal = None
        assert (await ask(router)).status_code == 200
    first, second = FakePod("d0"), FakePod("d1")
    first.hold_at = second.hold_at = 1
    async with start(first, second, policy="round_robin", breaker_failures=2) as router:
        running = [asyncio.create_task(ask(router)) for _ in range(6)]
        await first.until(lambda: first.running == 3)
        await first.die()
        first.hold_at = None
        await first.start()
        second.release()
        assert [(await each).status_code for each in running] == [200] * 6
        await router.has(2)
        assert await router.metric("pagewire_router_ejections_total") == 0


async def test_a_prefill_pod_whose_shipments_are_lost_is_kept_out(start: StartRouter) -> None:
    decode = FakePod("d0", role=Role.DECODE)
    decode.causes = ("prefill_lost",)
    prefills = FakePod("p0", role=Role.PREFILL), FakePod("p1", role=Role.PREFILL)
    async with start(decode, *prefills, policy="round_robin", breaker_failures=2) as router:
        for _ in range(6):
            assert (await ask(router)).status_code == 200
        ejected = (await router.http.get("/health")).json()["ejected"]
        assert len(ejected) == 1
        assert set(ejected) < {"p0@1", "p1@1"}
        kept = {"p0", "p1"} - {name.split("@")[0] for name in ejected}
        assert {each.pod_id for each in decode.submits[-1].candidates} == kept


async def test_a_prefill_pod_is_not_kept_out_for_what_another_lost(start: StartRouter) -> None:
    decode = FakePod("d0", role=Role.DECODE)
    decode.causes, decode.lost_on = ("prefill_lost",), "p1"  # the first candidate refused, as one does that is busy
    async with start(decode, FakePod("p0", role=Role.PREFILL), breaker_failures=2) as router:
        for _ in range(6):
            assert (await ask(router)).status_code == 200
        assert (await router.http.get("/health")).json()["ejected"] == {}


def as_tenant(monkeypatch: pytest.MonkeyPatch, tenant: Tenant) -> None:
    """Have all requests come from one tenant."""
    answer = Dispatcher.answer

    def answered(self: Dispatcher, ask: Ask, *others: Any) -> AsyncGenerator[Event, None]:
        return answer(self, replace(ask, tenant=tenant), *others)

    monkeypatch.setattr(Dispatcher, "answer", answered)


async def test_a_tenant_pays_for_prompts_and_answers(start: StartRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    as_tenant(monkeypatch, Tenant(name="t", tokens_per_s=0.1, burst_tokens=100))
    entered: list[Tokens] = []
    monkeypatch.setattr(RequestCounts, "enter", lambda _counts, request: entered.append(request))
    monkeypatch.setattr(RequestCounts, "leave", lambda _counts, request: entered.remove(request))
    async with start(FakePod("d0")) as router:
        assert (await ask(router)).status_code == 200  # 48 of 100
        assert (await ask(router)).status_code == 200  # 96
        assert 180 <= refused(await ask(router)) <= 280  # 32 are needed, some 4 are there
        assert await router.metric("pagewire_router_refusals_total") == 1
        assert entered == []  # nobody counts as running who was refused


async def test_a_score_is_paid_for_by_its_prompt(start: StartRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    as_tenant(monkeypatch, Tenant(name="t", tokens_per_s=0.01, burst_tokens=100))
    async with start(FakePod("d0")) as router:
        for _ in range(3):  # each has one token drawn for each of its answers
            assert (await router.complete([5], n=60, max_tokens=0, echo=True)).status_code == 200


async def test_a_prompt_that_never_ran_is_not_paid_for(start: StartRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    as_tenant(monkeypatch, Tenant(name="t", tokens_per_s=0.01, burst_tokens=40))
    pod = FakePod("d0")
    pod.load = FULL
    async with start(pod, max_wait_s=0.05) as router:
        await router.has_heard()
        for _ in range(3):
            refused(await ask(router))
        pod.load = ROOM
        await router.has_heard()
        assert (await ask(router)).status_code == 200
        assert 'reason="queue_wait"} 3.0' in (await router.http.get("/metrics")).text


@pytest.mark.parametrize(
    "refusal", [Overloaded("no room", retry_after_s=1.0), Draining("it goes away"), InvalidRequest("", field="prompt")]
)
async def test_a_prompt_that_pods_refused_is_not_paid_for(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch, refusal: PagewireError
) -> None:
    as_tenant(monkeypatch, Tenant(name="t", tokens_per_s=0.01, burst_tokens=100))
    pods = FakePod("d0"), FakePod("d1")
    async with start(*pods) as router:
        for pod in pods:
            pod.refusal = refusal
        for _ in range(4):  # each prompt has 32 tokens
            assert (await ask(router)).json()["error"]["code"] == refusal.cause
        pods[0].refusal = None
        assert (await ask(router)).status_code == 200  # 48 of 100, whoever else was asked first
        for pod in pods:
            pod.refusal = PodLost("with what it had computed")
        assert (await ask(router)).status_code == 503  # 80
        assert "its tokens" in (await ask(router)).json()["error"]["message"]


async def test_who_takes_slowly_makes_no_pod_slow(start: StartRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    pod, answer = FakePod("d0"), Dispatcher.answer

    async def taken_late(dispatcher: Dispatcher, ask: Ask, *_others: Any) -> AsyncGenerator[Event, None]:
        num_chunks = 0
        async for event in answer(dispatcher, ask):
            yield event
            num_chunks += isinstance(event, Chunk)
            if num_chunks == 1 and isinstance(event, Chunk):
                await pod.until(lambda: pod.running == 0)
                await asyncio.sleep(0.2)  # all of it lies in the router
                leap(monkeypatch, 600.0)

    monkeypatch.setattr(Dispatcher, "answer", taken_late)
    async with start(pod, slo_tpot_s=1.0, slo_gate="shadow") as router:
        assert (await router.complete("hello", max_tokens=40, stream=True)).status_code == 200
        told = (await router.http.get("/metrics")).text
        assert re.search(r'^pagewire_router_slo_requests_total{.*result="met",slo="tpot"} 1.0$', told, re.MULTILINE)
        gaps = re.findall(r"^vllm:inter_token_latency_seconds_(sum|count){.*} (.+)$", told, re.MULTILINE)
        assert float(dict(gaps)["sum"]) < 60


async def test_a_tenant_has_so_many_requests_at_once(start: StartRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    as_tenant(monkeypatch, Tenant(name="t", max_concurrent=2))
    pod = FakePod("d0")
    pod.hold_at = 1
    async with start(pod) as router:
        running = [asyncio.create_task(ask(router)) for _ in range(2)]
        await pod.until(lambda: pod.running == 2)
        assert refused(await ask(router)) >= 1
        pod.release()
        assert [(await each).status_code for each in running] == [200, 200]
        assert (await ask(router)).status_code == 200


async def test_a_predicted_miss_is_refused_by_name_while_the_gate_is_active(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "READ_WITHIN", math.inf)  # it is not for how long they lay unread
    async with start(FakePod("d0"), slo_ttft_s=1e-9) as router:
        for _ in range(3):  # in shadow mode
            assert (await ask(router)).status_code == 200
        assert await router.metric("pagewire_router_slo_gate_active") == 0
        monkeypatch.setattr(SloJudge, "is_active", lambda _self, _now_s: True)
        assert (await ask(router)).status_code == 200  # a probe
        assert refused(await ask(router)) >= 1
        text = (await router.http.get("/metrics")).text
        assert 'slo_outcomes_total{actual="missed",predicted="missed",slo="ttft"} 4.0' in text
        assert 'refusals_total{reason="slo_ttft"} 1.0' in text
        assert 'slo_probes_total{slo="ttft"} 1.0' in text
        assert 'slo_gate_active{slo="ttft"} 1.0' in text


async def test_while_the_gate_is_active_who_would_wait_for_too_long_is_refused_unread_at_both_doors(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = FakePod("d0")
    async with start(pod, slo_ttft_s=1.0) as router:
        monkeypatch.setattr(Turns, "wait_s", 0.26)
        assert (await ask(router)).status_code == 200, "predictions have not proved right"
        monkeypatch.setattr(SloJudge, "is_active", lambda _self, _now_s: True)
        assert refused(await ask(router)) == 1
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            [answer async for answer in router.rpc.Generate(pb.GenerateRequest(text="hello"))]
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        text = (await router.http.get("/metrics")).text
        assert 'refusals_total{reason="slo_ttft"} 2.0' in text
        assert 'pagewire_router_requests_total{outcome="overloaded"} 2.0' in text
        assert len(pod.submits) == 1
        monkeypatch.setattr(Turns, "wait_s", 0.05)  # and what a busy machine takes to look at a request
        assert (await ask(router)).status_code == 200


async def test_with_as_many_in_as_made_others_late_more_are_refused_before_anything_is_done_for_them(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = FakePod("d0")
    async with start(pod, slo_ttft_s=60.0) as router:
        pod.hold_at = 0
        late = [asyncio.create_task(ask(router)) for _ in range(12)]
        await pod.until(lambda: pod.running == 12)
        leap(monkeypatch, 60.0)
        one_more = asyncio.create_task(ask(router))  # who comes is let in by what has become of others
        assert refused(await one_more) >= 1
        text = (await router.http.get("/metrics")).text
        assert 'refusals_total{reason="slo_concurrency"} 1.0' in text
        limit = float(
            text.split('pagewire_router_concurrency_limit{model="fake",of="waiting"} ', 1)[1].split("\n", 1)[0]
        )
        assert 1 <= limit <= 0.8 * 12
        assert (await router.http.post("/v1/completions", content=b"no JSON")).status_code == 429, "it was read"
        assert 'refusals_total{reason="slo_concurrency"} 2.0' in (await router.http.get("/metrics")).text
        assert len(pod.submits) == 12
        pod.release()
        assert [(await each).status_code for each in late] == [200] * 12
        assert (await ask(router)).status_code == 200


class HeldTurns:
    """Turns that nobody gets before `may_read`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_read, self.num_waiting = asyncio.Event(), 0
        self._take = Turns.take
        monkeypatch.setattr(Turns, "take", lambda turns, *arguments: self._waited(turns, *arguments))

    async def _waited(self, turns: Turns, *arguments: float) -> Turn:
        self.num_waiting += 1
        try:
            await self.may_read.wait()
        finally:
            self.num_waiting -= 1
        return await self._take(turns, *arguments)

    async def until(self, count: int) -> None:
        async def is_so() -> bool:
            return self.num_waiting == count

        await eventually(is_so)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldTurns:
    return HeldTurns(monkeypatch)


@pytest.mark.parametrize("bound", ["router", "limit"])
async def test_a_place_is_had_in_the_order_of_coming_and_not_of_being_read(
    start: StartRouter, held: HeldTurns, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Of those that wait to be read as many as there are places get one; who comes behind them hears so at once."""
    if bound == "limit":
        monkeypatch.setattr(ConcurrencyLimit, "is_reached", lambda limit, ahead=0: limit.inside + ahead >= 3)
    pod = FakePod("d0")
    async with start(pod, slo_ttft_s=30.0, **({"max_concurrent": 3} if bound == "router" else {})) as router:
        pod.hold_at = 0
        first = [asyncio.create_task(ask(router)) for _ in range(3)]
        await held.until(3)
        for _ in range(5):
            assert refused(await ask(router)) >= 1
        first.pop().cancel()  # who goes away leaves its place to the next
        await held.until(2)
        first.append(asyncio.create_task(ask(router)))
        await held.until(3)
        assert refused(await ask(router)) >= 1
        held.may_read.set()
        await pod.until(lambda: pod.running == 3)
        assert refused(await ask(router)) >= 1
        pod.release()
        assert [(await each).status_code for each in first] == [200] * 3
        assert (await ask(router)).status_code == 200


async def test_whose_body_comes_behind_others_comes_behind_them(start: StartRouter, held: HeldTurns) -> None:
    head, _, body = raw_stream.request().partition(b"\r\n\r\n")
    async with start(FakePod("d0"), max_concurrent=3) as router, contextlib.AsyncExitStack() as ends:
        url = router.http.base_url
        callers = []
        for _ in range(4):  # all of them begin while there is room for each
            reader, writer = await asyncio.open_connection(url.host, url.port)
            ends.callback(writer.close)
            writer.write(head + b"\r\n\r\n" + body[:1])
            callers.append((reader, writer))
        assert (await router.http.get("/health")).status_code == 200
        for number, (_, writer) in enumerate(callers[:3]):
            writer.write(body[1:])
            await held.until(number + 1)
        callers[3][1].write(body[1:])
        assert await callers[3][0].readexactly(12) == b"HTTP/1.1 429"
        held.may_read.set()
        for reader, _ in callers[:3]:
            assert await reader.readexactly(12) == b"HTTP/1.1 200"
            await raw_stream.read_whole(reader)


async def test_what_a_tenant_sends_beyond_its_bound_is_in_nobodys_way(
    start: StartRouter, held: HeldTurns, tmp_path: Path
) -> None:
    keys = {name: NewKey.of(secrets.token_bytes(KEY_BYTES)) for name in ("two", "other")}
    file = tmp_path / "keys.toml"
    file.write_text(
        f"[tenants.two]\nkeys = ['{keys['two'].line}']\nmax_concurrent = 2\n"
        f"[tenants.other]\nkeys = ['{keys['other'].line}']\n"
    )
    async with start(FakePod("d0"), max_concurrent=3, api_keys=str(file), open_metrics=True) as router:

        async def asked(name: str) -> httpx.Response:
            body = {"prompt": PROMPT, "max_tokens": ANSWER, "ignore_eos": True}
            headers = {"authorization": f"Bearer {keys[name].key}"}
            return await router.http.post("/v1/completions", json=body, headers=headers)

        first = [asyncio.create_task(asked("two")) for _ in range(2)]
        await held.until(2)
        for _ in range(5):
            assert refused(await asked("two")) >= 1
        first.append(asyncio.create_task(asked("other")))
        await held.until(3)
        assert refused(await asked("other")) >= 1
        text = (await router.http.get("/metrics")).text
        assert 'refusals_total{reason="tenant_concurrency"} 5.0' in text
        assert 'refusals_total{reason="router_full"} 1.0' in text
        held.may_read.set()
        assert [(await each).status_code for each in first] == [200] * 3


async def test_what_a_request_waits_for_in_the_kernel_while_the_router_has_others_to_look_after_is_its_time(
    start: StartRouter,
) -> None:
    async with start(FakePod("d0")) as router:
        url = router.http.base_url
        with socket.create_connection((url.host, url.port)) as caller:
            caller.sendall(raw_stream.request())
            time.sleep(0.3)  # noqa: ASYNC251
            assert await asyncio.to_thread(caller.recv, 12) == b"HTTP/1.1 200"
            while not await asyncio.to_thread(lambda: caller.recv(1 << 16).endswith(b"0\r\n\r\n")):
                pass
        assert 0.29 <= await router.metric("pagewire_router_time_to_first_token_seconds_sum") < 30.0


async def test_an_slo_that_is_off_or_shadowed_refuses_nothing(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SloJudge, "is_active", lambda _self, _now_s: True)
    monkeypatch.setattr(Turns, "wait_s", 60.0)
    for settings in ({"slo_gate": SloGateMode.SHADOW, "slo_ttft_s": 1e-9}, {}):
        async with start(FakePod("d0"), **settings) as router:
            assert [(await ask(router)).status_code for _ in range(3)] == [200] * 3


async def test_whoever_lost_its_pod_waits_for_room_on_another_and_goes_on(start: StartRouter) -> None:
    first, second = FakePod("d0"), FakePod("d1")
    first.hold_at, second.load = 5, FULL
    async with start(first, second, max_waiting=0) as router:
        await router.has_heard()
        sampling = pb.Sampling(max_tokens=ANSWER, ignore_eos=True)
        call = router.rpc.Generate(pb.GenerateRequest(tokens=pb.TokenPrompt(token_ids=PROMPT), sampling=sampling))
        got: list[int] = []
        while len(got) < 5:
            got += (await call.read()).chunk.token_ids
        await first.die()
        await waiting(router, 1)
        second.load = ROOM
        while (answer := await call.read()) is not grpc.aio.EOF:
            got += answer.chunk.token_ids
        assert got == PROMPT[:ANSWER]
        assert len(second.submits[0].spec.output) == 5


async def test_of_several_prompts_all_are_let_in_by_the_first_or_none_is(start: StartRouter, tmp_path: Path) -> None:
    key = NewKey.of(secrets.token_bytes(KEY_BYTES))
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[tenants.acme]\nkeys = ["{key.line}"]\noperator = true\ntokens_per_s = 0.001\nburst_tokens = 201')
    headers = {"authorization": f"Bearer {key.key}"}
    pod = FakePod("d0")
    pod.load, pod.hold_at = FULL, 0
    async with start(
        pod, api_keys=str(keys), open_metrics=True, headers=headers, max_waiting=1, max_wait_s=0.3
    ) as router:
        await router.has_heard(headers)
        refused(await ask(router, [PROMPT] * 4))  # 128 tokens, which it does not cost
        assert not pod.submits
        pod.load = one_at_a_time = replace(FULL, blocks_free=3)
        await router.has_heard(headers)
        several = asyncio.create_task(ask(router, [PROMPT] * 4, max_tokens=2))
        await pod.until(lambda: pod.running == 1)
        pod.load = FULL  # reports show the first one, or after two of them another would be let in beside it
        await waiting(router, 3)
        await asyncio.sleep(0.6)  # longer than one that is not let in may wait
        pod.load = one_at_a_time
        pod.hold_at = None
        pod.release()
        answer = await several
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["choices"]) == 4
        assert (len(pod.submits), pod.cancels) == (4, [])
