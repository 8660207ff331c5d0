"""Calls of tools in the SDK: added up from pieces, and gone on with when a router is lost, however both cut them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.client.attempts import Attempts
from pagewire.client.codec import request_to_wire
from pagewire.client.generation import Generation
from pagewire.client.options import Prompt
from pagewire.client.results import Chunk, Message, ToolCall
from pagewire.client.retry import RetryBudget, RetryPolicy
from pagewire.client.routers import Routers
from pagewire.core.errors import RouterLost
from pagewire.core.sampling import FinishReason
from pagewire.protos import inference_pb2 as pb

CALLS = (ToolCall(id="a1", name="add", arguments='{"a": [1, 2]}'), ToolCall(id="b2", name="now", arguments="{}"))
WORDS = "I see."
# The answer, a character at a time: words, or the place of a call and what is new of it.
Step = tuple[int | None, str]
STEPS: list[Step] = [
    *((None, char) for char in WORDS),
    *((place, char) for place, call in enumerate(CALLS) for char in ("", *call.arguments)),
]


def chunks(steps: list[Step], cuts: list[int], calls: tuple[ToolCall, ...] = CALLS) -> list[pb.Chunk]:
    """Return what a router sends of the answer whose steps are cut so; each step is a token of its number."""
    sent = []
    for begin, end in zip([0, *cuts], [*cuts, len(steps)], strict=True):
        chunk = pb.Chunk(token_ids=range(begin, end))
        for place, char in steps[begin:end]:
            if place is None:
                chunk.text += char
                continue
            if not chunk.tool_calls or chunk.tool_calls[-1].index != place:
                chunk.tool_calls.add(index=place)
            if not char:
                chunk.tool_calls[-1].id, chunk.tool_calls[-1].name = calls[place].id, calls[place].name
            chunk.tool_calls[-1].arguments += char
        sent.append(chunk)
    return sent


def generation() -> Generation:
    attempts = Attempts(
        timeout_s=60.0, policy=RetryPolicy(), budget=RetryBudget(), routers=Routers(2), now_s=100.0
    )  # fmt: skip
    return Generation(request_to_wire("hello", {}), attempts)


def take(life: Generation, sent: list[pb.Chunk]) -> list[Chunk]:
    told = [life.on_response(pb.GenerateResponse(request_id="r1", chunk=chunk)) for chunk in sent]
    return [chunk for chunk in told if chunk is not None]


def lose(life: Generation) -> None:
    life.on_error("UNAVAILABLE", "gone", (), now_s=100.0, draw=0.0)
    life.begin(100.0)


CUTS = st.lists(st.integers(0, len(STEPS)), max_size=6).map(sorted)


@given(first=CUTS, second=CUTS, lost_at=st.integers(0, 7))
def test_calls_are_handed_out_once_however_two_routers_cut_them(
    first: list[int], second: list[int], lost_at: int
) -> None:
    life = generation()
    life.begin(100.0)
    told = take(life, chunks(STEPS, first)[:lost_at])
    lose(life)
    told += take(life, chunks(STEPS, second))
    ending = pb.Ending(finish_reason="tool_calls")
    life.on_response(pb.GenerateResponse(request_id="r1", complete=pb.Complete(endings=[ending])))
    result = life.result()
    assert (result.text, result.tool_calls) == (WORDS, CALLS)
    assert result.finish_reason is FinishReason.TOOL_CALLS
    assert [token for chunk in told for token in chunk.token_ids] == list(range(len(STEPS)))
    for place, call in enumerate(CALLS):
        parts = [part for chunk in told for part in chunk.tool_calls if part.index == place]
        assert [(part.id, part.name) for part in parts if part.name or part.id] == [(call.id, call.name)]
        assert (parts[0].name, "".join(part.arguments for part in parts)) == (call.name, call.arguments)


@pytest.mark.parametrize(
    "other",
    [
        ToolCall(id="zz", name="add", arguments=CALLS[0].arguments),
        ToolCall(id="a1", name="sub", arguments=CALLS[0].arguments),
    ],
)
def test_another_call_is_not_gone_on_with(other: ToolCall) -> None:
    life = generation()
    life.begin(100.0)
    take(life, chunks(STEPS, [10, 20])[:2])
    lose(life)
    with pytest.raises(RouterLost, match="is not the one"):
        take(life, chunks(STEPS, [10, 20], (other, CALLS[1])))


def test_other_arguments_are_not_gone_on_with() -> None:
    life = generation()
    life.begin(100.0)
    take(life, chunks(STEPS, [12])[:1])
    lose(life)
    changed = [(place, "9" if (place, char) == (0, "a") else char) for place, char in STEPS]
    with pytest.raises(RouterLost, match="is not the one"):
        take(life, chunks(changed, [3, 13]))


def test_parsed_arguments_are_an_object() -> None:
    assert CALLS[0].parsed() == {"a": [1, 2]}
    for wrong in ("[1]", '{"a": [1'):
        with pytest.raises(ValueError, match=r"no object|Expecting"):
            ToolCall(id="", name="add", arguments=wrong).parsed()


def test_a_chat_may_mix_messages_with_objects() -> None:
    """By its type too, which mypy looks at: a history of objects that goes on with `result.message`."""
    chat: list[Message | dict[str, Any]] = [
        {"role": "user", "content": "What time is it?"},
        Message(role="assistant", content="", tool_calls=CALLS[1:]),
    ]
    prompt: Prompt = chat
    sent = request_to_wire(prompt, {}).chat.messages
    assert [(each.role, len(each.tool_calls)) for each in sent] == [("user", 0), ("assistant", 1)]
