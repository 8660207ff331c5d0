"""The fields of a body by name: what asks for nothing is taken where its opposite is refused, and a type is a type."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pagewire.core.errors import InvalidRequest, UnsupportedField
from pagewire.router.openai import Call, parse

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}


def read(is_chat: bool, fields: dict[str, Any]) -> Call:
    body = json.dumps({**(CHAT if is_chat else COMPLETION), **fields}).encode()
    return parse(body, {"request_id": "r"}, is_chat=is_chat)


@pytest.mark.parametrize(
    ("is_chat", "field", "nothing", "something"),
    [
        (False, "spaces_between_special_tokens", True, False),
        (True, "spaces_between_special_tokens", True, False),
        (False, "suffix", "", "s"),
        (True, "modalities", ["text"], ["audio"]),
        (True, "verbosity", "medium", "low"),
        (True, "service_tier", "default", "flex"),
        (False, "service_tier", "auto", "priority"),
        (False, "logprob_token_ids", [], [1]),
        (True, "echo", False, True),
        (True, "best_of", 1, 2),
        (True, "best_of", 1, 0),
        (True, "best_of", 1, True),
        (False, "top_logprobs", 0, 1),
        (False, "top_logprobs", 0, -1),
        (False, "tools", [], [{}]),
        (False, "tool_choice", "none", "required"),
        (False, "parallel_tool_calls", True, False),
        (False, "continue_final_message", False, True),
        (False, "add_generation_prompt", True, False),
        (False, "max_completion_tokens", None, 5),
        (True, "audio", None, {}),
        (True, "moderation", None, {"model": "omni-moderation-latest"}),
    ],
)
def test_what_is_not_honoured_is_refused_unless_it_asks_for_nothing(
    is_chat: bool, field: str, nothing: object, something: object
) -> None:
    assert read(is_chat, {field: nothing}).unknown_fields == ()
    with pytest.raises(UnsupportedField, match=f"{field} is not supported") as refused:
        read(is_chat, {field: something})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("n", "2"), ("n", True), ("n", 2.0), ("temperature", "1"), ("stream", "true"), ("stream", 1), ("model", 5)],
)
@pytest.mark.parametrize("is_chat", [False, True])
def test_a_value_of_another_type_is_not_taken_for_what_it_may_mean(is_chat: bool, field: str, wrong: object) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: ") as refused:
        read(is_chat, {field: wrong})
    assert refused.value.field == field
    assert read(is_chat, {field: None}).unknown_fields == ()


@pytest.mark.parametrize("is_chat", [False, True])
def test_bookkeeping_is_ignored_and_what_nobody_knows_is_told(is_chat: bool) -> None:
    known = {"user": "u", "metadata": {"a": 1}, "store": True, "kv_transfer_params": {}}
    assert read(is_chat, {**known, "novel": 1, "pagewire": {"odd": 1}}).unknown_fields == ("novel", "pagewire.odd")
