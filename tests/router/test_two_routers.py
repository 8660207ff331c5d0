"""A client whose router goes away in the middle of an answer, with real routers before pods that answer alike."""

from __future__ import annotations

import asyncio

import byte_tokenizer
import pytest
from fake_pod import FakePod
from router_rig import StartRouter

from pagewire.client import AsyncClient, RetryPolicy
from pagewire.core.errors import Draining

TOKENIZER = byte_tokenizer.build()


@pytest.mark.parametrize("resumes", [True, False])
async def test_an_answer_that_a_router_began_goes_on_at_another(start: StartRouter, resumes: bool) -> None:
    pod, other = FakePod("c0"), FakePod("c1")
    pod.hold_at = 5
    ids = TOKENIZER.encode("hello").ids
    want = tuple(ids[i % len(ids)] for i in range(12))
    policy = RetryPolicy(resumes=resumes)
    async with start(pod, drain_s=0.1) as first, start(other) as second:
        urls = [first.addresses["grpc"], second.addresses["grpc"]]
        async with AsyncClient(urls, retry=policy) as client:
            got: list[int] = []
            async with client.stream("hello", max_tokens=12, ignore_eos=True, request_id="mine") as stream:

                async def read() -> None:
                    async for chunk in stream:
                        got.extend(chunk.token_ids)
                        if len(got) == 5:
                            first.lifecycle.drain("the test wants it")  # which cuts off what is held

                if resumes:
                    async with asyncio.timeout(60):
                        await read()
                    assert stream.result.token_ids == tuple(got) == want
                    assert stream.result.text == TOKENIZER.decode(list(want))
                    assert [timeline.process for timeline in stream.result.timelines] == ["router", "c1"]
                    seeds = {submit.spec.sampling.seed for submit in (*pod.submits, *other.submits)}
                    assert len(seeds) == 1
                else:
                    with pytest.raises(Draining) as caught:
                        await read()
                    assert (tuple(got), caught.value.request_id) == (want[:5], "mine")
                    assert other.submits == []
            assert (await client.generate("hello", max_tokens=3)).usage.completion_tokens  # the lost one is passed over
