"""What a refused request sent is let go of at once by both doors, and not when the garbage collector comes by: of large
ones that would be gigabytes."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from fake_pod import FakePod
from router_rig import StartRouter, eventually

from pagewire.core.errors import PagewireError
from pagewire.protos import inference_pb2 as pb
from pagewire.router.ask import Ask

LONG = "a " * 100_000  # for the fake pod's model
HTTP = {
    "no JSON": b'{"prompt": "' + LONG.encode(),
    "no such model": {"prompt": LONG, "model": "other"},
    "too long": {"prompt": LONG},
    "one of several": {"prompt": ["hello", LONG]},
    "wrong field": {"prompt": LONG, "top_p": 2.0},
}
GRPC = {
    "no message": b"\xff" * 100_000,
    "no such model": pb.GenerateRequest(text=LONG, model="other").SerializeToString(),
    "too long": pb.GenerateRequest(text=LONG).SerializeToString(),
    "wrong field": pb.GenerateRequest(text=LONG, sampling=pb.Sampling(top_p=2.0)).SerializeToString(),
}


@pytest.fixture
def nothing_is_kept() -> Iterator[Callable[[], Awaitable[bool]]]:
    """Tells whether nothing is left of requests, nor of what refused them, though no garbage collector comes by."""
    gc.collect()
    gc.disable()
    before = kept()  # by other tests, whose parameters may be errors

    async def is_so() -> bool:
        return len(kept()) == len(before)

    yield is_so
    gc.enable()


def kept() -> list[object]:
    # By their types: a stand-in of torch's warns whoever asks it for its class.
    return [each for each in gc.get_objects() if issubclass(type(each), PagewireError | Ask)]


@pytest.mark.parametrize("body", HTTP.values(), ids=HTTP)
async def test_over_http(
    start: StartRouter, nothing_is_kept: Callable[[], Awaitable[bool]], body: bytes | dict[str, object]
) -> None:
    async with start(FakePod("c0")) as router:
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        assert 400 <= (await router.http.post("/v1/completions", **sent)).status_code < 500  # type: ignore[arg-type]
        await eventually(nothing_is_kept)


@pytest.mark.parametrize("message", GRPC.values(), ids=GRPC)
async def test_over_grpc(start: StartRouter, nothing_is_kept: Callable[[], Awaitable[bool]], message: bytes) -> None:
    async with start(FakePod("c0")) as router, grpc.aio.insecure_channel(router.addresses["grpc"]) as channel:
        generate: Any = channel.unary_stream("/pagewire.v1.Inference/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await generate(message).read()
        assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
        await eventually(nothing_is_kept)
