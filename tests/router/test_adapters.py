"""An adapter is named as a model is: listed with its parent, answered by its name, hashed apart, and told to pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import byte_tokenizer
import grpc
import pytest
from fake_pod import FakePod, fake_pods, fingerprint
from router_rig import StartRouter, eventually

from pagewire.client import AsyncClient
from pagewire.core.errors import UnknownModel
from pagewire.core.fingerprint import tokenizer_digest
from pagewire.protos import inference_pb2 as pb

PROMPT = "a prompt of several blocks, of which none may be shared with anybody else's"
ADAPTERS = "legal=d1 support/v2=d2"


def serving(pod_id: str, name: str = "fake", folder: Path | None = None, adapters: str = ADAPTERS) -> FakePod:
    own: dict[str, Any] = {"model_name": name, "model_digest": name, "adapters": adapters}
    if folder is not None:
        own["tokenizer_digest"] = tokenizer_digest((folder / "tokenizer.json").read_bytes())
    return FakePod(pod_id, serves=fingerprint(**own))


async def test_a_request_names_an_adapter_as_its_model(start: StartRouter) -> None:
    pod = serving("a0")
    async with start(pod) as router:
        roots = {}
        for name in ("", "fake", "legal", "support/v2"):
            answer = await router.complete(PROMPT, model=name)
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == (name or "fake")
            spec = pod.submits[-1].spec
            assert spec.adapter == ("" if name in ("", "fake") else name)
            roots[name] = spec.root
        assert roots[""] == roots["fake"]
        assert len(set(roots.values())) == 3
        answer = await router.complete(PROMPT, model="legal", stream=True)
        assert '"model":"legal"' in answer.text.replace(" ", "")
        chunks = [each async for each in router.rpc.Generate(pb.GenerateRequest(text=PROMPT, model="legal"))]
        assert chunks[-1].HasField("complete")
        assert (pod.submits[-1].spec.adapter, pod.submits[-1].spec.root) == ("legal", roots["legal"])


async def test_adapters_are_listed_behind_their_model(start: StartRouter) -> None:
    async with start(serving("a0")) as router:
        page = (await router.http.get("/v1/models")).json()
        listed = page["data"]
        assert (page["first_id"], page["last_id"]) == ("fake", "support/v2")
        assert [(each["id"], each["parent"]) for each in listed] == [
            ("fake", None), ("legal", "fake"), ("support/v2", "fake"),
        ]  # fmt: skip
        one = (await router.http.get("/v1/models/support/v2")).json()
        assert (one["id"], one["parent"], one["root"]) == ("support/v2", "fake", "fake")
        info = await router.rpc.GetModelInfo(pb.GetModelInfoRequest(model="legal"))
        assert (info.model, list(info.adapters)) == ("fake", ["legal", "support/v2"])
        async with AsyncClient(router.addresses["grpc"]) as client:
            assert (await client.model_info()).adapters == ("legal", "support/v2")


async def test_a_name_that_is_none_is_refused_with_those_that_are(start: StartRouter) -> None:
    async with start(serving("a0")) as router:
        for name in ("other", "Legal", "legal=d1", "d1"):
            refused = await router.complete(PROMPT, model=name)
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, UnknownModel.cause)
            assert "'fake', 'legal', 'support/v2' are" in refused.json()["error"]["message"]
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await router.rpc.GetModelInfo(pb.GetModelInfoRequest(model="other"))
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_text_is_tokenized_for_an_adapter_as_for_its_model(start: StartRouter) -> None:
    async with start(serving("a0")) as router:
        counts = [
            (await router.http.post("/tokenize", json={"model": name, "prompt": PROMPT})).json()["tokens"]
            for name in ("fake", "legal")
        ]
        assert counts[0] == counts[1]


async def test_pods_with_other_adapters_serve_something_else(start: StartRouter) -> None:
    """As with other weights: what was hashed for one must not be served by the other."""
    first, second = serving("a0"), serving("a1", adapters="legal=other support/v2=d2")
    async with start(first, misfits=(second,)) as router:
        for _ in range(4):
            assert (await router.complete(PROMPT, model="legal")).status_code == 200
        assert not second.is_linked
        assert second.submits == []
    assert first.registration.fingerprint.diff(second.registration.fingerprint) == (
        f"adapters: {ADAPTERS} / legal=other support/v2=d2"
    )


async def test_new_adapters_are_served_once_the_last_pod_without_them_is_gone(start: StartRouter) -> None:
    """What is served stays what it is while one pod serves it, as with new weights."""
    old, new = serving("old", adapters=""), [serving(f"new{number}") for number in range(3)]
    async with start(old) as router, fake_pods(*new):
        for pod in new:
            await router.registry.register(pod.registration)

        async def refused() -> bool:
            said = (await router.http.get("/health")).json()["refused"]
            return len(said) == 3 and all(f"adapters:  / {ADAPTERS}" in why for why in said.values())

        await eventually(refused)
        assert (await router.complete(PROMPT, model="legal")).status_code == 404
        await old.die()
        await router.registry.unregister(old.registration)

        async def served() -> bool:
            is_had = (await router.complete(PROMPT, model="legal")).status_code == 200
            return is_had and all(pod.is_linked for pod in new)

        await eventually(served)


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        (("a", ""), ("b", "a=d3"), "another name of an adapter than a, which is taken"),
        (("a", "b=d3"), ("b", ""), "another model_name than b, which is taken"),
        (("a", "x=d3"), ("b", "x=d3"), "another name of an adapter than x, which is taken"),
    ],
)
async def test_nobody_takes_a_name_that_another_model_or_its_adapter_has(
    start: StartRouter, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    first: tuple[str, str], second: tuple[str, str], taken: str,
) -> None:  # fmt: skip
    other = byte_tokenizer.save(tmp_path / "other", with_bos=True)
    fits, thief = serving("a0", first[0], model, first[1]), serving("b0", second[0], other, second[1])
    async with start(fits, misfits=(), model=(f"a={model}", str(other))) as router, fake_pods(thief):
        await router.registry.register(thief.registration)

        async def named() -> bool:
            return any(taken in each.getMessage() for each in caplog.records)

        await eventually(named)
        assert not thief.is_linked
        assert (await router.complete(PROMPT, model="a")).status_code == 200


async def test_a_name_that_nobody_has_is_unknown_though_a_model_has_no_pods(start: StartRouter, model: Path) -> None:
    """It might be an adapter of that model: the router waits a moment, and then says what it knows."""
    async with start(serving("a0", "a"), model=(f"a={model}", f"b={model}"), placement_wait_s=0.2) as router:
        for name, status in (("a", 200), ("legal", 200), ("typo", 404), ("b", 503)):
            assert (await router.complete(PROMPT, model=name)).status_code == status, name


async def test_the_live_page_offers_adapters(start: StartRouter) -> None:
    async with start(serving("a0")) as router, router.http.stream("GET", "/ui/events") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: ") and "models" in (said := json.loads(line.removeprefix("data: "))):
                assert said["models"] == ["fake", "legal", "support/v2"]
                return
        raise AssertionError("the stream ended")
