"""What a request leaves unset of sampling is as the model's generation_config.json says; its own word goes first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_pod import FakePod
from router_rig import RunningRouter, StartRouter

from pagewire.client import AsyncClient
from pagewire.core.sampling import SamplingParams
from pagewire.router.sampling_defaults import sampling_defaults

SAID = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True, "eos_token_id": 2, "min_p": None}
MEANT = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}


def with_file(model: Path, to: Path, said: object) -> Path:
    folder = shutil.copytree(model, to / "model")
    (folder / "generation_config.json").write_text(json.dumps(said))
    return folder


def sampled(router: RunningRouter) -> dict[str, Any]:
    params: SamplingParams = router.pods[0].submits[-1].spec.sampling
    return {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "repetition_penalty")}


async def test_unset_fields_are_the_models_over_every_door(start: StartRouter, model: Path, tmp_path: Path) -> None:
    folder = with_file(model, tmp_path, SAID)
    async with start(FakePod("c0"), model=(str(folder),)) as router:
        assert (await router.complete()).status_code == 200
        assert sampled(router) == {**MEANT, "repetition_penalty": 1.0}
        assert (await router.complete(temperature=0, top_p=0.5)).status_code == 200
        assert sampled(router) == {"temperature": 0.0, "top_k": 20, "top_p": 0.5, "repetition_penalty": 1.0}
        async with AsyncClient(router.addresses["grpc"]) as client:
            await client.generate("hello", max_tokens=2)
        assert sampled(router) == {**MEANT, "repetition_penalty": 1.0}


async def test_the_file_is_not_asked_where_it_must_not_be(start: StartRouter, model: Path, tmp_path: Path) -> None:
    folder = with_file(model, tmp_path, SAID)
    async with start(FakePod("c0"), model=(str(folder),), generation_config="none") as router:
        assert (await router.complete()).status_code == 200
        assert sampled(router) == {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}


def test_a_model_without_the_file_has_none(model: Path) -> None:
    assert sampling_defaults(model) == {}


@pytest.mark.parametrize(
    "said", [[], {"top_k": 1.5}, {"temperature": "warm"}, {"temperature": True}, {"top_p": 7}, {"temperature": -1}]
)
def test_a_file_that_cannot_be_is_named(model: Path, tmp_path: Path, said: object) -> None:
    with pytest.raises(ValueError, match=r"generation_config\.json"):
        sampling_defaults(with_file(model, tmp_path, said))
