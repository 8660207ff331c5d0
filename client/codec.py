"""The SDK's values to and from `protos/inference.proto`, and gRPC statuses to errors. Protobuf stops here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from pagewire.client.options import Options, Prompt
from pagewire.client.results import Chunk, Message, ModelInfo, Output, Result, TokenLogprob, TransferReport, Usage
from pagewire.core.errors import STATUS_OF, EngineFailed, InvalidRequest, PagewireError, TransferFailed, from_cause
from pagewire.core.sampling import FinishReason
from pagewire.core.timeline import Phase, Stamp, Timeline
from pagewire.protos import inference_pb2

_DETAILS_KEY = "grpc-status-details-bin"


def request_to_wire(prompt: Prompt, options: Options) -> inference_pb2.GenerateRequest:
    """Return the wire form of a request. An option that is left out stays unset, so that the server's default holds.

    Raises InvalidRequest on a prompt of no known form or an option outside its type, TypeError on one that is unknown;
    bounds are the server's to check.
    """
    unknown = set(options) - Options.__optional_keys__
    if unknown:
        raise TypeError(f"unknown options {sorted(unknown)}; known are {sorted(Options.__optional_keys__)}")
    stop, bad_words = options.get("stop", ()), options.get("bad_words", ())
    early_stopping = options.get("early_stopping")
    request = inference_pb2.GenerateRequest()
    _fill_prompt(request, prompt)
    try:
        request.model = options.get("model", "")
        request.cache_salt = options.get("cache_salt", "")
        request.priority = options.get("priority", 0)
        request.request_id = options.get("request_id", "")
        sampling = inference_pb2.Sampling(
            n=options.get("n"),
            use_beam_search=options.get("use_beam_search", False),
            beam_width=options.get("beam_width"),
            length_penalty=options.get("length_penalty"),
            early_stopping=None if early_stopping is None else str(early_stopping).lower(),
            max_tokens=options.get("max_tokens"),
            temperature=options.get("temperature"),
            top_k=options.get("top_k"),
            top_p=options.get("top_p"),
            min_p=options.get("min_p"),
            typical_p=options.get("typical_p"),
            repetition_penalty=options.get("repetition_penalty"),
            presence_penalty=options.get("presence_penalty"),
            frequency_penalty=options.get("frequency_penalty"),
            min_tokens=options.get("min_tokens"),
            logit_bias=dict(options.get("logit_bias", {})),
            allowed_token_ids=list(options.get("allowed_token_ids", ())),
            bad_words=[word for word in bad_words if isinstance(word, str)],
            bad_word_tokens=[
                inference_pb2.TokenPrompt(token_ids=list(word)) for word in bad_words if not isinstance(word, str)
            ],
            guide=_guide(options),
            logprobs=options.get("logprobs"),
            prompt_logprobs=options.get("prompt_logprobs"),
            seed=options.get("seed"),
            stop=[stop] if isinstance(stop, str) else list(stop),
            stop_token_ids=list(options.get("stop_token_ids", ())),
            ignore_eos=options.get("ignore_eos", False),
        )
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"an option does not fit its type: {error}", field="sampling") from error
    request.sampling.CopyFrom(sampling)
    return request


def chunk_from_wire(chunk: inference_pb2.Chunk) -> Chunk:
    """Return what one step added; raises EngineFailed on a finish reason that is unknown."""
    return Chunk(
        text=chunk.text,
        token_ids=tuple(chunk.token_ids),
        index=chunk.index,
        logprobs=tuple(_logprob(each) for each in chunk.logprobs),
        finish_reason=_finish_reason(chunk.ending) if chunk.HasField("ending") else None,
        stop=_matched_stop(chunk.ending),
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
        ),
        timelines=tuple(_timeline(timeline) for timeline in complete.timelines),
        transfer=_transfer(complete.transfer) if complete.HasField("transfer") else None,
        prompt_token_ids=tuple(complete.prompt_token_ids),
        prompt_logprobs=tuple(_logprob(each) for each in complete.prompt_logprobs),
    )


def model_info_from_wire(info: inference_pb2.GetModelInfoResponse) -> ModelInfo:
    """Return the served model and its limits."""
    return ModelInfo(
        model=info.model,
        max_model_len=info.max_model_len,
        block_size=info.block_size,
        vocab_size=info.vocab_size,
    )


def error_from_wire(
    code: str, message: str, trailing_metadata: Iterable[tuple[str, str | bytes]], request_id: str
) -> PagewireError:
    """Return the error that a gRPC status stands for. `code` is its name, such as "UNAVAILABLE"."""
    cause, field, retry_after_s = "", "", 0.0
    for key, value in trailing_metadata:
        if key != _DETAILS_KEY or not isinstance(value, bytes):
            continue
        for detail in _details(value):
            if isinstance(detail, error_details_pb2.ErrorInfo):
                cause = detail.reason
                request_id = detail.metadata.get("request_id") or request_id
            elif isinstance(detail, error_details_pb2.BadRequest) and detail.field_violations:
                field = detail.field_violations[0].field
            elif isinstance(detail, error_details_pb2.RetryInfo):
                retry_after_s = detail.retry_delay.ToTimedelta().total_seconds()
    error = from_cause(cause or _cause_of(code), message, field=field, retry_after_s=retry_after_s)
    error.request_id = request_id
    return error


def _fill_prompt(request: inference_pb2.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        request.text = prompt
        return
    parts = list(prompt)
    if not parts:
        raise InvalidRequest("the prompt is empty", field="prompt")
    tokens = [part for part in parts if isinstance(part, int) and not isinstance(part, bool)]
    if len(tokens) < len(parts):
        request.chat.messages.extend(_message(part) for part in parts)
    elif all(0 <= token < 2**32 for token in tokens):
        request.tokens.token_ids.extend(tokens)
    else:
        raise InvalidRequest("a token id is between 0 and 2**32 - 1", field="prompt")


def _guide(options: Options) -> inference_pb2.Guide | None:
    asked = [name for name in ("json_schema", "json_object", "regex", "lark") if options.get(name)]
    if not asked:
        return None
    if len(asked) > 1:
        raise InvalidRequest(f"{asked[0]} and {asked[1]} both say what the answer is", field=asked[1])
    schema = options.get("json_schema")
    if schema:
        return inference_pb2.Guide(json_schema=schema if isinstance(schema, str) else json.dumps(dict(schema)))
    if options.get("json_object"):
        return inference_pb2.Guide(json_object=True)
    return inference_pb2.Guide(regex=options.get("regex"), lark=options.get("lark"))


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
    )


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


def _message(part: object) -> inference_pb2.ChatMessage:
    if isinstance(part, Message):
        return inference_pb2.ChatMessage(role=part.role, content=part.content)
    if isinstance(part, Mapping) and set(part) == {"role", "content"}:
        return inference_pb2.ChatMessage(role=part["role"], content=part["content"])
    raise InvalidRequest(
        f"a prompt is a text, a list of token ids, or a list of messages with role and content, not {part!r}",
        field="prompt",
    )


def _timeline(timeline: inference_pb2.Timeline) -> Timeline:
    # A phase of a newer server is left out rather than refused: stamps are for reading, not for deciding.
    known = {phase.value for phase in Phase}
    stamps = tuple(Stamp(Phase(stamp.phase), stamp.at_s) for stamp in timeline.stamps if stamp.phase in known)
    return Timeline(process=timeline.process, stamps=stamps)


def _transfer(transfer: inference_pb2.Transfer) -> TransferReport:
    return TransferReport(
        placement=transfer.placement,
        prefill_pod=transfer.prefill_pod,
        decode_pod=transfer.decode_pod,
        prefill_cached_tokens=transfer.prefill_cached_tokens,
        prefill_computed_tokens=transfer.prefill_computed_tokens,
        decode_cached_tokens=transfer.decode_cached_tokens,
        decode_computed_tokens=transfer.decode_computed_tokens,
        chunks=transfer.chunks,
        manifest_blocks=transfer.manifest_blocks,
        blocks_shipped=transfer.blocks_shipped,
        bytes_shipped=transfer.bytes_shipped,
        transfer_s=transfer.transfer_s,
        exposed_s=transfer.exposed_s,
        transport=transfer.transport,
        causes=tuple(transfer.causes),
        prefill_fetched_tokens=transfer.prefill_fetched_tokens,
        decode_fetched_tokens=transfer.decode_fetched_tokens,
        predicted_local_s=transfer.predicted_local_s,
        predicted_remote_s=transfer.predicted_remote_s,
        notes=tuple(transfer.notes),
    )


def _details(data: bytes) -> list[object]:
    found: list[object] = []
    try:
        status = status_pb2.Status.FromString(data)
        for packed in status.details:
            for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
                if packed.Is(kind.DESCRIPTOR):
                    detail = kind()
                    packed.Unpack(detail)
                    found.append(detail)
    except DecodeError:
        # Details are an extra; the status code and its text still say what happened.
        return []
    return found


def _cause_of(code: str) -> str:
    """Return the cause of a status without details, such as gRPC's own: the first row of the table that has it."""
    rows = ((error, status) for error, status in STATUS_OF.items() if not issubclass(error, TransferFailed))
    return next((error.cause for error, status in rows if status.grpc == code), code.lower())
