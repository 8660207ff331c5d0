"""Several models behind one router: each request meets the tokenizer and the pods of the model that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import byte_tokenizer
import grpc
import pytest
import tokenizers
from fake_pod import FakePod, fingerprint
from router_rig import StartRouter, eventually

from pagewire.core.errors import PodLost, Unavailable, UnknownModel
from pagewire.core.fingerprint import tokenizer_digest
from pagewire.protos import inference_pb2 as pb
from pagewire.router.config import RouterConfig
from pagewire.router.main import run
from pagewire.router.models import ModelSource
from pagewire.serving.lifecycle import Lifecycle


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A model whose tokenizer puts a bos token first."""
    return byte_tokenizer.save(tmp_path / "other", with_bos=True)


def serving(pod_id: str, name: str, folder: Path) -> FakePod:
    digest = tokenizer_digest((folder / "tokenizer.json").read_bytes())
    return FakePod(pod_id, serves=fingerprint(model_name=name, model_digest=name, tokenizer_digest=digest))


def ids(folder: Path, text: str) -> list[int]:
    found: list[int] = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return found


async def test_a_request_goes_to_the_model_that_it_names(start: StartRouter, model: Path, other: Path) -> None:
    pods = serving("a0", "a", model), serving("b0", "b", other), serving("b1", "b", other)
    async with start(*pods, model=(str(model), str(other))) as router:
        for name, folder, own in (("a", model, pods[:1]), ("b", other, pods[1:]), ("", model, pods[:1])):
            before = [len(pod.submits) for pod in pods]
            response = await router.complete("hello world", model=name, return_token_ids=True)
            assert response.status_code == 200, response.text
            assert response.json()["model"] == (name or "a")
            assert response.json()["choices"][0]["prompt_token_ids"] == ids(folder, "hello world")
            used = [pod for pod, count in zip(pods, before, strict=True) if len(pod.submits) > count]
            assert len(used) == 1
            assert used[0] in own
            chunks = [each async for each in router.rpc.Generate(pb.GenerateRequest(text="hello world", model=name))]
            assert list(chunks[-1].complete.prompt_token_ids) == ids(folder, "hello world")
            assert (await router.rpc.GetModelInfo(pb.GetModelInfoRequest(model=name))).model == (name or "a")
        assert ids(model, "hello world") != ids(other, "hello world")
        listed = (await router.http.get("/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == ["a", "b"]
        assert (await router.http.get("/v1/models/b")).json()["id"] == "b"
        unknown = await router.complete(model="c")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, UnknownModel.cause)
        assert "'a', 'b' are" in unknown.json()["error"]["message"]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await router.rpc.GetModelInfo(pb.GetModelInfoRequest(model="c"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_names_tell_models_of_one_tokenizer_apart(start: StartRouter, model: Path) -> None:
    small, large = serving("s0", "small", model), serving("l0", "large", model)
    async with start(small, model=(f"small={model}", f"large={model}")) as router:
        assert (await router.complete(model="small")).status_code == 200
        # A model without pods answers for itself.
        absent = await router.complete(model="large")
        assert (absent.status_code, absent.json()["error"]["code"]) == (503, Unavailable.cause)
        health = await router.http.get("/health")
        assert (health.status_code, health.json()["models"]) == (200, {"small": True, "large": False})
        assert [each["id"] for each in (await router.http.get("/v1/models")).json()["data"]] == ["small"]
        await large.start()
        await router.registry.register(large.registration)
        await router.has(2)
        assert (await router.complete(model="large")).status_code == 200
        assert (len(small.submits), len(large.submits)) == (1, 1)
        assert (await router.http.get("/health")).json()["models"] == {"small": True, "large": True}
        await large.die()


async def test_a_lost_request_is_not_continued_by_another_model(start: StartRouter, model: Path, other: Path) -> None:
    broken, fine = serving("a0", "a", model), serving("b0", "b", other)
    broken.fail_at = (2, PodLost("gone"))
    async with start(broken, fine, model=(str(model), str(other)), placement_wait_s=0.1) as router:
        answer = await router.complete(model="a")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, PodLost.cause)
        assert fine.submits == []


async def test_a_pod_that_fits_no_model_is_named_with_what_keeps_it_out(
    start: StartRouter, model: Path, other: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fits, stranger, namesake = serving("a0", "a", model), serving("x0", "x", other), serving("y0", "a", other)
    async with start(fits, misfits=(stranger, namesake), model=(f"a={model}", f"b={other}")) as router:

        async def named() -> bool:
            return all(any(f"pod {name}0 is not used" in each.getMessage() for each in caplog.records) for name in "xy")

        await eventually(named)
        said = {
            name: each.getMessage()
            for name in "xy"
            for each in caplog.records
            if f"pod {name}0" in each.msg % each.args
        }
        assert "a wants tokenizer_digest: " in said["x"]
        assert "b wants model_name: b / x" in said["x"]
        assert "b wants model_name: b / a" in said["y"]
        assert not stranger.is_linked
        assert not namesake.is_linked
        assert (await router.complete(model="a")).status_code == 200
        # It is said once, not at every scan.
        count = len([each for each in caplog.records if "is not used" in each.getMessage()])
        await router.has(1)
        assert len([each for each in caplog.records if "is not used" in each.getMessage()]) == count == 2


async def test_models_that_could_be_mixed_up_are_refused(model: Path, other: Path) -> None:
    def nobody(_addresses: Mapping[str, str]) -> None:
        raise AssertionError("it must not start")

    for sources, shared in (
        ((str(model), str(model)), "the tokenizer"),
        ((f"a={model}", f"a={other}"), "the name a"),
    ):
        settings: dict[str, Any] = {"model": sources, "cluster_secret": "s", "port": 0, "grpc_port": 0}
        with pytest.raises(ValueError, match=f"{shared}.*NAME=FOLDER"):
            await run(RouterConfig(**settings), on_ready=nobody, lifecycle=Lifecycle())
    for wrong in ((), "abc"):
        with pytest.raises(ValueError, match="model is a list"):
            RouterConfig(model=wrong, cluster_secret="s")  # type: ignore[arg-type]


def test_a_source_may_have_a_name() -> None:
    assert ModelSource.parse("a=/b=c") == ModelSource(name="a", folder=Path("/b=c"))
    assert ModelSource.parse("=/b=c") == ModelSource(name="", folder=Path("/b=c"))
    assert ModelSource.parse("/b") == ModelSource(name="", folder=Path("/b"))
