"""Pods that change their roles while requests stream: every answer right and whole, what was cached still there."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis
import tiny_model
from live_cluster import LiveCluster
from live_stream import Stream, completed
from patience import comes_true
from reference import NEAR_TIE, Reference

from pagewire.core.index_member import TIERS, member
from pagewire.serving.registration import Registration

KEY = "the operator's key"
FLAGS = (
    *("--prefill", "2", "--decode", "1", "--dtype", "float32", "--max-model-len", "256", "--kv-memory", "4MiB"),
    *("--chunk-size", "32", "--prefill-mode", "remote", "--drain-s", "1"),
)
MAX_TOKENS = 60
CLIENTS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def cluster(model: Path) -> Iterator[LiveCluster]:
    environ = {"PAGEWIRE_OPERATOR_KEY": KEY, "PAGEWIRE_INDEX_TIMEOUT_S": "1"}  # what is indexed is to be known
    cluster = LiveCluster(model, *FLAGS, **environ)
    yield cluster
    assert cluster.stop() == 0


def change(cluster: LiveCluster, pod: dict[str, Any], role: str) -> httpx.Response:
    return httpx.post(
        f"{cluster.http}/pods/{pod['id']}/role",
        json={"role": role}, headers={"authorization": f"Bearer {KEY}"}, trust_env=False, timeout=90,
    )  # fmt: skip


async def changed(cluster: LiveCluster, pod: dict[str, Any], role: str) -> None:
    """Have a pod change; a new incarnation is seen."""
    said = await asyncio.to_thread(change, cluster, pod, role)
    assert said.status_code == 202, said.text
    assert said.json()["incarnation"], said.text


async def stopped_at_work(cluster: LiveCluster, pod: dict[str, Any]) -> psutil.Process:
    """Stop a pod's engine while sequences run there; nothing is on its way from it to the front any more.

    More than one: the step that it stands in the midst of may be the last of one of them.
    """
    engine = cluster.engine_of(pod)
    async with asyncio.timeout(60):
        while True:
            engine.suspend()
            states = [await asyncio.to_thread(cluster.metrics, pod) for _ in range(2)]
            if states[-1]["num_requests_running"] >= 2:
                return engine
            engine.resume()
            await asyncio.sleep(0.01)


async def logged(cluster: LiveCluster, pod: dict[str, Any], line: str) -> None:
    """Return when a pod has said this."""
    async with asyncio.timeout(60):
        while line not in cluster.log(pod["id"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_pod_changes_there_and_back_under_requests_that_stream(cluster: LiveCluster, model: Path) -> None:
    prompts = [[(seed * 37 + i * i * 7 + i * (seed + 3)) % 256 for i in range(40 + 14 * seed)] for seed in range(8)]
    expected = Reference(model).greedy(prompts, MAX_TOKENS)
    right = {tuple(p): list(e.tokens) for p, e in zip(prompts, expected, strict=True) if min(e.margins) > NEAR_TIE}
    assert len(right) > len(prompts) // 2
    pod = cluster.said["prefill"][0]
    answers: list[Stream] = []
    is_over = False

    async def ask_again_and_again(number: int) -> None:
        mine = list(right)
        for turn in range(number, 10_000):
            if is_over:
                return
            prompt = mine[turn % len(mine)]
            answer = await completed(cluster, list(prompt), MAX_TOKENS, f"{number}.{turn}")
            assert (answer.error, answer.tokens) == ({}, right[prompt]), f"request {turn} of client {number}"
            answers.append(answer)

    async def served_by(field: str) -> None:
        """Return when the pod had its part in a few of the answers from now on."""
        seen = len(answers)
        async with asyncio.timeout(60):
            while sum(answer.report[field] == pod["id"] for answer in answers[seen:]) < CLIENTS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as clients:
        for number in range(CLIENTS):
            clients.create_task(ask_again_and_again(number))
        await served_by("prefill_pod")
        await changed(cluster, pod, "decode")
        assert await asyncio.to_thread(cluster.usable) == {"prefill": 1, "decode": 2}
        await served_by("decode_pod")
        # Streams of this size are over in a tenth of the drain time: the engine stands still until that has passed.
        engine = await stopped_at_work(cluster, pod)
        changing = asyncio.create_task(changed(cluster, pod, "prefill"))
        await logged(cluster, pod, "what runs after 1.0 s is handed over")
        engine.resume()
        await changing
        assert await asyncio.to_thread(cluster.usable) == {"prefill": 2, "decode": 1}
        await served_by("prefill_pod")
        is_over = True
    # Whatever ran there went on elsewhere, with every token right.
    assert any(answer.said["attempts"] > 1 and answer.report["decode_pod"] != pod["id"] for answer in answers)
    cluster.assert_at_rest()


def indexed(cluster: LiveCluster, pod: dict[str, Any]) -> set[bytes]:
    """Return the keys of the prefix index that name a pod as it is registered now."""
    with redis.Redis.from_url(cluster.said["redis"]) as server:
        (found,) = server.scan_iter(match=f"pw:*:pod:{pod['id']}")
        index_id = Registration.from_json(server.get(found)).index_id
        names = {member(index_id, tier) for tier in TIERS}
        return {key for key in server.scan_iter(match="pw:*:h:*") if names & server.smembers(key)}


async def test_what_a_pod_cached_is_found_in_its_other_role(cluster: LiveCluster) -> None:
    prompt = [(i * i * 11 + i) % 256 for i in range(150)]
    (decode,) = cluster.said["decode"]
    others = indexed(cluster, decode)
    first = await completed(cluster, prompt, 8, "kept")
    assert first.error == {}
    holder = next(pod for pod in cluster.said["prefill"] if pod["id"] == first.report["prefill_pod"])
    assert first.report["prefill_cached_tokens"] == first.report["decode_cached_tokens"] == 0
    assert await comes_true(lambda: bool(indexed(cluster, decode) - others), within_s=10, every_s=0.02)
    kept = indexed(cluster, decode) - others
    await changed(cluster, holder, "decode")
    await changed(cluster, decode, "prefill")
    # The index is a hint, and told right after the pod is found in its new role.
    assert await comes_true(lambda: indexed(cluster, decode) >= kept, within_s=10, every_s=0.02)
    again = await completed(cluster, prompt, 8, "kept")
    assert (again.error, again.tokens) == ({}, first.tokens)
    # What it computed as a prefill pod the holder finds as a decode pod: nobody has to ship it again.
    assert (again.report["decode_pod"], again.report["decode_cached_tokens"]) == (holder["id"], 144)
    # What the decode pod took delivery of it finds as a prefill pod, and the index sends the prompt there.
    assert (again.report["prefill_pod"], again.report["prefill_cached_tokens"]) == (decode["id"], 144)
    refused = await asyncio.to_thread(change, cluster, holder, "prefill")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "role_refused")
    assert "last pod that decodes" in refused.json()["error"]["message"]
    await changed(cluster, decode, "decode")
    await changed(cluster, holder, "prefill")
    cluster.assert_at_rest()


async def test_pods_that_are_ended_while_they_change_leave_nothing_behind(cluster: LiveCluster) -> None:
    prompt = [(i * i * 5 + i) % 256 for i in range(60)]
    calm = await completed(cluster, prompt, 8, "calm")
    assert calm.error == {}
    ended = zip(cluster.said["prefill"][:], (signal.SIGTERM, signal.SIGKILL), strict=True)
    cluster.join("prefill")  # or the second would be the last one, which may not change
    async with asyncio.timeout(30):
        while (await asyncio.to_thread(cluster.usable))["prefill"] < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for pod, number in ended:
        engine = cluster.engine_of(pod)
        drains = cluster.log(pod["id"]).count("becomes a decode pod")
        engine.suspend()  # it is asked to change too: so the change is not over before the pod ends
        changing = asyncio.create_task(asyncio.to_thread(change, cluster, pod, "decode"))
        async with asyncio.timeout(30):
            while cluster.log(pod["id"]).count("becomes a decode pod") == drains:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        os.kill(pod["pid"], number)
        engine.resume()
        code = await asyncio.to_thread(cluster.exit_code, pod)
        assert code == (0 if number is signal.SIGTERM else -signal.SIGKILL)
        async with asyncio.timeout(30):
            while engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        answer = await completed(cluster, prompt, 8, "calm")
        assert (answer.error, answer.tokens) == ({}, calm.tokens)
        cluster.assert_at_rest()
        refused = await changing
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "pod_lost"), refused.text
