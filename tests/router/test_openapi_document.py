"""What the OpenAPI document says, by itself: names for generated clients, and which bodies and answers are right.

Whether the router does as it says is for `test_openapi.py`.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from pagewire.router import openapi
from pagewire.router.guided import FIELDS

CHAT, COMPLETE, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
RESPOND, MESSAGE, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
INPUTS = "/v1/responses/input_tokens"
USER = {"role": "user", "content": "hi"}
PAGE = {"has_more": False, "first_id": "a", "last_id": "b"}
HEALTH = ("/health", "/ready", "/ping", "/live")


def paths() -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = openapi.document("1.2.3")["paths"]
    return found


def schema_of(content: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = content["content"]["application/json"]["schema"]
    return schema


def test_every_operation_has_the_name_that_generated_clients_call_it_by() -> None:
    found = {(method, path): told["operationId"] for path, ways in paths().items() for method, told in ways.items()}
    assert found == {
        ("post", CHAT): "chat",
        ("post", COMPLETE): "complete",
        ("post", RESPOND): "respond",
        ("post", MESSAGE): "message",
        ("post", COUNT): "countTokens",
        ("post", INPUTS): "countInputTokens",
        ("get", "/v1/models"): "models",
        ("get", "/v1/models/{model}"): "model",
        ("post", TOKENIZE): "tokenize",
        ("post", DETOKENIZE): "detokenize",
        ("get", "/health"): "health",
        ("get", "/ready"): "ready",
        ("get", "/ping"): "ping",
        ("post", "/ping"): "pingPost",
        ("get", "/live"): "live",
        ("get", "/version"): "version",
        ("get", "/load"): "load",
        ("get", "/metrics"): "metrics",
        ("get", "/openapi.json"): "openapi",
    }
    assert openapi.document("1.2.3")["info"] == {"title": "Pagewire", "version": "1.2.3"}


def test_every_operation_says_what_it_does_and_answers_and_that_it_may_refuse() -> None:
    for path, ways in paths().items():
        for told in ways.values():
            assert told["summary"][0].isupper(), "words"
            answers = told["responses"]
            assert next(iter(answers["200"]["content"])) == ("text/plain" if path == "/metrics" else "application/json")
            jsonschema_rs.validator_for(schema_of(answers["default"])).validate(
                {"type": "error", "error": {"message": "m", "type": "t", "param": None, "code": None}}
            )
            assert ("503" in answers) is (path in HEALTH)
            if path in HEALTH:
                assert schema_of(answers["503"]) == schema_of(answers["200"]) == openapi.STATUS


def test_what_stands_in_a_path_is_a_text_that_has_to_be_there() -> None:
    (parameter,) = paths()["/v1/models/{model}"]["get"]["parameters"]
    assert parameter == {
        "name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}
    }  # fmt: skip
    assert [path for path, ways in paths().items() for told in ways.values() if "parameters" in told] == [
        "/v1/models/{model}"
    ]


@pytest.mark.parametrize(
    ("path", "answer", "is_right"),
    [
        (CHAT, {"index": 0, "message": {}, "finish_reason": "stop"}, True),
        (CHAT, {"index": 0, "message": {}, "finish_reason": "function_call"}, True),
        (CHAT, {"index": 0, "message": {}, "finish_reason": "bored"}, False),
        (CHAT, {"index": 0, "text": "", "finish_reason": "stop"}, False),
        (COMPLETE, {"index": 0, "text": "", "finish_reason": "length"}, True),
        (COMPLETE, {"index": "0", "text": "", "finish_reason": "length"}, False),
        (COMPLETE, None, False),
    ],
)
def test_an_answer_has_a_choice_at_least_and_each_an_end(
    path: str, answer: dict[str, Any] | None, is_right: bool
) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": "i", "object": "o", "choices": [answer] if answer else [], "usage": usage}
    answers = jsonschema_rs.validator_for(schema_of(paths()[path]["post"]["responses"]["200"]))
    assert answers.is_valid(body) is is_right
    assert not answers.is_valid({name: value for name, value in body.items() if name != "usage"})


@pytest.mark.parametrize(
    ("path", "right", "wrong"),
    [
        ("/v1/models", {"object": "list", "data": [], **PAGE}, {"object": "lists", "data": [], **PAGE}),
        ("/v1/models", {"object": "list", "data": [], **PAGE}, {"object": "list", "data": [{}], **PAGE}),
        ("/v1/models", {"object": "list", "data": [], **PAGE}, {"object": "list", **PAGE}),
        ("/v1/models", {"object": "list", "data": [], **PAGE}, {"object": "list", "data": []}),
        (
            "/v1/models",
            {"object": "list", "data": [], **PAGE},
            {"object": "list", "data": [], **PAGE, "has_more": True},
        ),
        ("/version", {"version": "1"}, {"version": 1}),
        ("/version", {"version": "1"}, {}),
        ("/load", {"server_load": 1}, {"server_load": "1"}),
        ("/live", {"status": "ok"}, {}),
        ("/openapi.json", {}, []),
    ],
)
def test_answers_of_the_others_are_objects_with_what_is_asked_for(path: str, right: object, wrong: object) -> None:
    answers = jsonschema_rs.validator_for(schema_of(paths()[path]["get"]["responses"]["200"]))
    assert answers.is_valid(right)
    assert not answers.is_valid(wrong)


def test_answers_about_tokens_are_not_what_is_asked_for_them() -> None:
    counted = jsonschema_rs.validator_for(schema_of(paths()[TOKENIZE]["post"]["responses"]["200"]))
    assert counted.is_valid({"count": 1, "max_model_len": 8, "tokens": [3]})
    assert not counted.is_valid({"prompt": "hi"})
    text = jsonschema_rs.validator_for(schema_of(paths()[DETOKENIZE]["post"]["responses"]["200"]))
    assert text.is_valid({"prompt": "hi"})
    assert not text.is_valid({"tokens": [3]})


@pytest.mark.parametrize(
    ("path", "body", "is_right"),
    [
        (CHAT, {"messages": [USER]}, True),
        (CHAT, {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, True),
        (CHAT, {"messages": [{"role": "user", "content": [{}]}]}, True),
        (CHAT, {"messages": []}, False),
        (CHAT, {"messages": None}, False),
        (CHAT, {"messages": [{"content": "hi"}]}, False),
        (CHAT, {"messages": [{"role": "boss"}]}, False),
        (CHAT, {}, False),
        (CHAT, {"messages": [USER], "n": 2, "stop": None, "seed": None, "temperature": 1}, True),
        (CHAT, {"messages": [USER], "n": "2"}, False),
        (CHAT, {"messages": [USER], "stop": "s"}, True),
        (CHAT, {"messages": [USER], "stop": [1]}, False),
        (CHAT, {"messages": [USER], "early_stopping": True}, True),
        (CHAT, {"messages": [USER], "early_stopping": 1}, False),
        (CHAT, {"messages": [USER], "truncation_side": "left"}, True),
        (CHAT, {"messages": [USER], "truncation_side": "top"}, False),
        (CHAT, {"messages": [USER], "stream_options": {"include_usage": True}}, True),
        (CHAT, {"messages": [USER], "stream_options": {"include_usage": None}}, True),
        (CHAT, {"messages": [USER], "stream_options": {"include_usage": 5}}, False),
        (CHAT, {"messages": [USER], "pagewire": {"timeline": 5}}, False),
        (CHAT, {"messages": [USER], "response_format": {"type": "text"}, "guided_choice": ["a"]}, True),
        (CHAT, {"messages": [USER], "response_format": 5}, False),
        (COMPLETE, {"prompt": "hi", "structured_outputs": 5}, False),
        (COMPLETE, {"prompt": "hi", "response_format": None}, True),
        (COMPLETE, {"prompt": "h"}, True),
        (COMPLETE, {"prompt": [1]}, True),
        (COMPLETE, {"prompt": ["a"]}, True),
        (COMPLETE, {"prompt": ["a"] * 128}, True),
        (COMPLETE, {"prompt": [[1]]}, True),
        (COMPLETE, {"prompt": [[1], [2, 3]]}, True),
        (COMPLETE, {"prompt": ""}, False),
        (COMPLETE, {"prompt": []}, False),
        (COMPLETE, {"prompt": None}, False),
        (COMPLETE, {"prompt": ["a"] * 129}, False),
        (COMPLETE, {"prompt": [[1]] * 129}, False),
        (COMPLETE, {"prompt": ["a", 1]}, False),
        (COMPLETE, {}, False),
        (TOKENIZE, {"prompt": "h"}, True),
        (TOKENIZE, {"messages": [USER], "prompt": None, "return_token_strs": True}, True),
        (TOKENIZE, {"messages": [USER], "tools": [{}]}, True),
        (TOKENIZE, {"prompt": ""}, False),
        (TOKENIZE, {"prompt": ["a"]}, False),
        (TOKENIZE, {"prompt": "h", "return_token_strs": 1}, False),
        (TOKENIZE, {"prompt": "h", "tools": 5}, False),
        (DETOKENIZE, {"tokens": []}, True),
        (DETOKENIZE, {"tokens": [1.5]}, False),
        (DETOKENIZE, {"tokens": None}, False),
        (DETOKENIZE, {"prompt": "hi"}, False),
    ],
    ids=str,
)
def test_a_body_is_right_or_wrong(path: str, body: dict[str, Any], is_right: bool) -> None:
    told = paths()[path]["post"]["requestBody"]
    assert told["required"] is True
    assert jsonschema_rs.validator_for(schema_of(told)).is_valid(body) is is_right


def test_items_are_one_at_least() -> None:
    for path in (RESPOND, INPUTS):
        body = schema_of(paths()[path]["post"]["requestBody"])
        assert body["required"] == ["input"]
        assert body["properties"]["input"] == {
            "anyOf": [
                {"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "object"}, "minItems": 1},
            ],
        }  # fmt: skip
    answer = paths()[RESPOND]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["properties"]["output"] == {"type": "array", "items": {"type": "object"}, "minItems": 1}


def test_blocks_are_one_at_least_and_an_answers_length_is_said_unless_it_is_counted() -> None:
    body = schema_of(paths()[MESSAGE]["post"]["requestBody"])
    assert body["required"] == ["messages", "max_tokens"]
    assert body["properties"]["max_tokens"] == {"type": "integer"}
    counted = schema_of(paths()[COUNT]["post"]["requestBody"])
    assert counted["required"] == ["messages"]
    assert counted["properties"]["max_tokens"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    for told in (body, counted):
        turns = told["properties"]["messages"]
        assert (turns["minItems"], turns["items"]["required"]) == (1, ["role", "content"])
        assert turns["items"]["properties"]["role"] == {"enum": ["system", "user", "assistant"]}
    answer = paths()[MESSAGE]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["properties"]["content"] == {"type": "array", "items": {"type": "object"}, "minItems": 1}


def test_only_what_may_stream_or_be_guided_says_so() -> None:
    posts = [CHAT, COMPLETE, RESPOND, MESSAGE, COUNT, INPUTS, TOKENIZE, DETOKENIZE]
    streams = [CHAT, COMPLETE, RESPOND, MESSAGE]
    fields = {path: schema_of(paths()[path]["post"]["requestBody"])["properties"].keys() for path in posts}
    assert [path for path, names in fields.items() if names >= {"stream", "stream_interval"}] == streams
    assert [path for path, names in fields.items() if "stream_options" in names] == [CHAT, COMPLETE, RESPOND]
    assert not (fields[TOKENIZE] | fields[COUNT] | fields[INPUTS]) & set(openapi.STREAMS)
    assert [path for path, names in fields.items() if names & set(FIELDS)] == [*streams, COUNT, INPUTS, TOKENIZE]
    assert not any("response_format" in fields[path] for path in (RESPOND, MESSAGE, COUNT, INPUTS))
    for path, ways in paths().items():
        for told in ways.values():
            may_stream = "text/event-stream" in told["responses"]["200"]["content"]
            assert may_stream is (path in streams)
            assert ("requestBody" in told) is (path in fields)
