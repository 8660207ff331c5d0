"""The OpenAPI document of the HTTP door, told from the same schemas that read bodies.

Pure. Says of each field its type; bounds that depend on the model are for the refusals to name. Invariant: every path
that is served to callers is in it, and what it forbids is refused; what operators may do, `docs/roles.md` says.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pagewire.router.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    MessagesBody,
    ResponsesBody,
    TokenizeChatBody,
    TokenizeTextBody,
)
from pagewire.router.guided import FIELDS
from pagewire.router.long_fields import MAX_PROMPTS
from pagewire.router.tool_fields import MAX_TOOLS

Json = dict[str, Any]

TOKENS: Json = {"type": "array", "items": {"type": "integer"}}
STRINGS: Json = {"type": "array", "items": {"type": "string"}}
NUMBERS: Json = {"type": "object", "additionalProperties": {"type": "number"}}
OBJECT: Json = {"type": "object"}
MESSAGES: Json = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": OBJECT}, {"type": "null"}]},
            "tool_calls": {"anyOf": [{"type": "array", "items": OBJECT}, {"type": "null"}]},
        },
    },
}
TURNS: Json = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["system", "user", "assistant"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": OBJECT}]},
        },
    },
}
# The fields that the schemas of bodies leave to others.
LONG: Json = {
    "prompt": {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {**TOKENS, "minItems": 1},
            {**STRINGS, "minItems": 1, "maxItems": MAX_PROMPTS},
            {"type": "array", "items": TOKENS, "minItems": 1, "maxItems": MAX_PROMPTS},
        ]
    },
    "messages": MESSAGES,
    "input": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": OBJECT, "minItems": 1}]},
    "stop_sequences": STRINGS,
    "thinking": OBJECT,
    "output_config": OBJECT,
    "text": OBJECT,
    "reasoning": OBJECT,
    "include": {"type": "array"},
    "tokens": TOKENS,
    "tools": {"type": "array", "items": OBJECT, "maxItems": MAX_TOOLS},
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, OBJECT]},
    "parallel_tool_calls": {"type": "boolean"},
    "functions": {"type": "array", "items": OBJECT, "maxItems": MAX_TOOLS},
    "function_call": {"anyOf": [{"enum": ["none", "auto"]}, OBJECT]},
    "documents": {"type": "array", "items": OBJECT},
    "chat_template_kwargs": OBJECT,
    "logit_bias": NUMBERS,
    "allowed_token_ids": TOKENS,
    "bad_words": {"type": "array", "items": {"anyOf": [{"type": "string"}, TOKENS]}},
    "stop": {"anyOf": [{"type": "string"}, STRINGS]},
    "stop_token_ids": TOKENS,
    **{name: {} for name in FIELDS},
    "response_format": OBJECT,
    "structured_outputs": OBJECT,
}
STREAMS = ("stream", "stream_options", "stream_interval")
USAGE: Json = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {name: {"type": "integer"} for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
}
ERROR: Json = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        },
    },
}
MODEL: Json = {
    "type": "object",
    "required": [
        "id",
        "object",
        "created",
        "owned_by",
        "max_model_len",
        "max_input_tokens",
        "max_tokens",
        "type",
        "display_name",
        "created_at",
        "lifecycle",
    ],
    "properties": {
        "id": {"type": "string"},
        "max_model_len": {"type": "integer"},
        "max_input_tokens": {"type": "integer"},
        "max_tokens": {"type": "integer"},
        "type": {"const": "model"},
        "created_at": {"type": "string", "format": "date-time"},
    },
}
MODELS: Json = {
    "type": "object",
    "required": ["object", "data", "has_more", "first_id", "last_id"],
    "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": MODEL},
        "has_more": {"const": False},
        "first_id": {"type": "string"},
        "last_id": {"type": "string"},
    },
}
RESPONSE: Json = {
    "type": "object",
    "required": ["id", "object", "created_at", "status", "model", "output", "usage"],
    "properties": {
        "object": {"const": "response"},
        "status": {"enum": ["completed", "incomplete"]},
        "output": {"type": "array", "items": OBJECT, "minItems": 1},
    },
}
MESSAGE: Json = {
    "type": "object",
    "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
    "properties": {
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "content": {"type": "array", "items": OBJECT, "minItems": 1},
        "stop_reason": {
            "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
        },
    },
}
FINISH_REASONS = ["stop", "length", "tool_calls", "function_call"]
STATUS: Json = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}


def document(version: str) -> Json:
    """Return the document; `version` is Pagewire's."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pagewire", "version": version},
        "paths": {
            "/v1/chat/completions": {
                "post": _operation(
                    "chat", "Answer a chat", _answer("message"), _body(ChatBody, "messages"), stream=True
                )
            },
            "/v1/completions": {
                "post": _operation(
                    "complete", "Complete one prompt or several", _answer("text"), _body(CompletionBody, "prompt"),
                    stream=True,
                )
            },
            "/v1/responses": {
                "post": _operation(
                    "respond", "Answer items with items", RESPONSE, _body(ResponsesBody, "input"), stream=True
                )
            },
            "/v1/messages": {
                "post": _operation(
                    "message", "Answer blocks with blocks", MESSAGE,
                    _body(MessagesBody, messages=TURNS, max_tokens={"type": "integer"}), stream=True,
                )
            },
            "/v1/messages/count_tokens": {
                "post": _operation(
                    "countTokens", "Count the tokens of a message's prompt", _object(input_tokens={"type": "integer"}),
                    _of_either(MessagesBody, messages=TURNS) | {"required": ["messages"]},
                )
            },
            "/v1/responses/input_tokens": {
                "post": _operation(
                    "countInputTokens", "Count the tokens of a response's prompt",
                    _object(object={"const": "response.input_tokens"}, input_tokens={"type": "integer"}),
                    _of_either(ResponsesBody, input=LONG["input"]) | {"required": ["input"]},
                )
            },
            "/v1/models": {"get": _operation("models", "List what is served", MODELS)},
            "/v1/models/{model}": {"get": _operation("model", "Describe a model", MODEL, path_parameter="model")},
            "/tokenize": {
                "post": _operation(
                    "tokenize", "Turn a text or a chat into tokens",
                    _object(count={"type": "integer"}, max_model_len={"type": "integer"}, tokens=TOKENS),
                    _of_either(TokenizeChatBody, TokenizeTextBody, prompt=_or_null({"type": "string", "minLength": 1})),
                )
            },
            "/detokenize": {
                "post": _operation(
                    "detokenize", "Turn tokens into text", _object(prompt={"type": "string"}),
                    _body(DetokenizeBody, "tokens"),
                )
            },
            "/health": {"get": _operation("health", "Ready to take requests", STATUS, unhealthy=STATUS)},
            "/ready": {"get": _operation("ready", "The same as /health", STATUS, unhealthy=STATUS)},
            "/ping": {
                "get": _operation("ping", "The same as /health", STATUS, unhealthy=STATUS),
                "post": _operation("pingPost", "The same as /health", STATUS, unhealthy=STATUS),
            },
            "/live": {"get": _operation("live", "The process runs", STATUS, unhealthy=STATUS)},
            "/version": {"get": _operation("version", "Pagewire's version", _object(version={"type": "string"}))},
            "/load": {"get": _operation("load", "Requests admitted now", _object(server_load={"type": "integer"}))},
            "/metrics": {"get": _operation("metrics", "Prometheus metrics", None)},
            "/openapi.json": {"get": _operation("openapi", "This document", OBJECT)},
        },
    }  # fmt: skip


def _operation(
    name: str,
    summary: str,
    answer: Json | None,
    body: Json | None = None,
    *,
    stream: bool = False,
    path_parameter: str = "",
    unhealthy: Json | None = None,
) -> Json:
    content = {"text/plain": {}} if answer is None else {"application/json": {"schema": answer}}
    if stream:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    operation: Json = {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": "the answer", "content": content},
            "default": {"description": "a refusal or a failure", "content": {"application/json": {"schema": ERROR}}},
        },
    }
    if unhealthy is not None:
        held = {"description": "not now", "content": {"application/json": {"schema": unhealthy}}}
        operation["responses"]["503"] = held
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if path_parameter:
        operation["parameters"] = [
            {"name": path_parameter, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        ]
    return operation


def _body(schema: type[BaseModel], *required: str, **own: Json) -> Json:
    """Return what a body may hold; null is as good as absent, but of what is `required` or `own`."""
    told = schema.model_json_schema()
    definitions = told.get("$defs", {})
    properties = {name: _field(name, each, definitions) for name, each in told["properties"].items()}
    if "stream" in properties:
        has_own = schema in (ResponsesBody, MessagesBody)
        of_guiding = [name for name in FIELDS if name != "response_format" or not has_own]
        properties |= {name: _or_null(LONG[name]) for name in of_guiding}
    return {
        "type": "object",
        "properties": {**properties, **{name: LONG[name] for name in required}, **own},
        "required": [*required, *own],
    }


def _of_either(*schemas: type[BaseModel], **own: Json) -> Json:
    """Return what a body of one of these holds whose answer does not stream, with fields of its `own`."""
    properties = {name: each for schema in schemas for name, each in _body(schema)["properties"].items()}
    told = {name: each for name, each in properties.items() if name not in STREAMS}
    return {"type": "object", "properties": told | own, "required": []}


def _field(name: str, told: Json, definitions: Json) -> Json:
    if name in LONG:
        return _or_null(LONG[name])
    if "anyOf" in told:
        return {"anyOf": [_field("", each, definitions) for each in told["anyOf"]]}
    if "$ref" in told:
        inner = definitions[told["$ref"].removeprefix("#/$defs/")]
        properties = {key: _field("", each, definitions) for key, each in inner["properties"].items()}
        return {"type": "object", "properties": properties}
    return {key: each for key, each in told.items() if key in ("type", "enum")}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def _object(**properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


def _answer(said: str) -> Json:
    choice = {
        "type": "object",
        "required": ["index", said, "finish_reason"],
        "properties": {"index": {"type": "integer"}, "finish_reason": {"enum": FINISH_REASONS}},
    }
    choices = {"type": "array", "items": choice, "minItems": 1}
    return _object(id={"type": "string"}, object={"type": "string"}, choices=choices, usage=USAGE)
