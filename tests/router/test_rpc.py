"""The gRPC door of a whole router before fake pods."""

from __future__ import annotations

import asyncio
import re

import byte_tokenizer
import grpc
import pytest
from fake_pod import FakePod, fingerprint
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status
from router_rig import PATIENT_S, RunningRouter, StartRouter, eventually, leap

from pagewire.client import AsyncClient
from pagewire.core.block_hash import BlockHash
from pagewire.core.engine_messages import CachedBlock
from pagewire.core.errors import DeadlineExceeded, EngineFailed, InvalidRequest, Overloaded
from pagewire.core.load import BrownoutLevel, Load
from pagewire.core.messages import Role
from pagewire.protos import inference_pb2 as pb

TOKENIZER = byte_tokenizer.build()


async def generate(router: RunningRouter, request: pb.GenerateRequest) -> tuple[list[pb.GenerateResponse], pb.Complete]:
    answers = [answer async for answer in router.rpc.Generate(request)]
    assert all(answer.WhichOneof("body") == "chunk" for answer in answers[:-1])
    return answers[:-1], answers[-1].complete


async def test_text_tokens_and_chats_generate(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.cached_tokens = 1
    text = "hello world"
    chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    async with start(pod) as router:
        sampling = pb.Sampling(max_tokens=40, ignore_eos=True)
        for request, prompt in (
            (pb.GenerateRequest(text=text), text),
            (pb.GenerateRequest(tokens=pb.TokenPrompt(token_ids=TOKENIZER.encode(text).ids)), text),
            (pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content=text)])), chat),
        ):
            request.sampling.CopyFrom(sampling)
            request.request_id = "mine"
            chunks, complete = await generate(router, request)
            ids = TOKENIZER.encode(prompt).ids
            want = [ids[i % len(ids)] for i in range(40)]
            assert [token for chunk in chunks for token in chunk.chunk.token_ids] == want
            assert "".join(chunk.chunk.text for chunk in chunks) == TOKENIZER.decode(want)
            assert all(chunk.request_id == "mine" for chunk in chunks)
            assert [ending.finish_reason for ending in complete.endings] == ["length"]
            assert list(complete.prompt_token_ids) == ids
            assert complete.usage == pb.Usage(prompt_tokens=len(ids), completion_tokens=40, cached_tokens=1)
            assert complete.transfer.decode_pod == "c0"
            assert [timeline.process for timeline in complete.timelines] == ["router", "c0"]
            assert complete.endings[0].WhichOneof("matched_stop") is None


async def test_unset_sampling_takes_openais_defaults(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        for _ in range(2):
            await generate(router, pb.GenerateRequest(text="hello"))
        await generate(router, pb.GenerateRequest(text="hello", sampling=pb.Sampling(seed=0, temperature=0.0)))
        first, second, third = (submit.spec.sampling for submit in pod.submits)
        assert (first.max_tokens, first.temperature, first.top_p, first.top_k) == (16, 1.0, 1.0, 0)
        assert first.seed != second.seed  # drawn
        assert (third.seed, third.temperature) == (0, 0.0)


async def test_what_stopped_it_is_named(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        sampling = pb.Sampling(max_tokens=400, stop=["wor"])
        chunks, complete = await generate(router, pb.GenerateRequest(text="hello world", sampling=sampling))
        assert "".join(chunk.chunk.text for chunk in chunks) == "hello "
        assert (complete.endings[0].finish_reason, complete.endings[0].stop_text) == ("stop", "wor")
        stop_id = TOKENIZER.encode("c").ids[0]
        sampling = pb.Sampling(max_tokens=400, stop_token_ids=[stop_id])
        _, complete = await generate(router, pb.GenerateRequest(text="abc", sampling=sampling))
        assert (complete.endings[0].finish_reason, complete.endings[0].stop_token_id) == ("stop", stop_id)


async def test_ending_the_call_cancels_the_request(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.hold_at = 2
    async with start(pod) as router:
        call = router.rpc.Generate(pb.GenerateRequest(text="hello", sampling=pb.Sampling(max_tokens=50)))
        assert (await call.read()).chunk.token_ids
        call.cancel()
        await pod.until(lambda: pod.running == 0)
        assert [cancel.reason for cancel in pod.cancels] == ["client"]


async def test_a_deadline_is_named_and_ends_the_request(start: StartRouter) -> None:
    for timeout_s in (0.2, 2.0, 20.0):  # up to the one in which this machine brings a request to a pod
        pod = FakePod("c0")
        pod.hold_at = 0
        async with start(pod, request_timeout_s=timeout_s) as router:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await generate(router, pb.GenerateRequest(text="hello"))
            assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            http = await router.complete()
            assert (http.status_code, http.json()["error"]["code"]) == (504, "deadline_exceeded")
            if len(pod.submits) == 2:
                break
    assert "before the first token" in (raised.value.details() or "")
    await pod.until(lambda: pod.running == 0)
    assert [cancel.reason for cancel in pod.cancels] == ["deadline"] * 2
    assert pod.submits[0].deadline_s <= timeout_s


async def test_a_deadline_that_passed_on_the_way_is_no_wrong_field(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        inference = router.rpc
        for _ in range(40):  # most end here, before they are sent; some there
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                async for _ in inference.Generate(
                    pb.GenerateRequest(text="hello", sampling=pb.Sampling(max_tokens=400)), timeout=0.0005
                ):
                    pass
            assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_overload_says_when_to_come_back(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.refusal = Overloaded("no blocks", retry_after_s=3.0)
    async with start(pod) as router:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await generate(router, pb.GenerateRequest(text="hello"))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = rpc_status.from_call(raised.value)
        assert status is not None
        retry = error_details_pb2.RetryInfo()
        assert any(detail.Unpack(retry) for detail in status.details)
        assert retry.retry_delay.ToTimedelta().total_seconds() == 3.0


async def test_the_model_is_described_and_health_is_standard(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        info = await router.rpc.GetModelInfo(pb.GetModelInfoRequest())
        assert info == pb.GetModelInfoResponse(
            model="fake", max_model_len=512, block_size=16, vocab_size=TOKENIZER.get_vocab_size()
        )
        async with grpc.aio.insecure_channel(router.addresses["grpc"]) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for service in ("", "pagewire.v1.Inference"):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_prompt_is_tokenized_as_generate_does_it(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hello")])
        await generate(router, pb.GenerateRequest(text="hello world"))
        await generate(router, pb.GenerateRequest(chat=chat))
        for request, submit in zip(
            (pb.TokenizeRequest(text="hello world"), pb.TokenizeRequest(chat=chat, model="fake")),
            pod.submits,
            strict=True,
        ):
            answer = await router.rpc.Tokenize(request)
            assert tuple(answer.token_ids) == submit.spec.tokens
            assert answer.max_model_len == 512
        for request, code in (
            (pb.TokenizeRequest(), grpc.StatusCode.INVALID_ARGUMENT),
            (pb.TokenizeRequest(text="a", model="other"), grpc.StatusCode.NOT_FOUND),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await router.rpc.Tokenize(request)
            assert raised.value.code() is code


async def test_loads_are_those_of_the_pods_and_of_what_this_router_has_there(start: StartRouter) -> None:
    pod, other = FakePod("c0"), FakePod("p0", role=Role.PREFILL)
    pod.load = Load(num_running=3, blocks_total=64, blocks_free=60, step_s=0.25, brownout=BrownoutLevel.OFFLOAD)
    pod.hold_at = 0
    async with start(pod, other, misfits=(FakePod("m0", serves=fingerprint(block_size=8)),)) as router:
        call = router.rpc.Generate(pb.GenerateRequest(text="hello"))
        await pod.until(lambda: pod.running == 1)

        async def loads() -> dict[str, pb.PodLoad]:
            answer = await router.rpc.GetLoads(pb.GetLoadsRequest())
            return {each.pod_id: each for each in answer.pods}

        async def is_known() -> bool:
            found = await loads()
            return found["c0"].load.num_running == 3 and "m0" in found

        await eventually(is_known)
        found = await loads()
        assert sorted(found) == ["c0", "m0", "p0"]
        assert (found["c0"].usable, found["c0"].reason, found["c0"].in_flight) == (True, "", 1)
        assert (found["c0"].role, found["p0"].role) == ("colocated", "prefill")
        load = found["c0"].load
        assert (load.blocks_total, load.blocks_free, load.step_s, load.brownout) == (64, 60, 0.25, "offload")
        assert not found["m0"].usable
        assert found["m0"].reason
        pod.release()
        assert [answer async for answer in call]


async def test_caches_are_heard_of_from_a_snapshot_on(start: StartRouter) -> None:
    def blocks(*numbers: int, tier: int = 0) -> list[CachedBlock]:
        return [CachedBlock(block_hash=BlockHash(bytes([n]) * 16), depth=n, tier=tier) for n in numbers]

    pod, other = FakePod("c0"), FakePod("p0", role=Role.PREFILL)
    pod.cache_feed.note(blocks(1, 2), [])
    async with start(pod, other) as router:
        call = router.rpc.SubscribeKvEvents(pb.SubscribeKvEventsRequest())
        first = {event.pod_id: event for event in [await call.read(), await call.read()]}
        assert (first["c0"].sequence, first["c0"].incarnation) == (1, "1")
        assert first["c0"].snapshot == pb.KvSnapshot(
            part=0,
            num_parts=1,
            blocks=[pb.KvBlock(hash=bytes([n]) * 16, depth=n, tier=0) for n in (1, 2)],
        )
        assert first["p0"].snapshot == pb.KvSnapshot(part=0, num_parts=1)
        pod.cache_feed.note(blocks(3, tier=1), blocks(1))
        change = await call.read()
        assert (change.pod_id, change.sequence) == ("c0", 2)
        assert change.change == pb.KvChange(
            stored=[pb.KvBlock(hash=bytes([3]) * 16, depth=3, tier=1)], evicted=[bytes([1]) * 16]
        )
        await pod.die()
        gap = await call.read()
        assert (gap.pod_id, gap.gap.reason) == ("c0", "pod_lost")
        await pod.start()
        again = await call.read()
        assert (again.pod_id, [block.depth for block in again.snapshot.blocks]) == ("c0", [2, 3])
        call.cancel()
        await other.until(lambda: other.heartbeats_asking == [True, False])


async def test_loads_tell_the_circuits_of_pods(start: StartRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = FakePod("c0"), FakePod("c1")
    bad.fail_at = (0, EngineFailed("broken"))
    async with (
        start(good, bad, policy="round_robin", breaker_failures=2, eject_s=120.0) as router,
        AsyncClient(router.addresses["grpc"]) as client,
    ):

        async def circuits() -> dict[str, tuple[str, str, bool]]:
            return {pod.pod_id: (pod.circuit, pod.ejected, pod.usable) for pod in await client.loads()}

        closed = ("closed", "", True)
        assert await circuits() == {"c0": closed, "c1": closed}
        while (seen := await circuits())["c1"][0] == "closed":
            await router.complete()
        assert seen == {"c0": closed, "c1": ("open", "failures_in_a_row", False)}
        (told,) = (pod.reason for pod in await client.loads() if pod.pod_id == "c1")
        assert told == "it is kept out: failures_in_a_row"
        bad.fail_at = None
        leap(monkeypatch, 120.0)
        assert (await circuits())["c1"] == ("half_open", "", True)
        while (seen := await circuits())["c1"] != closed:
            await router.complete()
        assert seen == {"c0": closed, "c1": closed}


async def test_both_doors_take_requests_of_the_same_size(start: StartRouter) -> None:
    async with start(FakePod("c0"), max_body_bytes=100_000) as router:
        for size, fits in ((80_000, True), (100_001, False)):
            answer = await router.http.post("/v1/completions", content=b" " * size)
            assert ("larger than 100000" in answer.json()["error"]["message"]) is not fits
            request = pb.GenerateRequest(text="a" * size)
            with pytest.raises(grpc.aio.AioRpcError) as refused:  # what fits is too long for the model
                [answer async for answer in router.rpc.Generate(request)]
            code = grpc.StatusCode.INVALID_ARGUMENT if fits else grpc.StatusCode.RESOURCE_EXHAUSTED
            assert refused.value.code() is code
        async with AsyncClient(router.addresses["grpc"]) as client:
            with pytest.raises(InvalidRequest, match="larger than max"):  # and is not tried again
                await client.generate("a" * 200_000)


async def test_nobody_listens_to_caches_for_longer_than_is_said(start: StartRouter) -> None:
    async with start(FakePod("c0"), watch_s=0.2) as router, AsyncClient(router.addresses["grpc"]) as client:
        for _ in range(2):  # and may come again
            async with asyncio.timeout(PATIENT_S), client.kv_events() as events:
                heard = aiter(events)
                assert await anext(heard)
                with pytest.raises(DeadlineExceeded, match=re.escape("for 0.2 s at a time: subscribe anew")):
                    await anext(heard)


async def test_who_listens_to_caches_hears_of_the_drain(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        call = router.rpc.SubscribeKvEvents(pb.SubscribeKvEventsRequest())
        await call.read()
        router.lifecycle.drain("the test wants it")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
        assert (raised.value.code(), raised.value.details()) == (
            grpc.StatusCode.UNAVAILABLE,
            "this router goes away",
        )


async def test_health_follows_the_pods_and_the_drain(start: StartRouter) -> None:
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    pod = FakePod("c0")
    async with start(pod) as router, grpc.aio.insecure_channel(router.addresses["grpc"]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="pagewire.v1.Inference"))
        assert (await watch.read()).status == serving
        await pod.die()
        assert (await watch.read()).status == not_serving
        await pod.start()
        assert (await watch.read()).status == serving
        pod.hold_at = 0
        call = router.rpc.Generate(pb.GenerateRequest(text="hello"))
        await pod.until(lambda: pod.running == 1)
        router.lifecycle.drain("the test wants it")
        assert (await watch.read()).status == not_serving
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == serving  # alive, with work to finish
        pod.release()
        assert [answer async for answer in call]
        watch.cancel()


@pytest.mark.parametrize("is_on", [False, True])
async def test_reflection_is_behind_a_flag(start: StartRouter, is_on: bool) -> None:
    settings = {"grpc_reflection": True} if is_on else {}
    async with (
        start(FakePod("c0"), **settings) as router,
        grpc.aio.insecure_channel(router.addresses["grpc"]) as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        if is_on:
            names = {service.name for service in (await call.read()).list_services_response.service}
            assert {"pagewire.v1.Inference", "grpc.health.v1.Health"} <= names
        else:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call.read()
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_error_whose_text_is_long_still_says_what_it_is(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        for request in (
            pb.GenerateRequest(text="a", model="ä" * 50_000),
            pb.GenerateRequest(text="a", request_id="ä" * 50_000),
            pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="ä" * 50_000)])),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await generate(router, request)
            assert raised.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
            status = rpc_status.from_call(raised.value)
            assert status is not None
            assert any(detail.Is(error_details_pb2.BadRequest.DESCRIPTOR) for detail in status.details)
