"""Callers who name pods, hosts, ports, blocks or roles, in headers and in bodies: nothing of it reaches a pod."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from fake_pod import FakePod
from router_rig import StartRouter

from pagewire.core.messages import Role, Submit

EVIL = "203.0.113.7:6666"
HEADERS = (
    "x-prefiller-host-port", "x-prefiller-url", "x-decoder-host-port", "x-data-parallel-host-port", "x-worker-id",
    "x-gateway-destination-endpoint", "x-bootstrap-host", "x-bootstrap-room", "x-kv-transfer-params",
    "x-request-priority", "x-tenant", "x-forwarded-for", "x-forwarded-host", "x-original-url", "forwarded",
    "x-pagewire-pod", "x-pagewire-tenant", "x-pagewire-incarnation", "x-pagewire-ticket", "x-pagewire-cache-salt",
)  # fmt: skip
FIELDS: tuple[dict[str, Any], ...] = (
    {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": "203.0.113.7", "remote_port": 6666,
                            "remote_block_ids": [1, 2], "remote_engine_id": "e", "tp_size": 10**9}},
    {"kv_transfer_params": {}},
    {"kv_transfer_params": "garbage"},
    {"bootstrap_host": "203.0.113.7", "bootstrap_port": 6666, "bootstrap_room": 1},
    {"data_parallel_rank": 7, "routed_dp_rank": 7},
    {"disagg_prefill_dp_rank": 3, "disaggregated_params": {"request_type": "generation_only"}},
    {"nvext": {"backend_instance_id": 3, "prefill_worker_id": 1, "decode_worker_id": 2}},
    {"mm_hashes": ["0" * 64], "multi_modal_data": {}, "features": {}},
    {"candidates": [{"pod_id": "evil", "address": EVIL}], "prefill": "local", "sources": [{"address": EVIL}]},
    {"placement": {"decode": "evil"}, "pod_id": "evil", "role": "prefill", "generation": 7, "ticket": "AAAA"},
    {"tenant": "acme", "salt": "s", "root": "AAAA", "cache_quota": {"share": 1.0, "tag": "AAAA"}},
    {"spec": {"tokens": [1]}, "adapter": "a", "lora_path": "/etc", "incarnation": "1", "epoch": 1},
)  # fmt: skip


def said(submit: Submit) -> Submit:
    """Return a Submit without what differs between any two requests."""
    spec = dataclasses.replace(submit.spec, request_id="", sampling=dataclasses.replace(submit.spec.sampling, seed=0))
    return dataclasses.replace(submit, spec=spec, deadline_s=0.0)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_what_a_caller_says_of_pods_changes_nothing(start: StartRouter, path: str) -> None:
    pods = FakePod("d0", role=Role.DECODE), FakePod("p0", role=Role.PREFILL)
    prompt = {"prompt": "hello world"} if path == "/v1/completions" else {
        "messages": [{"role": "user", "content": "hello world"}]
    }  # fmt: skip
    async with start(*pods) as router:
        body = {**prompt, "max_tokens": 2}
        assert (await router.http.post(path, json=body)).status_code == 200
        for extra in FIELDS:
            answer = await router.http.post(path, json={**body, **extra})
            assert answer.status_code == 200, answer.text
            assert EVIL not in answer.text
        for header in HEADERS:
            answer = await router.http.post(path, json=body, headers={header: EVIL})
            assert answer.status_code == 200, answer.text
        plain, *others = [said(submit) for submit in pods[0].submits]
        assert len(others) == len(FIELDS) + len(HEADERS)
        assert [other for other in others if other != plain] == []
        assert [each.pod_id for each in plain.candidates] == ["p0"]


async def test_what_a_caller_may_say_is_no_address(start: StartRouter) -> None:
    """Refused besides: media that would be fetched, embeddings that would be loaded, templates that would run."""
    pod = FakePod("c0")
    async with start(pod) as router:
        url = {"type": "image_url", "image_url": {"url": f"http://{EVIL}/"}}
        for path, body in (
            ("/v1/completions", {"prompt": "a", "prompt_embeds": "gASVAAAA"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": [url]}]}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ 1 }}"}),
        ):
            answer = await router.http.post(path, json=body)
            assert answer.status_code == 400, answer.text
        for admin in (
            "/route", "/update_weights_from_tensor", "/run_script", "/collective_rpc", "/invocations", "/pause",
            "/sleep", "/resume", "/update_weights", "/abort_requests", "/server_info", "/reset_prefix_cache",
            "/pd_register", "/kv_move_status", "/v1/rerank", "/register_worker",
        ):  # fmt: skip
            for method in ("GET", "POST", "PUT"):
                assert (await router.http.request(method, admin)).status_code in (404, 405)
        assert pod.submits == []
