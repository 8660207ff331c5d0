"""Tokens go past what is pulled where nothing is overtaken; otherwise, and then too, the answer is the same."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from typing import Any

import pytest
import raw_stream
from fake_pod import FakePod, fingerprint
from hypothesis import given
from hypothesis import strategies as st
from router_rig import StartRouter, events
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from pagewire.core.clock import ManualClock
from pagewire.core.errors import EngineFailed, PodLost
from pagewire.core.sampling import FinishReason
from pagewire.core.token_record import TokenRecord
from pagewire.router.http_protocol import Outlet
from pagewire.router.inbox import Inbox, News

MAX_TOKENS = 40
CLOCK = ManualClock()


def record(position: int, *tokens: int, **fields: Any) -> TokenRecord:
    return TokenRecord(request_id="r", index=0, position=position, tokens=tokens, **fields)


class Way:
    """Takes what it is given while it is open."""

    def __init__(self) -> None:
        self.is_open = True
        self.went: list[int] = []

    def take(self, news: News) -> bool:
        if self.is_open:
            self.went += news.tokens
        return self.is_open


async def waiting(inbox: Inbox) -> asyncio.Task[Any]:
    """Return a task that takes, once it waits."""
    task = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    return task


async def test_only_plain_tokens_go_and_only_while_somebody_waits() -> None:
    way, inbox = Way(), Inbox(positions={0: 0}, limit=9, clock=CLOCK)
    inbox.shorten(way.take)
    inbox.put([record(0, 1)])  # nobody waits
    assert (await inbox.take()).news == (News(index=0, tokens=(1,)),)
    task = await waiting(inbox)
    inbox.put([record(1, 2, 3)])
    inbox.put([record(3, 4)])
    assert way.went == [2, 3, 4]
    way.is_open = False
    inbox.put([record(4, 5)])
    way.is_open = True
    inbox.put([record(5, 6)])  # something waits before it
    assert (await task).news == (News(index=0, tokens=(5, 6)),)
    task = await waiting(inbox)
    inbox.put([record(6, 7, finish_reason=FinishReason.STOP)])
    assert (await task).news == (News(index=0, tokens=(7,), finish_reason=FinishReason.STOP),)
    assert way.went == [2, 3, 4]


@pytest.mark.parametrize("bad", [record(0, 5), record(2, 5), record(1, 5, 6, 7)])
async def test_a_breach_goes_nowhere(bad: TokenRecord) -> None:
    way, inbox = Way(), Inbox(positions={0: 0}, limit=3, clock=CLOCK)
    inbox.shorten(way.take)
    task = await waiting(inbox)
    inbox.put([record(0, 4)])
    inbox.put([bad])
    with pytest.raises(EngineFailed):
        await task
    assert way.went == [4]


async def test_what_fails_on_the_way_fails_the_attempt_and_nothing_else() -> None:
    def fail(_news: News) -> bool:
        raise PodLost("not the pod that had it")

    inbox = Inbox(positions={0: 0}, limit=3, clock=CLOCK)
    inbox.shorten(fail)
    task = await waiting(inbox)
    inbox.put([record(0, 4)])
    inbox.put([record(1, 5)])
    inbox.lose(PodLost("gone"))
    with pytest.raises(RuntimeError) as raised:
        await task
    assert isinstance(raised.value.__cause__, PodLost)


@given(steps=st.lists(st.sampled_from(("put", "take", "open", "close")), max_size=60))
async def test_what_goes_either_way_is_what_came_in_order(steps: list[str]) -> None:
    way, inbox, came = Way(), Inbox(positions={0: 0}, limit=99, clock=CLOCK), 0
    inbox.shorten(way.take)
    task: asyncio.Task[Any] | None = None
    for step in [*steps, "put", "take"]:
        if step == "put":
            inbox.put([record(came, came)])
            came += 1
        elif step == "take":
            if task is not None:
                task.cancel()
            task = await waiting(inbox)
        else:
            way.is_open = step == "open"
        await asyncio.sleep(0)
        if task is not None and task.done():
            way.went += (await task).news[0].tokens
            task = None
    if task is not None:
        task.cancel()
    assert way.went == list(range(came))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the list of the parts that go the short way."""
    parts: list[bytes] = []
    write: Callable[[Outlet, bytes], None] = Outlet.write

    def noted(outlet: Outlet, part: bytes) -> None:
        parts.append(part)
        write(outlet, part)

    monkeypatch.setattr(Outlet, "write", noted)
    return parts


async def test_nearly_all_tokens_of_a_stream_go_it(start: StartRouter, sent: list[bytes]) -> None:
    async with start(FakePod("c0")) as router:
        text = await raw_stream.streamed(router.addresses["http"], MAX_TOKENS)
        assert text == raw_stream.repeated(MAX_TOKENS)
        assert await router.metric("vllm:generation_tokens_total") == MAX_TOKENS
        assert await router.metric("vllm:time_per_output_token_seconds_count") == MAX_TOKENS - 1
    # The first is waited for, the last has its end; those that come in one read with them are taken together.
    assert len(sent) > MAX_TOKENS / 2


@pytest.mark.parametrize(
    "fields",
    [{"n": 2}, {"stop": ["zz"]}, {"prompt": ["hello", "world"]}, {"stream": False}],
    ids=lambda each: next(iter(each)),
)
async def test_what_is_no_plain_stream_goes_the_long_way(
    start: StartRouter, sent: list[bytes], fields: dict[str, Any]
) -> None:
    async with start(FakePod("c0")) as router:
        answer = await router.complete(**{"stream": True, "max_tokens": MAX_TOKENS, "ignore_eos": True, **fields})
    assert answer.status_code == 200
    assert sent == []


async def test_a_connection_that_fills_and_drains_has_both_ways_in_order(start: StartRouter, sent: list[bytes]) -> None:
    number = 30_000
    pod = FakePod("c0", serves=fingerprint(max_model_len=1 << 16))
    async with start(pod) as router:
        host, port = router.addresses["http"].removeprefix("http://").split(":")
        with socket.socket() as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            own.setblocking(False)
            await asyncio.get_running_loop().sock_connect(own, (host, int(port)))
            reader, writer = await asyncio.open_connection(sock=own, limit=1 << 12)
            writer.write(raw_stream.request(max_tokens=number))
            said = b""
            while not said.endswith(b"0\r\n\r\n"):
                at = len(sent)
                await asyncio.sleep(0.1)
                while len(sent) > at:  # until it is full
                    at = len(sent)
                    await asyncio.sleep(0.1)
                while not said.endswith(b"0\r\n\r\n") and len(sent) == at:  # until it goes on
                    said += await reader.read(1 << 16)
            writer.close()
    assert raw_stream.text_of(said) == raw_stream.repeated(number)
    assert 0 < len(sent) < 0.9 * number  # of one that never fills, all but the first and the last


async def test_an_ended_request_is_freed_at_once(start: StartRouter) -> None:
    def cycles() -> int:
        return sum(type(each) is RequestResponseCycle for each in gc.get_objects())

    async with start(FakePod("c0")) as router:
        gc.collect()
        gc.disable()
        try:
            before = cycles()
            for stream in (True, False) * 5:
                await router.complete(stream=stream)
                await router.http.get("/live")
            assert cycles() <= before + 1  # the connection's last one
        finally:
            gc.enable()


async def test_a_failure_on_it_is_the_requests_own(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch, sent: list[bytes]
) -> None:
    write = Outlet.write

    def fails_once(outlet: Outlet, part: bytes) -> None:
        monkeypatch.setattr(Outlet, "write", write)
        raise ZeroDivisionError

    async with start(FakePod("c0")) as router:
        monkeypatch.setattr(Outlet, "write", fails_once)
        broken = events((await router.complete(stream=True, max_tokens=MAX_TOKENS, ignore_eos=True)).text)
        assert broken[-1]["error"]["code"] == "internal"
        assert (await router.complete(stream=True, max_tokens=MAX_TOKENS, ignore_eos=True)).status_code == 200
        (pod,) = router.pods
        assert pod.is_linked
        assert [cancel.request_id for cancel in pod.cancels] == [pod.submits[0].spec.request_id]
