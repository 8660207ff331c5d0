"""Several answers to one request, through both doors of a whole router before fake pods.

Token k of answer i is `prompt[(k + i) % len(prompt)]`, so that every answer is known and none is another's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import Any

import byte_tokenizer
import httpx
import openai
import pytest
from fake_pod import FakePod
from router_rig import RunningRouter, StartRouter, events

from pagewire.core.errors import Draining, EngineFailed, HandedOver
from pagewire.core.sequence_spec import Branch
from pagewire.protos import inference_pb2 as pb

TOKENIZER = byte_tokenizer.build()
PROMPT = "QWXZKJVYUPDGBMHL"  # a token for each letter
STOP = "JVYUP"
CHAT = f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"


def ids(prompt: str) -> list[int]:
    return list(TOKENIZER.encode(prompt).ids)


def said(index: int, count: int, prompt: str = PROMPT) -> list[int]:
    tokens = ids(prompt)
    return [tokens[(at + index) % len(tokens)] for at in range(count)]


def text(index: int, count: int, prompt: str = PROMPT) -> str:
    return TOKENIZER.decode(said(index, count, prompt))


async def ask(router: RunningRouter, n: int, max_tokens: int = 12, **fields: Any) -> httpx.Response:
    answer = await router.complete(PROMPT, n=n, max_tokens=max_tokens, return_token_ids=True, ignore_eos=True, **fields)
    assert answer.status_code == 200, answer.text
    return answer


def tokens_of(answer: httpx.Response) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    parts = events(answer.text) if answer.text.startswith("data: ") else [answer.json()]
    for part in parts:
        assert "error" not in part, part
        for choice in part["choices"]:
            found[choice["index"]] += choice["token_ids"]
    return dict(found)


def test_a_letter_is_a_token() -> None:
    assert len(ids(PROMPT)) == len(PROMPT)


async def test_each_answer_is_a_choice_and_the_prompt_counts_once(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        answer = await ask(router, 3, seed=7)
        body = answer.json()
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert [choice["text"] for choice in body["choices"]] == [text(index, 12) for index in range(3)]
        assert tokens_of(answer) == {index: said(index, 12) for index in range(3)}
        assert body["usage"]["prompt_tokens"] == len(ids(PROMPT))
        assert body["usage"]["completion_tokens"] == 3 * 12
        (submit,) = pod.submits
        assert (submit.spec.sampling.n, submit.spec.sampling.seed, submit.spec.index) == (3, 7, 0)
        assert submit.spec.branches == (Branch(index=1), Branch(index=2))
        assert await router.metric("pagewire_router_generation_tokens_total") == 3 * 12
        assert await router.metric("pagewire_router_prompt_tokens_total") == len(ids(PROMPT))
        assert await router.metric("pagewire_router_requests_total") == 1


async def test_a_stream_ends_each_choice_where_it_ends_and_then_says_usage(start: StartRouter) -> None:
    """The stop string comes sooner in the later answers, and in the first not at all."""
    pod = FakePod("c0")
    stop, most = STOP, PROMPT.index(STOP) + len(STOP) - 1
    pod.hold_at = most - 1  # what ends there, the last two, waits for the one that ended before
    async with start(pod) as router, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(
            ask(router, 3, most, stop=[stop], stream=True, stream_options={"include_usage": True})
        )
        await pod.until(lambda: pod.stops)
        assert [stop.index for stop in pod.stops] == [2]
        pod.release()
        answer = await asking
        *parts, usage = events(answer.text)
        texts: defaultdict[int, str] = defaultdict(str)
        ends: dict[int, tuple[str, str | None]] = {}
        for part in parts:
            (choice,) = part["choices"]
            assert choice["index"] not in ends, "a part behind the end"
            texts[choice["index"]] += choice["text"]
            if choice["finish_reason"] is not None:
                ends[choice["index"]] = (choice["finish_reason"], choice["stop_reason"])
        assert next(iter(ends)) == 2
        assert ends == {0: ("length", None), 1: ("stop", stop), 2: ("stop", stop)}
        assert texts == {0: text(0, most), 1: PROMPT[1 : PROMPT.index(stop)], 2: PROMPT[2 : PROMPT.index(stop)]}
        assert usage["choices"] == []
        counts = {index: len(tokens) for index, tokens in tokens_of(answer).items()}
        assert counts == {0: most, 1: most, 2: most - 1}
        assert usage["usage"]["completion_tokens"] == sum(counts.values())
        await pod.until(lambda: len(pod.stops) == 2)  # frames on their way
        assert [stop.index for stop in pod.stops] == [2, 1]
        whole = (await ask(router, 3, most, stop=[stop])).json()
        assert {choice["index"]: choice["text"] for choice in whole["choices"]} == texts
        assert pod.cancels == []


async def test_the_openai_package_gets_choices_of_chats(start: StartRouter) -> None:
    messages: Any = [{"role": "user", "content": PROMPT}]
    async with start(FakePod("c0")) as router:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{router.addresses['http']}/v1", api_key="none", http_client=http, max_retries=0
        ) as client:
            fields: Any = {"model": "fake", "messages": messages, "max_tokens": 9, "n": 3, "logprobs": True}
            whole = await client.chat.completions.create(**fields, extra_body={"ignore_eos": True})
            want = [text(index, 9, CHAT) for index in range(3)]
            assert [choice.message.content for choice in whole.choices] == want
            parts = [
                part
                async for part in await client.chat.completions.create(
                    **fields, stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True}
                )
            ]
    assert [part.choices[0].delta.role for part in parts[:3]] == ["assistant"] * 3
    for index in range(3):
        own = [choice for part in parts for choice in part.choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in own) == want[index]
        scored = [token for choice in own if choice.logprobs for token in choice.logprobs.content or []]
        ours = whole.choices[index].logprobs
        assert ours is not None
        assert scored == ours.content
        assert len(scored) == 9
        assert [choice.finish_reason for choice in own if choice.finish_reason] == ["length"]
    assert parts[-1].usage is not None
    assert parts[-1].usage == whole.usage
    assert parts[-1].usage.completion_tokens == 27


async def test_grpc_says_whose_each_chunk_is_and_how_each_ended(start: StartRouter) -> None:
    stop, most = STOP, PROMPT.index(STOP) + len(STOP) - 1
    async with start(FakePod("c0")) as router:
        sampling = pb.Sampling(max_tokens=most, ignore_eos=True, n=2, stop=[stop])
        answers = [each async for each in router.rpc.Generate(pb.GenerateRequest(text=PROMPT, sampling=sampling))]
        complete = answers.pop().complete
        own = {index: [each.chunk for each in answers if each.chunk.index == index] for index in range(2)}
        for index, chunks in own.items():
            assert [token for chunk in chunks for token in chunk.token_ids] == said(index, most)
            assert [chunk.HasField("ending") for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
            assert chunks[-1].ending == complete.endings[index]
        assert list(complete.endings) == [
            pb.Ending(finish_reason="length"),
            pb.Ending(finish_reason="stop", stop_text=stop),
        ]
        assert complete.usage.completion_tokens == 2 * most


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pod_that_dies_in_the_middle_is_continued_by_index(start: StartRouter, stream: bool) -> None:
    first, second = FakePod("d0"), FakePod("d1")
    first.hold_at = 6
    async with start(first, second, policy="least_loaded") as router:
        running = asyncio.create_task(ask(router, 3, stream=stream))
        await first.until(lambda: first.running == 1)
        await asyncio.sleep(0.01)
        await first.die()
        assert tokens_of(await running) == {index: said(index, 12) for index in range(3)}
        (resumed,) = second.submits
        outputs = [list(resumed.spec.output), *(list(branch.output) for branch in resumed.spec.branches)]
        assert outputs == [said(index, len(outputs[0])) for index in range(3)]


@pytest.mark.parametrize("error", [Draining("going"), HandedOver("going")])
async def test_those_that_had_ended_are_not_continued(start: StartRouter, error: Draining | HandedOver) -> None:
    """The stop string ended answer 2 before; the others go on with what was out, and have their texts whole."""
    first, second = FakePod("d0"), FakePod("d1")
    stop = STOP
    at = PROMPT.index(stop) + len(stop) - 2  # tokens of answer 2 up to its end
    first.fail_at = (at, error)
    async with start(first, second, policy="least_loaded") as router:
        answer = await ask(router, 3, 40, stop=[stop], pagewire={"timeline": True})
        body = answer.json()
        assert body["pagewire"]["attempts"] == 2
        (resumed,) = second.submits
        assert (resumed.spec.index, list(resumed.spec.output)) == (0, said(0, at))
        assert resumed.spec.branches == (Branch(index=1, output=tuple(said(1, at))),)
        ends = [PROMPT.index(stop) + len(stop) - index for index in range(3)]
        assert tokens_of(answer) == {index: said(index, ends[index]) for index in range(3)}
        assert [choice["text"] for choice in body["choices"]] == [
            PROMPT[index : PROMPT.index(stop)] for index in range(3)
        ]
        assert body["usage"]["completion_tokens"] == sum(ends)
        if isinstance(error, HandedOver):
            assert [source.num_tokens for source in resumed.sources] == [len(ids(PROMPT)) + at]


async def test_an_error_that_ends_the_request_ends_all(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.fail_at = (3, EngineFailed("poisoned"))
    async with start(pod) as router:
        answer = await router.complete(PROMPT, n=3, stream=True)
        *_, last = events(answer.text)
        assert last["error"]["code"] == EngineFailed.cause
        assert (await router.complete(PROMPT, n=3)).status_code == 500


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_all(start: StartRouter, stream: bool) -> None:
    pod = FakePod("c0")
    pod.hold_at = 3
    async with start(pod) as router:
        running = asyncio.create_task(ask(router, 3, stream=stream))
        await pod.until(lambda: pod.running == 1)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await pod.until(lambda: pod.running == 0)
        assert [cancel.reason for cancel in pod.cancels] == ["client"]
