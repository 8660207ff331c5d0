"""How many values a field may hold is looked at before the values: two bytes of a request may make hundreds here, and
millions of them kept a router from everything else for a minute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from fake_pod import FakePod, fingerprint
from router_rig import StartRouter

from pagewire.core.errors import InvalidRequest
from pagewire.protos import inference_pb2 as pb
from pagewire.router import long_fields
from pagewire.router.codec import ask_from_wire, tokenize_from_wire
from pagewire.router.json_text import MAX_VALUES

# With one too many of what is wrong itself: so nobody has looked at them.
CHATS: dict[str, Callable[[], pb.ChatPrompt]] = {
    "messages takes at most 65536, got 65537": lambda: pb.ChatPrompt(messages=[pb.ChatMessage()] * 65537),
    "messages takes at most 65536 tool_calls, got 65537": lambda: pb.ChatPrompt(
        messages=[pb.ChatMessage(tool_calls=[pb.ToolCall()] * size) for size in (65536, 1)]
    ),
    "tools takes at most 1024, got 1025": lambda: pb.ChatPrompt(tools=[pb.Tool(parameters="{")] * 1025),
    "documents takes at most 65536, got 65537": lambda: pb.ChatPrompt(documents=["{"] * 65537),
}
SAMPLINGS: dict[str, Callable[[], pb.Sampling]] = {
    "stop takes at most 16 strings, got 17": lambda: pb.Sampling(stop=[""] * 17),
    "stop_token_ids takes at most 128, got 129": lambda: pb.Sampling(stop_token_ids=[1] * 129),
    "allowed_token_ids takes at most 65536, got 65537": lambda: pb.Sampling(allowed_token_ids=[1] * 65537),
    "logit_bias takes at most 1024, got 1025": lambda: pb.Sampling(logit_bias=dict.fromkeys(range(1025), 0.0)),
    "bad_words takes at most 512, got 513": lambda: pb.Sampling(
        bad_words=[""] * 512, bad_word_tokens=[pb.TokenPrompt()]
    ),
}


@pytest.mark.parametrize("message", CHATS)
def test_of_a_chat_over_grpc(message: str) -> None:
    chat = CHATS[message]()
    with pytest.raises(InvalidRequest) as generates:
        ask_from_wire(pb.GenerateRequest(chat=chat), "r", None)
    with pytest.raises(InvalidRequest) as counts:
        tokenize_from_wire(pb.TokenizeRequest(chat=chat), "r")
    for refused in (generates.value, counts.value):
        assert (str(refused), refused.field) == (message, message.split()[0])


@pytest.mark.parametrize("message", SAMPLINGS)
def test_of_sampling_over_grpc(message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask_from_wire(pb.GenerateRequest(text="a", sampling=SAMPLINGS[message]()), "r", None)
    assert (str(refused.value), refused.value.field) == (message, message.split()[0])


def test_as_many_as_may_are_read_over_grpc() -> None:
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="a")] * 65536, documents=["{}"] * 65536)
    sampling = pb.Sampling(bad_words=["a"] * 511, bad_word_tokens=[pb.TokenPrompt(token_ids=[1])], stop=["a"] * 16)
    ask = ask_from_wire(pb.GenerateRequest(chat=chat, sampling=sampling), "r", None)
    assert len(ask.messages or ()) == len(ask.chat.documents) == 65536
    assert (len(ask.bad_words), len(ask.stop)) == (512, 16)


@pytest.mark.parametrize(
    ("read", "most", "good"),
    [
        (long_fields.messages, 65536, {"role": "user", "content": "a"}),
        (long_fields.documents, 65536, {}),
        (long_fields.bad_words, 512, [1]),
    ],
)
def test_over_http(read: Callable[[object], Any], most: int, good: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read([None] * (most + 1))
    field = read.__name__
    assert (str(refused.value), refused.value.field) == (f"{field} takes at most {most}, got {most + 1}", field)
    assert len(read([good] * most)) == most


@pytest.mark.parametrize(("context", "most"), [(512, MAX_VALUES), (MAX_VALUES + 1, MAX_VALUES + 1)])
async def test_of_tokens_over_grpc_as_many_as_a_context_may_hold_and_many_in_any_case(
    start: StartRouter, context: int, most: int
) -> None:
    async with start(FakePod("c0", serves=fingerprint(max_model_len=context))) as router:
        for size, told in (
            (most, f"maximum context length is {context}"),
            (most + 1, f"takes at most {most} token ids"),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match=told) as refused:
                await router.rpc.Generate(pb.GenerateRequest(tokens=pb.TokenPrompt(token_ids=[1] * size))).read()
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
