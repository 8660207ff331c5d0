"""Marker words in all that callers and operators keep to themselves, and where they turn up: in answers alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from fake_pod import FakePod
from router_rig import StartRouter, events

from pagewire.core.errors import Draining, EngineFailed
from pagewire.protos import inference_pb2 as pb
from pagewire.router.keys import KEY_BYTES, NewKey

MARK = "zebra-quartz"
OPERATOR = "operator-zebra-quartz"
TOOL = {"type": "function", "function": {"name": "f", "description": MARK, "parameters": {"type": "object"}}}

# Right and wrong in every way that is answered by another piece of code.
BODIES: tuple[dict[str, Any], ...] = (
    {"prompt": MARK},
    {"prompt": MARK, "stream": True},
    {"prompt": [MARK, MARK]},
    {"prompt": MARK * 500},
    {"prompt": MARK, "stop": [MARK] * 99},
    {"prompt": MARK, "cache_salt": MARK, "user": MARK, "metadata": {"k": MARK}, MARK: MARK},
    {"prompt": MARK, "max_tokens": MARK},
    {"prompt": MARK, "guided_regex": f"({MARK}"},
    {"prompt": MARK, "guided_json": {"type": MARK}},
    {"prompt": MARK, "bad_words": [MARK]},
    {"prompt": MARK, "kv_transfer_params": {"remote_host": MARK}},
    {"prompt": {"text": MARK}},
    {"prompt": MARK, "model": "no such model"},
    {"messages": [{"role": "user", "content": MARK}]},
    {"messages": [{"role": "user", "content": MARK}], "tools": [TOOL], "tool_choice": "required"},
    {"messages": [{"role": MARK, "content": MARK}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": MARK}}]}]},
    {"messages": [{"role": "user", "content": MARK}], "chat_template": MARK},
    {"messages": [{"role": "user", "content": MARK}], "chat_template_kwargs": {MARK: MARK}},
)


async def test_neither_logs_nor_metrics_nor_health_tell_prompts_or_secrets(
    start: StartRouter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = NewKey.of(bytes(range(KEY_BYTES)))
    salt = f"salt-{MARK}"
    file = tmp_path / "keys.toml"
    file.write_text(f'[tenants.acme]\nkeys = ["{key.line}"]\nsalt = "{salt}"\noperator = true\n')
    pods = FakePod("c0"), FakePod("c1")
    headers = {"authorization": f"Bearer {key.key}"}
    async with start(*pods, api_keys=str(file), operator_key=OPERATOR, headers=headers, retry_burst=1000) as router:
        statuses = set()
        for trouble in (None, EngineFailed("it broke"), Draining("going away", retry_after_s=0.01)):
            for pod in pods:
                pod.fail_at = (1, trouble) if trouble is not None else None
            for body in BODIES:
                path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
                answer = await router.http.post(path, json={"max_tokens": 4, **body})
                statuses.add(answer.status_code)
                if answer.headers["content-type"].startswith("text/event-stream"):
                    events(answer.text)
            async for _ in _generate(router.rpc, headers):
                pass
        for wrong in (MARK, f"Bearer {MARK}", f"Bearer pw_{MARK}", f"Bearer {key.key}x"):
            answer = await router.http.get("/v1/models", headers={"authorization": wrong})
            assert answer.status_code == 401
            assert MARK not in answer.text
        await router.http.post("/v1/completions", content=f"{{{MARK}".encode())
        shown = [(await router.http.get(path)).text for path in ("/metrics", "/health", "/v1/models", "/load")]
        await _hang_up(router.http)
        assert {200, 400, 404} <= statuses
        assert any(status >= 500 for status in statuses)
    said = "\n".join(caplog.handler.format(record) for record in caplog.records) + "\n".join(shown)
    assert len(caplog.records) > 5  # there was something to say
    for secret in (MARK, key.key, key.line, key.key.rpartition("_")[2], salt, OPERATOR, "test-secret"):
        assert secret not in said, secret


async def _hang_up(client: httpx.AsyncClient) -> None:
    async with client.stream("POST", "/v1/completions", json={"prompt": MARK, "max_tokens": 400, "stream": True}) as it:
        await anext(it.aiter_bytes())


async def _generate(rpc: Any, headers: dict[str, str]) -> Any:
    metadata = tuple(headers.items())
    for request in (
        pb.GenerateRequest(text=MARK, sampling=pb.Sampling(max_tokens=4)),
        pb.GenerateRequest(text=MARK, sampling=pb.Sampling(max_tokens=4, n=100_000)),
        pb.GenerateRequest(text=MARK, request_id=f"bad\n{MARK}"),
    ):
        try:
            async for each in rpc.Generate(request, metadata=metadata):
                yield each
        except grpc.aio.AioRpcError as error:
            yield error
