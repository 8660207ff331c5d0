"""Beam search through both doors of a whole router before fake pods: who is asked for what, and what comes back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import byte_tokenizer
import grpc
import pytest
from fake_pod import FakePod
from router_rig import StartRouter, eventually

from pagewire.client import AsyncClient
from pagewire.core.errors import InvalidRequest, PodLost
from pagewire.core.messages import Role
from pagewire.core.sampling import EarlyStopping
from pagewire.core.sequence_spec import branches
from pagewire.protos import inference_pb2 as pb
from pagewire.router.config import PrefillMode

TOKENIZER = byte_tokenizer.build()
PROMPT = "QWXZKJVYUPDGBMHL"  # a token for each letter
BEAMS: dict[str, Any] = {"use_beam_search": True, "n": 2, "beam_width": 4, "max_tokens": 6, "ignore_eos": True}


def said(index: int, count: int = 6) -> list[int]:
    tokens = list(TOKENIZER.encode(PROMPT).ids)
    return [tokens[(at + index) % len(tokens)] for at in range(count)]


async def test_the_width_runs_and_n_answer_the_best_first(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        more = {"length_penalty": 0.5, "early_stopping": "never", "return_token_ids": True}
        answer = await router.complete(PROMPT, **BEAMS, **more)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert [(choice["index"], choice["token_ids"]) for choice in body["choices"]] == [(0, said(0)), (1, said(1))]
        assert [(each["score"], each["cumulative_logprob"]) for each in body["choices"]] == [(-0.5, -1.0), (-1.5, -2.0)]
        assert body["usage"]["completion_tokens"] == 2 * 6
        (submit,) = pod.submits
        assert (submit.spec.index, submit.spec.branches) == (0, branches(4))
        sampling = submit.spec.sampling
        assert (sampling.n, sampling.num_beams, sampling.length_penalty) == (2, 4, 0.5)
        assert sampling.early_stopping is EarlyStopping.NEVER
        assert not pod.cancels
        assert not pod.stops
        drawn = (await router.complete(PROMPT, n=2)).json()
        assert not {"score", "cumulative_logprob"} & set(drawn["choices"][0])


async def test_a_chat_is_searched_too(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        body = {"messages": [{"role": "user", "content": PROMPT}], **BEAMS}
        answer = await router.http.post("/v1/chat/completions", json=body)
        assert [choice["score"] for choice in answer.json()["choices"]] == [-0.5, -1.5]


async def test_grpc_and_the_sdk_ask_and_hear_the_same(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router, AsyncClient(router.addresses["grpc"]) as client:
        result = await client.generate(PROMPT, length_penalty=2.0, early_stopping=True, **BEAMS)
        assert [list(output.token_ids) for output in result.outputs] == [said(0), said(1)]
        assert [(output.score, output.cumulative_logprob) for output in result.outputs] == [(-0.5, -1.0), (-1.5, -2.0)]
        sampling = pod.submits[-1].spec.sampling
        assert (sampling.n, sampling.beam_width, sampling.length_penalty) == (2, 4, 2.0)
        assert sampling.early_stopping is EarlyStopping.TRUE
        drawn = await client.generate(PROMPT, max_tokens=2)
        assert (drawn.outputs[0].score, drawn.outputs[0].cumulative_logprob) == (None, None)
        with pytest.raises(InvalidRequest) as refused:
            await client.generate(PROMPT, **{**BEAMS, "early_stopping": "maybe"})
        assert refused.value.field == "early_stopping"
        chunks = [
            each.chunk
            async for each in router.rpc.Generate(
                pb.GenerateRequest(text=PROMPT, sampling=pb.Sampling(n=2, max_tokens=6, use_beam_search=True))
            )
            if each.HasField("chunk")
        ]
        assert [(chunk.index, chunk.ending.score) for chunk in chunks] == [(0, -0.5), (1, -1.5)]


async def test_a_prefill_pod_is_never_named(start: StartRouter) -> None:
    decode, prefill = FakePod("d0", role=Role.DECODE), FakePod("p0", role=Role.PREFILL)
    async with start(decode, prefill, prefill_mode=PrefillMode.REMOTE) as router:
        assert (await router.complete(PROMPT, **BEAMS)).status_code == 200
        await router.complete(PROMPT)
        searched, drawn = decode.submits
        assert searched.candidates == ()
        assert [each.pod_id for each in drawn.candidates] == ["p0"]


async def test_what_is_not_found_is_no_choice(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.finds = 1
    async with start(pod) as router:
        body = (await router.complete(PROMPT, **BEAMS)).json()
        assert [choice["index"] for choice in body["choices"]] == [0]
        assert body["usage"]["completion_tokens"] == 6
        assert len(pod.submits) == 1
        assert pod.cancels == []


@pytest.mark.parametrize("breach", ["parts", "worst first", "twice"])
async def test_a_search_that_is_told_wrong_fails_by_name(start: StartRouter, breach: str) -> None:
    """What came in order before the breach would be an answer of its own: all of it comes in one frame, or none."""
    pod = FakePod("c0")
    pod.breaks_search = breach
    async with start(pod) as router:
        answer = await router.complete(PROMPT, **BEAMS)
        if breach == "twice":
            assert [choice["index"] for choice in answer.json()["choices"]] == [0]
        else:
            assert answer.status_code == 500, answer.text
            assert "a search" in answer.json()["error"]["message"]


@pytest.mark.parametrize("how", ["dies", "fails"])
async def test_a_search_begins_anew_where_its_pod_is_lost(start: StartRouter, how: str) -> None:
    pods = FakePod("c0"), FakePod("c1")
    for pod in pods:
        pod.hold_at = 0
    async with start(*pods) as router:
        asked = asyncio.create_task(router.complete(PROMPT, return_token_ids=True, **BEAMS))
        await eventually(lambda: asyncio.sleep(0, any(pod.submits for pod in pods)))
        (first,) = (pod for pod in pods if pod.submits)
        (other,) = (pod for pod in pods if pod is not first)
        if how == "dies":
            await first.die()
        else:
            first.fail_at = (0, PodLost("out of luck"))
            first.release()
        other.release()
        answer = await asked
        assert [choice["token_ids"] for choice in answer.json()["choices"]] == [said(0), said(1)]
        (anew,) = other.submits
        assert (anew.spec.output, anew.spec.branches) == ((), branches(4))


async def test_who_goes_away_cancels_the_search(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.hold_at = 0
    async with start(pod) as router:
        asked = asyncio.create_task(router.complete(PROMPT, **BEAMS))
        await pod.until(lambda: pod.submits)
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked
        await pod.until(lambda: pod.cancels)
        assert pod.cancels[0].reason == "client"
        request = pb.GenerateRequest(text=PROMPT, sampling=pb.Sampling(n=2, use_beam_search=True))
        for timeout_s in (0.3, 3.0, 30.0):  # up to the one in which this machine brings a request to a pod
            with pytest.raises(grpc.aio.AioRpcError) as late:
                async for _ in router.rpc.Generate(request, timeout=timeout_s):
                    pass
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if len(pod.submits) == 2:
                break
        await pod.until(lambda: len(pod.cancels) == 2)
        assert await router.metric("pagewire_router_requests_active") == 0
