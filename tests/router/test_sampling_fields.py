"""What a caller asks of the sampler reaches the pod, from either door and the SDK, and equal whichever way it came."""

from __future__ import annotations

import json
from typing import Any

import byte_tokenizer
import pytest
from fake_pod import FakePod
from router_rig import RunningRouter, StartRouter
from tokenizers import Tokenizer as Plain
from tokenizers import decoders, models

from pagewire.client import AsyncClient
from pagewire.core.sampling import Grammar, GrammarKind, SamplingParams, TokenBias, TokenSequence
from pagewire.text.detokenizer import Detokenizer
from pagewire.text.text_stream import TextStream
from pagewire.text.tokenizer import Tokenizer

TOKENIZER = byte_tokenizer.build()
SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text).ids)


def sampling_of(router: RunningRouter) -> SamplingParams:
    return router.pods[0].submits[-1].spec.sampling


async def test_every_parameter_arrives_from_http_and_from_the_sdk(start: StartRouter) -> None:
    plain: dict[str, Any] = {
        "max_tokens": 6, "min_tokens": 2, "temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.1, "typical_p": 0.9,
        "repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 0.25, "seed": 5,
        "allowed_token_ids": [1, 2, 3, 40], "bad_words": ["stop", [7, 8]], "stop": ["zzz"], "stop_token_ids": [9],
        "logprobs": 4, "prompt_logprobs": 2,
    }  # fmt: skip
    expected = SamplingParams(
        **{
            **plain,
            "allowed_token_ids": (1, 2, 3, 40),
            "bad_words": tuple(TokenSequence(tokens=each) for each in (ids("stop"), ids(" stop"), (7, 8))),
            "stop": ("zzz",),
            "stop_token_ids": (9,),
            "logit_bias": (TokenBias(token=3, bias=-100.0), TokenBias(token=11, bias=2.5)),
        }
    )
    async with start(FakePod("c0")) as router, AsyncClient(router.addresses["grpc"]) as client:
        answer = await router.complete(**plain, logit_bias={"3": -100, "11": 2.5})
        assert answer.status_code == 200, answer.text
        assert sampling_of(router) == expected
        await client.generate("hello world", **plain, logit_bias={3: -100.0, 11: 2.5})
        assert sampling_of(router) == expected
        # Nothing asked is nothing set.
        await router.complete(seed=1, max_tokens=16)
        assert sampling_of(router) == SamplingParams(seed=1)
        await client.generate("hello world", seed=1)
        assert sampling_of(router) == SamplingParams(seed=1)
        assert await router.metric("pagewire_router_unknown_fields_total") == 0


def grammar(kind: GrammarKind, text: str, field: str) -> Grammar:
    return Grammar(kind=kind, text=text, field=field)


COMPACT = json.dumps(SCHEMA, ensure_ascii=False, separators=(",", ":"))
GUIDES: list[tuple[dict[str, Any], Grammar | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}},
     grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}', "response_format")),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
     grammar(GrammarKind.JSON_SCHEMA, COMPACT, "response_format")),
    ({"structured_outputs": {"json": SCHEMA}}, grammar(GrammarKind.JSON_SCHEMA, COMPACT, "structured_outputs")),
    ({"structured_outputs": {"json": "{}", "regex": None}},
     grammar(GrammarKind.JSON_SCHEMA, "{}", "structured_outputs")),
    ({"structured_outputs": {"json_object": True}},
     grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}', "structured_outputs")),
    ({"structured_outputs": {"regex": "a+"}}, grammar(GrammarKind.REGEX, "a+", "structured_outputs")),
    ({"structured_outputs": {"grammar": "start: X"}}, grammar(GrammarKind.LARK, "start: X", "structured_outputs")),
    ({"structured_outputs": {"choice": ["a", 'b"\n']}},
     grammar(GrammarKind.LARK, 'start: "a" | "b\\"\\n"', "structured_outputs")),
    ({"guided_json": SCHEMA}, grammar(GrammarKind.JSON_SCHEMA, COMPACT, "guided_json")),
    ({"guided_regex": "a+"}, grammar(GrammarKind.REGEX, "a+", "guided_regex")),
    ({"guided_choice": ["é"]}, grammar(GrammarKind.LARK, 'start: "é"', "guided_choice")),
    ({"guided_grammar": "start: X"}, grammar(GrammarKind.LARK, "start: X", "guided_grammar")),
]  # fmt: skip


@pytest.mark.parametrize("is_chat", [False, True])
async def test_every_way_to_guide_an_output_arrives_as_a_grammar(start: StartRouter, is_chat: bool) -> None:
    async with start(FakePod("c0")) as router:
        for fields, expected in GUIDES:
            if is_chat:
                body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, **fields}
                answer = await router.http.post("/v1/chat/completions", json=body)
            else:
                answer = await router.complete(max_tokens=2, **fields)
            assert answer.status_code == 200, answer.text
            assert sampling_of(router).grammar == expected, fields


async def test_the_sdk_guides_too(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router, AsyncClient(router.addresses["grpc"]) as client:
        for asked, kind, text in (
            ({"json_schema": SCHEMA}, GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
            ({"json_schema": "{}"}, GrammarKind.JSON_SCHEMA, "{}"),
            ({"json_object": True}, GrammarKind.JSON_SCHEMA, '{"type":"object"}'),
            ({"regex": "a+"}, GrammarKind.REGEX, "a+"),
            ({"lark": "start: X"}, GrammarKind.LARK, "start: X"),
        ):
            await client.generate("hello", max_tokens=2, **asked)  # type: ignore[arg-type]
            assert sampling_of(router).grammar == grammar(kind, text, next(iter(asked)))  # which a refusal names


@pytest.mark.parametrize("min_tokens", [0, 1, 2, 3, 4])
def test_no_stop_string_ends_in_min_tokens(min_tokens: int) -> None:
    """A token is a letter here; which string counts is the one that ends first behind them, of those the longest."""
    text, stops = "abababab", ("a", "ba")
    found = [(at + len(stop), at, stop) for stop in stops for at in range(8) if text.startswith(stop, at)]
    _, begins, stop = min(each for each in found if each[0] > min_tokens)
    stream = TextStream(Detokenizer(TOKENIZER.decode), stops, min_tokens)
    pieces = [stream.push((token,), None) for token in (ids("a") + ids("b")) * 4]
    stopped = next(place for place, piece in enumerate(pieces) if piece.stop_text is not None)
    assert "".join(piece.text for piece in pieces[: stopped + 1]) == text[:begins]
    assert pieces[stopped].stop_text == stop


def test_the_bytes_of_tokens_make_up_the_text(tmp_path: Any) -> None:
    tokenizer = Tokenizer(byte_tokenizer.save(tmp_path))
    text = "héllo <|im_end|> wörld \n\t 你好 \x00 end"
    tokens = TOKENIZER.encode(text).ids
    assert b"".join(tokenizer.token_bytes(token) for token in tokens) == text.encode()
    assert tokenizer.token_bytes(byte_tokenizer.EOS_ID) == b"<|im_end|>"
    assert tokenizer.token_bytes(10**6) == b""


def test_the_bytes_of_a_tokenizer_with_byte_fallback(tmp_path: Any) -> None:
    """As Llama 2 and Mistral have it: pieces with a mark for the space, bytes for what has no piece."""
    vocabulary = {"\u2581hi": 0, "<0xC3>": 1, "<0xA9>": 2, "</s>": 3}
    plain = Plain(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    plain.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    plain.add_special_tokens(["</s>"])
    plain.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert [tokenizer.token_bytes(token) for token in range(4)] == [b" hi", b"\xc3", b"\xa9", b"</s>"]
