"""The OpenAPI document against the router that serves it: what it says is taken is, what it forbids is refused."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from fake_pod import FakePod
from hypothesis import HealthCheck, Phase, given, settings
from router_rig import StartRouter
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from pagewire.router import bodies, guided, openapi

ROOT = Path(__file__).parents[2]
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
EXAMPLES = 15 * int(os.environ.get("FUZZ_TIMES", "1"))
RIGHT: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    "/v1/completions": {"prompt": ["hello", "you"], "max_tokens": 2},
    "/v1/responses": {"input": "hello", "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": "hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hello"}]},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [5]},
}
SERVED = {"enum": ["fake", None]}


def made_up(document: dict[str, Any], base_url: str) -> list[Any]:
    """Return strategies of requests to every operation, right ones and wrong ones.

    What schemathesis imports for that is compiled by pytest, which CPython 3.11 gets wrong in a thread now and then.
    """
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=base_url)
    operations: list[Any] = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
    return [
        operation.as_strategy(generation_mode=mode)
        for operation in operations
        for mode in schemathesis.GenerationMode
        # Without a body nothing can be wrong.
        if operation.body or mode is not schemathesis.GenerationMode.NEGATIVE
    ]


def try_out(strategies: list[Any]) -> Counter[tuple[str, int]]:
    """Send such requests; returns how often which status came."""
    came: Counter[tuple[str, int]] = Counter()
    for strategy in strategies:

        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=strategy)
        def send(case: Any) -> None:
            response: Response = case.call(timeout=20)
            came[case.operation.path, response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

        send()
    return came


# Hypothesis sees that module's state change: the router beside it draws the pauses of its links and of Redis' by it.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
async def test_every_operation_does_as_the_document_says(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        document = (await router.http.get("/openapi.json")).json()
        for operations in document["paths"].values():
            # Any other name is an unknown model, which says little of the rest.
            for operation in operations.values():
                if "requestBody" in operation:
                    operation["requestBody"]["content"]["application/json"]["schema"]["properties"]["model"] = SERVED
        came = await asyncio.to_thread(try_out, made_up(document, router.addresses["http"]))
        for path, operations in document["paths"].items():
            # Made-up bodies are hardly ever right in what no schema can say; the next test sends right ones.
            if any("requestBody" in operation for operation in operations.values()):
                assert came[path, 400] > 0, (path, came)
            elif path != "/v1/models/{model}":
                assert came[path, 200] > 0, (path, came)
        assert await router.metric("pagewire_router_requests_active") == 0


async def test_every_path_that_is_served_is_documented(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        document = (await router.http.get("/openapi.json")).json()
        for path, operations in document["paths"].items():
            for method in operations:
                answer = await router.http.request(method, path.replace("{model}", "fake"), json=RIGHT.get(path))
                assert answer.status_code == 200, (method, path, answer.text)
                told = operations[method]["responses"]["200"]["content"]
                if "application/json" in told:
                    jsonschema_rs.validate(told["application/json"]["schema"], answer.json())


async def test_a_refusal_is_as_the_document_says(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        document = (await router.http.get("/openapi.json")).json()
        for path in RIGHT:
            answer = await router.http.post(path, json={**RIGHT[path], "model": "nobody's"})
            assert answer.status_code == 404
            told = document["paths"][path]["post"]["responses"]["default"]["content"]["application/json"]["schema"]
            jsonschema_rs.validate(told, answer.json())


def test_a_name_in_a_path_is_told_as_its_parameter_and_who_may_stream_answers_with_events_too() -> None:
    for path, operations in openapi.document("1")["paths"].items():
        for operation in operations.values():
            told = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]
            assert told == re.findall(r"{(.+?)}", path)
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            may_stream = "stream" in body.get("properties", {})
            assert ("text/event-stream" in operation["responses"]["200"]["content"]) is may_stream, path


def test_the_page_for_callers_names_every_field_and_path() -> None:
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([^`]+)`", page))
    known = {*bodies.ChatBody.model_fields, *bodies.CompletionBody.model_fields, *guided.FIELDS}
    assert known | bodies.IGNORED | set(bodies.REFUSED) <= named
    # Pages of other endpoints leave to that one what sampling has, and do not list what chats and completions have.
    others = {*bodies.Common.model_fields, *bodies.ChatBody.model_fields, *bodies.CompletionBody.model_fields}
    for name, fields, refused in (
        ("responses", bodies.ResponsesBody.model_fields, bodies.REFUSED_OF_RESPONSES),
        ("messages", bodies.MessagesBody.model_fields, bodies.REFUSED_OF_MESSAGES),
    ):
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        own = (fields.keys() - bodies.Common.model_fields.keys()) | (refused.keys() - others)
        assert own <= set(re.findall(r"`([^`]+)`", text))
    told = {word for each in named for word in each.split()}
    assert {path.replace("{model}", "NAME") for path in openapi.document("1")["paths"]} <= told
