"""The output of a response as it grows: one item after the other, and events of which a client makes the same."""

from __future__ import annotations

import copy
import functools
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from response_events import rebuilt

from pagewire.core.errors import EngineFailed
from pagewire.core.sampling import FinishReason
from pagewire.router.delivery import joined
from pagewire.router.events import Begun, Chunk, Ending, Finished, ScoredToken, Usage
from pagewire.router.responses.answer import ResponseAnswer, ResponseStream
from pagewire.router.responses.call import parse
from pagewire.router.responses.items import OutputItems
from pagewire.text.tools.reader import CallPart


def part(index: int, arguments: str = "", name: str = "", at: int = 0) -> CallPart:
    return CallPart(index=index, name=name, arguments=arguments, id=f"c{index}" if name else "", at=at)


def chunk(text: str = "", reasoning: str = "", calls: tuple[CallPart, ...] = (), tokens: int = 0) -> Chunk:
    scored = tuple(ScoredToken(token_id=each, data=b"t", logprob=-1.0) for each in range(tokens))
    num_reasoning = tokens if reasoning and not text else 0
    return Chunk(
        text=text,
        token_ids=tuple(range(tokens)),
        reasoning=reasoning,
        calls=calls,
        logprobs=scored,
        num_reasoning=num_reasoning,
    )


def output() -> OutputItems:
    return OutputItems("r1", lambda tokens: [{"token": token.token_id} for token in tokens])


def message(text: str, place: int, status: str = "completed", logprobs: tuple[int, ...] = ()) -> dict[str, Any]:
    told = [{"token": each} for each in logprobs]
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": told}]
    return {
        "type": "message", "id": f"msg_r1_{place}", "role": "assistant", "status": status, "content": content,
    }  # fmt: skip


def reasoning(text: str, place: int, status: str = "completed") -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": f"rs_r1_{place}", "summary": [], "status": status, "content": content}


def call(place: int, name: str, arguments: str, index: int = 0, status: str = "completed") -> dict[str, Any]:
    return {
        "type": "function_call", "id": f"fc_r1_{place}", "call_id": f"c{index}", "name": name, "arguments": arguments,
        "status": status,
    }  # fmt: skip


def test_items_come_one_after_the_other() -> None:
    items = output()
    told = items.take(chunk(reasoning="so"))
    told += items.take(chunk(reasoning=" far", text="I"))
    told += items.take(chunk(" see", calls=(part(0, name="now", at=4), part(1, "{", name="add", at=4))))
    told += items.take(chunk(calls=(part(1, "}"),)))
    told += items.take(chunk("So", calls=(part(1, " "),)))
    told += items.finish("incomplete")
    assert items.items == [
        reasoning("so far", 0), message("I see", 1), call(2, "now", ""), call(3, "add", "{} ", 1),
        message("So", 4, "incomplete"),
    ]  # fmt: skip
    assert rebuilt(told) == items.items
    assert [each["type"].removeprefix("response.") for each in told[:9]] == [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done", "output_item.added", "content_part.added",
    ]  # fmt: skip
    assert all(each["output_index"] == 0 for each in told[:7])
    assert {each["item_id"] for each in told[1:6] if "item_id" in each} == {"rs_r1_0"}
    begun = told[0]["item"]
    assert (begun["status"], begun["content"]) == ("in_progress", [])
    assert items.close() == [], "nothing is open"


def test_what_says_nothing_is_a_message_all_the_same() -> None:
    items = output()
    assert items.take(chunk()) == []
    told = items.finish("completed")
    assert items.items == rebuilt(told) == [message("", 0)]


def test_tokens_are_told_with_the_text_that_they_make() -> None:
    items = output()
    told = items.take(chunk(reasoning="so", tokens=3)) + items.take(chunk(tokens=2))
    told += items.take(chunk("a", tokens=1)) + items.take(chunk(calls=(part(0, name="now"),), tokens=4))
    told += items.take(chunk("b", tokens=2)) + items.finish("completed")
    assert items.items[1] == message("a", 1, logprobs=(0, 1, 0))
    assert items.items[3] == message("b", 3, logprobs=(0, 1))
    deltas = [each for each in told if each["type"] == "response.output_text.delta"]
    assert [each["logprobs"] for each in deltas] == [
        [{"token": 0}, {"token": 1}, {"token": 0}],
        [{"token": 0}, {"token": 1}],
    ]
    assert rebuilt(told) == items.items


def test_tokens_of_reasoning_and_of_calls_are_not_told_with_words() -> None:
    items = output()
    items.take(chunk(tokens=2))  # an opening mark, before it is known for one
    items.take(Chunk(text="a", token_ids=(), reasoning="so", num_reasoning=2, logprobs=chunk(tokens=3).logprobs))
    items.take(chunk(tokens=1))
    items.take(chunk(calls=(part(0, "{}", name="add"),), tokens=1))
    items.take(chunk("b", calls=(part(1, name="now", at=1),), tokens=2))
    items.finish("completed")
    assert items.items[1] == message("a", 1, logprobs=(2,))
    assert items.items[3] == message("b", 3, logprobs=(0, 1))


@st.composite
def answers(draw: st.DrawFn) -> list[Chunk]:
    """Return an answer piece by piece: first reasoning, maybe behind tokens of a mark that was not known for one, then
    words and calls in any order.
    """
    chunks = [chunk(tokens=2)] if draw(st.booleans()) else []
    chunks += [chunk(reasoning=text, tokens=1) for text in draw(st.lists(st.sampled_from(["x", "y z"]), max_size=2))]
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from(["words", "call", "more", "nothing"]), max_size=8)):
        if kind == "words":
            chunks.append(chunk(draw(st.sampled_from(["a", "b c"])), tokens=1))
        elif kind == "call":
            chunks.append(chunk(calls=(part(num_calls, draw(st.sampled_from(["", "{"])), name=f"f{num_calls}"),)))
            num_calls += 1
        elif kind == "more" and chunks and chunks[-1].calls:
            chunks.append(chunk(calls=(part(num_calls - 1, draw(st.sampled_from(["1", "}"]))),)))
        else:
            chunks.append(chunk(tokens=1))
    return chunks


@settings(max_examples=300)
@given(data=st.data(), chunks=answers())
def test_a_client_makes_the_same_of_events_however_the_answer_is_cut(data: st.DataObject, chunks: list[Chunk]) -> None:
    items = output()
    told = [event for each in chunks for event in items.take(each)] + items.finish("completed")
    assert rebuilt(told) == items.items
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(chunks) - 1)))))
    groups = [chunks[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(chunks)]) if chunks[begin:end]]
    cut = output()
    again = [event for each in groups for event in cut.take(functools.reduce(joined, each))] + cut.finish("completed")
    assert rebuilt(again) == cut.items
    if chunks and chunks[-1].text and not any(each.calls for each in chunks):
        assert cut.items == items.items  # which tokens belong to a call, or to no text, a longer chunk does not say
    assert without_logprobs(cut.items) == without_logprobs(items.items)
    texts = {"message": "", "reasoning": ""}
    for item in items.items:
        if item["type"] in texts:
            texts[item["type"]] += item["content"][0]["text"]
    assert texts == {
        "message": "".join(each.text for each in chunks), "reasoning": "".join(each.reasoning for each in chunks),
    }  # fmt: skip
    arguments = [
        "".join(each.arguments for one in chunks for each in one.calls if each.index == index) for index in range(9)
    ]
    calls = [(item["name"], item["arguments"]) for item in items.items if item["type"] == "function_call"]
    assert calls == [(f"f{index}", arguments[index]) for index in range(len(calls))]
    assert len({item["id"] for item in items.items}) == len(items.items)
    kinds = [item["type"] for item in items.items]
    assert all(one != other or one == "function_call" for one, other in itertools.pairwise(kinds))


def without_logprobs(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return items without what is told of tokens."""
    found = copy.deepcopy(items)
    for part_ in (each for item in found for each in item.get("content", ())):
        part_.pop("logprobs", None)
    return found


def answer() -> ResponseAnswer:
    asked = parse(json.dumps({"input": "a", "metadata": {"a": "b"}}).encode(), {"request_id": "r1"})
    return ResponseAnswer(call=asked, model="m", created=7)


def finished(reason: FinishReason, reasoned: int | None = None) -> Finished:
    usage = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=4, reasoning_tokens=reasoned)
    return Finished(
        endings=(Ending(finish_reason=reason),), usage=usage, prompt=(1,), attempts=1, predicted_cached_tokens=0,
        timelines=(), report=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "status", "incomplete"),
    [
        (FinishReason.STOP, "completed", None),
        (FinishReason.LENGTH, "incomplete", {"reason": "max_output_tokens"}),
    ],
)
def test_a_response_is_whole_and_its_stream_ends_with_it(
    reason: FinishReason, status: str, incomplete: dict[str, str] | None
) -> None:
    whole = answer().whole([chunk("a"), chunk("b")], [finished(reason, 2)])
    assert whole["output"] == [message("ab", 0, status)]
    assert (whole["id"], whole["object"], whole["created_at"], whole["model"]) == ("resp_r1", "response", 7, "m")
    assert (whole["status"], whole["incomplete_details"], whole["error"]) == (status, incomplete, None)
    assert (whole["background"], whole["store"], whole["previous_response_id"]) == (False, False, None)
    assert (whole["metadata"], "pagewire" in whole) == ({"a": "b"}, False)
    assert whole["usage"] == {
        "input_tokens": 5, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0}, "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 8,
    }  # fmt: skip
    stream = ResponseStream(answer())
    assert stream.take(Begun(prompt=(1,))) == b""
    sent = stream.take(chunk("a")) + stream.take(chunk("b"))
    assert not stream.is_over
    sent += stream.take(finished(reason, 2))
    assert stream.is_over
    told = [json.loads(each.partition(b"data: ")[2]) for each in sent.split(b"\n\n") if each]
    assert [each["sequence_number"] for each in told] == [*range(len(told))]
    assert [each["type"] for each in told[:2]] == ["response.created", "response.in_progress"]
    under_way = told[0]["response"]
    assert (under_way["status"], under_way["usage"], under_way["output"]) == ("in_progress", None, [])
    assert told[-1] == {"type": f"response.{status}", "response": whole, "sequence_number": len(told) - 1}
    assert b"event: response.created\ndata: {" in sent


def test_a_call_that_is_cut_off_is_not_to_be_run() -> None:
    cut_off = finished(FinishReason.STOP)
    ending = Ending(finish_reason=FinishReason.STOP, has_calls=True, is_within_call=True)
    whole = answer().whole([chunk(calls=(part(0, "{", name="add"),))], [replace(cut_off, endings=(ending,))])
    assert whole["output"] == [call(0, "add", "{", status="incomplete")]
    assert (whole["status"], whole["incomplete_details"]) == ("completed", None)


def test_reasoning_that_nobody_told_apart_counts_for_none() -> None:
    usage = answer().whole([], [finished(FinishReason.STOP)])["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


def test_a_request_without_an_answer_and_one_that_breaks() -> None:
    stream = ResponseStream(answer())
    stream.take(Begun(prompt=(1,)))
    nobody = finished(FinishReason.STOP)
    with pytest.raises(EngineFailed):
        stream.take(Finished(**{name: getattr(nobody, name) for name in nobody.__slots__} | {"endings": ()}))
    opening = stream.broken(EngineFailed("it broke"))
    assert [line for line in opening.split(b"\n") if line.startswith(b"event")] == [
        b"event: response.created", b"event: response.in_progress", b"event: error",
    ]  # fmt: skip
    stream.take(chunk("a"))
    (told,) = [each for each in stream.broken(EngineFailed("it broke")).split(b"\n\n") if each]
    name, _, data = told.partition(b"\ndata: ")
    error = json.loads(data)
    assert name == b"event: error"
    assert (error["type"], error["code"], error["message"], error["param"]) == ("error", "internal", "it broke", None)
    assert error["error"]["type"] == "server_error"
