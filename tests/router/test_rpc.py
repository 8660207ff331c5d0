"""The gRPC door of a whole router before fake pods."""

from __future__ import annotations

import byte_tokenizer
import grpc
import pytest
from fake_pod import FakePod
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from router_rig import RunningRouter, StartRouter

from pagewire.core.errors import Overloaded
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
    pod = FakePod("c0")
    pod.hold_at = 0
    async with start(pod, request_timeout_s=0.2) as router:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await generate(router, pb.GenerateRequest(text="hello"))
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "before the first token" in (raised.value.details() or "")
        await pod.until(lambda: pod.running == 0)
        assert [cancel.reason for cancel in pod.cancels] == ["deadline"]
        assert pod.submits[0].deadline_s <= 0.2
        http = await router.complete()
        assert (http.status_code, http.json()["error"]["code"]) == (504, "deadline_exceeded")


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
