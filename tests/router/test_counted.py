"""Every request is counted, whichever door it came by and wherever it ended."""

from __future__ import annotations

import logging

import grpc
import pytest
from fake_pod import FakePod
from router_rig import RunningRouter, StartRouter

from pagewire.protos import inference_pb2 as pb

MISSED = 'result="missed",slo="availability"} '
WRONG_TOOL = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="x")], tools=[pb.Tool(name="!!")])


async def code_of(router: RunningRouter, request: pb.GenerateRequest) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in router.rpc.Generate(request):
            pass
    return refused.value.code()


async def test_what_is_refused_before_it_runs_is_counted(start: StartRouter) -> None:
    async with start(FakePod("d0"), max_concurrent=2) as router:
        bodies: tuple[dict[str, object], ...] = (
            {"prompt": ["a", "b", "c"]},
            {"prompt": ["a", "b"], "temperature": -1},
            {"prompt": "a", "temperature": -1},
            {"prompt": 5},
        )
        for count, body in enumerate(bodies, 1):
            assert (await router.http.post("/v1/completions", json=body)).status_code == 400
            assert await router.metric("pagewire_router_requests_total") == count
        assert await code_of(router, pb.GenerateRequest(chat=WRONG_TOOL)) is grpc.StatusCode.INVALID_ARGUMENT
        assert await router.metric("pagewire_router_requests_total") == len(bodies) + 1


async def test_before_the_first_pod_each_request_misses_availability_by_either_door(start: StartRouter) -> None:
    async with start(placement_wait_s=0.1) as router:
        assert (await router.complete("hello")).status_code == 503
        assert f"{MISSED}1.0" in (await router.http.get("/metrics")).text
        assert await code_of(router, pb.GenerateRequest(text="hello")) is grpc.StatusCode.UNAVAILABLE
        assert f"{MISSED}2.0" in (await router.http.get("/metrics")).text


async def test_nobody_seems_to_go_away_who_was_answered_several_prompts(
    start: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with start(FakePod("d0")) as router:
        for _ in range(8):
            answer = await router.complete(["a", "b", "c"], stream=True)
            assert answer.text.endswith("[DONE]\n\n")
    assert [record for record in caplog.records if "went away" in record.getMessage()] == []
