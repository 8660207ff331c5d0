"""The public gRPC API across one release: an old client before our router, our client before an old router.

Old is what speaks by the messages in protos/released alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import released_wire
from fake_pod import FakePod
from router_rig import RunningRouter, StartRouter

from pagewire.client.aio import AsyncClient

SERVICE = "pagewire.v1.Inference"


def old(name: str) -> Any:
    return released_wire.message(f"pagewire.v1.{name}")


async def test_an_old_client_is_answered(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router, grpc.aio.insecure_channel(router.addresses["grpc"]) as channel:
        generate = channel.unary_stream(
            f"/{SERVICE}/Generate",
            request_serializer=old("GenerateRequest").SerializeToString,
            response_deserializer=old("GenerateResponse").FromString,
        )
        request = old("GenerateRequest")(text="hello world")
        request.sampling.max_tokens = 6
        said = [each async for each in generate(request)]
        assert said[-1].HasField("complete")
        tokens = [token for each in said if each.HasField("chunk") for token in each.chunk.token_ids]
        assert tokens == (list(pod.submits[0].spec.tokens) * 2)[:6]
        for method, kind in (("GetModelInfo", "GetModelInfo"), ("GetLoads", "GetLoads")):
            call = channel.unary_unary(
                f"/{SERVICE}/{method}",
                request_serializer=old(f"{kind}Request").SerializeToString,
                response_deserializer=old(f"{kind}Response").FromString,
            )
            assert (await call(old(f"{kind}Request")())).ByteSize() > 0


@contextlib.asynccontextmanager
async def old_router(router: RunningRouter) -> AsyncIterator[str]:
    """Stand before a router and pass on what a released one would have heard and said."""
    service = released_wire.pool().FindServiceByName(SERVICE)
    async with grpc.aio.insecure_channel(router.addresses["grpc"]) as channel:

        def handler(method: Any) -> Any:
            asked, said = (released_wire.message(kind.full_name) for kind in (method.input_type, method.output_type))

            async def whole(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
                call: Any = channel.unary_unary(f"/{SERVICE}/{method.name}")
                return released_wire.narrowed(said, await call(released_wire.narrowed(asked, data)))

            async def stream(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
                call: Any = channel.unary_stream(f"/{SERVICE}/{method.name}")
                async for each in call(released_wire.narrowed(asked, data)):
                    yield released_wire.narrowed(said, each)

            if method.server_streaming:
                return grpc.unary_stream_rpc_method_handler(stream)
            return grpc.unary_unary_rpc_method_handler(whole)

        server = grpc.aio.server()
        handlers = {method.name: handler(method) for method in service.methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)


async def test_an_old_router_answers_our_client(start: StartRouter) -> None:
    pod = FakePod("c0")
    async with start(pod) as router, old_router(router) as address, AsyncClient(address) as client:
        assert (await client.model_info()).model == "fake"
        answer = await client.generate("hello world", max_tokens=6)
        assert list(answer.token_ids) == (list(pod.submits[0].spec.tokens) * 2)[:6]
        assert answer.finish_reason is not None
        async with client.stream("hello world", max_tokens=6) as streamed:
            assert [token async for part in streamed for token in part.token_ids] == list(answer.token_ids)
        assert [each.pod_id for each in await client.loads()] == ["c0"]
