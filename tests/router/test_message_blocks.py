"""The content of a message as it grows: one block after the other, and events of which a client makes the same."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.core.errors import (
    EngineFailed,
    InvalidRequest,
    Overloaded,
    PagewireError,
    Unauthenticated,
    Unavailable,
    UnknownModel,
    UnsupportedField,
)
from pagewire.core.report import Report
from pagewire.core.sampling import FinishReason
from pagewire.router.anthropic import call
from pagewire.router.anthropic.answer import MessageAnswer, MessageStream, message_error
from pagewire.router.anthropic.blocks import ContentBlocks
from pagewire.router.events import Begun, Chunk, Ending, Finished, Usage
from pagewire.text.tools.reader import CallPart

USAGE = Usage(prompt_tokens=9, completion_tokens=4, cached_tokens=3, reasoning_tokens=2)


def part(index: int, arguments: str = "", name: str = "", at: int = 0) -> CallPart:
    return CallPart(index=index, name=name, arguments=arguments, id=f"c{index}" if name else "", at=at)


def chunk(text: str = "", reasoning: str = "", calls: tuple[CallPart, ...] = ()) -> Chunk:
    return Chunk(text=text, token_ids=(), reasoning=reasoning, calls=calls)


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def thinking(said: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": said, "signature": ""}


def use(index: int, name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"c{index}", "name": name, "input": given}


def rebuilt(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks that a client makes of a stream's events, of which no two are open at once."""
    blocks: list[dict[str, Any]] = []
    arguments, is_open = "", False
    for each in copy.deepcopy(told):
        match each["type"]:
            case "content_block_start":
                assert (each["index"], is_open) == (len(blocks), False)
                blocks.append(each["content_block"])
                arguments, is_open = "", True
            case "content_block_delta":
                assert (each["index"], is_open) == (len(blocks) - 1, True)
                delta = each["delta"]
                match delta.pop("type"):
                    case "input_json_delta":
                        arguments += delta["partial_json"]
                    case kind:
                        ((name, said),) = delta.items()
                        assert (kind, said != "") == (f"{name}_delta", True)
                        blocks[-1][name] += said
            case "content_block_stop":
                assert (each["index"], is_open) == (len(blocks) - 1, True)
                is_open = False
                if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = json.loads(arguments or "{}")
    assert not is_open
    return blocks


def of(*chunks: Chunk) -> list[dict[str, Any]]:
    content = ContentBlocks()
    told = [event for each in chunks for event in content.take(each)] + content.finish()
    assert rebuilt(told) == content.blocks
    return content.blocks


def test_what_comes_is_blocks_in_its_order() -> None:
    assert of(chunk(reasoning="s"), chunk(reasoning="o"), chunk("It "), chunk("is.")) == [
        thinking("so"),
        text("It is."),
    ]
    assert of(chunk("a", reasoning="so")) == [thinking("so"), text("a")]
    both = (part(0, '{"a":', "now", at=1), part(0, " 1}", at=1), part(1, "{}", "get", at=2))
    assert of(chunk("abc", calls=both)) == [text("a"), use(0, "now", a=1), text("b"), use(1, "get"), text("c")]
    assert of(chunk(calls=(part(0, "", "now"), part(1, "", "now")))) == [use(0, "now"), use(1, "now")]
    assert of(chunk()) == of() == [text("")]


def test_a_call_that_was_cut_off_has_no_input() -> None:
    content = ContentBlocks()
    told = content.take(chunk(calls=(part(0, '{"a": 1', "now"),))) + content.finish()
    assert content.blocks == [use(0, "now")]
    assert [each["type"] for each in told] == ["content_block_start", "content_block_delta", "content_block_stop"]


@pytest.mark.parametrize(
    "arguments",
    ["[1]", '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"a": ' + "[" * 5000, "nope",
     '{"a": ' + "[" * 990 + "]" * 990 + "}"],
)  # fmt: skip
def test_what_an_answer_could_not_hold_is_no_input(arguments: str) -> None:
    content = ContentBlocks()
    content.take(chunk(calls=(part(0, arguments, "now"),)))
    content.finish()
    assert content.blocks == [use(0, "now")]


PIECES = st.lists(
    st.one_of(
        st.text("ab", min_size=1, max_size=3).map(text),
        st.integers(0, 99).map(lambda value: use(0, "now", a=value)),
    ),
    max_size=5,
)


@settings(max_examples=200, deadline=None)
@given(pieces=PIECES, thought=st.text("xy", max_size=3), size=st.integers(1, 9))
def test_no_cut_changes_a_block(pieces: list[dict[str, Any]], thought: str, size: int) -> None:
    chunks = [chunk(reasoning=each) for each in thought]
    wanted: list[dict[str, Any]] = [thinking(thought)] if thought else []
    index = 0
    for piece in pieces:
        if piece["type"] == "text":
            chunks += [chunk(each) for each in piece["text"]]
            if wanted and wanted[-1]["type"] == "text":
                wanted[-1] = text(wanted[-1]["text"] + piece["text"])
            else:
                wanted.append(piece)
        else:
            arguments = json.dumps(piece["input"])
            chunks.append(chunk(calls=(part(index, "", "now"),)))
            cut = [arguments[at : at + size] for at in range(0, len(arguments), size)]
            chunks += [chunk(calls=(part(index, each),)) for each in cut]
            wanted.append({**piece, "id": f"c{index}"})
            index += 1
    assert of(*chunks) == (wanted or [text("")])
    if not any(each.calls for each in chunks):
        whole = chunk("".join(each.text for each in chunks), thought)
        assert of(whole) == (wanted or [text("")])


def answer(**fields: Any) -> MessageAnswer:
    told = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, **fields}
    return MessageAnswer(call=call.parse(json.dumps(told).encode(), {"request_id": "r1"}), model="m", created=1)


def finished(usage: Usage = USAGE, **ending: Any) -> Finished:
    return Finished(
        endings=(Ending(**{"finish_reason": FinishReason.STOP, **ending}),), usage=usage, prompt=(1,), attempts=1,
        predicted_cached_tokens=0, timelines=(), report=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "max_tokens", "reason", "sequence"),
    [
        ({}, 4, "end_turn", None),
        ({"stop_token_id": 5}, 4, "end_turn", None),
        ({"stop_text": "b"}, 4, "stop_sequence", "b"),
        ({"finish_reason": FinishReason.LENGTH}, 4, "max_tokens", None),
        ({"finish_reason": FinishReason.LENGTH}, 5, "model_context_window_exceeded", None),
        ({"has_calls": True}, 4, "tool_use", None),
        ({"has_calls": True, "stop_text": "b"}, 4, "tool_use", None),
        ({"has_calls": True, "is_within_call": True, "stop_text": "b"}, 4, "stop_sequence", "b"),
        ({"has_calls": True, "finish_reason": FinishReason.LENGTH}, 4, "max_tokens", None),
    ],
)
def test_why_it_ended(ending: dict[str, Any], max_tokens: int, reason: str, sequence: str | None) -> None:
    told = answer(max_tokens=max_tokens).whole([chunk("a")], [finished(**ending)])
    assert (told["stop_reason"], told["stop_sequence"]) == (reason, sequence)


def test_an_answer_that_was_shortened_under_pressure_did_not_fill_the_context() -> None:
    for notes, reason in (((), "model_context_window_exceeded"), (("shortened",), "max_tokens")):
        report = Report(placement="local", notes=notes)
        ended = replace(finished(finish_reason=FinishReason.LENGTH), report=report)
        assert answer(max_tokens=5).whole([chunk("a")], [ended])["stop_reason"] == reason


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("a"), "invalid_request_error"),
        (UnknownModel("a"), "not_found_error"),
        (Unauthenticated("a"), "authentication_error"),
        (Overloaded("a"), "rate_limit_error"),
        (Unavailable("a"), "overloaded_error"),
        (EngineFailed("a"), "api_error"),
    ],
)
def test_errors_have_words_that_these_clients_know(error: PagewireError, kind: str) -> None:
    told = message_error(error)
    assert (told["type"], told["error"]["type"], told["error"]["message"]) == ("error", kind, "a")


def test_a_thread_that_is_not_there_is_told_as_these_clients_look_for_it() -> None:
    told = message_error(UnsupportedField("a", field="thread"))
    assert told["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": []}
    others: list[PagewireError] = [UnsupportedField("a", field="n"), InvalidRequest("a", field="thread")]
    assert not any("details" in message_error(each)["error"] for each in others)


def test_cached_tokens_are_counted_by_themselves() -> None:
    told = answer().whole([chunk("a")], [finished()])
    assert told["usage"] == {
        "input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3, "output_tokens": 4,
        "output_tokens_details": {"thinking_tokens": 2},
    }  # fmt: skip
    plain = answer().whole([chunk("a")], [finished(replace(USAGE, reasoning_tokens=None))])
    assert "output_tokens_details" not in plain["usage"]
    assert (told["id"], told["model"], told["role"], told["type"]) == ("msg_r1", "m", "assistant", "message")


def events(part: bytes) -> list[dict[str, Any]]:
    told = [each.split("\n") for each in part.decode().strip().split("\n\n")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in told]
    assert [name for name, _ in told] == [f"event: {each['type']}" for each in found]
    return found


def test_a_stream_begins_with_its_first_words_and_ends_with_what_it_cost() -> None:
    stream = MessageStream(answer())
    assert stream.take(Begun(prompt=(1, 2))) == b""
    first = events(stream.take(chunk("a")))
    assert [each["type"] for each in first] == ["message_start", "content_block_start", "content_block_delta"]
    assert (first[0]["message"]["content"], first[0]["message"]["stop_reason"]) == ([], None)
    assert first[0]["message"]["usage"]["input_tokens"] == 2
    assert stream.take(chunk()) == b""
    assert not stream.is_over
    last = events(stream.take(finished()))
    assert [each["type"] for each in last] == ["content_block_stop", "message_delta", "message_stop"]
    whole = answer().whole([chunk("a")], [finished()])
    assert last[1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert last[1]["usage"] == whole["usage"]
    assert stream.is_over


def test_a_stream_that_breaks_says_so() -> None:
    stream = MessageStream(answer())
    stream.take(Begun(prompt=(1,)))
    told = events(stream.broken(EngineFailed("it broke")))
    assert [each["type"] for each in told] == ["message_start", "error"]
    assert told[1]["error"]["message"] == "it broke"
    with pytest.raises(EngineFailed):
        MessageStream(answer()).take(replace(finished(), endings=()))
