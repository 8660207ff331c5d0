"""The HTTP door of a whole router before fake pods: answers, streams, errors, disconnects, drain."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import byte_tokenizer
import openai
import pytest
import raw_stream
from fake_pod import FakePod
from router_rig import RunningRouter, StartRouter, events, eventually

from pagewire.client.codec import request_to_wire
from pagewire.core.errors import EngineFailed, Overloaded
from pagewire.core.load import BrownoutLevel, Load
from pagewire.core.messages import Role
from pagewire.router import dispatch
from pagewire.router.turns import Turns

TOKENIZER = byte_tokenizer.build()


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text).ids)


def repeated(prompt: list[int], count: int) -> list[int]:
    return [prompt[i % len(prompt)] for i in range(count)]


async def test_a_completion_in_all_its_forms(start: StartRouter) -> None:
    prompt = ids("hello world")
    want = TOKENIZER.decode(repeated(prompt, 8))
    async with start(FakePod("c0")) as router:
        for form in ("hello world", ["hello world"], prompt, [prompt]):
            answer = await router.complete(form, model="fake", return_token_ids=True)
            assert answer.status_code == 200, answer.text
            body = answer.json()
            assert body["choices"][0]["text"] == want
            assert body["choices"][0]["token_ids"] == repeated(prompt, 8)
            assert body["choices"][0]["prompt_token_ids"] == prompt
            assert body["choices"][0]["finish_reason"] == "length"
            assert body["object"] == "text_completion"
            assert body["usage"] == {
                "prompt_tokens": len(prompt),
                "completion_tokens": 8,
                "total_tokens": len(prompt) + 8,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            assert "pagewire" not in body


async def test_a_completion_streams_with_usage_and_timeline(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.cached_tokens = 2
    async with start(pod) as router:
        answer = await router.complete(
            stream=True, stream_options={"include_usage": True}, return_token_ids=True, pagewire={"timeline": True}
        )
        assert answer.headers["content-type"].startswith("text/event-stream")
        *chunks, end, usage = events(answer.text)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TOKENIZER.decode(
            repeated(ids("hello world"), 8)
        )
        assert [t for chunk in chunks for t in chunk["choices"][0]["token_ids"]] == repeated(ids("hello world"), 8)
        assert all(chunk["usage"] is None for chunk in chunks)
        assert end["choices"][0]["finish_reason"] == "length"
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 8
        assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        own = usage["pagewire"]
        assert own["report"]["decode_pod"] == "c0"
        assert own["attempts"] == 1
        phases = [stamp["phase"] for stamp in own["timelines"][0]["stamps"]]
        assert phases == ["received", "tokenized", "looked_up", "placed", "submitted", "first_token", "last_token"]
        assert own["timelines"][1]["process"] == "c0"


async def test_a_header_asks_for_the_timeline_too(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        body = {"prompt": "hello", "max_tokens": 2}
        answer = await router.http.post("/v1/completions", json=body, headers={"x-pagewire-timeline": "1"})
        assert answer.json()["pagewire"]["report"]["placement"] == "local"


async def test_the_openai_package_completes_and_streams(start: StartRouter) -> None:
    messages: Any = [{"role": "user", "content": "hello world"}]
    prompt = "<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n"
    want = TOKENIZER.decode(repeated(ids(prompt), 12))
    async with start(FakePod("c0")) as router:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{router.addresses['http']}/v1", api_key="none", http_client=http, max_retries=0
        ) as client:
            whole = await client.chat.completions.create(
                model="fake", messages=messages, max_tokens=12, extra_body={"ignore_eos": True}
            )
            assert whole.choices[0].message.content == want
            assert whole.choices[0].finish_reason == "length"
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 12
            stream = await client.chat.completions.create(
                model="fake", messages=messages, max_completion_tokens=12, stream=True,
                stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
            )  # fmt: skip
            parts = [part async for part in stream]
            assert parts[0].choices[0].delta.role == "assistant"
            assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == want
            assert parts[-2].choices[0].finish_reason == "length"
            assert parts[-1].usage is not None
            assert parts[-1].usage.total_tokens == len(ids(prompt)) + 12
            text = await client.completions.create(model="fake", prompt="hello", max_tokens=3)
            assert text.choices[0].text == TOKENIZER.decode(repeated(ids("hello"), 3))
            assert [model.id async for model in client.models.list()] == ["fake"]
            assert (await client.models.retrieve("fake")).id == "fake"
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.completions.create(model="gpt-5", prompt="hello")
            assert unknown.value.param == "model"
            with pytest.raises(openai.BadRequestError):
                await client.completions.create(model="fake", prompt="hello", max_tokens=-1)


async def test_a_chat_takes_what_fits_when_no_limit_is_given(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}], "ignore_eos": True}
        answer = (await router.http.post("/v1/chat/completions", json=body)).json()
        assert answer["usage"]["total_tokens"] == 512
        assert answer["choices"][0]["message"]["role"] == "assistant"


async def test_the_end_of_sequence_token_is_counted_and_not_shown(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        prompt = [*ids("hello"), byte_tokenizer.EOS_ID]
        body = (await router.complete(prompt, max_tokens=50)).json()
        assert body["choices"][0] | {"logprobs": 0} == {
            "index": 0, "logprobs": 0, "text": "hello", "finish_reason": "stop", "stop_reason": None,
        }  # fmt: skip
        assert body["usage"]["completion_tokens"] == len(prompt)
        body = (await router.complete(ids("ab"), stop_token_ids=[ids("b")[0]])).json()
        assert body["choices"][0]["text"] == "a"
        assert body["choices"][0]["stop_reason"] == ids("b")[0]


async def test_a_stop_string_ends_the_answer_and_stops_the_rest(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        for stream in (False, True):
            answer = await router.complete("xyz stop the end", max_tokens=400, stop=["p the"], stream=stream)
            if stream:
                *chunks, end = events(answer.text)
                text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
            else:
                end = answer.json()
                text = end["choices"][0]["text"]
            assert text == "xyz sto"
            assert end["choices"][0]["finish_reason"] == "stop"
            assert end["choices"][0]["stop_reason"] == "p the"
        await pod.until(lambda: pod.running == 0)
        assert [stop.index for stop in pod.stops] == [0, 0]
        assert pod.cancels == []


async def test_no_cancel_follows_a_normal_end(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        await asyncio.gather(*(router.complete() for _ in range(20)))
        await router.complete(stream=True)
        assert len(pod.submits) == 21
        assert pod.cancels == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hold_at", [0, 3])
async def test_a_client_that_goes_away_cancels_its_request(start: StartRouter, stream: bool, hold_at: int) -> None:
    pod = FakePod("c0")
    pod.hold_at = hold_at
    async with start(pod) as router:
        # A plain socket that is dropped in the middle: the whole stack has to notice.
        host, port = router.addresses["http"].removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"prompt": "hello", "max_tokens": 50, "stream": stream}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await pod.until(lambda: pod.running == 1)
        if stream and hold_at:
            assert await reader.readuntil(b"data: ")
        writer.close()
        await pod.until(lambda: pod.running == 0)
        assert [cancel.reason for cancel in pod.cancels] == ["client"]
        await eventually(lambda: _is_idle(router))
        assert await router.metric("pagewire_router_requests_total") == 1


async def test_a_client_that_goes_away_while_it_waits_to_be_read_leaves_its_place_to_others(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, turns = FakePod("c0"), list[Turns]()

    class OfOne(Turns):
        def __init__(self, _most: int, *args: Any) -> None:
            super().__init__(1, *args)
            turns.append(self)

    monkeypatch.setattr(dispatch, "Turns", OfOne)
    async with start(pod) as router:
        with await turns[0].take():  # somebody else's
            host, port = router.addresses["http"].removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(raw_stream.request())
            async with asyncio.timeout(60):
                while not turns[0]._num_waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                writer.close()
                while turns[0]._num_waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert (await router.complete()).status_code == 200
        assert len(pod.submits) == 1
        assert await _is_idle(router)


async def test_a_client_that_goes_away_between_a_lost_pod_and_another_is_continued_nowhere(start: StartRouter) -> None:
    first, second = FakePod("d0"), FakePod("d1")
    first.hold_at, second.load = 3, Load(blocks_total=100, blocks_free=0, num_running=1)
    async with start(first, second, max_wait_s=60.0) as router:
        await router.has_heard()
        host, port = router.addresses["http"].removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(raw_stream.request())
        assert await reader.readuntil(b"data: ")
        await first.die()

        async def waits() -> bool:
            return await router.metric("pagewire_router_requests_waiting") == 1

        await eventually(waits)
        writer.close()
        await eventually(lambda: _is_idle(router))
        assert await router.metric("pagewire_router_requests_waiting") == 0
        second.load = Load(blocks_total=100, blocks_free=90)
        assert (await router.complete()).status_code == 200
        assert [len(submit.spec.output) for submit in second.submits] == [0]


async def test_without_a_pod_the_status_says_so_and_a_path_with_a_slash_too_many_is_nobodys(start: StartRouter) -> None:
    async with start() as router:
        health = await router.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "no_pod")
        assert (await router.http.get("/live")).json()["status"] == "ready"
    async with start(FakePod("c0")) as router:
        assert (await router.http.get("/health")).json()["status"] == "ready"
        for method, path in (("POST", "/v1/completions/"), ("GET", "/v1/models/"), ("GET", "/health/")):
            answer = await router.http.request(method, path, json={}, follow_redirects=False)
            assert (answer.status_code, "location" in answer.headers) == (404, False)
            assert answer.json()["error"]["type"] == "invalid_request_error"


async def _is_idle(router: RunningRouter) -> bool:
    return await router.metric("pagewire_router_requests_active") == 0


async def test_request_ids_go_in_and_out(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        headers = {"x-request-id": "mine-1"}
        body = {"prompt": "hello", "max_tokens": 1}
        answer = await router.http.post("/v1/completions", json=body, headers=headers)
        assert answer.headers["x-request-id"] == "mine-1"
        assert answer.json()["id"] == "cmpl-mine-1"
        refused = await router.http.post("/v1/completions", json={}, headers=headers)
        assert refused.headers["x-request-id"] == "mine-1"
        made = await router.complete()
        assert len(made.headers["x-request-id"]) == 32
        # A body may name its request too, unless the header does.
        body |= {"request_id": "its own"}
        for sent, named in ((None, "its own"), ({"x-request-id": "x" * 129}, "its own"), (headers, "mine-1")):
            answer = await router.http.post("/v1/completions", json=body, headers=sent)
            assert (answer.headers["x-request-id"], answer.json()["id"]) == (named, f"cmpl-{named}")
            streamed = await router.http.post("/v1/completions", json={**body, "stream": True}, headers=sent)
            assert streamed.headers["x-request-id"] == named
            refused = await router.http.post("/v1/completions", json={**body, "max_tokens": 1000}, headers=sent)
            assert (refused.status_code, refused.headers["x-request-id"]) == (400, named)
        for wrong in ("", "é", 5):
            refused = await router.http.post("/v1/completions", json={**body, "request_id": wrong})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "request_id")
            assert len(refused.headers["x-request-id"]) == 32


async def test_every_path_answers_with_the_request_s_id(start: StartRouter) -> None:
    paths = ["/health", "/ready", "/live", "/ping", "/version", "/load", "/metrics", "/openapi.json", "/v1/models"]
    paths += ["/v1/models/fake", "/v1/models/none", "/nowhere", "/ui", "/ui/", "/tokenize", "/v1/completions"]
    async with start(FakePod("c0")) as router:
        for path in paths:
            for sent in ("mine-1", "mine-2"):
                answer = await router.http.get(path, headers={"x-request-id": sent})
                assert answer.headers.get_list("x-request-id") == [sent], path
            assert len((await router.http.get(path)).headers["x-request-id"]) == 32, path
        told = await router.http.post("/tokenize", json={"prompt": "a"}, headers={"x-request-id": "mine-1"})
        assert told.headers.get_list("x-request-id") == ["mine-1"]
        assert (await router.http.get("/v1/models")).json()["data"][0]["permission"] == []


async def test_health_follows_pods_and_drain(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.hold_at = 2
    async with start(pod, FakePod("p0", role=Role.PREFILL)) as router:
        healthy = await router.http.get("/health")
        assert healthy.status_code == 200
        assert healthy.json() == {
            "status": "ready", "pods": {"prefill": 1, "decode": 0, "colocated": 1}, "models": {"fake": True},
            "brownout": {}, "ejected": {}, "refused": {}, "index": {"state": "up", "alarms": {}},
        }  # fmt: skip
        running = asyncio.create_task(router.complete(max_tokens=4))
        await pod.until(lambda: pod.running == 1)
        router.lifecycle.drain("test")
        assert (await router.http.get("/health")).status_code == 503
        assert (await router.http.get("/live")).status_code == 200
        refused = await router.complete()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        pod.release()
        assert (await running).status_code == 200
        await asyncio.wait_for(asyncio.shield(router.task), 60)


async def test_a_full_router_and_full_pods_say_when_to_come_back(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.hold_at = 0
    async with start(pod, max_concurrent=1) as router:
        first = asyncio.create_task(router.complete())
        await pod.until(lambda: pod.running == 1)
        refused = await router.complete()
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        pod.release()
        assert (await first).status_code == 200
        pod.refusal = Overloaded("no blocks", retry_after_s=7.0)
        refused = await router.complete()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")


async def test_nothing_of_a_request_is_read_that_nobody_could_have_a_place_for(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.hold_at = 0
    async with start(pod, max_concurrent=1) as router:

        async def status(path: str, content: bytes) -> int:
            return (await router.http.post(path, content=content)).status_code

        first = asyncio.create_task(router.complete())
        await pod.until(lambda: pod.running == 1)
        for path in ("/v1/completions", "/v1/chat/completions"):
            assert await status(path, b"no JSON") == 429
        text = (await router.http.get("/metrics")).text
        assert 'pagewire_router_refusals_total{reason="router_full"} 2.0' in text
        assert 'pagewire_router_requests_total{outcome="overloaded"} 2.0' in text
        # As whoever is refused later: our users did not get an answer.
        assert re.search(r'slo_requests_total\{[^}]*result="missed",slo="availability"[^}]*\} 2\.0', text)
        for operation in ("chat", "text_completion"):
            said = (
                rf'duration_seconds_count\{{error_type="overloaded",gen_ai_operation_name="{operation}"[^}}]*\}} 1\.0'
            )
            assert re.search(said, text)
        pod.release()
        assert (await first).status_code == 200
        assert await status("/v1/completions", b"no JSON") == 400


async def test_who_is_refused_while_it_still_sends_may_go_on_by_the_same_connection(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.hold_at = 0
    async with start(pod, max_concurrent=1) as router:
        first = asyncio.create_task(router.complete())
        await pod.until(lambda: pod.running == 1)
        url = router.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n"
        writer.write(head + b"x" * 1000)
        async with asyncio.timeout(20):
            assert (await reader.readline()).startswith(b"HTTP/1.1 429")
            writer.write(b"x" * 2_999_000 + b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            await reader.readuntil(b"HTTP/1.1 ")
            assert (await reader.readline()).startswith(b"200")
        writer.close()
        await writer.wait_closed()
        pod.release()
        assert (await first).status_code == 200


async def test_a_full_router_that_goes_away_says_so(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.hold_at = 0
    async with start(pod, max_concurrent=1) as router:
        first = asyncio.create_task(router.complete())
        await pod.until(lambda: pod.running == 1)
        router.lifecycle.drain("test")
        assert (await router.complete()).json()["error"]["code"] == "draining"
        pod.release()
        assert (await first).status_code == 200


async def test_a_failure_in_the_middle_is_an_event_and_then_done(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.fail_at = (3, EngineFailed("the engine broke"))
    async with start(pod) as router:
        *chunks, error = events((await router.complete(stream=True)).text)
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert text == TOKENIZER.decode(repeated(ids("hello world"), 3))
        assert error["error"] == {
            "message": "the engine broke", "type": "server_error", "param": None, "code": "internal",
        }  # fmt: skip
        pod.fail_at = (0, EngineFailed("the engine broke"))
        for stream in (False, True):
            refused = await router.complete(stream=stream)
            assert refused.status_code == 500
            assert refused.headers["x-should-retry"] == "false"
            assert refused.json()["error"]["code"] == "internal"


async def test_unknown_fields_are_ignored_and_counted(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        answer = await router.complete(nobody_knows=1, user="me", metadata={}, n=1, penalties=None, logprobs=None)
        assert answer.status_code == 200
        assert await router.metric("pagewire_router_unknown_fields_total") == 2
        inner = {"stream": True, "stream_options": {"include_usage": True, "a": 1}, "pagewire": {"b": 1, "c": 2}}
        assert (await router.complete(**inner)).status_code == 200
        assert await router.metric("pagewire_router_unknown_fields_total") == 5
        messages = [{"role": "user", "content": "a"}]
        for path, body, count in (
            ("/tokenize", {"prompt": "a", "nobody_knows": 1, "user": "me"}, 6),
            ("/tokenize", {"messages": messages, "prompt": None, "temperature": 1.0, "return_token_strs": True}, 7),
            ("/detokenize", {"tokens": [5], "one": 1, "two": 2, "store": True}, 9),
        ):
            answer = await router.http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert await router.metric("pagewire_router_unknown_fields_total") == count


async def test_wrong_paths_and_methods_have_the_error_shape(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        for answer, status in (
            (await router.http.get("/v1/nothing"), 404),
            (await router.http.get("/v1/completions"), 405),
            (await router.http.get("/v1/models/other"), 404),
        ):
            assert answer.status_code == status
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert answer.headers["x-request-id"]
            assert (answer.headers.get("allow") == "POST") == (status == 405)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_done_otherwise_than_asked_is_in_every_answer(start: StartRouter, stream: bool) -> None:
    pod, note = FakePod("c0"), "brownout short_answers: max_tokens is 4 instead of 8"
    async with start(pod) as router:
        for notes in ((), (note,)):
            pod.notes = notes
            answer = await router.complete(stream=stream)
            last = json.loads(answer.text.split("\n\n")[-3][6:]) if stream else answer.json()
            assert last["choices"][0]["finish_reason"] == "length"
            assert last.get("pagewire") == ({"notes": [note]} if notes else None)


async def test_health_and_the_pod_s_own_word_name_a_brownout(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        pod.load = Load(brownout=BrownoutLevel.SMALL_PREFILL)

        async def named() -> bool:
            return bool((await router.http.get("/health")).json()["brownout"] == {"c0": "small_prefill"})

        await eventually(named)
        assert (await router.http.get("/health")).status_code == 200


async def test_a_priority_reaches_the_pod_through_both_doors(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router:
        await router.complete(priority=-7)
        await router.complete()
        request = request_to_wire("hello", {"priority": 9, "max_tokens": 4})
        _ = [answer async for answer in router.rpc.Generate(request)]
        assert [submit.spec.priority for submit in pod.submits] == [-7, 0, 9]
