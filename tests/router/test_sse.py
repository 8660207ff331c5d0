"""The bytes of a stream's chunks are those of the answer's JSON, whatever the text and whichever way they were made."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.router import sse
from pagewire.router.answers import Answer
from pagewire.router.events import Chunk
from pagewire.router.openai import parse

FIELDS: list[dict[str, Any]] = [{}, {"stream_options": {"include_usage": True}}, {"return_token_ids": True}]


def answer(is_chat: bool, fields: dict[str, Any]) -> Answer:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if is_chat else {"prompt": "hi"}
    body = json.dumps({"model": "m", "stream": True, **prompt, **fields}).encode()
    return Answer(call=parse(body, {"request_id": "r1"}, is_chat=is_chat), model='a "model"', created=7)


@pytest.mark.parametrize("is_chat", [True, False])
@pytest.mark.parametrize("fields", FIELDS)
@given(texts=st.lists(st.tuples(st.text(), st.integers(0, 2)), min_size=1, max_size=8))
def test_each_chunk_reads_as_the_answer_says_it(
    is_chat: bool, fields: dict[str, Any], texts: list[tuple[str, int]]
) -> None:
    said = answer(is_chat, fields)
    events = sse.Events(said)
    for text, index in texts:
        chunk = Chunk(text=text, token_ids=(1, 2), index=index)
        assert events.chunk(chunk) == sse.events(said.chunk(chunk))


@given(
    text=st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r\n")))
)
def test_an_event_is_one_line_also_where_decoded_text_is_split(text: str) -> None:
    said = answer(False, {})
    whole = sse.Events(said).chunk(Chunk(text=text, token_ids=(1,), index=0)) + sse.event({"error": text})
    events = [line for line in httpx.Response(200, content=whole).iter_lines() if line]
    assert [line[:6] for line in events] == ["data: "] * (2 if text else 1)
    assert json.loads(events[-1][6:]) == {"error": text}
    assert not text or json.loads(events[0][6:])["choices"][0]["text"] == text
