"""Between `protos/inference.proto` and the router's values. Protobuf types come no further."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import Message

from pagewire.core.cache_events import CacheEvents
from pagewire.core.errors import UnsupportedField
from pagewire.core.load import Load
from pagewire.core.sampling import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_LOGIT_BIAS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    Grammar,
    GrammarKind,
    TokenBias,
)
from pagewire.protos import inference_pb2 as pb
from pagewire.router import long_fields, tool_fields
from pagewire.router.ask import Ask, Reasoning
from pagewire.router.cache_watch import CacheNews, Gap
from pagewire.router.events import Chunk, Ending, Finished, ScoredToken
from pagewire.router.explanation import Explanation
from pagewire.router.guided import ANY_OBJECT
from pagewire.router.json_text import MAX_VALUES, read_object
from pagewire.router.pods import Standing
from pagewire.router.tool_fields import MAX_TOOLS, Tools
from pagewire.router.validation import MAX_BAD_WORDS
from pagewire.text.text_stream import TextRules

_SAME_IN_TRANSFER = tuple(field.name for field in pb.Transfer.DESCRIPTOR.fields)
_SAME_IN_LOAD = tuple(field.name for field in pb.Load.DESCRIPTOR.fields)


def ask_from_wire(
    request: pb.GenerateRequest, request_id: str, timeout_s: float | None, most_tokens: int = MAX_VALUES
) -> Ask:
    """Return what a caller asked, unchecked; `timeout_s` is what is left of the call's deadline.

    Raises InvalidRequest for what cannot be read or would take long, UnsupportedField for what is a chat's of another.
    """
    form = request.WhichOneof("prompt")
    sampling = request.sampling
    _check_counts(sampling)
    long_fields.check_count("prompt", len(request.tokens.token_ids), most_tokens, of="token ids")
    given = functools.partial(_given, sampling)
    is_score = given("max_tokens") == 0 and given("prompt_logprobs") is not None
    return Ask(
        request_id=request_id,
        model=request.model,
        text=request.text if form == "text" else None,
        token_ids=tuple(request.tokens.token_ids) if form == "tokens" else None,
        **_chat(request.chat if form == "chat" else None),
        reasoning=_reasoning(request),
        text_rules=TextRules(
            with_special=_given(request, "skip_special_tokens") is False,
            with_stop=request.include_stop_str_in_output,
        ),
        add_special_tokens=_given(request, "add_special_tokens"),
        truncate_prompt_tokens=_given(request, "truncate_prompt_tokens"),
        truncation_side=request.truncation_side or "left",
        n=given("n"),
        use_beam_search=sampling.use_beam_search,
        beam_width=given("beam_width"),
        length_penalty=given("length_penalty"),
        early_stopping=given("early_stopping"),
        is_score=is_score,
        max_tokens=1 if is_score else given("max_tokens"),
        temperature=given("temperature"),
        top_k=given("top_k"),
        top_p=given("top_p"),
        min_p=given("min_p"),
        typical_p=given("typical_p"),
        repetition_penalty=given("repetition_penalty"),
        presence_penalty=given("presence_penalty"),
        frequency_penalty=given("frequency_penalty"),
        min_tokens=given("min_tokens"),
        logit_bias=tuple(TokenBias(token=token, bias=bias) for token, bias in sorted(sampling.logit_bias.items())),
        allowed_token_ids=tuple(sampling.allowed_token_ids),
        bad_words=(*sampling.bad_words, *(tuple(word.token_ids) for word in sampling.bad_word_tokens)),
        grammar=_grammar(sampling.guide),
        logprobs=given("logprobs"),
        prompt_logprobs=given("prompt_logprobs"),
        seed=given("seed"),
        stop=tuple(sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        cache_salt=request.cache_salt or None,
        priority=request.priority,
        stream_interval=_given(request, "stream_interval"),
        timeout_s=timeout_s,
    )


def tokenize_from_wire(request: pb.TokenizeRequest, request_id: str) -> Ask:
    """Return what Generate would be asked with the same prompt."""
    form = request.WhichOneof("prompt")
    return Ask(
        request_id=request_id,
        model=request.model,
        text=request.text if form == "text" else None,
        **_chat(request.chat if form == "chat" else None),
        add_special_tokens=_given(request, "add_special_tokens"),
    )


def response_to_wire(request_id: str, event: Chunk | Finished) -> pb.GenerateResponse:
    """Return the message that carries an event."""
    if isinstance(event, Chunk):
        chunk = pb.Chunk(
            index=event.index,
            text=event.text,
            token_ids=event.token_ids,
            logprobs=_scored(event.logprobs),
            ending=_ending(event.ending) if event.ending is not None else None,
            tool_calls=[
                pb.ToolCallPart(index=part.index, id=part.id, name=part.name, arguments=part.arguments)
                for part in event.calls
            ],
            reasoning=event.reasoning,
        )
        return pb.GenerateResponse(request_id=request_id, chunk=chunk)
    return pb.GenerateResponse(request_id=request_id, complete=_complete(event))


def pod_load_to_wire(standing: Standing) -> pb.PodLoad:
    """Return what is known of a pod's load, and of what attempts on it have shown."""
    pod = standing.pod
    return pb.PodLoad(
        pod_id=pod.pod_id,
        model=pod.registration.fingerprint.model_name,
        incarnation=pod.incarnation,
        address=pod.registration.address,
        role=pod.registration.role.value,
        usable=not standing.unusable_because,
        reason=standing.unusable_because,
        in_flight=pod.in_flight,
        pending_tokens=pod.pending_tokens,
        load=_load(pod.load) if pod.link is not None else None,
        circuit=standing.circuit.value,
        ejected=standing.ejected,
    )


def cache_news_to_wire(news: CacheNews) -> pb.KvEvent:
    """Return the message that carries what a pod's cache holds, gained or lost."""
    event = pb.KvEvent(pod_id=news.pod_id, incarnation=news.incarnation, sequence=news.sequence)
    match news.body:
        case Gap(reason=reason):
            event.gap.reason = reason
        case CacheEvents(is_snapshot=True) as events:
            event.snapshot.CopyFrom(pb.KvSnapshot(part=events.part, num_parts=events.num_parts, blocks=_blocks(events)))
        case CacheEvents() as events:
            event.change.CopyFrom(pb.KvChange(stored=_blocks(events), evicted=events.evicted))
    return event


def _check_counts(sampling: pb.Sampling) -> None:
    """Refuse what would take seconds to read: a value takes two bytes of a message, and may take hundreds here."""
    long_fields.check_count("stop", len(sampling.stop), MAX_STOP_STRINGS, of="strings")
    long_fields.check_count("stop_token_ids", len(sampling.stop_token_ids), MAX_STOP_TOKEN_IDS)
    long_fields.check_count("allowed_token_ids", len(sampling.allowed_token_ids), MAX_ALLOWED_TOKEN_IDS)
    long_fields.check_count("logit_bias", len(sampling.logit_bias), MAX_LOGIT_BIAS)
    num_bad = len(sampling.bad_words) + len(sampling.bad_word_tokens)
    long_fields.check_count("bad_words", num_bad, MAX_BAD_WORDS)


def _given(message: Message, name: str) -> Any:
    """Return a field that has presence, None where it is unset."""
    return getattr(message, name) if message.HasField(name) else None


def _reasoning(request: pb.GenerateRequest) -> Reasoning:
    names = ("separate_reasoning", "include_reasoning")
    separate, include = (_given(request, name) for name in names)
    if request.WhichOneof("prompt") in ("text", "tokens"):  # as over HTTP: there is nothing to find reasoning by
        for name, value in zip(names, (separate, include), strict=True):
            if value is False:
                raise UnsupportedField(f"{name} is a chat's: leave it out", field=name)
    return Reasoning.of(separate, include)


def _chat(chat: pb.ChatPrompt | None) -> dict[str, Any]:
    """Return the fields of an ask that a chat is."""
    if chat is None:
        return {}
    long_fields.check_count("messages", len(chat.messages), long_fields.MAX_MESSAGES)
    num_calls = sum(len(message.tool_calls) for message in chat.messages)
    long_fields.check_count("messages", num_calls, long_fields.MAX_MESSAGES, of="tool_calls")
    long_fields.check_count("tools", len(chat.tools), MAX_TOOLS)
    long_fields.check_count("documents", len(chat.documents), long_fields.MAX_DOCUMENTS)
    documents = tuple(
        read_object(f"documents.{i}", document, field="documents") for i, document in enumerate(chat.documents)
    )
    options = chat.chat_template_kwargs if chat.HasField("chat_template_kwargs") else "{}"
    return {
        "messages": _messages(chat),
        "tools": _tools(chat),
        "chat": long_fields.chat_options(
            add_generation_prompt=_given(chat, "add_generation_prompt"),
            continue_final_message=chat.continue_final_message,
            documents=documents,
            options=read_object("chat_template_kwargs", options, field="chat_template_kwargs"),
        ),
    }


def _messages(chat: pb.ChatPrompt) -> tuple[Mapping[str, Any], ...]:
    return long_fields.messages([_message(message) for message in chat.messages])


def _message(message: pb.ChatMessage) -> dict[str, Any]:
    """Return a message as a body holds it, so that it is read by the same rules."""
    calls = [
        {"id": call.id or None, "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    return {
        "role": message.role,
        "content": message.content,
        "name": message.name or None,
        "tool_call_id": message.tool_call_id or None,
        "tool_calls": calls,
        "reasoning_content": message.reasoning or None,
    }


def _tools(chat: pb.ChatPrompt) -> Tools | None:
    choice = chat.tool_choice.WhichOneof("choice")
    asked: dict[str, Any] = {"tools": [_tool(f"tools.{i}", tool) for i, tool in enumerate(chat.tools)]}
    if choice is not None:
        named = {"type": "function", "function": {"name": chat.tool_choice.function}}
        asked["tool_choice"] = chat.tool_choice.mode if choice == "mode" else named
    if chat.HasField("parallel_tool_calls"):
        asked["parallel_tool_calls"] = chat.parallel_tool_calls
    return tool_fields.tools(asked)


def _tool(where: str, tool: pb.Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.HasField("description"):
        function["description"] = tool.description
    if tool.HasField("parameters"):
        function["parameters"] = read_object(f"{where}.parameters", tool.parameters, field="tools")
    if tool.HasField("strict"):
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _grammar(guide: pb.Guide) -> Grammar | None:
    asked = guide.WhichOneof("guide")
    match asked:
        case "json_schema":
            kind, text = GrammarKind.JSON_SCHEMA, guide.json_schema
        case "regex":
            kind, text = GrammarKind.REGEX, guide.regex
        case "lark":
            kind, text = GrammarKind.LARK, guide.lark
        case "json_object" if guide.json_object:
            kind, text = GrammarKind.JSON_SCHEMA, ANY_OBJECT
        case _:
            return None
    return Grammar(kind=kind, text=text, field=asked)  # by the name that callers give it, as every other field


def _scored(tokens: tuple[ScoredToken, ...]) -> list[pb.TokenLogprob]:
    return [
        pb.TokenLogprob(
            token_id=token.token_id, data=token.data, logprob=token.logprob, rank=token.rank, top=_scored(token.top)
        )
        for token in tokens
    ]


def _ending(ending: Ending) -> pb.Ending:
    return pb.Ending(
        finish_reason=ending.word.value,
        stop_text=ending.stop_text,
        stop_token_id=ending.stop_token_id,
        cumulative_logprob=ending.cumulative_logprob,
        score=ending.score,
    )


def _complete(event: Finished) -> pb.Complete:
    complete = pb.Complete(
        endings=[_ending(ending) for ending in event.endings],
        usage=pb.Usage(
            prompt_tokens=event.usage.prompt_tokens,
            completion_tokens=event.usage.completion_tokens,
            cached_tokens=event.usage.cached_tokens,
            reasoning_tokens=event.usage.reasoning_tokens,
        ),
        timelines=[
            pb.Timeline(
                process=timeline.process,
                stamps=[pb.Stamp(phase=stamp.phase.value, at_s=stamp.at_s) for stamp in timeline.stamps],
            )
            for timeline in event.timelines
        ],
        prompt_token_ids=event.prompt,
        prompt_logprobs=_scored(event.prompt_logprobs),
    )
    if event.report is not None:
        complete.transfer.CopyFrom(pb.Transfer(**{name: getattr(event.report, name) for name in _SAME_IN_TRANSFER}))
    if event.explanation is not None:
        complete.explanation.CopyFrom(_explanation(event.explanation))
    return complete


def _explanation(explanation: Explanation) -> pb.Explanation:
    targets = explanation.targets
    return pb.Explanation(
        policy=explanation.policy,
        slo_ttft_s=targets.ttft_s,
        slo_gap_s=targets.gap_s,
        slo_tpot_s=targets.tpot_s,
        options=[
            pb.PlacementOption(
                way=option.way.value,
                decode_pod=option.decode,
                decode_role=option.decode_role,
                prefill_pod=option.prefill,
                cached_tokens=option.cached_tokens,
                decode_cached_tokens=option.decode_cached_tokens,
                ttft_s=option.prediction.ttft_s,
                reason=option.reason,
                **dataclasses.asdict(option.prediction),
            )
            for option in explanation.options
        ],
    )


def _load(load: Load) -> pb.Load:
    return pb.Load(**{name: getattr(load, name) for name in _SAME_IN_LOAD})


def _blocks(events: CacheEvents) -> Iterator[pb.KvBlock]:
    for block_hash, depth, tier in zip(events.hashes, events.depths, events.tiers, strict=True):
        yield pb.KvBlock(hash=block_hash, depth=depth, tier=tier)
