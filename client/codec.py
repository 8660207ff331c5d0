"""The SDK's values to and from `protos/inference.proto`. Protobuf stops here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any, cast

from pagewire.client.cluster import Block, KvEvent, KvEventKind, Load, PodLoad
from pagewire.client.explanation import Explanation, PlacementOption
from pagewire.client.options import Options, Prompt, Rendering, Tools
from pagewire.client.prompts import fill_prompt
from pagewire.client.results import (
    Chunk,
    ModelInfo,
    Output,
    Result,
    TokenLogprob,
    ToolCall,
    ToolCallPart,
    TransferReport,
    Usage,
)
from pagewire.core.errors import EngineFailed, InvalidRequest
from pagewire.core.sampling import FinishReason
from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.protos import inference_pb2

_SAME_IN_TRANSFER = tuple(field.name for field in dataclasses.fields(TransferReport))
_SAME_IN_OPTION = tuple(field.name for field in dataclasses.fields(PlacementOption))
# Options that a message has a field for by the same name.
_OF_SAMPLING = inference_pb2.Sampling.DESCRIPTOR.fields_by_name
_OF_REQUEST = inference_pb2.GenerateRequest.DESCRIPTOR.fields_by_name
_GUIDES = ("json_schema", "json_object", "regex", "lark")


def request_to_wire(prompt: Prompt, options: Options) -> inference_pb2.GenerateRequest:
    """Return the wire form of a request. An option that is left out stays unset, so that the server's default holds.

    Raises InvalidRequest on a prompt of no known form or an option outside its type, TypeError on one that is unknown;
    bounds are the server's to check.
    """
    unknown = set(options) - Options.__optional_keys__
    if unknown:
        raise TypeError(f"unknown options {sorted(unknown)}; known are {sorted(Options.__optional_keys__)}")
    guides = [name for name in _GUIDES if options.get(name) not in (None, "", False)]
    if len(guides) > 1:
        raise InvalidRequest(f"{guides[0]} and {guides[1]} both say what the answer is", field=guides[1])
    request = inference_pb2.GenerateRequest()
    fill_prompt(request, prompt, options)
    for name, value in options.items():
        if value is None:
            continue
        try:
            _set(request, name, value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{name} does not fit its type: {error}", field=name) from error
    return request


def _set(request: inference_pb2.GenerateRequest, name: str, value: Any) -> None:
    """Write an option that is no prompt's; raises TypeError, ValueError or RecursionError where it does not fit."""
    sampling = request.sampling
    match name:
        case "stop":
            sampling.stop.extend([value] if isinstance(value, str) else value)
        case "bad_words" if isinstance(value, str):
            raise TypeError("a list of words is wanted, and its letters are none")
        case "bad_words":
            sampling.bad_words.extend(word for word in value if isinstance(word, str))
            sampling.bad_word_tokens.extend(
                inference_pb2.TokenPrompt(token_ids=word) for word in value if not isinstance(word, str)
            )
        case "allowed_token_ids" | "stop_token_ids":
            getattr(sampling, name).extend(value)
            if not sampling.allowed_token_ids and name == "allowed_token_ids":  # which the contract has no word for
                raise InvalidRequest("allowed_token_ids is empty, which allows no token", field=name)
        case "logit_bias":
            sampling.logit_bias.update(value)
        case "early_stopping":
            sampling.early_stopping = str(value).lower()
        case "json_schema" if not isinstance(value, str):  # {} as well, which is any JSON
            sampling.guide.json_schema = json.dumps(dict(value))
        case "json_schema" | "json_object" | "regex" | "lark":
            if value:
                setattr(sampling.guide, name, value)
        case _ if name in _OF_SAMPLING:
            setattr(sampling, name, value)
        case _ if name in _OF_REQUEST:
            setattr(request, name, value)


def chunk_from_wire(chunk: inference_pb2.Chunk) -> Chunk:
    """Return what one step added; raises EngineFailed on a finish reason that is unknown."""
    return Chunk(
        text=chunk.text,
        token_ids=tuple(chunk.token_ids),
        index=chunk.index,
        logprobs=tuple(_logprob(each) for each in chunk.logprobs),
        finish_reason=_finish_reason(chunk.ending) if chunk.HasField("ending") else None,
        stop=_matched_stop(chunk.ending),
        tool_calls=tuple(
            ToolCallPart(index=part.index, id=part.id, name=part.name, arguments=part.arguments)
            for part in chunk.tool_calls
        ),
        reasoning=chunk.reasoning,
    )


def result_from_wire(request_id: str, chunks: Iterable[Chunk], complete: inference_pb2.Complete) -> Result:
    """Return the finished answer from what was streamed and its last message.

    Raises EngineFailed on a finish reason that is unknown, or where there is none.
    """
    if not complete.endings:
        raise EngineFailed("the server ended the answer without a finish reason")
    parts: list[list[Chunk]] = [[] for _ in complete.endings]
    for chunk in chunks:
        if chunk.index >= len(parts):
            raise EngineFailed(f"the server sent a chunk of answer {chunk.index} and ended {len(parts)}")
        parts[chunk.index].append(chunk)
    return Result(
        request_id=request_id,
        outputs=tuple(_output(own, ending) for own, ending in zip(parts, complete.endings, strict=True)),
        usage=Usage(
            prompt_tokens=complete.usage.prompt_tokens,
            completion_tokens=complete.usage.completion_tokens,
            cached_tokens=complete.usage.cached_tokens,
            reasoning_tokens=complete.usage.reasoning_tokens if complete.usage.HasField("reasoning_tokens") else None,
        ),
        timelines=tuple(_timeline(timeline) for timeline in complete.timelines),
        transfer=_transfer(complete.transfer) if complete.HasField("transfer") else None,
        prompt_token_ids=tuple(complete.prompt_token_ids),
        prompt_logprobs=tuple(_logprob(each) for each in complete.prompt_logprobs),
        explanation=_explanation(complete.explanation) if complete.HasField("explanation") else None,
    )


def model_info_from_wire(info: inference_pb2.GetModelInfoResponse) -> ModelInfo:
    """Return the served model, its limits and its adapters."""
    return ModelInfo(
        model=info.model,
        max_model_len=info.max_model_len,
        block_size=info.block_size,
        vocab_size=info.vocab_size,
        adapters=tuple(info.adapters),
    )


def tokenize_to_wire(
    prompt: Prompt, model: str, tools: Tools = (), rendering: Rendering | None = None
) -> inference_pb2.TokenizeRequest:
    """Return the wire form of a text or chat to tokenize. Raises as `request_to_wire` does, and on a list of tokens."""
    if unknown := set(rendering or ()) - Rendering.__optional_keys__:
        raise TypeError(f"unknown options {sorted(unknown)}; known are {sorted(Rendering.__optional_keys__)}")
    filled = request_to_wire(prompt, cast(Options, {**(rendering or {}), "tools": tools}))
    add = filled.add_special_tokens if filled.HasField("add_special_tokens") else None
    match filled.WhichOneof("prompt"):
        case "text":
            return inference_pb2.TokenizeRequest(model=model, text=filled.text, add_special_tokens=add)
        case "chat":
            return inference_pb2.TokenizeRequest(model=model, chat=filled.chat, add_special_tokens=add)
    raise InvalidRequest("only a text or a chat can be tokenized", field="prompt")


def loads_from_wire(answer: inference_pb2.GetLoadsResponse) -> tuple[PodLoad, ...]:
    """Return the pods' loads."""
    return tuple(_pod_load(pod) for pod in answer.pods)


def kv_event_from_wire(event: inference_pb2.KvEvent) -> KvEvent:
    """Return what a pod's cache holds, gained or lost; raises EngineFailed on an event of no known kind."""
    kind = event.WhichOneof("body")
    if kind is None:
        raise EngineFailed("the server sent an event that is neither snapshot, change nor gap")
    return KvEvent(
        kind=KvEventKind(kind),
        pod_id=event.pod_id,
        incarnation=event.incarnation,
        sequence=event.sequence,
        stored=_blocks(event.snapshot.blocks or event.change.stored),
        evicted=tuple(event.change.evicted),
        part=event.snapshot.part,
        num_parts=event.snapshot.num_parts,
        reason=event.gap.reason,
    )


def _pod_load(pod: inference_pb2.PodLoad) -> PodLoad:
    load = {field.name: getattr(pod.load, field.name) for field in dataclasses.fields(Load)}
    return PodLoad(
        pod_id=pod.pod_id,
        incarnation=pod.incarnation,
        address=pod.address,
        role=pod.role,
        usable=pod.usable,
        reason=pod.reason,
        in_flight=pod.in_flight,
        pending_tokens=pod.pending_tokens,
        load=Load(**load) if pod.HasField("load") else None,
        model=pod.model,
        circuit=pod.circuit,
        ejected=pod.ejected,
    )


def _blocks(blocks: Iterable[inference_pb2.KvBlock]) -> tuple[Block, ...]:
    return tuple(Block(hash=block.hash, depth=block.depth, tier=block.tier) for block in blocks)


def _logprob(each: inference_pb2.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(
        token_id=each.token_id,
        data=each.data,
        logprob=each.logprob if each.HasField("logprob") else None,
        rank=each.rank,
        top=tuple(_logprob(other) for other in each.top),
    )


def _output(chunks: list[Chunk], ending: inference_pb2.Ending) -> Output:
    return Output(
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        finish_reason=_finish_reason(ending),
        stop=_matched_stop(ending),
        logprobs=tuple(token for chunk in chunks for token in chunk.logprobs),
        cumulative_logprob=ending.cumulative_logprob if ending.HasField("cumulative_logprob") else None,
        score=ending.score if ending.HasField("score") else None,
        tool_calls=_calls(part for chunk in chunks for part in chunk.tool_calls),
        reasoning="".join(chunk.reasoning for chunk in chunks),
    )


def _calls(parts: Iterable[ToolCallPart]) -> tuple[ToolCall, ...]:
    calls: dict[int, ToolCall] = {}
    for part in parts:
        before = calls.get(part.index, ToolCall(id=part.id, name=part.name, arguments=""))
        calls[part.index] = dataclasses.replace(before, arguments=before.arguments + part.arguments)
    return tuple(calls.values())


def _finish_reason(ending: inference_pb2.Ending) -> FinishReason:
    try:
        return FinishReason(ending.finish_reason)
    except ValueError:
        raise EngineFailed(f"the server gave {ending.finish_reason!r} as finish reason") from None


def _matched_stop(ending: inference_pb2.Ending) -> str | int | None:
    matched = ending.WhichOneof("matched_stop")
    if matched == "stop_text":
        return ending.stop_text
    return ending.stop_token_id if matched == "stop_token_id" else None


def _timeline(timeline: inference_pb2.Timeline) -> Timeline:
    # A phase of a newer server is left out rather than refused: stamps are for reading, not for deciding.
    known = {phase.value for phase in Phase}
    stamps = tuple(Stamp(Phase(stamp.phase), stamp.at_s) for stamp in timeline.stamps if stamp.phase in known)
    return Timeline(process=timeline.process, stamps=stamps)


def _explanation(explanation: inference_pb2.Explanation) -> Explanation:
    return Explanation(
        policy=explanation.policy,
        slo_ttft_s=explanation.slo_ttft_s,
        slo_gap_s=explanation.slo_gap_s,
        slo_tpot_s=explanation.slo_tpot_s,
        options=tuple(
            PlacementOption(**{name: getattr(option, name) for name in _SAME_IN_OPTION})
            for option in explanation.options
        ),
    )


def _transfer(transfer: inference_pb2.Transfer) -> TransferReport:
    same = {name: getattr(transfer, name) for name in _SAME_IN_TRANSFER}
    return TransferReport(**same | {"causes": tuple(transfer.causes), "notes": tuple(transfer.notes)})
