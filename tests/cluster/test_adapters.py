"""Adapters in a cluster of real processes: named as models, prefilled in one pod, decoded in another, as PEFT says.

With a pinned prefix of one of them, and again with what is cached: nobody takes another's blocks.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path

import httpx
import lora_folders
import pytest
import tiny_model
from live_cluster import LiveCluster

pytestmark = pytest.mark.cluster

MAX_TOKENS = 16
SETTINGS = ("--dtype", "float32", "--kv-memory", "8MiB")


def test_adapters_of_a_cluster_answer_as_peft_does(tmp_path: Path) -> None:
    model = tiny_model.build(tmp_path / "tiny")
    folders = {kind: lora_folders.build(model, tmp_path / kind, kind) for kind in ("all", "patterns")}
    chance = random.Random(2)
    prompts = [[chance.randrange(256) for _ in range(length)] for length in (5, 40, 150)]
    expected = {
        name: lora_folders.answers(model, folders.get(name), prompts, MAX_TOKENS) for name in ("tiny", *folders)
    }
    prefixes = tmp_path / "prefixes.toml"
    prefixes.write_text(f'[long]\ntoken_ids = {json.dumps(prompts[2][:64])}\nadapter = "all"\n')
    flags = [part for name, folder in folders.items() for part in ("--adapter", f"{name}={folder}")]
    cluster = LiveCluster(model, *SETTINGS, *flags, "--pin-prefix", str(prefixes), "--chunk-size", "32")

    async def ask() -> dict[str, list[tuple[int, ...]]]:
        names = list(expected)
        found = await asyncio.gather(*(
            cluster.complete_all(prompts, MAX_TOKENS, concurrency=3, model=name, ignore_eos=True) for name in names
        ))  # fmt: skip
        pinned = [answer.report["prefill_cached_tokens"] for answer in found[names.index("all")]]
        assert pinned[2] >= 64
        return {name: [answer.tokens for answer in each] for name, each in zip(names, found, strict=True)}

    assert asyncio.run(ask()) == expected
    assert asyncio.run(ask()) == expected
    listed = httpx.get(f"{cluster.http}/v1/models", trust_env=False, timeout=60).json()["data"]
    assert [(each["id"], each["parent"]) for each in listed] == [("tiny", None), ("all", "tiny"), ("patterns", "tiny")]
    pods = [*cluster.said["prefill"], *cluster.said["decode"]]
    told = {pod["metrics"]: cluster.metrics(pod) for pod in pods}
    assert all(each["kv_blocks_pinned"] == 4 for each in told.values())
    cluster.assert_at_rest()
    assert cluster.stop() == 0


def test_a_batch_file_names_adapters(tmp_path: Path) -> None:
    model = tiny_model.build(tmp_path / "tiny")
    folder = lora_folders.build(model, tmp_path / "all", "all")
    prompt = list(range(40, 80))
    bodies = {
        name: {"model": name, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True,
               "return_token_ids": True}
        for name in ("tiny", "mine", "other")
    }  # fmt: skip
    lines = [
        json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body})
        for name, body in bodies.items()
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "run-batch", "--model", str(model), *SETTINGS]
    command += ["--adapter", f"mine={folder}", "-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    found = {}
    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        said = json.loads(line)
        found[said["custom_id"]] = said["response"]["body"]
    for name, adapter in (("tiny", None), ("mine", folder)):
        assert found[name]["model"] == name
        (expected,) = lora_folders.answers(model, adapter, [prompt], MAX_TOKENS)
        assert tuple(found[name]["choices"][0]["token_ids"]) == expected
    assert found["other"]["error"]["code"] == "model_not_found"
