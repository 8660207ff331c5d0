"""How calls end that nobody ended: at the end of a drain, and where the peer has fallen silent."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import grpc
import pytest
from fake_pod import FakePod
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from router_rig import StartRouter, events, eventually
from slow_proxy import slow_proxy

from pagewire.client import AsyncClient, Client, RetryPolicy, Timeout
from pagewire.core.errors import RouterLost
from pagewire.core.load import Load
from pagewire.protos import inference_pb2 as pb
from pagewire.router.answer_stream import AnswerStream
from pagewire.router.delivery import Delivery
from pagewire.router.events import Event
from pagewire.router.intake import Intake

ONCE = RetryPolicy(max_attempts=1, resumes=False)
SILENCE_S = 3.0
FOR_EVER_S = 60.0
MORE_THAN_THERE_IS = sys.maxsize // 2


def assert_drained(error: grpc.aio.AioRpcError, request_id: str) -> None:
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    kinds = {detail.TypeName(): detail for detail in status.details}
    assert kinds["google.rpc.ErrorInfo"].Unpack(info)
    assert kinds["google.rpc.RetryInfo"].Unpack(retry)
    assert (info.reason, info.metadata["request_id"]) == ("draining", request_id)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.0


async def test_what_a_drain_cuts_off_is_told_by_both_doors(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.hold_at = 3
    async with start(pod, drain_s=0.2) as router:
        call = router.rpc.Generate(pb.GenerateRequest(text="hello", request_id="streams"))
        got: list[int] = []
        while len(got) < 3:
            got += (await call.read()).chunk.token_ids
        whole = asyncio.create_task(router.complete())
        body = {"prompt": "hello", "stream": True}
        async with router.http.stream("POST", "/v1/completions", json=body) as streamed:
            parts = streamed.aiter_text()
            text = await anext(parts)
            await pod.until(lambda: pod.running == 3)
            router.lifecycle.drain("the test wants it")
            with pytest.raises(grpc.aio.AioRpcError) as cut:
                await call.read()
            text += "".join([part async for part in parts])
        assert len(got) == 3
        assert_drained(cut.value, "streams")
        *chunks, last = events(text)
        assert sum(len(chunk["choices"]) for chunk in chunks) > 0
        assert last["error"]["code"] == "draining"
        answer = await whole
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert int(answer.headers["retry-after"]) >= 1
        await pod.until(lambda: len(pod.cancels) == 3)
        await asyncio.wait_for(asyncio.shield(router.task), 60)


async def test_what_nobody_foresaw_has_one_name_at_both_doors(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Delivery:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Intake, "delivery", broken)
    async with start(FakePod("c0")) as router:
        for stream in (False, True):
            answer = await router.http.post(
                "/v1/completions", json={"prompt": "a", "stream": stream}, headers={"x-request-id": "r1"}
            )
            assert answer.status_code == 500
            assert answer.json()["error"] == {
                "message": "internal error", "type": "server_error", "param": None, "code": "internal",
            }  # fmt: skip
            assert (answer.headers["x-request-id"], answer.headers["x-should-retry"]) == ("r1", "false")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            [part async for part in router.rpc.Generate(pb.GenerateRequest(text="a", request_id="r2"))]
        assert raised.value.code() is grpc.StatusCode.INTERNAL
        status = rpc_status.from_call(raised.value)  # type: ignore[arg-type]
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        assert (info.reason, info.metadata["request_id"]) == ("internal", "r2")
        assert await router.metric("pagewire_router_requests_active") == 0
        lines = (await router.http.get("/metrics")).text
        assert 'pagewire_router_requests_total{outcome="internal"} 3.0' in lines
        assert "cancelled" not in lines
    assert "ZeroDivisionError: a bug" in caplog.text


@pytest.mark.parametrize("kind", [Intake, AnswerStream])
async def test_lack_of_memory_is_told_by_name_whenever_it_is_met(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch, kind: type[Intake] | type[AnswerStream]
) -> None:
    """Before anything was said it is a status, behind the first tokens an event; the connection is whole."""
    heard = 0

    def delivery(*_: object) -> Delivery:
        return cast(Delivery, bytes(MORE_THAN_THERE_IS))

    def take(self: AnswerStream, event: Event) -> bytes:
        nonlocal heard
        heard += 1
        return bytes(MORE_THAN_THERE_IS) if heard == 3 else plain(self, event)

    plain = AnswerStream.take
    is_late = kind is AnswerStream
    monkeypatch.setattr(kind, "take" if is_late else "delivery", take if is_late else delivery)
    async with start(FakePod("c0")) as router:
        answer = await router.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 8, "stream": True})
        assert answer.status_code == (200 if is_late else 503)
        error = events(answer.text)[-1]["error"] if is_late else answer.json()["error"]
        assert (error["code"], error["message"]) == ("unavailable", "this process has no memory left")
        assert answer.text.endswith("data: [DONE]\n\n") == is_late
        assert answer.headers.get("retry-after") == (None if is_late else "1")
        monkeypatch.undo()
        assert (await router.complete()).status_code == 200
        assert await router.metric("pagewire_router_requests_active") == 0


async def test_what_waits_for_a_pod_when_the_drain_is_over_is_told(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.load = Load(blocks_total=100, blocks_held=100, num_running=1)
    async with start(pod, drain_s=0.2, max_wait_s=FOR_EVER_S) as router:
        await router.has_heard()
        call = router.rpc.Generate(pb.GenerateRequest(text="hello", request_id="waits"))

        async def waits() -> bool:
            return await router.metric("pagewire_router_requests_waiting") == 1

        await eventually(waits)
        router.lifecycle.drain("the test wants it")
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await call.read()
        assert_drained(cut.value, "waits")
        assert pod.submits == []
        await asyncio.wait_for(asyncio.shield(router.task), 60)


@pytest.mark.parametrize("shell", ["asyncio", "threads"])
async def test_a_peer_that_falls_silent_is_noticed_from_both_ends(start: StartRouter, shell: str) -> None:
    """No connection ends: between the two is a proxy that carries nothing any more."""
    pod = FakePod("c0")
    pod.hold_at = 3
    begun, loop, timeout = asyncio.Event(), asyncio.get_running_loop(), Timeout(silence_s=SILENCE_S)

    async def in_asyncio(url: str) -> None:
        async with (
            AsyncClient(url, timeout=timeout, retry=ONCE) as client,
            client.stream("hello", max_tokens=8) as stream,
        ):
            async for _ in stream:
                begun.set()

    def in_a_thread(url: str) -> None:
        with Client(url, timeout=timeout, retry=ONCE) as client, client.stream("hello", max_tokens=8) as stream:
            for _ in stream:
                loop.call_soon_threadsafe(begun.set)

    async with (
        start(pod, silence_s=SILENCE_S) as router,
        slow_proxy(int(router.addresses["grpc"].rpartition(":")[2])) as proxy,
    ):
        url = f"127.0.0.1:{proxy.port}"
        reading = asyncio.ensure_future(in_asyncio(url) if shell == "asyncio" else asyncio.to_thread(in_a_thread, url))
        await begun.wait()
        proxy.silence()
        assert pod.running == 1
        with pytest.raises(RouterLost):
            await asyncio.wait_for(reading, FOR_EVER_S)
        # The router hears nothing of that: it has to find out by itself.
        async with asyncio.timeout(FOR_EVER_S):
            await pod.until(lambda: len(pod.cancels) == 1 and not pod.running)

        async def freed() -> bool:
            told: int = (await router.http.get("/load")).json()["server_load"]
            return told == 0

        await eventually(freed)


async def test_a_silent_peer_is_waited_for_no_less_than_it_was_told(start: StartRouter) -> None:
    """Silence alone ends nothing: a pause of the answer on a connection that lives is none of the peer's."""
    pod = FakePod("c0")
    pod.hold_at = 3
    async with start(pod, silence_s=1.0) as router:
        call = router.rpc.Generate(pb.GenerateRequest(text="hello", sampling=pb.Sampling(max_tokens=4)))
        answers = aiter(call)
        await anext(answers)
        await asyncio.sleep(2.5)  # two pings of the router, which gRPC answers for the client
        pod.release()
        *_, last = [answer async for answer in answers]
        assert last.HasField("complete")
        assert pod.cancels == []
