"""What callers send, and what an SDK is answered: its parsers, as `fuzz_parser` has them.

Bodies go all the way to the tokens of a prompt, through the router's own intake; grammars to their first masks.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from random import Random
from typing import Any

import byte_tokenizer
from fuzz_mutators import as_json, first_of, messages, text
from fuzz_parser import Mutate, Parser
from fuzz_scratch import scratch
from fuzz_wire import FINGERPRINT, SECRET, run
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from pagewire.cli import batch_line
from pagewire.client.attempts import Attempts
from pagewire.client.codec import kv_event_from_wire, loads_from_wire, model_info_from_wire
from pagewire.client.generation import Generation
from pagewire.client.retry import RetryBudget, RetryPolicy
from pagewire.client.routers import Routers
from pagewire.client.status import error_from_wire
from pagewire.core.errors import InvalidRequest, PagewireError, Unauthenticated
from pagewire.core.sampling import MAX_GRAMMAR_CHARS, Grammar, GrammarKind
from pagewire.engine.grammars import Grammars
from pagewire.protos import inference_pb2 as pb
from pagewire.router import codec, openai, token_desk
from pagewire.router.anthropic import call as anthropic
from pagewire.router.anthropic.blocks import ContentBlocks
from pagewire.router.authenticator import Authenticator
from pagewire.router.events import Chunk
from pagewire.router.intake import Intake
from pagewire.router.json_text import read_object
from pagewire.router.keys import NewKey
from pagewire.router.responses import call as responses
from pagewire.text import gbnf
from pagewire.text.reasoning import formats as reasoning
from pagewire.text.reasoning.grammar import behind_reasoning
from pagewire.text.reasoning.reader import ReasoningReader
from pagewire.text.tokenizer import Tokenizer
from pagewire.text.tools import grammar
from pagewire.text.tools.formats import FORMATS
from pagewire.text.tools.parameters import Parameters
from pagewire.text.tools.reader import ToolReader

ORIGIN = {"request_id": "r"}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + message['content'] }}{% for call in message['tool_calls'] or [] %}"
    "{{ call['function']['arguments'] | tojson }}{% endfor %}<|im_end|>{% endfor %}"
)


@functools.cache
def model() -> Path:
    """Return the folder of a tokenizer whose chat template knows tools."""
    return byte_tokenizer.save(scratch() / "model", chat_template=TEMPLATE)


@functools.cache
def _intake() -> Intake:
    fingerprint = dataclasses.replace(FINGERPRINT, max_model_len=4096)
    return Intake(Tokenizer(model()), lambda: fingerprint, max_timeout_s=600.0)


class _Models:
    """The one model of a router."""

    @property
    def intake(self) -> Intake:
        return _intake()

    def of(self, name: str) -> _Models:
        return self


def _body(*, is_chat: bool) -> Callable[[bytes], None]:
    async def accept(data: bytes) -> None:
        call = openai.parse(data, ORIGIN, is_chat=is_chat, may_name_itself=True)
        for ask in call.asks:
            await _intake().accept(ask, _intake().check(ask))

    return run(accept)


CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{\"zone\": \"UTC\"}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "12:00"},
    ],
    "tools": [{"type": "function", "function": {
        "name": "now", "description": "the time", "strict": True,
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}}}],
    "tool_choice": "auto", "parallel_tool_calls": False, "max_completion_tokens": 4, "temperature": 0.5,
    "logprobs": True, "top_logprobs": 2, "stop": ["x"], "seed": 3, "n": 2, "stream": True,
    "stream_options": {"include_usage": True}, "chat_template_kwargs": {}, "user": "u", "logit_bias": {"5": 1.5},
}  # fmt: skip
FORCED = {**CHAT, "tool_choice": {"type": "function", "function": {"name": "now"}}, "stream_options": None}
OLD: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "function_call": {"name": "f"}}],
    "functions": [{"name": "f", "parameters": {"type": "object"}}], "function_call": {"name": "f"}, "max_tokens": 1,
}  # fmt: skip
GUIDED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "top_p": 0.5, "reasoning_effort": None,
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
}  # fmt: skip
COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "hello", "max_tokens": 4, "echo": True, "logprobs": 1, "best_of": 1, "suffix": ""},
    {"prompt": ["hello", "you"], "n": 2, "bad_words": ["the", "of"], "truncate_prompt_tokens": 3, "priority": 1},
    {"prompt": [[5, 6], [7]], "stop_token_ids": [3], "allowed_token_ids": [5, 6], "min_tokens": 1, "top_k": -1},
    {"prompt": "a", "use_beam_search": True, "n": 2, "beam_width": 3, "length_penalty": 0.5, "early_stopping": "never"},
    {"prompt": "a", "structured_outputs": {"choice": ["a", "b"]}, "cache_salt": "s", "request_id": "x", "seed": 2},
    {"prompt": "a", "guided_regex": "a+", "repetition_penalty": 1.5, "pagewire": {"timeline": True}},
]


def _dumped(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def _nothing(_count: int) -> None:
    """What is unknown is counted nowhere."""


async def _tokenize(data: bytes) -> None:
    await token_desk.TokenDesk(_Models(), _nothing).tokenize(data)  # type: ignore[arg-type]


async def _detokenize(data: bytes) -> None:
    await token_desk.TokenDesk(_Models(), _nothing).detokenize(data)  # type: ignore[arg-type]


async def _generate(data: bytes) -> None:
    ask = codec.ask_from_wire(pb.GenerateRequest.FromString(data), "r", 5.0)
    await _intake().accept(ask, _intake().check(ask))


async def _tokenize_rpc(data: bytes) -> None:
    ask = codec.tokenize_from_wire(pb.TokenizeRequest.FromString(data), "r")
    await _intake().tokenize(ask)


GENERATE = (
    pb.GenerateRequest(text="hello", sampling=pb.Sampling(max_tokens=4, n=2, logit_bias={5: 1.0}, bad_words=["the"])),
    pb.GenerateRequest(tokens=pb.TokenPrompt(token_ids=[5, 6]), sampling=pb.Sampling(guide=pb.Guide(regex="a"))),
    pb.GenerateRequest(
        chat=pb.ChatPrompt(
            messages=[
                pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(id="a", name="now", arguments="{}")]),
                pb.ChatMessage(role="tool", content="12:00", tool_call_id="a"),
            ],
            tools=[pb.Tool(name="now", description="the time", parameters='{"type": "object"}', strict=True)],
            tool_choice=pb.ToolChoice(function="now"),
        ),
        sampling=pb.Sampling(max_tokens=4),
    ),
)


def _batch(data: bytes) -> None:
    for number, line in enumerate(data.splitlines()):
        batch_line.custom_id_of(line)
        batch_line.read(line, number).call()


def _batch_lines() -> list[bytes]:
    chat = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": GUIDED}
    return [b"\n".join(_dumped(chat, {**chat, "url": "/v1/completions", "body": COMPLETIONS[0]}))]


# ------------------------------------------------------------------------------------------------------------- grammars


async def _response(data: bytes) -> None:
    ask = responses.parse(data, ORIGIN, may_name_itself=True).ask
    await _intake().accept(ask, _intake().check(ask))


RESPONSES: tuple[dict[str, Any], ...] = (
    {"input": "hello", "instructions": "be kind", "max_output_tokens": 3, "text": {"format": {"type": "json_object"}}},
    {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
            {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "12:00"},
        ],
        "include": ["message.output_text.logprobs"], "truncation": "auto", "metadata": {"a": "b"}, "stream": True,
    },
)  # fmt: skip


async def _message(data: bytes) -> None:
    ask = anthropic.parse(data, ORIGIN, may_name_itself=True).ask
    await _intake().accept(ask, _intake().check(ask))


MESSAGES: tuple[dict[str, Any], ...] = (
    {
        "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "You"}], "max_tokens": 3,
        "system": "be kind", "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    },
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "so", "signature": ""},
                    {"type": "tool_use", "id": "c1", "name": "now", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "12:00"}]},
        ],
        "max_tokens": 3, "thinking": {"type": "enabled", "budget_tokens": 3}, "stop_sequences": ["b"], "stream": True,
        "tool_choice": {"type": "none"}, "tools": [{"name": "now", "input_schema": {"type": "object"}}],
    },
)  # fmt: skip


def _reasoned(data: bytes) -> None:
    """Read reasoning in every format, whole and in pieces: both find the same; write it before a grammar."""
    said = data.decode(errors="replace")
    for each in reasoning.FORMATS.values():
        for standing in reasoning.Standing:
            whole, cut = ReasoningReader(each, standing), ReasoningReader(each, standing)
            found = [whole.push(said), whole.finish()]
            pieces = [*map(cut.push, said), cut.finish()]
            for part in ("reasoning", "words"):
                assert "".join(getattr(one, part) for one in found) == "".join(getattr(one, part) for one in pieces)
        for kind in GrammarKind:
            behind_reasoning(Grammar(kind=kind, text=said), each, reasoning.Standing.BEFORE, {})


THOUGHTS = (
    b"<think>\nIs it?\n</think>\n\nIt is.",
    b"[THINK]so[/THINK]so",
    b"<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>so",
    b'{"type": "object"}',
    b"[a-z]+/\\/",
)


def _compiled(kind: GrammarKind) -> Callable[[bytes], None]:
    def compile_it(data: bytes) -> None:
        grammar = Grammar(kind=kind, text=data.decode(errors="replace"), field="guide")
        _grammars().compile(grammar)

    return compile_it


def _written_as_lark(data: bytes) -> None:
    """What the router writes is compiled where it came from, or refused by name."""
    told = data.decode(errors="replace")
    try:
        written = gbnf.as_lark(told)
    except gbnf.NoGbnf as error:
        raise InvalidRequest(str(error), field="guide") from error
    _grammars().compile(Grammar(kind=GrammarKind.LARK, text=written, field="guide"))


@functools.cache
def _grammars() -> Grammars:
    return Grammars(model() / "tokenizer.json", 320, {2})


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bo"]},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "more": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]},
        "text": {"type": "string", "pattern": "^a{1,3}$", "maxLength": 9, "format": "date"},
        "number": {"type": "number", "multipleOf": 0.5, "exclusiveMinimum": 1},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"t": {"type": "object", "patternProperties": {"^x": {"const": 1}}, "allOf": [{"minProperties": 1}]}},
}
REFERRING: dict[str, Any] = {
    "$ref": "#/$defs/all",
    "allOf": [{"properties": {"a": {"$ref": "#/$defs/u"}}, "required": ["a"]}],
    "$defs": {
        "u": {"enum": ["C", 1], "type": ["string", "integer"]},
        "all": {"properties": {"b": {"anyOf": [{"$ref": "#/$defs/u"}, {"items": {"$ref": "#/$defs/all"}}]}}},
    },
}
LARK = 'start: ("(" start ")") | NUMBER | w~1..3\nw: /[a-z]+/ "x"i\nNUMBER: /[0-9]{1,2}/\n%ignore " "'
GBNF = (
    'root ::= "(" root ")" | number [^a-f\\]\\x41]*\n# digits\nnumber ::= [0-9]{1,2} ("." [0-9]+)?\n',
    'root ::= item ("," sp item)*\nsp ::= " "?\nitem ::= "a\\"b\\u00e9" | . | ()\n',
)

# ---------------------------------------------------------------------------------------------------------------- texts

KNOWN: dict[str, dict[str, Any]] = {
    "get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "array"}, "t": {"type": ["number"]}}},
    "now": {},
}


def _forced(data: bytes) -> None:
    """Have a call of a tool with this schema forced: the grammar is compiled where arguments stand one by one, too."""
    schema = read_object("it", data.decode(errors="replace"), field="tools")
    parameters = Parameters(schema)
    for name in parameters.names:
        assert isinstance(parameters.types(name), Set)
        parameters.values(name)
        parameters.alone(name)
    for each in (FORMATS["qwen3_coder"], FORMATS["pythonic"], FORMATS["hermes"]):
        calls = grammar.calls(each, [("f", schema)], {}, is_single=True)
        if len(calls) <= MAX_GRAMMAR_CHARS:
            _grammars().compile(Grammar(kind=GrammarKind.LARK, text=calls, field="tools"))


def _called(data: bytes) -> None:
    """Read calls out of a model's words in every format, whole and in pieces: both find the same."""
    said = data.decode(errors="replace")
    for each in FORMATS.values():
        found = []
        for size in (len(said) or 1, 3):
            reader = ToolReader(each, KNOWN)
            parts = [reader.push(said[at : at + size]) for at in range(0, len(said), size)] + [reader.finish()]
            words = "".join(part.words for part in parts)
            names = [call.name for part in parts for call in part.calls if call.name]
            content = ContentBlocks()
            for part in parts:
                content.take(Chunk(text=part.words, token_ids=(), calls=part.calls))
            content.finish()
            inputs = [block["input"] for block in content.blocks if "input" in block]
            found.append((words, names, "".join(call.arguments for part in parts for call in part.calls), inputs))
        assert found[0] == found[1], f"{each.name}: {found}"


CALLS = (
    b'so <tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, {"a": 2}]}}\n</tool_call>',
    b'[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]',
    b'<|python_tag|>{"name": "get_weather", "parameters": {"t": 1.5}}; {"name": "now", "parameters": {}}',
    b'[get_weather(city="Paris", days=[1, None, True], t=-1.5), now()]',
    b"<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
)


def _who(data: bytes) -> None:
    _authenticator().tenant(data.decode("latin-1"))


KEY = NewKey.of(bytes(range(36)))


@functools.cache
def _authenticator() -> Authenticator:
    file = model() / "keys.toml"
    file.write_text(f'[tenants.acme]\nkeys = ["{KEY.line}"]\n', encoding="utf-8")
    return Authenticator(file, secret=SECRET, operator_key="operator")


# ------------------------------------------------------------------------------------------------------------------ SDK


def _answered(data: bytes) -> None:
    """Take a message of an answer as the SDK's shells do, and the answer's end behind it."""
    attempts = Attempts(
        timeout_s=None, policy=RetryPolicy(), budget=RetryBudget(), routers=Routers(1), now_s=0.0,
    )  # fmt: skip
    generation = Generation(pb.GenerateRequest(request_id="r"), attempts)
    generation.begin(0.0)
    generation.on_response(pb.GenerateResponse.FromString(data))
    if not generation.is_finished:
        generation.on_response(END)
    generation.result()


END = pb.GenerateResponse(complete=pb.Complete(endings=[pb.Ending(finish_reason="stop")]))
ANSWERS = (
    pb.GenerateResponse(
        chunk=pb.Chunk(
            text="a", token_ids=[5], logprobs=[pb.TokenLogprob(token_id=5, data=b"a", logprob=-1.0, rank=1)],
            ending=pb.Ending(finish_reason="stop", stop_text="x"),
            tool_calls=[pb.ToolCallPart(index=0, id="a", name="now", arguments="{}")],
        )
    ),
    pb.GenerateResponse(
        complete=pb.Complete(
            endings=[pb.Ending(finish_reason="length", stop_token_id=3)], usage=pb.Usage(prompt_tokens=3),
            timelines=[pb.Timeline(process="d0", stamps=[pb.Stamp(phase="accepted", at_s=1.0)])],
            transfer=pb.Transfer(placement="remote", causes=["x"], notes=["y"]), prompt_token_ids=[1, 2],
            explanation=pb.Explanation(policy="p", options=[pb.PlacementOption(decode_pod="d0", ttft_s=1.0)]),
        )
    ),
)  # fmt: skip


def _told(data: bytes) -> None:
    """Take what the other calls of a router answer."""
    model_info_from_wire(pb.GetModelInfoResponse.FromString(data))
    loads_from_wire(pb.GetLoadsResponse.FromString(data))


def _failed(data: bytes) -> None:
    error = error_from_wire("INTERNAL", "said", [("grpc-status-details-bin", data)], "r")
    assert isinstance(error, PagewireError)


def _details() -> list[bytes]:
    status = status_pb2.Status(code=13, message="said")
    bad = error_details_pb2.BadRequest(field_violations=[error_details_pb2.BadRequest.FieldViolation(field="n")])
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    for detail in (error_details_pb2.ErrorInfo(reason="overloaded", metadata={"request_id": "x"}), bad, retry):
        status.details.add().Pack(detail)
    return [status.SerializeToString()]


def details(data: bytes, random: Random, words: Sequence[str]) -> bytes:
    """Change one of the details of a status, which are bytes within bytes; or the status."""
    status = status_pb2.Status()
    try:
        status.ParseFromString(data)
    except DecodeError:
        return change_status(data, random, words)
    if not status.details or random.random() < 0.3:
        return change_status(data, random, words)
    kinds = {kind.DESCRIPTOR.full_name: kind for kind in DETAILS}
    detail = random.choice(status.details)
    kind = kinds.get(detail.type_url.rpartition("/")[2], error_details_pb2.RetryInfo)
    detail.value = messages(kind)(detail.value, random, words)
    changed: bytes = status.SerializeToString()
    return changed


DETAILS = (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo)
change_status = messages(status_pb2.Status)

BODIES = (
    "router/openai.py", "router/json_text.py", "router/long_fields.py", "router/guided.py", "router/tool_fields.py",
    "router/validation.py",
)  # fmt: skip
RPC: Mutate = messages(pb.GenerateRequest)

PARSERS = (
    Parser(
        name="chat body",
        parse=_body(is_chat=True),
        seeds=lambda: _dumped(CHAT, FORCED, OLD, GUIDED),
        errors=(InvalidRequest,),
        files=(*BODIES, "text/chat_template.py", "router/intake.py"),
        mutate=as_json,
        cost=4,
    ),
    Parser(
        name="completion body",
        parse=_body(is_chat=False),
        seeds=lambda: _dumped(*COMPLETIONS),
        errors=(InvalidRequest,),
        files=BODIES,
        mutate=as_json,
        cost=4,
    ),
    Parser(
        name="tokenize body",
        parse=run(_tokenize),
        seeds=lambda: _dumped({"prompt": "hello", "return_token_strs": True}, {"messages": CHAT["messages"]}),
        errors=(InvalidRequest,),
        files=("router/token_desk.py", "router/bodies.py"),
        mutate=as_json,
        cost=4,
    ),
    Parser(
        name="detokenize body",
        parse=run(_detokenize),
        seeds=lambda: _dumped({"model": "m", "tokens": [5, 6]}),
        errors=(InvalidRequest,),
        files=("router/token_desk.py",),
        mutate=as_json,
        cost=4,
    ),
    Parser(
        name="Generate request",
        parse=run(_generate),
        seeds=lambda: [each.SerializeToString() for each in GENERATE],
        errors=(InvalidRequest, DecodeError),
        files=("router/codec.py", "router/validation.py"),
        mutate=RPC,
        cost=4,
    ),
    Parser(
        name="Tokenize request",
        parse=run(_tokenize_rpc),
        seeds=lambda: [pb.TokenizeRequest(text="hello", add_special_tokens=True).SerializeToString()],
        errors=(InvalidRequest, DecodeError),
        files=("router/codec.py",),
        mutate=messages(pb.TokenizeRequest),
        cost=4,
    ),
    Parser(
        name="batch file",
        parse=_batch,
        seeds=_batch_lines,
        errors=(InvalidRequest,),
        files=("cli/batch_line.py", "router/openai.py"),
        mutate=as_json,
        cost=2,
    ),
    Parser(
        name="JSON schema",
        parse=_compiled(GrammarKind.JSON_SCHEMA),
        seeds=lambda: _dumped(SCHEMA, {name: each for name, each in SCHEMA.items() if name != "additionalProperties"}),
        errors=(InvalidRequest,),
        files=("engine/grammars.py", "text/closed_schema.py"),
        mutate=as_json,
        cost=8,
    ),
    Parser(
        name="parameters of a tool",
        parse=_forced,
        seeds=lambda: _dumped(
            REFERRING, {"properties": {"more": SCHEMA["properties"]["more"]}, "$defs": SCHEMA["$defs"]}
        ),
        errors=(InvalidRequest,),
        files=("text/tools/parameters.py", "text/tools/grammar.py", "text/lark.py"),
        mutate=as_json,
        cost=16,
    ),
    Parser(
        name="regular expression",
        parse=_compiled(GrammarKind.REGEX),
        seeds=lambda: [b"(ab|ac)+d?|x{2,3}", b"[^a-f\\d]*(?i:q)\\.$", b"(?P<n>\\w{0,30}\\s+){0,20}"],
        errors=(InvalidRequest,),
        files=("engine/grammars.py",),
        mutate=text,
        cost=8,
    ),
    Parser(
        name="Lark grammar",
        parse=_compiled(GrammarKind.LARK),
        seeds=lambda: [LARK.encode()],
        errors=(InvalidRequest,),
        files=("engine/grammars.py",),
        mutate=text,
        cost=8,
    ),
    Parser(
        name="GBNF grammar",
        parse=_written_as_lark,
        seeds=lambda: [each.encode() for each in GBNF],
        errors=(InvalidRequest,),
        files=("text/gbnf.py", "text/lark.py", "engine/grammars.py"),
        mutate=text,
        cost=8,
    ),
    Parser(
        name="response body",
        parse=run(_response),
        seeds=lambda: _dumped(*RESPONSES),
        errors=(InvalidRequest,),
        files=("router/responses/body.py", "router/responses/input.py"),
        mutate=as_json,
        cost=2,
    ),
    Parser(
        name="message body",
        parse=run(_message),
        seeds=lambda: _dumped(*MESSAGES),
        errors=(InvalidRequest,),
        files=("router/anthropic/body.py", "router/anthropic/input.py"),
        mutate=as_json,
        cost=2,
    ),
    Parser(
        name="reasoning",
        parse=_reasoned,
        seeds=lambda: THOUGHTS,
        files=("text/reasoning/reader.py", "text/reasoning/grammar.py", "text/lark.py"),
        mutate=text,
        cost=16,
    ),
    Parser(
        name="tool calls",
        parse=_called,
        seeds=lambda: CALLS,
        files=(
            "text/tools/readings.py",
            "text/scanner.py",
            "text/tools/keyed.py",
            "text/tools/pythonic.py",
            "router/anthropic/blocks.py",
        ),
        mutate=text,
        cost=16,
    ),
    Parser(
        name="Authorization header",
        parse=_who,
        seeds=lambda: [b"Bearer " + KEY.key.encode(), b"bearer operator"],
        errors=(Unauthenticated,),
        files=("router/authenticator.py", "router/keys.py"),
        mutate=text,
    ),
    Parser(
        name="SDK: answer",
        parse=_answered,
        seeds=lambda: [each.SerializeToString() for each in ANSWERS],
        errors=(PagewireError, DecodeError),
        files=("client/generation.py", "client/codec.py", "client/replay.py"),
        mutate=messages(pb.GenerateResponse),
        cost=2,
    ),
    Parser(
        name="SDK: loads and models",
        parse=_told,
        seeds=lambda: [pb.GetLoadsResponse(pods=[pb.PodLoad(pod_id="a", load=pb.Load())]).SerializeToString()],
        errors=(PagewireError, DecodeError),
        files=("client/codec.py",),
        mutate=first_of(messages(pb.GetLoadsResponse), messages(pb.GetModelInfoResponse)),
        cost=2,
    ),
    Parser(
        name="SDK: cache event",
        parse=lambda data: kv_event_from_wire(pb.KvEvent.FromString(data)),
        seeds=lambda: [pb.KvEvent(pod_id="a", gap=pb.KvGap(reason="x")).SerializeToString()],
        errors=(PagewireError, DecodeError),
        files=("client/codec.py",),
        mutate=messages(pb.KvEvent),
    ),
    Parser(
        name="SDK: status details",
        parse=_failed,
        seeds=_details,
        files=("client/status.py",),
        mutate=details,
    ),
)
