"""Whatever bytes come through the gRPC door, each call ends, by name, and the router serves on.

Messages are made from the service's descriptor, so calls and fields to come are fuzzed too. Pods are fakes: that
engines stand what gets through is not proven here.
"""

from __future__ import annotations

import asyncio
import os
from random import Random

import grpc
import pytest
from fake_pod import FakePod
from fuzz_messages import mutated_often, random_message, spoiled
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from router_rig import RunningRouter, StartRouter, eventually

from pagewire.core.messages import Role
from pagewire.protos import inference_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Inference"]
AT_ONCE = 16
TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
WAIT_S = 30.0
# What gets through is answered, so that fuzz gets behind the first check.
GOOD: dict[str, Message] = {
    "Generate": pb.GenerateRequest(text="hello world", sampling=pb.Sampling(max_tokens=4, n=2, temperature=0.5)),
    "Tokenize": pb.TokenizeRequest(text="hello world"),
}
# Nobody here knows how the model writes calls, so these are refused, however they are changed, or answered without.
CALLING = pb.GenerateRequest(
    chat=pb.ChatPrompt(
        messages=[
            pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(id="a", name="now", arguments="{}")]),
            pb.ChatMessage(role="tool", content="12:00", tool_call_id="a"),
        ],
        tools=[pb.Tool(name="now", description="the time", parameters='{"type": "object"}', strict=True)],
        tool_choice=pb.ToolChoice(mode="auto"),
    ),
    sampling=pb.Sampling(max_tokens=4),
)
NAMED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
WATCH_S = 0.05


@pytest.mark.parametrize("method", [*SERVICE.methods], ids=lambda method: method.name)
@pytest.mark.parametrize("seed", range(3))
async def test_every_call_ends_by_name_and_the_router_serves_on(
    start: StartRouter, method: MethodDescriptor, seed: int
) -> None:
    random = Random(f"{method.name} {seed}")
    pods = FakePod("c0"), FakePod("p0", role=Role.PREFILL)
    # What is told for a time alone ends with it.
    good = grpc.StatusCode.DEADLINE_EXCEEDED if method.name == "SubscribeKvEvents" else grpc.StatusCode.OK
    async with start(*pods, watch_s=WATCH_S) as router, grpc.aio.insecure_channel(router.addresses["grpc"]) as channel:
        codes = set()
        for _ in range(20 * TIMES):
            requests = [_request(method, random) for _ in range(AT_ONCE)]
            async with asyncio.timeout(WAIT_S):
                answers = await asyncio.gather(*(_code(channel, method, data) for data in requests))
            for data, code in zip(requests, answers, strict=True):
                assert code in {good, *NAMED}, f"{method.name} of {data!r} ended {code}"
            codes |= set(answers)
        assert {good, grpc.StatusCode.INVALID_ARGUMENT} <= codes
        await _serves_on(router, pods[0])


def _request(method: MethodDescriptor, random: Random) -> bytes:
    good = GOOD.get(method.name, random_message(method.input_type, Random(0)))
    if method.name == "Generate" and random.random() < 0.3:
        good = CALLING
    message = random_message(method.input_type, random) if random.random() < 0.4 else mutated_often(good, random)
    return spoiled(message.SerializeToString(), random)


async def _code(channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes) -> grpc.StatusCode:
    """Make a call with these bytes and return how it ended."""
    name = f"/{SERVICE.full_name}/{method.name}"
    if not method.server_streaming:
        unary: grpc.aio.UnaryUnaryCall[bytes, bytes] = channel.unary_unary(name)(data)  # type: ignore[arg-type]
        return await unary.code()
    stream: grpc.aio.UnaryStreamCall[bytes, bytes] = channel.unary_stream(name)(data)  # type: ignore[arg-type]
    while True:
        try:
            if await stream.read() is grpc.aio.EOF:
                return await stream.code()
        except grpc.aio.AioRpcError as error:
            return error.code()


async def _serves_on(router: RunningRouter, pod: FakePod) -> None:
    answers = [answer async for answer in router.rpc.Generate(GOOD["Generate"])]
    assert [ending.finish_reason for ending in answers[-1].complete.endings] == ["length", "length"]
    assert (await router.rpc.Tokenize(GOOD["Tokenize"])).token_ids

    async def is_idle() -> bool:
        return pod.running == 0 and await router.metric("pagewire_router_requests_active") == 0

    await eventually(is_idle)
